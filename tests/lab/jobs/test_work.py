"""A worker: errors of jobs are their outcomes, and a worker without space gives its job back."""

import errno
from pathlib import Path
from typing import Any

import pytest

from leanbayes.errors import FileError
from leanbayes.lab.jobs import Job, Needs, Patience, Queue
from leanbayes.lab.jobs.work import work

QUICK = Patience(beat=0.02, silence=1e9, look=0.01)


def test_an_error_is_the_outcome_of_its_job_alone(tmp_path: Path) -> None:
    queue = Queue(tmp_path / "queue", {}, patience=QUICK)
    queue.add([Job("bad"), Job("good"), Job("nan")])

    def do(job: Job, folder: Path) -> dict[str, Any]:
        if job.key == "bad":
            raise RuntimeError("it broke\nin two lines")
        return {"value": float("nan") if job.key == "nan" else 1.0}

    with queue.leases.living():
        work(queue, do)
    assert queue.outcome("bad").error == "RuntimeError: it broke in two lines"
    assert queue.outcome("good").result == {"value": 1.0}
    assert "ValueError" in (queue.outcome("nan").error or "")


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()])
def test_a_job_is_given_back(tmp_path: Path, error: BaseException) -> None:
    queue = Queue(tmp_path / "queue", {}, patience=QUICK)
    queue.add([Job("job")])

    def do(job: Job, folder: Path) -> dict[str, Any]:
        raise error

    with queue.leases.living(), pytest.raises((FileError, KeyboardInterrupt)) as caught:
        work(queue, do)
    if isinstance(caught.value, FileError):
        assert "the disk of this worker is full, so it gave the job job back and ends" in str(caught.value)
    other = Queue(tmp_path / "queue", {}, patience=QUICK)
    assert other.claim(Needs(64, 1e4, 8)) is not None


def test_jobs_that_need_more_than_the_machine_has_are_said_once(tmp_path: Path) -> None:
    queue = Queue(tmp_path / "queue", {}, patience=QUICK)
    queue.add([Job("large", Needs(gpus=99))])
    said: list[str] = []

    def look() -> None:
        if len(said) == 1 and not queue.is_complete():
            other = Queue(tmp_path / "queue", {}, patience=QUICK).claim(Needs(1, 0.0, 99))
            assert other is not None
            other.publish({})

    with queue.leases.living():
        work(queue, lambda job, folder: {}, say=said.append, look=look)
    assert said == ["1 jobs need more than this machine has, such as 1 core, 99 GPUs; others must do them"]
