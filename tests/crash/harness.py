"""Runs scenarios in forked processes, disturbs them, and compares where they end with an undisturbed run.

The harness is one process that imports everything and computes nothing, so it has no threads and may fork. A run is a
fork, which begins at once: a random moment falls into its work and not into its imports. A run and its workers are one
process group.
"""

import contextlib
import ctypes
import errno
import importlib
import json
import multiprocessing
import os
import random
import shutil
import signal
import sys
import time
import traceback
import types
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.crash.control import Control, Disturbance
from tests.crash.ending import end_quietly_by_signals
from tests.crash.scenario import DONE, REFUSED, SOME_FAILED, Scenario, check_whole, state, whole_state

__all__ = ["Campaign", "Report", "adopt_orphans"]

_BUG = 70
_DIE_WITH_PARENT, _ADOPT_ORPHANS = 1, 36  # options of prctl(2)
_PATIENCE = 120.0  # seconds that workers have to notice the end of their parent, on a machine that is busy
_MOMENT = 0.005  # seconds


@dataclass
class Report:
    """What was done, for the last line of the output."""

    seed: int
    kills: int = 0
    too_late: int = 0
    failures: int = 0
    runs: int = 0
    changes: dict[str, dict[str, int]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Run:
    """How a run ended: its exit code, negative for a signal, what it wrote as errors, and how long it took."""

    code: int
    text: str
    seconds: float


class Campaign:
    """Disturbs one scenario again and again.

    Args:
        scenario: what is disturbed.
        top: a folder for the folder of each run.
        report: counts what is done.
    """

    def __init__(self, scenario: Scenario, top: Path, report: Report) -> None:
        self.scenario, self.report, self.control = scenario, report, Control()
        self.folder = top / scenario.name / "work"  # always the same, because some records hold it
        self.forked_workers = True  # they need not import anything; kills have real ones
        self._new_folder()
        first = self._run(None)
        assert first.code == DONE, f"{scenario.name} ended with {first.code}: {first.text}"
        self.expected = state(self.folder)
        self._import_what_the_run_imported()
        scenario.warm_up()
        _check_threads()
        self._new_folder()
        again = self._run(None)  # it is quicker, and must leave the same
        self._compare("a second undisturbed run", again)
        self.changes, self.seconds = self.control.changes, again.seconds
        report.changes[scenario.name] = self.control.kinds()
        self.continued: set[str] = set()

    def fail_at_each_change(
        self,
        choose: random.Random | None = None,
        number: int | None = None,
        only: Sequence[int] | None = None,
    ) -> None:
        """Let each change fail with both errors, one in each run, or only so many of them, chosen by chance.

        Args:
            choose: chooses the failures, if `number` is given.
            number: how many failures there are.
            only: the numbers of the first and the last change that fails; all changes by default.
        """
        first, last = only or (1, self.changes)
        cases = [
            Disturbance(fail_at=change, error=error)
            for change in range(max(first, 1), min(last, self.changes) + 1)
            for error in (errno.ENOSPC, errno.EIO)
        ]
        if choose is not None and number is not None:
            cases = choose.sample(cases, min(number, len(cases)))
        self.forked_workers = True
        said = time.monotonic()
        for done, case in enumerate(cases):
            self.disturb(case)
            if time.monotonic() > said + 60:
                said = time.monotonic()
                sys.stderr.write(f"{self.scenario.name}: {done + 1} of {len(cases)} failures\n")

    def kill(self, chance: random.Random, number: int) -> None:
        """Kill runs at random moments until so many kills have come in time. Some kills meet a resumed run."""
        self.forked_workers = False
        if self.scenario.workers and number:
            self._new_folder()
            self.seconds = self._run(None).seconds
        wanted, most = self.report.kills + number, self.report.too_late + 10 + 3 * number
        while self.report.kills < wanted and self.report.too_late < most:
            left = wanted - self.report.kills
            self.disturb(*(self._random_kill(chance) for _ in range(min(chance.choice((1, 1, 2, 3)), left))))

    def _random_kill(self, chance: random.Random) -> Disturbance:
        group = not self.scenario.workers or chance.random() < 0.5
        if chance.random() < 0.5:
            return Disturbance(kill_at=chance.randint(1, self.changes), group=group)
        return Disturbance(kill_after=chance.uniform(0, self.seconds), group=group)

    def disturb(self, *disturbances: Disturbance) -> None:
        """Run with each disturbance in turn, then undisturbed; note what was wrong.

        Many failures leave the same files. From the same files the work goes on in the same way, so of several failures
        that leave the same, only the first is followed by an undisturbed run.
        """
        what = f"{self.scenario.name} after {'; '.join(map(str, disturbances))}"
        try:
            self._new_folder()
            for disturbance in disturbances:
                done = self._run(disturbance)
                self._count(disturbance, done)
                _check_end(what, done)
                check_whole(self.folder)
            left = whole_state(self.folder)
            if left not in self.continued or any(disturbance.kills() for disturbance in disturbances):
                self._compare(what, self._run(None))
            self.continued.add(left)
        except Exception as error:
            self.report.errors.append(f"{what}: {type(error).__name__}: {error}")
            sys.stderr.write(f"{self.report.errors[-1]}\n")

    def _compare(self, what: str, done: _Run) -> None:
        assert done.code == DONE, f"{what}, the next run ended with {done.code}: {done.text}"
        left = state(self.folder)
        for path in sorted(left | self.expected):
            one, two = left.get(path, "nothing"), self.expected.get(path, "nothing")
            assert one == two, f"{what}, {path} is\n{one}\nand should be\n{two}"

    def _count(self, disturbance: Disturbance, done: _Run) -> None:
        if not disturbance.kills():
            self.report.failures += self.control.happened
        elif done.code == -signal.SIGKILL:
            self.report.kills += 1
        else:
            self.report.too_late += 1
            self.seconds *= 0.9  # the machine is quicker than it was in the undisturbed run

    def _new_folder(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self.scenario.prepare(self.folder)

    def _run(self, disturbance: Disturbance | None) -> _Run:
        self.report.runs += 1
        log = self.folder.with_name("log")
        log.write_bytes(b"")
        begin = time.monotonic()
        with self.control.armed(self.folder, disturbance):
            ready, start = os.pipe()
            child = os.fork()
            if not child:
                os.close(start)
                self._be_the_run(ready, log)
            os.close(ready)
            os.setpgid(child, child)
            self.control.aim(child, disturbance is None or disturbance.group)
            os.write(start, b".")
            os.close(start)
            try:
                if disturbance is not None and disturbance.kill_after is not None:
                    _kill_later(child, disturbance.kill_after, disturbance.group)
                code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
                seconds = time.monotonic() - begin
                _wait_for_workers(child)
            except BaseException:  # this harness is asked to end, and must not leave a run behind
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child, signal.SIGKILL)
                raise
        return _Run(code, log.read_text(), seconds)

    def _be_the_run(self, ready: int, log: Path) -> None:
        """Do the work in this process, which is a fork, and end it.

        Args:
            ready: a pipe on which the harness says that it has set the control block.
            log: where errors go.
        """
        code = _BUG
        end_quietly_by_signals()
        try:
            _prctl(_DIE_WITH_PARENT, signal.SIGKILL)
            os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.chdir(self.folder)
            sys.modules["__main__"] = types.ModuleType("__main__")  # or each worker would import this harness
            if self.forked_workers:
                fork = multiprocessing.get_context("fork")
                multiprocessing.get_context = lambda method=None: fork  # type: ignore[assignment]
            os.read(ready, 1)
            code = self.scenario.work()
            self._note_imports()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _note_imports(self) -> None:
        self.folder.with_name("modules").write_text(json.dumps(sorted(sys.modules)))

    def _import_what_the_run_imported(self) -> None:
        for name in json.loads(self.folder.with_name("modules").read_text()):
            if name not in sys.modules:
                try:
                    importlib.import_module(name)
                except Exception:  # a module that another module makes, and that no file holds
                    continue


def _check_threads() -> None:
    threads = len(list(Path("/proc/self/task").iterdir()))
    assert threads == 1, f"this process has {threads} threads, so it must not fork"


def _check_end(what: str, done: _Run) -> None:
    assert done.code in (DONE, SOME_FAILED, REFUSED, -signal.SIGKILL), f"{what}, it ended with {done.code}: {done.text}"
    assert "Traceback" not in done.text, f"{what}: {done.text}"
    if done.code == REFUSED:
        lines = done.text.strip().splitlines()
        assert len(lines) == 1, f"{what}, it wrote {done.text!r}"
        assert lines[0].startswith("leanbayes: "), f"{what}, it wrote {done.text!r}"


def _kill_later(child: int, seconds: float, group: bool) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return
        time.sleep(0.001)
    os.killpg(child, signal.SIGKILL) if group else os.kill(child, signal.SIGKILL)


def _wait_for_workers(group: int) -> None:
    """Wait until no process of a group is left. The harness adopts orphans, see `adopt_orphans`.

    It counts its own moments of waiting, so time in which somebody has stopped the harness does not count.
    """
    for _ in range(round(_PATIENCE / _MOMENT)):
        try:
            if os.waitpid(-group, os.WNOHANG)[0] == 0:
                time.sleep(_MOMENT)
        except ChildProcessError:
            return
    os.killpg(group, signal.SIGKILL)
    raise AssertionError(f"workers lived {_PATIENCE} s after the end of their parent")


def adopt_orphans() -> None:
    """Become the parent of the workers of killed processes, so that their end can be seen."""
    _prctl(_ADOPT_ORPHANS, 1)


def _prctl(option: int, value: int) -> None:
    assert ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0
