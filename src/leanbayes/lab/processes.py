"""Worker processes that end with their parent, and folders that one process uses at a time."""

import ctypes
import errno
import gc
import multiprocessing
import os
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from pathlib import Path

import torch

from leanbayes.errors import FileError, LeanBayesError

__all__ = ["only_user_of", "release_memory", "worker_processes"]

_LOCK = ".lock"
_TAKEN = (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK)


@contextmanager
def worker_processes(count: int, threads: int) -> Iterator[ProcessPoolExecutor]:
    """Give a pool of worker processes, which end when this process ends, however it ends.

    A worker notices the end of its parent by itself, because a parent that is killed can tell nobody.

    Args:
        count: how many processes there are.
        threads: how many threads of torch each of them has.

    Raises:
        LeanBayesError: a worker ended before its work was done, as when the system kills it for want of memory.
    """
    spawn = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(count, mp_context=spawn, initializer=_begin_worker, initargs=(threads,))
    try:
        yield pool
    except BrokenProcessPool as error:
        raise LeanBayesError(
            "a worker process ended before its work was done; if the memory was too small, take fewer processes"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _begin_worker(threads: int) -> None:
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch.set_num_threads(threads)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()  # waits on a pipe, which the system closes when the parent ends
        os._exit(1)


@contextmanager
def only_user_of(folder: Path) -> Iterator[None]:
    """Keep other processes that ask for the same folder out of it inside the ``with`` block.

    The lock lies on the file ``.lock`` in the folder. The system releases it when the process ends, however it ends.

    Raises:
        FileError: another process uses the folder.
    """
    path = folder / _LOCK
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            _lock(file)
        except OSError as error:
            os.close(file)
            if error.errno not in _TAKEN:
                raise
            raise FileError(
                f"another process of leanbayes{_holder(path)} uses the folder {folder}; wait until it ends, or give "
                "another folder"
            ) from None
        if _is_file(file, path):
            break
        os.close(file)  # the process before us has removed this file, and another one may have made a new one
    try:
        os.ftruncate(file, 0)
        os.write(file, str(os.getpid()).encode())
        yield
    finally:
        if sys.platform == "win32":  # which removes no open file
            os.close(file)
        with suppress(OSError):
            path.unlink()
        if sys.platform != "win32":
            os.close(file)


if sys.platform == "win32":
    import msvcrt

    def _lock(file: int) -> None:
        os.lseek(file, 1 << 30, os.SEEK_SET)  # the lock must not keep others from reading who holds it
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        os.lseek(file, 0, os.SEEK_SET)

else:
    import fcntl

    def _lock(file: int) -> None:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _is_file(file: int, path: Path) -> bool:
    with suppress(OSError):
        return os.path.samestat(os.fstat(file), path.stat())
    return False


def _holder(path: Path) -> str:
    with suppress(OSError, ValueError):
        return f" (number {int(path.read_text())})"
    return ""


_WORTH = 2**26  # bytes of growth for which a sweep over all objects is worth its time
_kept = 0  # the bytes in use after the last sweep


def release_memory() -> None:
    """Give memory that is free in this process back to the system, where the C library can do so.

    The library of Linux keeps what was freed between blocks that are still in use. After the training on large images
    this may be a gigabyte, on top of which the predictions would come. After the training of a tiny network it is
    nothing, and a sweep over all objects may take longer than the training; so there is none if the process has hardly
    grown since the last one.
    """
    global _kept
    if (before := _resident_bytes()) is not None and before < _kept + _WORTH:
        return
    gc.collect()
    with suppress(OSError, AttributeError):  # other systems have no such function
        ctypes.CDLL(None).malloc_trim(0)
    _kept = _resident_bytes() or 0


def _resident_bytes() -> int | None:
    """Return how much main memory this process uses; None where the system does not tell it."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
