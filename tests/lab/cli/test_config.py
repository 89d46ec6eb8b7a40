"""Files of options: what they may hold, and what the command line adds."""

import json
from pathlib import Path

import pytest
import yaml

from leanbayes.lab.cli import main
from tests.lab.cli.shell import complaint


def test_a_file_of_options_and_what_is_typed_over_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {"methods": ["deterministic", {"partial": {"rate": 0.02}}], "epochs": 2, "samples": 3, "batch-size": 64}
    (tmp_path / "c.yaml").write_text(yaml.safe_dump(config))
    code = main(
        ["compare", "--config", str(tmp_path / "c.yaml"), "--epochs", "3", "--out", str(tmp_path / "o"), "--json"]
    )
    result = json.loads(capsys.readouterr().out)
    assert code == 0
    assert result["budget"]["epochs"] == 3
    assert result["samples"] == 3
    assert result["methods"][1]["name"] == "partial:rate=0.02"
    assert result["methods"][1]["recipe"]["rate"] == 0.02


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[1, 2]", "names and values"),
        ("epochs: [", "not YAML"),
        ("epoch: 3", "unknown option"),
        ("methods: [{a: 1, b: 2}]", "one name"),
    ],
)
def test_bad_files_of_options(text: str, expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.yaml").write_text(text)
    assert expected in complaint(capsys, "compare", "--config", str(tmp_path / "c.yaml"))
