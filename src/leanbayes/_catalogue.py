"""A catalogue finds the members of a kind: posterior families, recipes, metrics, commands and so on.

A member of our own is found because its module lies in a certain package; a module may hold several in a tuple. A
member of somebody else's package is found through an entry point, so a third party adds one without touching this
repository. Nothing is imported before the catalogue is first asked, which keeps ``import leanbayes`` quick.
"""

import importlib
import pkgutil
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from typing import Generic, TypeVar

from leanbayes.errors import InputError, UnknownName

__all__ = ["Catalogue"]

T = TypeVar("T")


class Catalogue(Mapping[str, T], Generic[T]):
    """The members of one kind by name.

    Args:
        noun: what a member is called in messages, such as "recipe".
        name_of: gives the name of a member, and None for any other object.
        package: the package whose modules hold our own members; None if there is no such package.
        group: the group of entry points through which other packages add members, such as "leanbayes.recipes".

    >>> numbers = Catalogue("number", lambda value: f"n{value}" if isinstance(value, int) else None)
    >>> numbers.register(3)
    3
    >>> numbers.named("n3"), list(numbers)
    (3, ['n3'])
    """

    def __init__(
        self,
        noun: str,
        name_of: Callable[[object], str | None],
        *,
        package: str | None = None,
        group: str | None = None,
    ) -> None:
        self.noun, self.package, self.group = noun, package, group
        self._name_of = name_of
        self._members: dict[str, T] = {}
        self._sources: dict[str, str] = {}
        self._complete = False
        self._lock = threading.RLock()

    def register(self, member: T) -> T:
        """Add a member from the running program, also as a decorator; a second member of the same name is refused."""
        with self._lock:
            self._add(member, "the running program")
        return member

    @contextmanager
    def replacing(self, member: T) -> Iterator[None]:
        """Hold ``member`` inside the ``with`` block only, also in the place of one with the same name: for tests."""
        members = self._all()
        before, name = dict(members), self._name_of(member)
        if name is None:
            raise InputError(f"a {self.noun} was expected, got {member!r}")
        try:
            members[name] = member
            yield
        finally:
            members.clear()
            members.update(before)

    def named(self, name: str) -> T:
        """Return the member of this name, or raise `UnknownName` with the names that exist."""
        members = self._all()
        if name not in members:
            raise UnknownName.of(self.noun, name, members)
        return members[name]

    def __getitem__(self, name: str) -> T:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())

    def _all(self) -> dict[str, T]:
        with self._lock:
            if not self._complete:
                self._complete = True  # set first: a module of the package may ask the catalogue while it is imported
                try:
                    self._scan_package()
                except BaseException:
                    self._complete = False
                    raise
                self._scan_entry_points()
                self._members = dict(sorted(self._members.items()))
            return self._members

    def _scan_package(self) -> None:
        if self.package is None:
            return
        package = importlib.import_module(self.package)
        for info in pkgutil.iter_modules(package.__path__):
            module = importlib.import_module(f"{self.package}.{info.name}")
            for attribute in list(vars(module).values()):
                for value in attribute if isinstance(attribute, tuple) else (attribute,):
                    imported = isinstance(value, type) and value.__module__ != module.__name__
                    if not imported and self._name_of(value) is not None:
                        self._add(value, module.__name__)

    def _scan_entry_points(self) -> None:
        if self.group is None:
            return
        for point in entry_points(group=self.group):
            source = f"the entry point {point.name!r} of {_distribution(point)}"
            try:
                value = point.load()
            except Exception as error:  # somebody else's package must not take ours down
                warnings.warn(f"{source} could not be loaded and is left out: {error}", RuntimeWarning, stacklevel=2)
                continue
            if self._name_of(value) is None:
                raise InputError(f"{source} in the group {self.group!r} must give a {self.noun}, got {value!r}")
            self._add(value, source)

    def _add(self, member: T, source: str) -> None:
        name = self._name_of(member)
        if name is None:
            raise InputError(f"a {self.noun} was expected, got {member!r}")
        if name in self._members and self._members[name] is not member:
            raise InputError(
                f"two of kind {self.noun} are called {name!r}, one in {self._sources[name]} and one in {source}; "
                "rename one of them"
            )
        self._members[name], self._sources[name] = member, source


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unknown package"
