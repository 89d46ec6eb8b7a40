"""The import of the tool that an adapter is for, with an error that names the extra to install."""

from collections.abc import Iterator
from contextlib import contextmanager

from leanbayes.errors import MissingPackage

__all__ = ["optional"]


@contextmanager
def optional(what: str, extra: str, *packages: str) -> Iterator[None]:
    """Inside this context, a missing package is a `MissingPackage`. Every other error stays what it is.

    Args:
        what: what needs the package, such as "leanbayes.integrations.lightning".
        extra: the extra of LeanBayes that installs the packages.
        packages: the names under which the packages are imported.

    >>> with optional("this example", "lightning", "no_such_package"):
    ...     import no_such_package
    Traceback (most recent call last):
        ...
    leanbayes.errors.MissingPackage: this example needs the package no_such_package; install it with: ...
    """
    try:
        yield
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in packages:
            raise  # the package is there and misses something of its own, which its message names
        raise MissingPackage.of(what, missing, extra) from error
