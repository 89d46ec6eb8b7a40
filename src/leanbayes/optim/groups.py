"""The parameter groups of natural gradients: one for each learning rate, and one for the scales."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import nn

from leanbayes.bayesian import Bayesian
from leanbayes.errors import SelectionError
from leanbayes.subspace import dense_name

__all__ = ["groups_of"]


def groups_of(
    bnn: Bayesian, lr: float | Mapping[str, float], others: list[nn.Parameter], scales: list[nn.Parameter]
) -> list[dict[str, Any]]:
    """Return one group of parameters for each learning rate, then that of the scales."""
    named = {name: parameter for name, parameter in bnn.model.named_parameters() if parameter.requires_grad}
    if not isinstance(lr, Mapping):
        means = [[*named.values(), *others]]
        rates = [lr]
    else:
        members: dict[str, list[nn.Parameter]] = {pattern: [] for pattern in lr}
        for name, parameter in named.items():
            match = next((pattern for pattern in lr if fnmatchcase(dense_name(name), pattern)), None)
            if match is None:
                raise SelectionError(f"no learning rate for {name!r} among {list(lr)}; add '*' as the last pattern")
            members[match].append(parameter)
        empty = next((pattern for pattern, found in members.items() if not found), None)
        if empty is not None:
            raise SelectionError(f"the pattern {empty!r} of the learning rates matches no parameter of its own")
        means, rates = list(members.values()), list(lr.values())
        means[-1] += others
    groups = [{"params": mean, "lr": rate, "start_lr": rate} for mean, rate in zip(means, rates, strict=True)]
    return [*groups, {"params": scales, "lr": rates[0], "start_lr": rates[0]}]
