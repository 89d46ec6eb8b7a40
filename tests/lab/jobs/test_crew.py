"""A crew: workers that are started, replaced when they are killed, and given up when all have ended."""

import sys
from pathlib import Path
from typing import Any

import pytest

from leanbayes.errors import InputError, LeanBayesError
from leanbayes.lab.jobs import Crew, Job, Patience, Queue, crew_of, plan_of

QUICK = Patience(beat=0.02, silence=0.3, look=0.01)


def nothing(*_: object) -> dict[str, Any]:
    return {}


def test_a_worker_runs_the_command_of_the_user() -> None:
    words = ["compare", "--executor", "local:2", "--out", "run"]
    crew = crew_of(plan_of("local:2"), words, print)
    assert crew is not None
    assert list(crew.command[3:]) == ["compare", "--out", "run", "--executor", "worker", "--quiet"]
    again = crew_of(plan_of("local:2"), ["compare", "--executor=local:2", "--out", "run"], print)
    assert again is not None
    assert again.command == crew.command
    assert crew_of(plan_of("local"), words, print) is None


def test_one_process_collects(tmp_path: Path) -> None:
    crew = Crew(plan_of("shared"), patience=QUICK)
    first, second = (Queue(tmp_path / "queue", {}, patience=QUICK) for _ in range(2))
    first.add([Job("job")])
    done: list[set[str]] = []
    with crew.working(first), crew.collecting(first, nothing, on_done=done.append) as is_first:
        assert is_first
        assert first.outcome("job").result == {}
    with crew.working(second), crew.collecting(second, nothing) as is_first:
        assert not is_first
    assert done == [{"job"}]
    assert not (tmp_path / "queue").exists()


def test_a_worker_leaves_the_collecting_to_others(tmp_path: Path) -> None:
    crew = Crew(plan_of("worker"), patience=QUICK)
    queue = Queue(tmp_path / "queue", {}, patience=QUICK)
    queue.add([Job("job")])
    with pytest.raises(SystemExit) as ended, crew.working(queue), crew.collecting(queue, nothing):
        pytest.fail("a worker collects nothing")
    assert ended.value.code == 0
    assert queue.is_complete()
    assert queue.is_current()


def test_an_error_while_collecting_leaves_the_queue(tmp_path: Path) -> None:
    crew = Crew(plan_of("shared"), patience=QUICK)
    queue = Queue(tmp_path / "queue", {}, patience=QUICK)
    queue.add([Job("job")])
    with pytest.raises(OSError, match="broken"), crew.working(queue), crew.collecting(queue, nothing):
        raise OSError("broken")
    assert queue.is_current()


def test_when_all_workers_have_ended_their_last_words_are_said(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('leanbayes: the moon is full')"]
    crew = Crew(plan_of("local:2"), command, patience=QUICK)
    queue = Queue(tmp_path / "queue", {}, patience=QUICK)
    queue.add([Job("job"), Job("other")])
    said = "and 2 jobs are left: the moon is full; run the same command again"
    with pytest.raises(LeanBayesError, match=said), crew.working(queue), crew.collecting(queue, nothing):
        pytest.fail("nothing was done")


def test_a_killed_worker_is_replaced(tmp_path: Path) -> None:
    """The worker kills itself unless a file says that it has done so before."""
    mark = tmp_path / "mark"
    script = (
        "import os, pathlib, signal, shutil\n"
        f"mark = pathlib.Path({str(mark)!r})\n"
        "if not mark.exists():\n"
        "    mark.touch()\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        f"place = pathlib.Path({str(tmp_path / 'queue' / 'done' / 'job')!r})\n"
        "place.mkdir()\n"
    )
    crew = Crew(plan_of("local:1"), [sys.executable, "-c", script], patience=QUICK)
    queue = Queue(tmp_path / "queue", {}, patience=QUICK)
    queue.add([Job("job")])
    with crew.working(queue), crew.collecting(queue, nothing) as is_first:
        assert is_first
    assert mark.exists()


def test_a_machine_that_is_too_small_is_refused_at_once(tmp_path: Path) -> None:
    crew = Crew(plan_of("local:2,gpus=99"), [sys.executable, "-c", ""], patience=QUICK)
    queue = Queue(tmp_path / "queue", {}, patience=QUICK)
    queue.add([Job("job", crew.needs)])
    said = "a job needs 1 core, 99 GPUs, and this machine has"
    with pytest.raises(InputError, match=said), crew.working(queue), crew.collecting(queue, nothing):
        pytest.fail("nothing was done")
