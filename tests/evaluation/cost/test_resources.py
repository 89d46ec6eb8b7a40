"""Seconds and memory, against a clock of our own, known allocations and the system."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from leanbayes.errors import InputError
from leanbayes.evaluation.cost import (
    count_flops,
    measure,
    peak_memory,
    resources,
)


def test_times_are_the_best_and_the_median(monkeypatch: pytest.MonkeyPatch) -> None:
    durations = iter([9.0, 3.0, 4.0, 1.0, 2.0])
    clock = [0.0]
    monkeypatch.setattr(resources.time, "perf_counter", lambda: clock[0])

    def work() -> None:
        clock[0] += next(durations)

    result = measure(work, repeats=5)
    assert (result.best, result.median, result.repeats) == (1.0, 3.0, 5)
    assert next(durations, None) is None
    with pytest.raises(InputError, match="repeats"):
        measure(work, repeats=0)


class FakeCuda:
    """Work is queued by `launch` and done only by `synchronize`; allocations have a running peak."""

    def __init__(self) -> None:
        self.clock, self.queued, self.now, self.peak = 0.0, 0.0, 1000, 9000

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device=None: self.now)
        monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device=None: self.peak)
        monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda device=None: setattr(self, "peak", self.now))
        monkeypatch.setattr(torch.cuda, "synchronize", self.synchronize)

    def synchronize(self, device: object = None) -> None:
        self.clock, self.queued = self.clock + self.queued, 0.0

    def launch(self) -> None:
        self.queued += 2.0
        self.now += 500
        self.peak = max(self.peak, self.now)
        self.now -= 400


def test_cuda_is_waited_for_and_its_peak_is_above_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    cuda.install(monkeypatch)
    monkeypatch.setattr(resources.time, "perf_counter", lambda: cuda.clock)
    cuda.launch()  # earlier work that must not be charged to the first call
    assert measure(cuda.launch, repeats=2).median == 2.0
    assert peak_memory(lambda: [cuda.launch(), cuda.launch()], "cuda") == 600


def test_peak_memory_of_known_allocations() -> None:
    def work() -> None:
        first = torch.empty(1_000_000, dtype=torch.uint8)
        del first
        second, third = torch.empty(2_000_000, dtype=torch.uint8), torch.empty(500_000, dtype=torch.uint8)
        del second, third
        torch.empty(2_400_000, dtype=torch.uint8)

    assert [peak_memory(work) for _ in range(3)] == [2_500_000] * 3
    assert peak_memory(lambda: None) == 0


def test_measuring_writes_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    peak_memory(lambda: torch.empty(10))
    count_flops(lambda: torch.ones(2, 2) @ torch.ones(2, 2))
    assert capfd.readouterr() == ("", "")


def test_peak_memory_is_above_what_was_there_and_sees_what_stays() -> None:
    there, kept = torch.empty(3_000_000, dtype=torch.uint8), []
    assert peak_memory(lambda: kept.append(torch.empty(1_000_000, dtype=torch.uint8))) == 1_000_000
    assert peak_memory(lambda: kept.append(there[:10])) == 0


SYSTEM = """
from pathlib import Path
import torch
from leanbayes.evaluation.cost import peak_memory

def pages():
    return int(Path("/proc/self/statm").read_text().split()[1])

def work():
    before = pages()
    block = torch.ones(64 * 2**20, dtype=torch.uint8)
    resident.append((pages() - before) * 4096)

resident = []
print(peak_memory(work), resident[0])
"""


def test_peak_memory_agrees_with_what_the_system_says() -> None:
    """In a process of its own: one that has freed much memory does not ask the system for more."""
    if not Path("/proc/self/statm").exists():
        pytest.skip("no /proc on this system")
    done = subprocess.run([sys.executable, "-c", SYSTEM], capture_output=True, text=True, check=True)
    peak, resident = map(int, done.stdout.split())
    assert peak == 64 * 2**20
    assert resident == pytest.approx(64 * 2**20, rel=0.02)


def test_peak_memory_of_a_backward_pass_by_hand() -> None:
    weight = torch.ones(1000, 1000, requires_grad=True)
    x = torch.ones(1000, 1000)

    def work() -> None:
        y = (x @ weight).sin()  # keeps x @ weight for the backward pass
        torch.autograd.grad(y.sum(), weight)

    # At its peak: the product, y, and the gradients of y (expanded, no memory), of the product and of the weight.
    block = 4_000_000
    assert 4 * block <= peak_memory(work) <= 5 * block + 1000


def test_a_failure_inside_leaves_no_profiler_behind() -> None:
    def fail() -> None:
        raise KeyError("inside")

    for _ in range(2):
        with pytest.raises(KeyError):
            peak_memory(fail)
        with pytest.raises(KeyError):
            count_flops(fail)
    assert torch.backends.mha.get_fastpath_enabled()
    assert peak_memory(lambda: torch.empty(100, dtype=torch.uint8)) == 100
    with pytest.raises(InputError, match="meta"):
        peak_memory(fail, "meta")
