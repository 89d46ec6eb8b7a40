"""A queue: each job is published once, and other versions, other runs and damage are refused."""

import errno
import json
import os
from pathlib import Path

import pytest

from leanbayes._files import _machine
from leanbayes.errors import FileError, ForeignFile, InputError
from leanbayes.lab.jobs import Job, Needs, Patience, Queue, is_full_disk
from leanbayes.lab.jobs import queue as module

HASTY = Patience(beat=0.02, silence=0.0, look=0.01, ask_system=False)
ANY = Needs(64, 1e4, 8)


def opened(folder: Path, jobs: int = 1, **options: object) -> Queue:
    queue = Queue(folder / "queue", {"run": 1}, patience=HASTY, **options)  # type: ignore[arg-type]
    queue.add([Job(f"job-{number}") for number in range(jobs)])
    return queue


def test_a_worker_that_comes_back_publishes_nothing(tmp_path: Path) -> None:
    """The first worker is silent for longer than its lease, and another takes its job over."""
    late, quick = opened(tmp_path), opened(tmp_path)
    first = late.claim(ANY)
    assert first is not None
    (first.folder / "checkpoint").write_text("half")
    (first.folder / "deep").mkdir()
    begun = f".x.{_machine()}-{os.getppid()}-0123abcd.part"  # by a process that lives, and may be stopped
    for folder in (first.folder, first.folder / "deep"):
        (folder / begun).write_text("what was being written")
    quick.claim(ANY)  # the first look begins to watch
    second = quick.claim(ANY)
    assert second is not None
    assert second.lease.generation == 2
    assert (second.folder / "checkpoint").read_text() == "half"
    assert sorted(path.name for path in second.folder.rglob("*")) == ["checkpoint", "deep"]
    assert not first.folder.exists()
    assert not first.publish({"by": "late"})
    assert second.publish({"by": "quick"})
    assert not first.publish({"by": "late"})
    outcome = quick.outcome("job-0")
    assert (outcome.result, outcome.attempts) == ({"by": "quick"}, 2)
    assert outcome.seconds > 0
    assert outcome.memory > 0.01
    assert quick.is_complete()


def test_a_worker_that_comes_back_first_is_the_one_that_publishes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The race: the first worker is past its check of the lease, and publishes while the second takes over."""
    late, quick = opened(tmp_path), opened(tmp_path)
    first = late.claim(ANY)
    assert first is not None
    quick.claim(ANY)
    monkeypatch.setattr(late.leases, "is_mine", lambda lease: True)  # as it was a moment ago
    monkeypatch.setattr(quick, "_inherit", lambda lease, place: not first.publish({"by": "late"}))
    assert quick.claim(ANY) is None
    assert quick.outcome("job-0").result == {"by": "late"}
    assert quick.is_complete()


def test_jobs_are_taken_once_and_added_once(tmp_path: Path) -> None:
    one, other = opened(tmp_path, 5), opened(tmp_path, 5)
    one.leases.patience = other.leases.patience = Patience(silence=1e9, ask_system=False)
    claims = [queue.claim(ANY) for queue in (one, other, one, other, one, other)]
    assert [claim and claim.job.key for claim in claims] == [f"job-{number}" for number in range(5)] + [None]
    assert len(list((tmp_path / "queue" / "jobs").iterdir())) == 1


def test_a_job_that_is_given_back_is_free_at_once(tmp_path: Path) -> None:
    one, other = opened(tmp_path), opened(tmp_path)
    one.leases.patience = other.leases.patience = Patience(silence=1e9, ask_system=False)
    claim = one.claim(ANY)
    assert claim is not None
    assert other.claim(ANY) is None
    claim.give_back()
    assert other.claim(ANY) is not None


def test_a_job_that_kills_its_workers_fails(tmp_path: Path) -> None:
    for _ in range(3):
        queue = opened(tmp_path, most_deaths=3)
        queue.claim(ANY)
        assert queue.claim(ANY) is None or queue.leases.newest()["job-0"].generation <= 3
    queue = opened(tmp_path, most_deaths=3)
    queue.claim(ANY)
    assert queue.claim(ANY) is None
    assert "3 workers ended while they did this job" in (queue.outcome("job-0").error or "")


def test_jobs_that_need_more_are_left_to_others(tmp_path: Path) -> None:
    queue = opened(tmp_path, 0)
    queue.add([Job("large", Needs(gpus=1)), Job("small")])
    claim = queue.claim(Needs(1, 1.0, 0))
    assert claim is not None
    assert claim.job.key == "small"
    assert [job.key for job in queue.too_large(Needs(1, 1.0, 0))] == ["large"]


def test_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened(tmp_path)
    monkeypatch.setattr(module, "_version", lambda: "9.9")
    with pytest.raises(InputError, match=r"have leanbayes 0\..*, and this one has 9\.9; install the same version"):
        opened(tmp_path)


def test_another_run_is_refused(tmp_path: Path) -> None:
    opened(tmp_path)
    with pytest.raises(InputError, match="is the queue of another run; give another folder"):
        Queue(tmp_path / "queue", {"run": 2})


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"kind": "queue"}', "[" * 10_000])
def test_a_damaged_queue_is_refused(tmp_path: Path, text: str) -> None:
    opened(tmp_path)
    (tmp_path / "queue" / "queue.json").write_text(text)
    with pytest.raises(ForeignFile, match="no queue of leanbayes; give another folder"):
        opened(tmp_path)


def test_a_failure_can_be_forgotten(tmp_path: Path) -> None:
    queue = opened(tmp_path)
    claim = queue.claim(ANY)
    assert claim is not None
    assert claim.publish(None, "it broke")
    assert queue.claim(ANY) is None
    queue.forget_failures()
    again = queue.claim(ANY)
    assert again is not None
    assert again.publish({})


def test_a_queue_is_removed_whole(tmp_path: Path) -> None:
    queue, other = opened(tmp_path), opened(tmp_path)
    queue.remove()
    assert list(tmp_path.iterdir()) == []
    assert not other.is_current()
    assert other.claim(ANY) is None
    with other.alone("collect"):
        pass


def test_a_disk_that_is_full_raises_and_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = opened(tmp_path)
    claim = queue.claim(ANY)
    assert claim is not None

    def full(path: Path, text: str) -> None:
        raise FileError("cannot save") from OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_text", full)
        with pytest.raises(FileError) as caught:
            claim.publish({})
    assert is_full_disk(caught.value)
    assert not is_full_disk(OSError(errno.EIO, "broken"))
    assert claim.publish({"later": True})
    assert json.loads((queue.finished / "job-0" / "outcome.json").read_text())["result"] == {"later": True}
