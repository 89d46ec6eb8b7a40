"""Worker processes on this machine. A worker that is killed is replaced."""

import os
import signal
import subprocess
from pathlib import Path

from leanbayes.errors import InputError
from leanbayes.lab.jobs.executor import Executor, Order
from leanbayes.lab.jobs.job import this_machine
from leanbayes.lab.jobs.leases import PARENT

__all__ = ["LOCAL"]


class _Processes:
    """Processes of this machine, which end with this one."""

    def __init__(self, order: Order) -> None:
        machine = this_machine()
        if not order.needs.fits(machine):
            raise InputError(f"a job needs {order.needs}, and this machine has {machine}; use other machines")
        self.order = order
        count = min(order.workers or 1, max(order.jobs, 1))
        threads = max(1, (os.cpu_count() or 1) // count)
        self.environment = {"OMP_NUM_THREADS": str(threads)} | os.environ | {PARENT: str(os.getpid())}
        self.replacements = 3 * count + order.jobs  # a worker that is killed before it does anything has no end
        self.processes = {number: self._start(number) for number in range(count)}
        self.failed: list[int] = []

    def living(self) -> int:
        """Replace workers that were killed, and return how many there are."""
        for number, process in list(self.processes.items()):
            code = process.poll()
            if code is None:
                continue
            del self.processes[number]
            if code < 0 and -code != signal.SIGINT and self.replacements:
                self.replacements -= 1
                self.processes[number] = self._start(number)
            elif code:
                self.failed.append(number)
        return len(self.processes)

    def last_words(self) -> str:
        """Return the last line that a worker wrote which ended in an error."""
        for number in self.failed:
            lines = self._log(number).read_text(encoding="utf-8", errors="replace").strip().splitlines()
            if lines:
                return lines[-1].removeprefix("leanbayes: ")
        return "the workers were killed, perhaps because the memory was too small; take fewer workers"

    def stop(self) -> None:
        """End all workers."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, number: int) -> "subprocess.Popen[bytes]":
        with self._log(number).open("ab") as log:
            return subprocess.Popen(
                list(self.order.command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment
            )

    def _log(self, number: int) -> Path:
        return self.order.logs / f"local-{number}.log"


LOCAL = Executor("local", _Processes)
