"""The one place that decides whether compiled kernels can be used.

numba compiles the kernels in this package. It is an optional package: without it, each operation takes a path through
torch or numpy that gives the same results up to rounding, only more slowly.
"""

import hashlib
import os
import stat
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from leanbayes.errors import MissingPackage, PerformanceWarning

__all__ = ["available", "kernel", "require"]


@cache
def available() -> bool:
    """Whether numba can be imported.

    The import takes half a second, so callers ask only where a kernel would be worth its call. For the same reason the
    warning about a missing numba reaches only those users who would gain by it, and it comes once in a process.
    """
    try:
        import numba  # noqa: F401
    except ImportError:
        warnings.warn(
            "numba is not installed, so draws of large tensors, moments of large activations and products by sparse "
            "weights are slower than they could be; install it with: pip install 'leanbayes[fast]'",
            PerformanceWarning,
            stacklevel=2,
        )
        return False
    return True


def require(kernel: str) -> None:
    """Raise `MissingPackage` where a kernel was asked for by name and numba is missing."""
    if not available():
        raise MissingPackage.of(f'the kernel "{kernel}"', "numba", "fast")


def kernel(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Return a decorator that compiles a function at its first use, and keeps the result on disk for later processes.

    The first folder of `_folders` that can be written to keeps it. If none can, each process compiles for itself, which
    takes seconds. numba tells processors apart, and replaces a file as a whole, so that processes may compile at once.

    Args:
        options: further options of numba's ``njit``.
    """
    from numba import njit

    def decorate(function: Callable[..., Any]) -> Any:
        for folder in _folders():
            try:
                with _kept_in(folder):
                    return njit(nogil=True, cache=True, error_model="numpy", **options)(function)
            except (RuntimeError, OSError):  # nobody may write there
                continue
        return njit(nogil=True, error_model="numpy", **options)(function)

    return decorate


_AT_ONCE = threading.Lock()
_SOURCES = (  # what compiled code is made of
    "*_kernels.py", "sparse_lanes.py", "sparse_tiles.py", "normal_numpy.py", "compiled.py"
)  # fmt: skip


@contextmanager
def _kept_in(folder: Path) -> Iterator[None]:
    """Inside this context, numba takes this folder for the functions that are decorated."""
    import numba

    settings: Any = numba.config  # which makes its attributes when it is imported
    with _AT_ONCE:
        before, settings.CACHE_DIR = settings.CACHE_DIR, str(folder)
        try:
            yield
        finally:
            settings.CACHE_DIR = before


@cache
def _folders() -> tuple[Path, ...]:
    """Return where compiled kernels may be kept, best first.

    They are the folder that the variable NUMBA_CACHE_DIR names, that of the package, that of the user's caches, and one
    for temporary files that only this user can write to. In each of them the state of the sources has a folder of its
    own. numba by itself looks at the file of a kernel alone, not at the functions that the kernel takes from others.
    """
    bases = [Path(__file__).parent / "__pycache__", Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache"), _temporary()]
    named = os.environ.get("NUMBA_CACHE_DIR")
    sources = hashlib.sha256()
    for path in sorted(path for pattern in _SOURCES for path in Path(__file__).parent.glob(pattern)):
        sources.update(path.name.encode() + path.read_bytes())
    found = []
    for base in bases if not named else [Path(named), *bases]:
        try:
            folder = None if base is None else base.expanduser() / "leanbayes" / sources.hexdigest()[:16]
            if folder is not None and _writable(folder):
                found.append(folder)
        except (RuntimeError, OSError):  # no home, or a folder that may not be looked into
            continue
    return tuple(found)


def _writable(folder: Path) -> bool:
    """Return whether this process can make files in a folder, which is made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        return True


def _temporary() -> Path | None:
    """Return a folder for temporary files that belongs to this user alone, because numba runs what it finds there."""
    if not hasattr(os, "getuid"):
        return Path(tempfile.gettempdir())  # the user's own where users have no numbers
    folder = Path(tempfile.gettempdir()) / f"leanbayes-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        state = folder.lstat()
    except OSError:
        return None
    private = stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid() and not state.st_mode & 0o077
    return folder if private else None
