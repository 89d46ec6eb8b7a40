"""Forms of inputs that are too many for one table: how they are cut into shards, and how a shard is read."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from leanbayes._catalogue import Catalogue
from leanbayes.errors import FileError, InputError
from leanbayes.lab.data import Preparation
from leanbayes.lab.data.new_cases import NewCase

__all__ = ["FORMS", "Cases", "Form", "ListedCases", "cut", "form_of", "read_part"]

Part = Mapping[str, Any]
"""Where the inputs of a shard lie, as JSON. Every part has the number of its inputs, ``count``."""


class Cases(Protocol):
    """The inputs of a shard, which are read when they are needed."""

    @property
    def names(self) -> list[str]:
        """The name of each input."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> NewCase: ...


@dataclass(frozen=True)
class ListedCases:
    """Inputs that have all been read.

    Args:
        names: the name of each input.
        cases: the inputs.
    """

    names: list[str]
    cases: Sequence[NewCase]

    def __len__(self) -> int:
        return len(self.cases)

    def __getitem__(self, index: int) -> NewCase:
        return self.cases[index]


@dataclass(frozen=True)
class Form:
    """One form of inputs.

    Args:
        name: how a part names it.
        what: how messages call it.
        fits: says whether a path has this form.
        cut: yields the parts of a path, each of at most so many inputs.
        read: reads one part. Nothing that it reads is executed or unpickled.
        order: the first form that fits is taken, in the order of these numbers.
    """

    name: str
    what: str
    fits: Callable[[Path, Preparation], bool]
    cut: Callable[[Path, Preparation, int], Iterator[Part]]
    read: Callable[[Path, Part, Preparation], Cases]
    order: int = 0


FORMS: Catalogue[Form] = Catalogue(
    "form of inputs",
    lambda value: value.name if isinstance(value, Form) else None,
    package="leanbayes.lab.shards.forms",
    group="leanbayes.forms",
)
"""Every form by name."""


def form_of(path: Path, preparation: Preparation) -> Form:
    """Return the form of a path."""
    if not path.exists():
        raise FileError(f"there is no file or folder {path}; check the path")
    for form in sorted(FORMS.values(), key=lambda form: form.order):
        if form.fits(path, preparation):
            return form
    known = ", ".join(form.what for form in FORMS.values())
    raise InputError(f"{path} is nothing that can be cut into shards; give one of: {known}")


def cut(path: Path, preparation: Preparation, size: int) -> list[dict[str, Any]]:
    """Cut the inputs at a path into parts of at most ``size`` inputs each."""
    form = form_of(path, preparation)
    return [{"form": form.name, **part} for part in form.cut(path, preparation, size)]


def read_part(path: Path, part: Part, preparation: Preparation) -> Cases:
    """Read one part of the inputs at a path."""
    cases = FORMS.named(str(part["form"])).read(path, part, preparation)
    if len(cases) != part["count"]:
        raise InputError(
            f"{path} has changed since it was cut into shards: {len(cases)} inputs are there, and {part['count']} were"
        )
    return cases
