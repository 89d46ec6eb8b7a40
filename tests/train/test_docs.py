"""Every example on the page about training runs, one after the other."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "training.md"


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_accelerate: None) -> None:
    for package in ("accelerate", "tensorboard"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(blocks) >= 8
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert getattr(names["history"], "stopped", None) == "the likelihood is high enough"
    assert any((tmp_path / "logs" / "first").iterdir())
