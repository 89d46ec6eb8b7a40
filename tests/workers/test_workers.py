"""A short version of `python -m tests.workers` among the default tests, and the whole of it among the slow ones."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def workers(*words: str) -> dict[str, dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.workers", *words], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[-1]["failed"] == []
    return {line["scenario"]: line for line in lines[:-1]}


def test_killed_and_stopped_workers_do_each_job_once() -> None:
    """In a process of its own, because only a process without threads may fork."""
    reports = workers("--small", "kills", "stopped", "predictions")
    assert reports["kills"]["kills"] >= 4
    assert reports["stopped"]["discarded"] == 1
    assert reports["predictions"]["identical"]


@pytest.mark.slow
def test_everything_that_this_machine_permits() -> None:
    reports = workers()
    assert reports["kills"]["jobs"] == 200
    assert reports["predictions"]["inputs"] == 100_000
