"""`fit` ends where it would have ended, whatever kills it and whichever write fails."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TOP = Path(__file__).parents[2]


def harness(*options: str) -> dict[str, Any]:
    """Run the harness in a process of its own, because it forks, which a process with threads must not do."""
    path = os.pathsep.join([str(TOP), str(TOP / "src"), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "tests.crash.fit_kills", *options]
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=TOP, env=environment)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return report


@pytest.mark.timeout(600)
def test_some_kills_and_failures() -> None:
    report = harness("--kills", "5", "--failures", "5", "--short-writes", "0", "--seed", "17")
    assert report["kills"] == 5
    assert report["failures"] == 5


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_many_kills_and_a_failure_of_every_write() -> None:
    report = harness("--kills", "100", "--seed", "18")
    assert report["kills"] == 100
    assert report["failures"] == 2 * sum(report["changes"].values())
