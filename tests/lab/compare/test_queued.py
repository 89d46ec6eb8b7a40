"""A comparison by the workers of a queue gives the results of a comparison by one process."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from leanbayes import Categorical
from leanbayes.errors import FileError, InputError
from leanbayes.lab.compare import Protocol, compare, single
from leanbayes.lab.data.task import Task
from leanbayes.lab.jobs import Crew, Patience, plan_of
from leanbayes.lab.recipes import Budget, parse

SHARED = Crew(plan_of("shared"), patience=Patience(beat=0.05, silence=0.3, look=0.01))
RECIPES = {text: parse(text) for text in ("deterministic", "partial:rate=0.1")}
PROTOCOL = Protocol((0,), Budget(epochs=2, batch_size=16), samples=2)
TIMES = {"finished", "train_seconds", "predict_seconds", "date", "jobs"}


@pytest.fixture
def task() -> Task:
    x = torch.randn(48, 3, generator=torch.Generator().manual_seed(0))
    parts = [list(zip(part, (part[:, 0] > 0).long(), strict=True)) for part in x.split(16)]
    return Task(
        name="signs",
        train=parts[0],
        validation=parts[1],
        test=parts[2],
        model=lambda: torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)),
        likelihood=Categorical(),
        classes=("no", "yes"),
    )


def timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: timeless(item) for key, item in value.items() if key not in TIMES and "seconds" not in key}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def methods(results: dict[str, Any]) -> Any:
    return timeless(results["methods"])


def test_the_results_are_those_of_one_process(task: Task, tmp_path: Path) -> None:
    serial = compare(task, RECIPES, tmp_path / "serial", PROTOCOL)
    shared = compare(task, RECIPES, tmp_path / "shared", PROTOCOL, crew=SHARED)
    assert methods(shared) == methods(serial)
    assert [job["key"] for job in shared["jobs"]] == ["deterministic-0", "partial_rate=0.1-0"]
    assert all(job["seconds"] > 0 and job["needs"]["cores"] == 1 for job in shared["jobs"])
    names = [
        sorted(p.relative_to(tmp_path / top).as_posix() for p in (tmp_path / top).rglob("*") if p.is_file())
        for top in ("serial", "shared")
    ]
    assert names[0] == names[1]
    assert json.loads((tmp_path / "shared" / "results.json").read_text()) == shared
    again = compare(task, RECIPES, tmp_path / "shared", PROTOCOL, crew=SHARED)
    assert methods(again) == methods(serial)


def test_a_crew_that_was_stopped_continues_and_one_process_does_not_join(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, count = single.judge, 0

    def interrupted(*arguments: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == 2:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(single, "judge", interrupted)
        with pytest.raises(KeyboardInterrupt):
            compare(task, RECIPES, tmp_path / "run", PROTOCOL, crew=SHARED)
    with pytest.raises(FileError, match="continue with --executor shared, or remove"):
        compare(task, RECIPES, tmp_path / "run", PROTOCOL)
    with pytest.raises(InputError, match="the queue of another run"):
        compare(task, RECIPES, tmp_path / "run", Protocol((0,), PROTOCOL.budget, samples=3), crew=SHARED)
    results = compare(task, RECIPES, tmp_path / "run", PROTOCOL, crew=SHARED)
    assert all(method["error"] is None and len(method["runs"]) == 1 for method in results["methods"])
    assert [job["attempts"] for job in results["jobs"]] == [1, 2]


def test_a_method_that_fails_is_recorded_and_a_full_disk_is_not(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(single, "judge", broken)
    error: Exception = RuntimeError("it broke")
    results = compare(task, RECIPES, tmp_path / "run", PROTOCOL, crew=SHARED)
    assert [method["error"] for method in results["methods"]] == ["seed 0: RuntimeError: it broke"] * 2
    error = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(FileError, match="the disk of this worker is full, so it gave the job deterministic-0 back"):
        compare(task, RECIPES, tmp_path / "other", PROTOCOL, crew=SHARED)
    assert not list((tmp_path / "other" / "runs").iterdir())
