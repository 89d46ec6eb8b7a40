"""The page of claims: every claim once, from the largest size that was run, never from a smoke test."""

import json
import shutil
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import pytest

from leanbayes.errors import ForeignFile
from leanbayes_papers import STUDIES, Job, Results, reproduce, write_claims
from leanbayes_papers.cite import OURS, SUBNETWORKS, TITLES
from leanbayes_papers.page import is_current
from leanbayes_papers.untested import UNTESTED
from tests.papers import stub
from tests.papers.made_up import DRAWN


def rows(path: Path, words: str) -> list[str]:
    return [line for line in path.read_text().splitlines() if words in line]


def run_stub(top: Path, size: str) -> None:
    reproduce(stub.study(), size, folder=top, out=top / "experiments", cache=top / "cache")


def test_without_records_every_claim_is_not_run(tmp_path: Path) -> None:
    page = write_claims(STUDIES.values(), tmp_path / "new")
    assert page == tmp_path / "new" / "claims.md"
    text = page.read_text()
    for study in STUDIES.values():
        assert f"`leanbayes reproduce {study.name} --size cpu`" in text
        for claim in study.claims:
            words = f"{claim.where}: {claim.text}".replace("|", "\\|")
            (line,) = [line for line in text.splitlines() if f"| {words} |" in line]
            assert "| not run |" in line
    assert "ImageNet" in text
    assert "not testable here" in text


def test_the_largest_size_counts_and_a_smoke_test_does_not(tmp_path: Path) -> None:
    run_stub(tmp_path, "smoke")
    (line,) = rows(write_claims([stub.study()], tmp_path), stub.BETTER.text)
    assert "| not run |" in line
    run_stub(tmp_path, "cpu")
    (line,) = rows(write_claims([stub.study()], tmp_path), stub.BETTER.text)
    assert "| holds |" in line
    assert "nll: 1.071 for a, 2.071 for b" in line
    assert "[`stub`](experiments/stub-cpu.json): `leanbayes reproduce stub --size cpu`" in line
    run_stub(tmp_path, "paper")
    (line,) = rows(write_claims([stub.study()], tmp_path), stub.BETTER.text)
    assert "--size paper" in line


def test_a_claim_that_was_added_since_is_not_run(tmp_path: Path) -> None:
    run_stub(tmp_path, "cpu")
    file = tmp_path / "experiments" / "stub-cpu.json"
    record = json.loads(file.read_text())
    record["verdicts"] = record["verdicts"][1:]
    file.write_text(json.dumps(record))
    (line,) = rows(write_claims([stub.study()], tmp_path), stub.BETTER.text)
    assert "| not run |" in line


@pytest.mark.parametrize(("part", "name"), [("budget", "epochs"), ("recipes", "a")])
def test_a_record_whose_settings_have_changed_since_says_so(tmp_path: Path, part: str, name: str) -> None:
    run_stub(tmp_path, "cpu")
    warning = "have changed since this run"
    assert warning not in write_claims([stub.study()], tmp_path).read_text()
    file = tmp_path / "experiments" / "stub-cpu.json"
    record = json.loads(file.read_text())
    assert record["settings"][part][name]
    record["settings"][part][name] = None
    file.write_text(json.dumps(record))
    (line,) = rows(write_claims([stub.study()], tmp_path), stub.BETTER.text)
    assert warning in line


def test_the_command_is_the_one_that_made_the_record(tmp_path: Path) -> None:
    reproduce(stub.study(), "cpu", seeds=[3, 4], folder=tmp_path, out=tmp_path / "experiments", cache=tmp_path)
    (line,) = rows(write_claims([stub.study()], tmp_path), stub.BETTER.text)
    assert "`leanbayes reproduce stub --size cpu --seeds 3 4`" in line


def test_answers_are_counted_by_paper(tmp_path: Path) -> None:
    run_stub(tmp_path, "cpu")
    head = write_claims([stub.study()], tmp_path).read_text().split("## ")[0]
    elsewhere = sum(verdict.claim.paper == SUBNETWORKS for verdict in UNTESTED)
    assert f"| {TITLES[SUBNETWORKS]} | 1 |  | {elsewhere} |  |  |" in head
    assert f"| {TITLES[OURS]} |  |  | 1 |  |  |" in head


def test_a_withdrawn_verdict_is_shown_with_its_reason_and_counts_as_no_answer(tmp_path: Path) -> None:
    run_stub(tmp_path, "cpu")
    file = tmp_path / "experiments" / "stub-cpu.json"
    record = json.loads(file.read_text())
    record["verdicts"][0]["withdrawn"] = "The scales never moved."
    file.write_text(json.dumps(record))
    page = write_claims([stub.study()], tmp_path)
    (line,) = rows(page, stub.BETTER.text)
    assert "| withdrawn | The scales never moved. |" in line
    assert "nll" not in line
    elsewhere = sum(verdict.claim.paper == SUBNETWORKS for verdict in UNTESTED)
    assert f"| {TITLES[SUBNETWORKS]} |  |  | {elsewhere} |  | 1 |" in page.read_text().split("## ")[0]
    run_stub(tmp_path, "cpu")  # a new run replaces the record
    (line,) = rows(write_claims([stub.study()], tmp_path), stub.BETTER.text)
    assert "| holds |" in line


def test_an_option_that_is_new_since_a_run_does_not_make_its_record_old(tmp_path: Path) -> None:
    run_stub(tmp_path, "cpu")
    file = tmp_path / "experiments" / "stub-cpu.json"
    record = json.loads(file.read_text())
    del record["settings"]["recipes"]["b"]["kl_per"]
    assert is_current(record, stub.study())
    record["settings"]["recipes"]["b"]["gone"] = 1
    assert not is_current(record, stub.study())


@pytest.mark.parametrize("text", ["{", "[]", '{"kind": "comparison"}', '{"kind": "experiment"}'])
def test_a_file_that_is_no_record_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "stub-cpu.json").write_text(text)
    with pytest.raises(ForeignFile, match="stub-cpu"):
        write_claims([stub.study()], tmp_path)


@pytest.mark.parametrize(
    "damage", [{"size": "paper"}, {"command": None}, {"verdicts": [1]}, {"verdicts": [{"claim": {"paper": []}}]}]
)
def test_a_damaged_record_is_named(tmp_path: Path, damage: dict[str, Any]) -> None:
    """It gave an error of Python, such as KeyError: 'claim'."""
    run_stub(tmp_path, "cpu")
    file = tmp_path / "experiments" / "stub-cpu.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | damage))
    with pytest.raises(ForeignFile, match="stub-cpu"):
        write_claims([stub.study()], tmp_path)


def test_it_is_the_same_every_time(tmp_path: Path) -> None:
    run_stub(tmp_path, "cpu")
    first = write_claims(STUDIES.values(), tmp_path).read_bytes()
    assert write_claims(STUDIES.values(), tmp_path).read_bytes() == first


PUBLISHED = Path(__file__).parents[2] / "docs" / "results"


@pytest.mark.parametrize("name", STUDIES)
def test_a_published_record_has_the_settings_and_claims_of_its_study(name: str) -> None:
    study = STUDIES[name]
    record = json.loads((PUBLISHED / "experiments" / f"{name}-cpu.json").read_text())
    assert is_current(record, study)
    assert [row["claim"] for row in record["verdicts"]] == [asdict(claim) for claim in study.claims]
    assert record["changed_since_commit"] is False
    for figure in record["figures"].values():
        assert (PUBLISHED / "experiments" / figure).is_file()


def test_the_published_page_is_made_of_the_published_records(tmp_path: Path) -> None:
    shutil.copytree(PUBLISHED / "experiments", tmp_path / "experiments", ignore=shutil.ignore_patterns("*.svg"))
    assert write_claims(STUDIES.values(), tmp_path).read_text() == (PUBLISHED / "claims.md").read_text()


@pytest.mark.parametrize("name", [name for name in STUDIES if name != "pareto"])  # which rests on times of single jobs
@pytest.mark.usefixtures("verdicts_only")
def test_the_published_verdicts_follow_from_the_published_numbers(name: str) -> None:
    record = json.loads((PUBLISHED / "experiments" / f"{name}-cpu.json").read_text())
    runs = [
        (Job(**{field.name: job[field.name] for field in fields(Job)}), {"metrics": job["metrics"], **DRAWN})
        for job in record["jobs"]
    ]
    outcome = STUDIES[name].conclude(Results(runs), STUDIES[name].sizes["cpu"])
    for verdict, stored in zip(outcome.verdicts, record["verdicts"], strict=True):
        assert stored.get("withdrawn") or asdict(verdict) == stored


def test_no_published_answer_rests_on_sgd_that_left_the_scales_where_they_were() -> None:
    """Records without `scales` are older than the check; those trained with SGD are withdrawn, but for one claim.

    That claim is about the positions of the random weights, which the plain network decides.
    """
    standing = []
    for name in STUDIES:
        record = json.loads((PUBLISHED / "experiments" / f"{name}-cpu.json").read_text())
        recorded = any("scales" in job for job in record["jobs"])
        if record["settings"]["budget"]["optimizer"] == "sgd" and not recorded:
            standing += [row["claim"]["text"] for row in record["verdicts"] if not row.get("withdrawn")]
    assert len(standing) == 1
    assert "central connections" in standing[0]
