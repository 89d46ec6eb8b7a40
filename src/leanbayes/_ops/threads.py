"""Share pieces of work out among threads, preferably among those that torch itself computes with.

torch's threads (OpenMP) stay awake for a while after an operation, in case another one follows. On a machine whose
cores are all in use, a thread of ours would have to share a core with a thread that only waits. So pieces of work run
as a parallel region of torch's own OpenMP library, on Linux. Elsewhere, and in a process that was forked, they run in
threads of Python.
"""

import ctypes
import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import torch

__all__ = ["cuts", "share_out"]

_REGION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


def cuts(size: int, pieces: int) -> list[tuple[int, int]]:
    """Divide 0 … size into that many ranges, or into fewer if there are fewer numbers.

    >>> cuts(5, 2)
    [(0, 2), (2, 5)]
    """
    pieces = min(size, pieces)
    return [(i * size // pieces, (i + 1) * size // pieces) for i in range(pieces)]


def share_out(work: Callable[[Any], None], pieces: Sequence[Any]) -> None:
    """Call ``work`` on each piece, in as many threads as torch uses. The pieces must not depend on each other.

    >>> done = []
    >>> share_out(done.append, [1, 2, 3])
    >>> sorted(done)
    [1, 2, 3]
    """
    threads = min(torch.get_num_threads(), len(pieces))
    if threads <= 1:
        for piece in pieces:
            work(piece)
        return
    region = _parallel_region(os.getpid())
    if region is not None:
        _in_region(region, work, iter(pieces), threads)
    else:
        _in_pool(work, iter(pieces), threads)


def _in_region(region: Any, work: Callable[[Any], None], remaining: Iterable[Any], threads: int) -> None:
    """Let each thread of a parallel region take pieces until none is left."""
    errors: list[BaseException] = []

    def take(_: Any) -> None:
        try:
            for piece in remaining:
                work(piece)
                if errors:
                    return
        except BaseException as error:
            errors.append(error)

    region(_REGION(take), None, threads, 0)
    if errors:
        raise errors[0]


def _in_pool(work: Callable[[Any], None], remaining: Iterable[Any], threads: int) -> None:
    """Let this thread and others of Python take pieces until none is left."""

    def take() -> None:
        for piece in remaining:
            work(piece)

    others = [_pool(torch.get_num_threads(), os.getpid()).submit(take) for _ in range(threads - 1)]
    take()
    for other in others:
        if not other.cancel():
            other.result()


@cache
def _parallel_region(process: int) -> Any:
    """Return the function of torch's OpenMP library that runs a parallel region, or None if there is none to use.

    The threads of that library do not survive a fork, so only the process that has loaded torch uses it.
    """
    if process != _PROCESS or not hasattr(os, "RTLD_NOLOAD"):
        return None
    for path in sorted((Path(torch.__file__).parent / "lib").glob("libgomp*.so*")):
        try:
            region = ctypes.CDLL(str(path), os.RTLD_NOLOAD | os.RTLD_NOW).GOMP_parallel
        except (OSError, AttributeError):
            continue
        region.argtypes = [_REGION, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        region.restype = None
        return region
    return None


@cache
def _pool(threads: int, process: int) -> ThreadPoolExecutor:  # noqa: ARG001 - a forked process needs its own
    return ThreadPoolExecutor(threads, thread_name_prefix="leanbayes")


_PROCESS = os.getpid()
