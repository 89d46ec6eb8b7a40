"""A reader under attack."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.mutations import Mutate

__all__ = ["Reader"]


@dataclass(frozen=True)
class Reader:
    """A reader under attack.

    Attributes:
        file: the file that is damaged.
        read: reads the file, or the folder that it lies in.
        damage: how the file is damaged.
        share: how many mutations it gets, in relation to the others.
    """

    file: Path
    read: Callable[[], object]
    damage: Mutate
    share: float = 1.0
