"""The runner: nothing is done twice, nothing is lost, and the same command gives the same tables."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from leanbayes._files import _machine
from leanbayes.errors import FileError, InputError, UnknownName
from leanbayes.lab.jobs import Crew, Patience, plan_of
from leanbayes_papers import Job, Outcome, Size, Verdict, reproduce
from leanbayes_papers import run as runner
from leanbayes_papers.scales import note
from tests.papers import stub

REPEATS = ("name", "size", "seeds", "data", "settings", "tables", "verdicts", "figures", "jobs", "failed", "error")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def go(data: Path, study: Any = None, **options: Any) -> dict[str, Any]:
    top = data.parent
    settings = {"folder": data, "out": top / "out", "cache": top / "cache"} | options
    return reproduce(study or stub.study(), settings.pop("size", "smoke"), **settings)


def calls(data: Path) -> list[str]:
    return (data / "calls").read_text().splitlines()


def test_a_record_says_all_that_is_needed_to_repeat_it(data: Path) -> None:
    record = go(data)
    written = json.loads((data.parent / "out" / "stub-smoke.json").read_text())
    assert written == record
    assert record["command"] == "leanbayes reproduce stub --size smoke"
    assert record["seeds"] == [0, 1, 2]
    assert record["data"] == ["numbers"]
    assert {"commit", "machine", "date", "minutes_taken", "minutes_stated", "scaled"} <= record.keys()
    assert [v["answer"] for v in record["verdicts"]] == ["holds", "not testable here"]
    assert record["tables"]["all"][0]["nll"]["mean"] == pytest.approx(1 + 1 / 7)
    assert record["figures"] == {"line": "stub-smoke-line.svg"}
    assert (data.parent / "out" / "stub-smoke-line.svg").read_text().lstrip().startswith("<?xml")
    assert str(data) not in json.dumps(record)
    assert len(record["jobs"]) == 6
    assert record["seconds"]["a"]["train"]["n"] == 3


def test_what_is_kept_is_not_done_again_and_gives_the_same_tables_and_figures(data: Path) -> None:
    first = go(data)
    picture = (data.parent / "out" / "stub-smoke-line.svg").read_bytes()
    again, anew = go(data), go(data, cache=data.parent / "other")
    assert len(calls(data)) == 12
    for record in (again, anew):
        assert {name: record[name] for name in REPEATS} == {name: first[name] for name in REPEATS}
    assert (data.parent / "out" / "stub-smoke-line.svg").read_bytes() == picture


def test_another_size_seed_setting_or_data_directory_is_done_anew(data: Path) -> None:
    go(data, seeds=[0])
    assert go(data, seeds=[0, 4])["command"].endswith("--seeds 0 4")
    assert len(calls(data)) == 4
    go(data, size="cpu", seeds=[0])
    changed = stub.size(samples=3)
    go(data, stub.study(sizes={"smoke": changed, "cpu": changed, "paper": changed}), seeds=[0])
    assert len(calls(data)) == 8
    (data.parent / "more").mkdir()
    go(data, folder=data.parent / "more", seeds=[0])
    assert len(calls(data.parent / "more")) == 2


@pytest.mark.parametrize("trouble", ["fail", "nan"])
def test_a_failed_job_is_recorded_the_others_go_on_and_it_is_tried_again(data: Path, trouble: str) -> None:
    (data / "b-1").write_text(trouble)
    record = go(data)
    (failed,) = record["failed"]
    assert (failed["method"], failed["seed"]) == ("b", 1)
    assert failed["error"].startswith("RuntimeError: no luck at all" if trouble == "fail" else "ValueError")
    assert len(record["jobs"]) == 5
    assert "n = 2" in record["verdicts"][0]["why"]
    assert len(list((data.parent / "cache" / "stub-smoke").iterdir())) == 5
    (data / "b-1").unlink()
    record = go(data)
    assert record["failed"] == []
    assert calls(data)[6:] == ["b 1"]


def test_an_interrupted_run_goes_on_where_it_was(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(job: Job, *rest: Any) -> dict[str, Any]:
        if job.seed == 1:
            raise KeyboardInterrupt
        return stub.run(job, *rest)

    with pytest.raises(KeyboardInterrupt):
        go(data, stub.study(run=stopped))
    assert not (data.parent / "out" / "stub-smoke.json").exists()
    assert go(data)["failed"] == []
    assert calls(data) == [f"{m} {s}" for s in range(3) for m in "ab"]


def test_a_kept_file_that_is_cut_short_is_done_again(data: Path) -> None:
    first = go(data)
    files = sorted((data.parent / "cache" / "stub-smoke").iterdir())
    assert len(files) == 6
    files[0].write_text(files[0].read_text()[:20])
    files[1].write_text("[]")
    files[2].write_text('{"result": null, "error": null, "seconds": 1, "commit": null}')
    files[3].write_text('{"result": {}, "error": null, "seconds": "1", "commit": null}')
    files[4].write_text('{"result": {}, "error": null, "seconds": 1, "commit": []}')
    files[5].write_text('{"result": {"seconds": 1}, "error": null, "seconds": 1, "commit": null}')
    assert go(data)["tables"] == first["tables"]
    assert len(calls(data)) == 12


def test_what_a_disturbed_run_left_is_swept(data: Path) -> None:
    """A hidden folder stayed in the cache if all results were kept there, because then nothing was written."""
    go(data)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    folders = (data.parent / "cache" / "stub-smoke", data.parent / "out")
    before = [sorted(folder.iterdir()) for folder in folders]
    kept = folders[0] / f".x.{_machine()}-{os.getppid()}-0123abcd.part"  # another run, which shares the cache, lives
    kept.mkdir()
    for folder in folders:
        (folder / f".x.{_machine()}-{ended.pid}-0123abcd.part").mkdir()
    go(data)
    assert [sorted(folder.iterdir()) for folder in folders] == [sorted([*before[0], kept]), before[1]]


class Pool:
    """A pool in this process, one of whose jobs dies."""

    made: ClassVar[list[tuple[int, int]]] = []

    def submit(self, function: Any, work: Any) -> Future[Any]:
        future: Future[Any] = Future()
        if (work.job.method, work.job.seed) == ("a", 2):
            future.set_exception(BrokenProcessPool("a process\ndied"))
        else:
            future.set_result(function(work))
        return future


@contextmanager
def pool_in_this_process(count: int, threads: int) -> Iterator[Pool]:
    Pool.made.append((count, threads))
    yield Pool()


def test_a_pool_gets_only_what_is_not_kept_and_rows_stay_in_order(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "worker_processes", pool_in_this_process)
    go(data, seeds=[0])
    record = go(data, workers=2)
    assert [(job["method"], job["seed"]) for job in record["jobs"]] == [
        ("a", 0), ("b", 0), ("a", 1), ("b", 1), ("b", 2),
    ]  # fmt: skip
    assert [row["error"] for row in record["failed"]] == ["BrokenProcessPool: a process died"]
    assert calls(data) == ["a 0", "b 0", "a 1", "b 1", "b 2"]
    assert Pool.made == [(2, 1)]
    assert go(data, workers=2)["failed"] == []  # one is left, which needs no pool
    assert len(Pool.made) == 1


@pytest.mark.slow
def test_processes_give_the_same_and_one_that_dies_takes_no_result_with_it(data: Path) -> None:
    (data / "b-2").write_text("die")
    died = go(data, workers=2)
    assert any("BrokenProcessPool" in row["error"] for row in died["failed"])
    assert len(died["jobs"]) + len(died["failed"]) == 6
    (data / "b-2").unlink()
    whole = go(data)
    assert whole["failed"] == []
    assert whole["tables"] == go(data, cache=data.parent / "alone")["tables"]


def test_conclusions_that_fail_leave_the_numbers_and_say_so(data: Path) -> None:
    def broken(results: Any, size: Any) -> Outcome:
        raise KeyError("nothing")

    def silent(results: Any, size: Any) -> Outcome:
        return Outcome({}, [Verdict(stub.OTHER, "holds", "")])

    for conclude, words in ((broken, "KeyError"), (silent, "one verdict on each")):
        record = go(data, stub.study(conclude=conclude))
        assert words in record["error"]
        assert len(record["jobs"]) == 6
        assert {v["answer"] for v in record["verdicts"]} == {"not testable here"}


def test_jobs_have_one_thread_and_the_caller_keeps_theirs(data: Path) -> None:
    seen = []

    def counting(job: Job, *rest: Any) -> dict[str, Any]:
        seen.append(torch.get_num_threads())
        return {"metrics": {"nll": 1.0}}

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        go(data, stub.study(run=counting))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(seen) == {1}


def test_it_tells_how_far_it_is(data: Path) -> None:
    progress: list[tuple[int, int]] = []
    go(data, watch=lambda done, total: progress.append((done, total)))
    assert progress == [(n, 6) for n in range(7)]


def test_bad_input_is_said_before_anything_is_done(data: Path) -> None:
    for options, error, words in (
        ({"size": "huge"}, UnknownName, "huge"),
        ({"seeds": []}, InputError, "seeds"),
        ({"seeds": [1, 1]}, InputError, "different"),
        ({"seeds": [-1]}, InputError, "from 0"),
        ({"workers": 0}, InputError, "workers"),
    ):
        with pytest.raises(error, match=words):
            go(data, **options)
    needing = stub.size(needs=("mnist",))
    with pytest.raises(FileError, match=r"yann\.lecun\.com.*--data-dir"):
        go(data, stub.study(sizes={"smoke": needing, "cpu": needing, "paper": needing}))
    (data.parent / "file").write_text("")
    with pytest.raises(FileError, match="file"):
        go(data, out=data.parent / "file" / "x")
    assert not (data / "calls").exists()


def test_a_study_whose_scales_did_not_move_cannot_give_holds(tmp_path: Path) -> None:
    """The runner records the scales of every job by itself, and keeps them with the result of the job."""

    def run(job: Job, size: Size, folder: Path | None) -> dict[str, Any]:
        if job.method == "b":
            note("vi", torch.full((9,), -3.0), torch.full((9,), -3.0 if folder == tmp_path / "still" else -2.0))
        return stub.run(job, size, folder)

    answers = {}
    for name in ("still", "moving"):
        folder = tmp_path / name
        folder.mkdir()
        for _ in range(2):  # the second time from the kept results
            record = reproduce(stub.study(run=run), "cpu", folder=folder, out=folder / "out", cache=folder / "cache")
        answers[name] = record["verdicts"][0]
        jobs = {job["method"]: job for job in record["jobs"]}
        assert "scales" not in jobs["a"]
        assert jobs["b"]["scales"][0]["start"][2] == pytest.approx(math.exp(-3))
    assert answers["moving"]["answer"] == "holds"
    assert answers["still"]["answer"] == "not testable here"
    assert answers["still"]["why"] == "the scales did not move in training: b"


def test_a_crew_gives_the_same_tables_and_tries_failures_again(data: Path) -> None:
    crew = Crew(plan_of("shared"), patience=Patience(beat=0.02, silence=0.3, look=0.01))
    alone = go(data, cache=data.parent / "other")
    (data / "a-1").write_text("fail")
    failed = go(data, crew=crew)
    assert [(job["method"], job["seed"]) for job in failed["failed"]] == [("a", 1)]
    (data / "a-1").unlink()
    (data / "calls").unlink()
    together = go(data, crew=crew)
    assert calls(data) == ["a 1"]
    assert {name: together[name] for name in REPEATS} == {name: alone[name] for name in REPEATS}
    assert not list((data.parent / "cache").rglob("queue"))
    (data.parent / "cache" / "stub-smoke" / "queue").mkdir()
    with pytest.raises(FileError, match="continue with --executor shared, or remove"):
        go(data)
