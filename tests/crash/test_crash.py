"""Trainings and commands end where they would have ended, whatever kills them and whichever of their writes fails.

Each test runs the harness in a process of its own, because the harness forks, which a process with threads must not do.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

TOP = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or shutil.which("cc") is None,
    reason="needs fork, LD_PRELOAD and /proc, and a C compiler for disturb.c",
)


def disturbed(*options: str) -> dict[str, Any]:
    path = os.pathsep.join([str(TOP), *sys.path])
    command = [sys.executable, "-m", "tests.crash", *options]
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=TOP, env=environment)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert report["ended"] == "all was done"
    return report


@pytest.mark.timeout(900)  # some 25 s of work; a machine that is busy with other things may take far longer
def test_some_kills_and_failing_writes_lose_nothing() -> None:
    scenarios = ("plain", "partial", "sparse", "moments", "ivon", "train", "compare", "tune", "predict", "reproduce")
    report = disturbed("--kills", "5", "--failures", "10", "--seed", "17", "--scenarios", *scenarios)
    assert report["errors"] == []
    assert (report["kills"], report["failures"]) == (5, 10)
    assert all({"open", "write", "sync", "rename", "remove"} <= report["changes"][name].keys() for name in scenarios)


@pytest.mark.slow
@pytest.mark.timeout(43200)  # for hangs only: a busy machine took 64 minutes for 17 minutes of work with workers alone
def test_many_kills_and_a_failure_at_each_write() -> None:
    report = disturbed("--kills", "110", "--seed", "17")
    assert report["errors"] == []
    assert report["kills"] == 110
    assert report["failures"] >= 2 * sum(sum(kinds.values()) for kinds in report["changes"].values())


def test_a_write_that_is_lost_is_noticed(tmp_path: Path) -> None:
    """The harness can fail: it notices a traceback after a failed write, and another end."""
    script = tmp_path / "broken.py"
    script.write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.crash.control import start_again_under_control\n"
        "if __name__ == '__main__':\n"
        "    start_again_under_control('broken', [])\n"
        "    from tests.crash.harness import Campaign, Report, adopt_orphans\n"
        "    from tests.crash.scenario import Scenario\n"
        "    def raises():\n"
        "        Path('x').write_text('x')\n"
        "        return 0\n"
        "    def appends():\n"
        "        try:\n"
        "            with Path('x.json').open('a') as file:\n"
        "                file.write('1')\n"
        "            Path('done').mkdir()\n"
        "        except OSError:\n"
        "            return 1\n"
        "        return 0\n"
        "    adopt_orphans()\n"
        "    for work in (raises, appends):\n"
        "        report = Report(0)\n"
        f"        Campaign(Scenario(work.__name__, work), Path({str(tmp_path)!r}), report).fail_at_each_change()\n"
        "        print(work.__name__, report.failures, len(report.errors))\n"
    )
    path = os.pathsep.join([str(TOP), str(tmp_path), *sys.path])
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True, env=environment)
    # A failing open or write is a traceback, with both errors. Of the other work, a write that fails leaves an empty
    # file, or is repeated when the file is closed. Then, and if the folder cannot be made, the next run appends again.
    assert done.stdout.splitlines() == ["raises 4 4", "appends 6 4"], done.stderr


ENDLESS = """
import os, signal, sys, tempfile, time
from pathlib import Path
from tests.crash.control import start_again_under_control
if __name__ == "__main__":
    start_again_under_control("endless", sys.argv[1:])
    from tests.crash.ending import last_line
    from tests.crash.harness import Campaign, Report, adopt_orphans
    from tests.crash.scenario import Scenario
    def work():
        Path("x").mkdir()
        if Path("begun").exists():
            time.sleep(600)
        return 0
    adopt_orphans()
    with last_line(Report(0), time.monotonic()), tempfile.TemporaryDirectory() as top:
        if sys.argv[1] == "error":
            raise ValueError("no such thing")
        campaign = Campaign(Scenario("endless", work, lambda folder: None), Path(top), Report(0))
        campaign.scenario = Scenario("endless", work, lambda folder: (folder / "begun").mkdir())
        print(os.getpid(), flush=True)
        campaign.fail_at_each_change()
"""


@pytest.mark.parametrize("cause", ["error", "SIGHUP", "SIGTERM", "SIGKILL", "the shell of a stopped job ends"])
def test_the_last_line_says_what_ended_the_harness(tmp_path: Path, cause: str) -> None:
    (tmp_path / "endless.py").write_text(ENDLESS)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TOP), str(tmp_path), *sys.path])}
    harness = [sys.executable, "-m", "endless", cause]
    # A shell of its own starts the job in a group of its own, as an interactive shell does, and is killed later.
    shell = ["bash", "-c", 'set -m; "$@" & echo $!; read -r _; kill -KILL $$', "shell", *harness]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        shell, stdin=pipe, stdout=pipe, text=True, env=environment, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # which nohup makes its children ignore
    ) as started:  # fmt: skip
        assert started.stdin is not None
        assert started.stdout is not None
        outer = int(started.stdout.readline())
        if cause == "error":
            expected = "ValueError ended it: no such thing"
        else:
            inner = int(started.stdout.readline())
            if cause in signal.Signals.__members__:
                os.kill(inner, signal.Signals[cause])
                expected = f"{cause} ended it"
            else:
                os.killpg(outer, signal.SIGSTOP)
                while any(Path(f"/proc/{process}/stat").read_text().split()[2] != "T" for process in (outer, inner)):
                    time.sleep(0.01)
                expected = "SIGHUP ended it"
        started.stdin.write("\n")
        started.stdin.close()
        last = json.loads(started.stdout.read().splitlines()[-1])
    assert last["ended"] == expected
