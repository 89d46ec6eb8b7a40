"""The training, validation and test sets: their names, and how examples are drawn for those that are missing."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from leanbayes.errors import InputError

__all__ = ["SPLITS", "complete", "divide", "line_up", "split_folders"]

T = TypeVar("T")

SPLITS: dict[str, tuple[str, ...]] = {
    "train": ("train", "training"),
    "validation": ("validation", "val", "valid"),
    "test": ("test", "testing"),
}
"""The three sets, and the names that the folders and arrays of each may have."""

_SHARE = 0.15  # of all examples, for each set that is missing


def divide(groups: Sequence[Hashable], shares: Mapping[str, float], seed: int) -> dict[str, list[int]]:
    """Divide examples into sets at random, such that each set gets its share of every group.

    The shares hold for all examples together, and for each group to within one example. At least one example of each
    group stays in "train".

    Args:
        groups: the group of each example, such as its class.
        shares: the share of the examples that each named set gets. All others go to "train".
        seed: decides which examples are drawn.

    Returns:
        The sorted indices of the examples in each set.

    >>> {name: len(indices) for name, indices in divide(["a", "b"] * 10, {"test": 0.2}, seed=0).items()}
    {'train': 16, 'test': 4}
    """
    order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(seed)).tolist()
    members: dict[Hashable, list[int]] = {}
    for index in order:
        members.setdefault(groups[index], []).append(index)
    parts: dict[str, list[int]] = {"train": [], **{name: [] for name in shares}}
    seen = 0
    for group in members.values():
        seen += len(group)
        start = 0
        for name, share in shares.items():
            due = round(share * seen) - len(parts[name])  # what rounding leaves over goes to the next group
            end = start + min(max(due, 0), len(group) - 1 - start)
            parts[name] += group[start:end]
            start = end
        parts["train"] += group[start:]
    return {name: sorted(indices) for name, indices in parts.items()}


def line_up(groups: Sequence[Hashable], seed: int) -> Tensor:
    """Lay examples out between 0 and 1, group by group in a random order, and return the position of each.

    All examples of a group have one position, the middle of the group. Sets that are cut by position therefore never
    divide a group, and each has about the size of its interval.

    Args:
        groups: the group of each example, such as its patient.
        seed: decides the order of the groups.

    >>> line_up(["a", "a", "b", "b"], seed=0).tolist()
    [0.25, 0.25, 0.75, 0.75]
    """
    names = sorted(set(groups), key=str)
    number = {name: index for index, name in enumerate(names)}
    group_of = torch.tensor([number[name] for name in groups])
    counts = group_of.bincount(minlength=len(names)).double()
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(seed))
    ends = torch.zeros_like(counts)
    ends[order] = counts[order].cumsum(0)
    return ((ends - counts / 2) / len(group_of))[group_of]


def complete(
    sets: Mapping[str, Sequence[T]],
    group: Callable[[T], Hashable],
    seed: int,
    where: Path,
    patient: Callable[[T], Hashable] | None = None,
) -> dict[str, list[T]]:
    """Return all three sets. Each missing set gets 15 % of the examples of "train".

    Args:
        sets: the examples of "train", and of "validation" and "test" if they exist.
        group: returns the group of an example, such as its class. Examples are drawn from each group.
        seed: decides which examples are drawn.
        where: the folder or file of the data, for errors.
        patient: returns the patient of an example. If it is given, no patient is in two sets, and whole patients are
            drawn instead of examples of each group.
    """
    missing = {name: _SHARE for name in SPLITS if name != "train" and name not in sets}
    examples = sets["train"]
    if patient is None:
        parts = divide([group(example) for example in examples], missing, seed)
    else:
        _check_patients(sets, patient)
        parts = _divide_patients([patient(example) for example in examples], missing, seed)
    drawn = {name: [examples[index] for index in indices] for name, indices in parts.items()}
    for name, members in drawn.items():
        if not members:
            few = f"examples ({len(examples)})"
            if patient is not None:
                few = f"patients ({len({patient(example) for example in examples})})"
            raise InputError(
                f"{where} has too few {few} to set some aside for {name}; "
                "add more, or divide them yourself in train, validation and test"
            )
    if patient is not None:
        for unseen in sorted({group(e) for e in examples} - {group(e) for e in drawn["train"]}, key=str):
            raise InputError(
                f"no patient with the class {unseen} is left for training in {where}; add patients of this class, or "
                "draw the sets with another seed"
            )
    return {name: drawn[name] if name in drawn else list(sets[name]) for name in SPLITS}


def _divide_patients(patients: Sequence[Hashable], shares: Mapping[str, float], seed: int) -> dict[str, list[int]]:
    """Divide examples into sets such that all examples of a patient are in one set, and each set has a patient."""
    members: dict[Hashable, list[int]] = {}
    position = line_up(patients, seed).tolist()
    for index in sorted(range(len(patients)), key=lambda index: (position[index], index)):
        members.setdefault(patients[index], []).append(index)
    waiting = list(members.values())
    parts: dict[str, list[int]] = {"train": [], **{name: [] for name in shares}}
    for name, share in shares.items():
        while len(waiting) > 1 and (not parts[name] or len(parts[name]) + len(waiting[0]) / 2 <= share * len(patients)):
            parts[name] += waiting.pop(0)
    parts["train"] = [index for rest in waiting for index in rest]
    return {name: sorted(indices) for name, indices in parts.items()}


def _check_patients(sets: Mapping[str, Sequence[T]], patient: Callable[[T], Hashable]) -> None:
    set_of: dict[Hashable, str] = {}
    for name, examples in sets.items():
        for example in examples:
            other = set_of.setdefault(patient(example), name)
            if other != name:
                raise InputError(
                    f"patient {patient(example)} is in the {other} set and in the {name} set; keep all cases of a "
                    "patient in one set"
                )


def split_folders(path: Path) -> dict[str, Path]:
    """Return those folders of ``path`` that have the name of a set, or {} if there is none for training."""
    folders: dict[str, Path] = {}
    for folder in sorted(p for p in path.iterdir() if p.is_dir()):
        name = next((name for name, aliases in SPLITS.items() if folder.name.lower() in aliases), None)
        if name in folders:
            raise InputError(f"{folders[name]} and {folder} are both {name} sets; keep one of them")
        if name is not None:
            folders[name] = folder
    return folders if "train" in folders else {}
