"""Kill the commands at random moments, let their writes fail, and compare what they leave with an undisturbed run.

    python -m tests.crash.command_kills --kills 30 --seed 0

Each command runs in a process that is forked from this one, which has imported everything and computed nothing. Such a
process begins at once, so a random moment falls into the work of the command and not into its imports. There are
three kinds of disturbance:

* a kill (SIGKILL) after a random time, or just before one of the operations that change a file;
* an operation that changes a file and fails, with ENOSPC (all later ones fail too) or with EIO (only this one fails);
* a file that cannot grow beyond a random size, so that a write ends in the middle.

After each disturbance, every file with a usual name must be whole, and an error must be one line. Then the same command
runs until it ends, and what it leaves must be the same as after an undisturbed run: records without times, and tensors
bit for bit.
"""

import argparse
import errno
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: a process with threads must not fork

import numpy as np
import safetensors

import leanbayes.lab.report
import leanbayes.lab.tune  # noqa: F401
from leanbayes.lab.cli import COMMANDS, main

QUICK = ["--data", "data.npz", "--epochs", "4", "--batch-size", "16", "--samples", "4", "--quiet"]
LINES: dict[str, list[str]] = {
    "train": ["train", "--recipe", "partial:rate=0.1", "--out", "run", *QUICK],
    "compare": ["compare", "--methods", "deterministic", "vi", "ensemble:members=2", "--out", "run", *QUICK],
    "tune": ["tune", "--method", "vi", "--search", "kl_weight=0.1,1.0", "--trials", "3", "--out", "run", *QUICK],
    "reproduce": [
        "reproduce", "subnetworks-toy", "--size", "smoke", "--workers", "1", "--out", "docs", "--cache", "cache",
        "--quiet",
    ],
}  # fmt: skip
TIMES = frozenset(
    {"seconds", "train_seconds", "predict_seconds", "finished", "date", "minutes_taken", "minutes_of_jobs"}
)
CHANGES = ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.fsync", "open", "sqlite3.connect")
CAN_FAIL = ("os.rename", "os.mkdir", "os.fsync", "open")
BUG = 70


class Unequal(AssertionError):
    """What a disturbed command left differs from what an undisturbed one leaves."""


@dataclass(frozen=True)
class Disturbance:
    """What happens to one process.

    Args:
        kill_after: kill it after this many seconds.
        kill_at: let it kill itself at the change of a file with this number, from 1.
        fail_at: let the change with this number fail.
        error: the error of that failure; ENOSPC stays for all changes that follow.
        largest: no file can grow beyond this many bytes.
    """

    kill_after: float | None = None
    kill_at: int | None = None
    fail_at: int | None = None
    error: int = errno.EIO
    largest: int | None = None

    def __str__(self) -> str:
        parts = {name: value for name, value in vars(self).items() if value is not None and name != "error"}
        error = f", {errno.errorcode[self.error]}" if self.fail_at is not None else ""
        return ", ".join(f"{name}={value:.4g}" for name, value in parts.items()) + error


@dataclass
class Report:
    """What was done, for the last line of the output."""

    seed: int
    kills: int = 0
    too_late: int = 0
    failures: int = 0
    short_writes: int = 0
    runs: int = 0
    changes: dict[str, int] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


def data(folder: Path) -> None:
    """Write a small data set."""
    folder.mkdir(parents=True)
    x = np.random.default_rng(0).normal(size=(120, 3))
    np.savez(folder / "data.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))


def run(words: list[str], folder: Path, disturbance: Disturbance | None = None) -> tuple[int, str, int, float]:
    """Run a command in a forked process.

    Returns:
        Its exit code (that of a killed process is negative), what it printed as errors, how many times it changed a
        file, and how many seconds it took.
    """
    log, count = folder.with_suffix(".log"), folder.with_suffix(".count")
    begin = time.monotonic()
    child = os.fork()
    if not child:
        _be_command(words, folder, log, count, disturbance or Disturbance())
    if disturbance is not None and disturbance.kill_after is not None:
        _kill_later(child, disturbance.kill_after)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    text = log.read_text()
    assert "Traceback" not in text, f"{words[0]} with {disturbance}: {text}"
    changes = len(count.read_bytes()) if count.exists() else 0
    return code, text, changes, time.monotonic() - begin


def _kill_later(child: int, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)


def _be_command(words: list[str], folder: Path, log: Path, count: Path, disturbance: Disturbance) -> None:
    code = BUG
    try:
        written = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        counter = os.open(count, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(written, 2)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.chdir(folder)
        _watch_changes(folder.resolve(), counter, disturbance)
        if disturbance.largest is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (disturbance.largest, resource.RLIM_INFINITY))
        code = main(words)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def _watch_changes(top: Path, counter: int, disturbance: Disturbance) -> None:
    """Count each operation that changes a file in the folder, and disturb those that are asked for."""
    state = {"number": 0, "full": False}

    def change(event: str, path: object) -> None:
        if isinstance(path, bytes):
            path = os.fsdecode(path)
        if not isinstance(path, str) or not Path(top, path).is_relative_to(top):
            return
        state["number"] += 1
        os.write(counter, b".")
        if state["number"] == disturbance.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if event in CAN_FAIL and (state["full"] or state["number"] == disturbance.fail_at):
            state["full"] = disturbance.error == errno.ENOSPC
            raise OSError(disturbance.error, os.strerror(disturbance.error), path)

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event not in CHANGES:
            return
        writes = os.O_WRONLY | os.O_RDWR | os.O_CREAT
        if event == "open" and not (isinstance(arguments[2], int) and arguments[2] & writes):
            return
        change(event, arguments[1] if event == "os.rename" else arguments[0])

    fsync: Callable[[int], None] = os.fsync

    def watched_fsync(file: int) -> None:
        change("os.fsync", str(Path(f"/proc/self/fd/{file}").readlink()))
        fsync(file)

    os.fsync = watched_fsync  # type: ignore[assignment]
    sys.addaudithook(watch)


def state(folder: Path) -> dict[str, Any]:
    """Return what a command left: for each file its content without times, or only its name."""
    return {
        path.relative_to(folder).as_posix(): _content(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.name.endswith((".lock", ".worker"))
    }


def _content(path: Path) -> Any:
    if path.suffix in (".lb", ".safetensors"):
        return _tensors(path)
    if path.suffix == ".json":
        return _without_times(json.loads(path.read_text()))
    return "here"


def _tensors(path: Path) -> Any:
    with safetensors.safe_open(path, "np") as file:
        header = _without_times(json.loads((file.metadata() or {})["leanbayes"]))
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    sums = {name: hashlib.sha256(value.tobytes()).hexdigest() for name, value in tensors.items()}
    return [header, {name: [str(tensors[name].dtype), tensors[name].shape, sums[name]] for name in sorted(tensors)}]


def _without_times(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: _without_times(item) for key, item in value.items() if key not in TIMES}
        if value.get("kind") == "tuning":  # a trial that was killed stays in the list, and another takes its place
            kept["trials"] = [trial for trial in kept["trials"] if trial["state"] != "killed"]
        if value.get("kind") == "comparison" and "methods" in value:  # they are in the order in which they were done
            kept["methods"] = sorted(kept["methods"], key=lambda method: str(method["name"]))
        return kept
    return [_without_times(item) for item in value] if isinstance(value, list) else value


def check_whole(folder: Path) -> None:
    """Raise if a file with a usual name is not whole; only files whose name begins with a dot may be parts."""
    for path in folder.rglob("*"):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_file() and not hidden and path.suffix in (".json", ".lb", ".safetensors"):
            _content(path)


def check_complaint(name: str, code: int, text: str) -> None:
    """Raise unless a disturbed command ended as a command may: done, partly failed, or with one line."""
    assert code in (0, 1, 2, -signal.SIGKILL), f"{name} ended with {code}: {text}"
    if code == 2:
        lines = text.strip().splitlines()
        assert len(lines) == 1, f"{name} said {text!r}"
        assert lines[0].startswith("leanbayes: "), f"{name} said {text!r}"


class Harness:
    """Disturbs one command again and again.

    Args:
        name: the command.
        top: a folder for the folders of all runs.
        report: counts what is done.
    """

    def __init__(self, name: str, top: Path, report: Report) -> None:
        self.name, self.words, self.top, self.report = name, LINES[name], top, report
        folder = self._folder()
        code, text, self.changes, self.seconds = run(self.words, folder)
        assert code == 0, text
        self.expected = state(folder)
        self.largest = max(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        report.changes[name] = self.changes
        report.runs += 1

    def disturb(self, *disturbances: Disturbance) -> None:
        """Do it, and note what was wrong."""
        try:
            self._disturb(*disturbances)
        except AssertionError as error:
            self.report.errors.append(str(error))
            sys.stderr.write(f"{error}\n")

    def _disturb(self, *disturbances: Disturbance) -> None:
        """Run the command with each disturbance in turn, then undisturbed, and compare what it leaves."""
        folder = self._folder()
        for disturbance in disturbances:
            code, text, _, _ = run(self.words, folder, disturbance)
            self._count(disturbance, code)
            check_complaint(self.name, code, text)
            check_whole(folder)
        code, text, _, _ = run(self.words, folder)
        self.report.runs += 1
        what = f"{self.name} after {'; '.join(map(str, disturbances))}"
        if code != 0:
            raise Unequal(f"{what} ended with {code}: {text}")
        left = state(folder)
        for path in sorted(left | self.expected):
            if left.get(path) != self.expected.get(path):
                raise Unequal(f"{what} left another {path}:\n{left.get(path)}\nand not\n{self.expected.get(path)}")

    def _folder(self) -> Path:
        folder = self.top / self.name / "work"  # always the same, because some records hold it
        shutil.rmtree(folder, ignore_errors=True)
        data(folder)
        return folder

    def _count(self, disturbance: Disturbance, code: int) -> None:
        self.report.runs += 1
        if disturbance.kill_after is not None or disturbance.kill_at is not None:
            if code == -signal.SIGKILL:
                self.report.kills += 1
            else:
                self.report.too_late += 1
                self.seconds *= 0.8  # the machine is quicker than it was in the undisturbed run
        elif disturbance.fail_at is not None:
            self.report.failures += 1
        else:
            self.report.short_writes += 1


def kill_and_fail(
    kills: int, seed: int, names: list[str], failures: int | None = None, short_writes: int | None = None
) -> Report:
    """Disturb the commands, each as often as the others.

    Args:
        kills: how many kills there are in all.
        seed: decides the moments.
        names: the commands.
        failures: how many changes of files fail, in all; None lets every single one fail, with both errors in turn.
        short_writes: how many runs cannot write large files, in all; None makes it as many as kills.

    Returns:
        What was done, and the errors: commands that left something else than they should have.
    """
    report, chance = Report(seed), random.Random(seed)
    with tempfile.TemporaryDirectory() as top:
        for place, name in enumerate(names):
            harness = Harness(name, Path(top), report)
            share = len(range(place, kills, len(names)))
            wanted = report.kills + share
            for _ in range(3 * share):  # some kills come too late
                if report.kills >= wanted:
                    break
                count = (
                    2 if report.kills + 1 < wanted and chance.random() < 0.3 else 1
                )  # the second meets a resumed run
                harness.disturb(*(_kill(chance, harness) for _ in range(count)))
            numbers = list(range(1, harness.changes + 1))
            if failures is not None:
                numbers = sorted(chance.sample(numbers, min(len(numbers), -(-failures // len(names)))))
            for number in numbers:
                harness.disturb(Disturbance(fail_at=number, error=chance.choice((errno.ENOSPC, errno.EIO))))
            for _ in range(share if short_writes is None else -(-short_writes // len(names))):
                # the limit holds for what the command prints, too, which must stay readable
                harness.disturb(Disturbance(largest=max(1024, int(harness.largest ** chance.random()))))
            _say(report, name)
    return report


def _kill(chance: random.Random, harness: Harness) -> Disturbance:
    if chance.random() < 0.5:
        return Disturbance(kill_at=chance.randint(1, harness.changes))
    return Disturbance(kill_after=chance.uniform(0, harness.seconds))


def _say(report: Report, name: str) -> None:
    sys.stderr.write(f"{name}: {vars(report)}\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--failures", type=int, help="by default every change of a file fails once")
    parser.add_argument("--short-writes", type=int, help="by default as many as kills")
    parser.add_argument("--commands", nargs="+", default=list(LINES), choices=list(LINES))
    return parser.parse_args()


if __name__ == "__main__":
    asked = _arguments()
    assert set(LINES) <= set(COMMANDS)  # imports all of them
    started = time.monotonic()
    done = kill_and_fail(asked.kills, asked.seed, asked.commands, asked.failures, asked.short_writes)
    print(json.dumps(vars(done) | {"minutes": round((time.monotonic() - started) / 60, 1)}))
