"""The one place that decides whether compiled kernels can be used.

numba compiles the kernels in this package. It is an optional package: without it, each operation takes a path through
torch or numpy that gives the same results up to rounding, only more slowly.
"""

import warnings
from collections.abc import Callable
from functools import cache
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

    numba keeps it beside the source, or in the user's folder for caches if the package lies where nobody may write. If
    both are closed, as in some containers, numba refuses; each process then compiles for itself, which takes seconds.

    Args:
        options: further options of numba's ``njit``.
    """
    from numba import njit

    def decorate(function: Callable[..., Any]) -> Any:
        try:
            return njit(nogil=True, cache=True, error_model="numpy", **options)(function)
        except RuntimeError:
            return njit(nogil=True, error_model="numpy", **options)(function)

    return decorate
