"""``leanbayes reproduce`` from its options to its records, and its exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest

from leanbayes.lab.cli import main
from leanbayes_papers import STUDIES, command
from tests.lab.cli.shell import complaint
from tests.papers import stub

SMOKE = ["--size", "smoke", "--workers", "1", "--data-dir", "data", "--quiet"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    return tmp_path


@pytest.fixture
def two(here: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two studies, of which the first needs data that nobody has."""
    needy = stub.size(needs=("cityscapes",))
    first = stub.study(name="a-needy", sizes=dict.fromkeys(("smoke", "cpu", "paper"), needy))
    known = {"a-needy": first, "stub": stub.study()}
    monkeypatch.setattr(command, "STUDIES", known)
    monkeypatch.setattr(command, "study_named", known.__getitem__)
    return here


def test_the_list_names_all_with_times_and_data(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--list"]) == 0
    message = capsys.readouterr().out
    for name, study in STUDIES.items():
        assert f"{name}: {study.title}" in message
        assert f"cpu {study.sizes['cpu'].minutes:g} min" in message
    assert "uci-concrete" in message


def test_one_by_name_prints_its_table_and_keeps_its_record(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["reproduce", "subnetworks-toy", *SMOKE, "--seeds", "0", "1"]
    assert main(arguments) == 0
    message = capsys.readouterr().out
    assert "partial 40 %" in message
    assert "say nothing about the claims" in message
    record = json.loads((here / "docs" / "results" / "experiments" / "subnetworks-toy-smoke.json").read_text())
    assert record["seeds"] == [0, 1]
    assert record["command"] == "leanbayes reproduce subnetworks-toy --size smoke --seeds 0 1"
    assert main([*arguments, "--json", "--out", "other"]) == 0
    (again,) = json.loads(capsys.readouterr().out)["experiments"]
    assert again["tables"] == record["tables"]
    assert again["minutes_taken"] < record["minutes_taken"]
    assert (here / "other" / "experiments" / "subnetworks-toy-smoke-curves-cubic.svg").is_file()


def test_all_goes_on_past_a_failure_says_so_and_exits_1(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (two / "data" / "b-1").write_text("fail")
    assert main(["reproduce", "all", *SMOKE, "--page"]) == 1
    message = capsys.readouterr().out
    assert "a-needy failed: there is no " in message
    assert "stub failed: 1 of 6 jobs: RuntimeError: no luck at all" in message
    assert f"holds: {stub.BETTER.paper}, figure 1: a is better than b" in message
    assert (two / "docs" / "results" / "claims.md").is_file()
    (two / "data" / "b-1").unlink()
    assert main(["reproduce", "stub", *SMOKE]) == 0


def test_missing_data_is_one_line_with_its_source(two: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = complaint(capsys, "reproduce", "a-needy", *SMOKE)
    assert "there is no " in message
    assert "--data-dir" in message


def test_the_page_alone(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--page", "--out", "results"]) == 0
    assert "page: results/claims.md" in capsys.readouterr().out
    assert "not run" in (here / "results" / "claims.md").read_text()


BAD: dict[str, tuple[list[str], str]] = {
    "no name": ([], "--list"),
    "an unknown name": (["magic"], "unknown study 'magic'"),
    "an unknown size": (["subnetworks-toy", "--size", "huge"], "unknown size 'huge'"),
    "no workers": (["subnetworks-toy", "--workers", "0"], "workers must be at least 1"),
    "a seed twice": (["subnetworks-toy", "--seeds", "1", "1"], "different"),
    "no number": (["subnetworks-toy", "--seeds", "one"], "--seeds must be a whole number"),
    "an unknown option": (["subnetworks-toy", "--colour", "red"], "--colour"),
    "a folder that is a file": (["subnetworks-toy", "--out", "file"], "file"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_two(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "file").write_text("")
    arguments: list[Any] = BAD[name][0]
    assert BAD[name][1] in complaint(capsys, "reproduce", *arguments)
