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
        timeout=3000,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(["", *sys.path])},
    )
    assert done.returncode == 0, done.stderr
    report: dict[str, object] = json.loads(done.stdout)
    return report


def test_kills_and_failing_writes_lose_nothing() -> None:
    report = disturbed(
        "--kills", "3", "--failures", "3", "--short-writes", "0", "--commands", "train", "compare", "tune"
    )
    assert report["errors"] == []
    assert report["kills"] == report["failures"] == 3


@pytest.mark.slow
def test_many_kills_and_a_failure_at_each_write() -> None:
    assert disturbed("--kills", "100")["errors"] == []
