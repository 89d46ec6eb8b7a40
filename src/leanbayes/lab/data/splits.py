"""Training, validation and test: found by the names of folders and arrays, or set aside by chance, class by class."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import torch

from leanbayes.errors import InputError

__all__ = ["SPLITS", "complete", "divide", "split_folders"]

T = TypeVar("T")

SPLITS: dict[str, tuple[str, ...]] = {
    "train": ("train", "training"),
    "validation": ("validation", "val", "valid"),
    "test": ("test", "testing"),
}
"""The three sets, and what each may be called."""

_SHARE = 0.15  # of the whole, for each set that must be set aside


def divide(groups: Sequence[Hashable], shares: Mapping[str, float], seed: int) -> dict[str, list[int]]:
    """Places of examples by set: each named set gets its share of every group, "train" the rest.

    The shares hold for the whole, and for each group to within one example. One of each group always stays in training.

    >>> {name: len(places) for name, places in divide(["a", "b"] * 10, {"test": 0.2}, seed=0).items()}
    {'train': 16, 'test': 4}
    """
    order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(seed)).tolist()
    members: dict[Hashable, list[int]] = {}
    for place in order:
        members.setdefault(groups[place], []).append(place)
    parts: dict[str, list[int]] = {"train": [], **{name: [] for name in shares}}
    seen = 0
    for group in members.values():
        seen += len(group)
        start = 0
        for name, share in shares.items():
            due = round(share * seen) - len(parts[name])  # what rounding left over goes to the next group
            end = start + min(max(due, 0), len(group) - 1 - start)
            parts[name] += group[start:end]
            start = end
        parts["train"] += group[start:]
    return {name: sorted(places) for name, places in parts.items()}


def complete(
    sets: Mapping[str, Sequence[T]], group: Callable[[T], Hashable], seed: int, where: Path
) -> dict[str, list[T]]:
    """All three sets: those that are missing get 15 % of "train" each, or of the whole where that is all there is."""
    missing = {name: _SHARE for name in SPLITS if name != "train" and name not in sets}
    examples = sets["train"]
    parts = divide([group(example) for example in examples], missing, seed)
    chosen = {name: [examples[place] for place in places] for name, places in parts.items()}
    for name, some in chosen.items():
        if not some:
            raise InputError(
                f"{where} has too few examples ({len(examples)}) to set some aside for {name}; "
                "add more, or divide them yourself in train, validation and test"
            )
    found = {**{name: list(some) for name, some in sets.items()}, **chosen}
    return {name: found[name] for name in SPLITS}


def split_folders(path: Path) -> dict[str, Path]:
    """The folders of ``path`` that are named as sets; {} unless there is one for training."""
    found: dict[str, Path] = {}
    for folder in sorted(p for p in path.iterdir() if p.is_dir()):
        name = next((name for name, names in SPLITS.items() if folder.name.lower() in names), None)
        if name in found:
            raise InputError(f"{found[name]} and {folder} are both {name} sets; keep one of them")
        if name is not None:
            found[name] = folder
    return found if "train" in found else {}
