"""The commands under kills and failing writes: a short run of the harness. ``make test-crash`` has the long one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs fork, and the folder /proc")


def disturbed(*options: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.crash.command_kills", *options],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=7000,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(["", *sys.path])},
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, object] = json.loads(done.stdout)
    return report


@pytest.mark.timeout(900)  # some 20 s of work; a machine that is busy with other things may take far longer
def test_kills_and_failing_writes_lose_nothing() -> None:
    report = disturbed("--kills", "2", "--failures", "2", "--short-writes", "0", "--commands", "train", "tune")
    assert report["errors"] == []
    assert report["kills"] == report["failures"] == 2


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_many_kills_and_a_failure_at_each_write() -> None:
    assert disturbed("--kills", "100")["errors"] == []
