"""Calibration scores by group, with weights where the new inputs come from another distribution."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from leanbayes._calls import Inputs
from leanbayes.conformal.quantiles import SortedScores, check_scores, fewest_scores, rank_of
from leanbayes.errors import InputError, NonFinite, ShapeMismatch

__all__ = [
    "GivenGroups",
    "GroupFunction",
    "WeightFunction",
    "as_labels",
    "check_per",
    "group_thresholds",
    "labels_for",
    "places_of",
    "thresholds_for",
    "weights_for",
]

GroupFunction = Callable[[Inputs], Any]
"""Takes the inputs of a batch and returns one integer for each, the group that it belongs to."""

WeightFunction = Callable[[Inputs], Any]
"""Takes the inputs of a batch and returns dP_new/dP_calibration for each, up to a constant factor."""


def check_per(per: Any, *names: str) -> Any:
    """Return what a guarantee holds for: None, one of the names, "group" or a function, which a file has as "group"."""
    if per is None or callable(per) or (isinstance(per, str) and per in (*names, "group")):
        return per
    allowed = "".join(f", {name!r}" for name in (*names, "group"))
    raise InputError(f"per must be None{allowed} or a function of the inputs, got {per!r}")


class GivenGroups:
    """The groups of all examples of a loader, which are handed out batch by batch in its order.

    Args:
        groups: one integer for each example; None if nobody gives them.
    """

    def __init__(self, groups: Iterable[Any] | Tensor | None) -> None:
        self.labels = None if groups is None else as_labels(groups)
        self.start = 0

    @classmethod
    def to_calibrate(cls, groups: Iterable[Any] | Tensor | None, per: Any) -> "GivenGroups":
        """Return the groups for a calibration, if they fit to what the guarantee holds for."""
        if groups is not None and not (per == "group" or callable(per)):
            raise InputError('groups= needs a predictor whose guarantee is for each group: per="group"')
        if groups is None and per == "group":
            raise InputError('per="group" needs the group of each example: calibrate(loader, groups=...)')
        return cls(groups)

    def take(self, size: int) -> Tensor | None:
        """Return the groups of the next batch; None if a function gives them."""
        if self.labels is None:
            return None
        self.start += size
        if self.start > len(self.labels):
            raise ShapeMismatch(f"groups= has {len(self.labels)} entries, and there are {self.start} examples or more")
        return self.labels[self.start - size : self.start]

    def finish(self) -> None:
        """Raise if groups are left over."""
        if self.labels is not None and self.start != len(self.labels):
            raise ShapeMismatch(f"groups= has {len(self.labels)} entries, and there are {self.start} examples")


def as_labels(groups: Iterable[Any] | Tensor) -> Tensor:
    """Return groups as integers along one axis."""
    try:
        labels = groups if isinstance(groups, Tensor) else torch.as_tensor(list(groups))
    except (TypeError, ValueError) as error:
        raise InputError("groups must be one integer for each example; give names numbers first") from error
    if labels.dim() != 1 or labels.is_floating_point() or labels.is_complex():
        raise ShapeMismatch(
            f"groups must be one integer for each example, got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    return labels.long()


def group_thresholds(
    scores: Tensor, groups: Tensor, count: int, level: float, describe: Callable[[int], str]
) -> Tensor:
    """Return the threshold of each group.

    Args:
        scores: the score of each calibration example.
        groups: the number of its group, from 0.
        count: how many groups there are.
        level: the coverage that each group gets.
        describe: words for a group, such as "class 3".
    """
    check_scores(scores)
    sizes = torch.bincount(groups, minlength=count)
    needed = fewest_scores(level)
    short = (sizes < needed).nonzero()[:, 0].tolist()
    if short and count == 1:
        raise InputError(
            f"the level {level:g} needs at least {needed} calibration examples, got {len(scores)}; give more of them, "
            "or ask for a lower level"
        )
    if short:
        words = ", ".join(f"{describe(group)} has {int(sizes[group])}" for group in short[:5])
        more = f", and {len(short) - 5} groups more have too few" if len(short) > 5 else ""
        raise InputError(
            f"the level {level:g} needs at least {needed} calibration examples of each class or group, but {words}"
            f"{more}; give more of them, ask for a lower level, or leave out per="
        )
    # One block for each group. To select the k-th smallest score of a block costs far less than to sort all scores.
    blocks = (scores if count == 1 else scores[groups.argsort()]).split(sizes.tolist())
    return torch.stack([block.kthvalue(rank_of(len(block), level)).values for block in blocks])


def thresholds_for(
    scores: Tensor, groups: Tensor, weights: Tensor, level: float, count: int, new_weights: Tensor
) -> Tensor:
    """Return the weighted threshold of each new input for each group, (N, groups); inf where too little is known."""
    columns = []
    for group in range(count):
        chosen = groups == group
        columns.append(SortedScores.of(scores[chosen], weights[chosen]).thresholds(level, new_weights))
    return torch.stack(columns, 1)


def labels_for(per: Any, x: Inputs, given: Any, size: int, device: torch.device) -> Tensor:
    """Return the group of each input as integers: those that are given, or else what the group function says."""
    if given is None:
        if not callable(per):
            raise InputError(
                "this predictor was calibrated by group and has no function that gives the groups; give them with "
                "groups=, or set the attribute per to a function"
            )
        given = per(x)
    labels = torch.as_tensor(given, device=device)
    if labels.shape != (size,) or labels.is_floating_point() or labels.is_complex():
        raise ShapeMismatch(
            f"groups must be one integer for each of {size} inputs, got {labels.dtype} of shape {tuple(labels.shape)}"
        )
    return labels.long()


def weights_for(weight: Any, x: Inputs, given: Any, size: int, device: torch.device) -> Tensor:
    """Return the weight of each input: those that are given, or else what the weight function says."""
    if given is None:
        if not callable(weight):
            raise InputError(
                "this predictor was calibrated with weights, and a file cannot hold the function that gives them; give "
                "them with weights=, or set the attribute weight to the function"
            )
        given = weight(x)
    weights = torch.as_tensor(given, device=device).double()
    if weights.shape != (size,):
        raise ShapeMismatch(f"weights must be one number for each of {size} inputs, got shape {tuple(weights.shape)}")
    if not (torch.isfinite(weights).all() and (weights >= 0).all()):
        raise NonFinite("weights must be finite and not negative; they are ratios of probability densities")
    return weights


def places_of(labels: Tensor, names: Tensor) -> Tensor:
    """Return the place of each label among the sorted names of the groups; raise if one is not there."""
    place = torch.searchsorted(names, labels).clamp_max(len(names) - 1)
    unknown = names[place] != labels
    if unknown.any():
        raise InputError(
            f"group {int(labels[unknown][0])} had no calibration examples; known are {names.tolist()[:20]}"
        )
    return place
