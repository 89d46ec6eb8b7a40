"""A catalogue finds the members of one kind: posterior families, recipes, metrics, commands and so on.

The catalogue finds a member of our own because the member's module lies in a certain package; a module may hold
several members in a tuple. It finds a member of another package through an entry point, so a third party adds one
without touching this repository. The catalogue imports nothing before somebody asks it, which keeps
``import leanbayes`` quick.

Another package declares its members in its ``pyproject.toml``. The name before the equals sign is free; the value after
it is a module and the name of the member in that module:

```toml
[project.entry-points."leanbayes.posteriors"]
triangular = "my_package.triangular:Triangular"
```
"""

import importlib
import pkgutil
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Generic, TypeVar

from leanbayes.errors import InputError, UnknownName

__all__ = ["Catalogue"]

T = TypeVar("T")


class Catalogue(Mapping[str, T], Generic[T]):
    """The members of one kind by name, sorted by name.

    Any thread may ask a catalogue, and a member may be added while another thread iterates over it.

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
        self._members: dict[str, T] = {}  # replaced and never changed, so that iterations go on undisturbed
        self._sources: dict[str, str] = {}
        self._complete = False
        self._lock = threading.RLock()

    def __repr__(self) -> str:
        return f"Catalogue({self.noun}: {', '.join(self)})"

    def register(self, member: T) -> T:
        """Add a member from the running program; the method also serves as a decorator.

        Raises:
            InputError: if the object is not of this kind, or if another member has its name. Where the other one has
                not been found yet, the first question to the catalogue raises the error.
        """
        with self._lock:
            self._add(member, "the running program")
        return member

    @contextmanager
    def replacing(self, member: T) -> Iterator[None]:
        """Hold a member inside the ``with`` block only, also in the place of another of the same name: for tests.

        Raises:
            InputError: if the object is not of this kind.
        """
        before, name = self._all(), self._name_of(member)
        if name is None:
            raise self._wrong_kind(member)
        self._members = dict(sorted((before | {name: member}).items()))
        try:
            yield
        finally:
            self._members = before

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
                    self._scan_entry_points()
                except BaseException:
                    self._complete = False  # the next question meets the same error, not half of the members
                    raise
            return self._members

    def _scan_package(self) -> None:
        if self.package is None:
            return
        package = importlib.import_module(self.package)
        for info in pkgutil.iter_modules(package.__path__):
            if info.name == "__main__":  # whose import would run it
                continue
            module = importlib.import_module(f"{self.package}.{info.name}")
            for attribute in list(vars(module).values()):
                for value in attribute if isinstance(attribute, tuple) else (attribute,):
                    if _belongs(value, module) and self._name_of(value) is not None:
                        self._add(value, module.__name__)

    def _scan_entry_points(self) -> None:
        if self.group is None:
            return
        for point in entry_points(group=self.group):
            source = f"the entry point {point.name!r} of {_distribution(point)}"
            try:
                value = point.load()
                if self._name_of(value) is None:
                    raise InputError(f"the group {self.group!r} is for every {self.noun}, got {value!r}")
            except Exception as error:  # a broken package of somebody else must not take ours down
                warnings.warn(f"{source} could not be loaded and is left out: {error}", RuntimeWarning, stacklevel=2)
                continue
            self._add(value, source)

    def _add(self, member: T, source: str) -> None:
        name = self._name_of(member)
        if name is None:
            raise self._wrong_kind(member)
        if name in self._members and self._members[name] is not member:
            raise InputError(
                f"two of kind {self.noun} are called {name!r}, one in {self._sources[name]} and one in {source}; "
                "rename one of them"
            )
        self._members = dict(sorted((self._members | {name: member}).items()))
        self._sources.setdefault(name, source)

    def _wrong_kind(self, member: object) -> InputError:
        return InputError(f"expected an object of kind {self.noun}, got {member!r}")


def _belongs(value: object, module: ModuleType) -> bool:
    """Whether a class was defined in this module or below it; other objects do not tell where they were made."""
    home = value.__module__ if isinstance(value, type) else module.__name__
    return home == module.__name__ or home.startswith(f"{module.__name__}.")


def _distribution(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "an unknown package"
