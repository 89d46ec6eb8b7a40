"""The division of a validation set into calibration examples, which serve nothing else, and the rest."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import Dataset, Subset

from leanbayes.errors import InputError
from leanbayes.lab.data.task import Task, length

__all__ = ["Division", "divide_validation", "subgroup_names", "subgroup_numbers"]


@dataclass(frozen=True)
class Division:
    """A validation set in two parts that share no patient and no image.

    Attributes:
        calibration: the calibration examples; whole images, if the validation set has windows of them.
        rest: the other examples of the validation set.
        rows: which cases of the validation set the calibration examples are.
        total: how many cases the validation set has.
        patients: the patient of each calibration example; None if patients are not known.
        subgroups: the number of the subgroup of each calibration example; None if there are no subgroups.
        names: the names of the subgroups.
    """

    calibration: Dataset[Any]
    rest: Subset[Any]
    rows: tuple[int, ...]
    total: int
    patients: tuple[str, ...] | None
    subgroups: tuple[int, ...] | None
    names: tuple[str, ...]


def divide_validation(task: Task, share: float) -> Division:
    """Divide the validation set of a task at random, in the same way for every method and seed.

    Whole patients are drawn where patients are known, until the calibration has its share of the cases. One patient, or
    one case, always stays in the rest.

    Args:
        task: the data.
        share: the share of the cases that the calibration gets.
    """
    data = task.validation
    whole = data.whole() if hasattr(data, "whole") else data
    row_of = getattr(data, "row_of", int)
    total, cases = length(whole), getattr(data, "cases", None)
    units: list[Hashable] = list(cases.patients if cases is not None and cases.patients else range(total))
    chosen = _drawn(units, round(share * total))
    rows = tuple(row for row in range(total) if units[row] in chosen)
    rest = [index for index in range(length(data)) if units[row_of(index)] not in chosen]
    if not rows or not rest:
        raise InputError(
            f"the {total} validation cases of {task.name} cannot be divided: {len(rows)} would be for the calibration "
            "and none may be left out; give more patients or cases, or another share"
        )
    numbers = subgroup_numbers(task, data)
    return Division(
        Subset(whole, list(rows)),
        Subset(data, rest),
        rows,
        total,
        None if cases is None or not cases.patients else tuple(cases.patients[row] for row in rows),
        None if numbers is None else tuple(numbers[row] for row in rows),
        subgroup_names(task),
    )


def subgroup_names(task: Task) -> tuple[str, ...]:
    """Return the names of all subgroups of a task in order; nothing if its data have none."""
    sets = [getattr(data, "cases", None) for data in (task.train, task.validation, task.test)]
    return tuple(sorted({name for cases in sets if cases is not None for name in cases.subgroups}))


def subgroup_numbers(task: Task, data: Dataset[Any]) -> list[int] | None:
    """Return the number of the subgroup of each case of a set; None if there are no subgroups."""
    cases = getattr(data, "cases", None)
    if cases is None or not cases.subgroups:
        return None
    number = {name: place for place, name in enumerate(subgroup_names(task))}
    return [number[name] for name in cases.subgroups]


def _drawn(units: list[Hashable], cut: int) -> set[Hashable]:
    """Draw units at random until they have ``cut`` cases or one unit is left."""
    names = list(dict.fromkeys(units))
    order = torch.randperm(len(names), generator=torch.Generator().manual_seed(0)).tolist()
    sizes = {name: units.count(name) for name in names} if len(names) < len(units) else dict.fromkeys(names, 1)
    chosen: set[Hashable] = set()
    held = 0
    for place in order[:-1]:
        if held >= cut:
            break
        chosen.add(names[place])
        held += sizes[names[place]]
    return chosen
