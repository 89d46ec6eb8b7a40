"""Pruning curves: a measure of a network by the share of its weights that is pruned (VDP++, Figure 2)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leanbayes._calls import Inputs
from leanbayes.errors import InputError
from leanbayes.evaluation.pruning import By, Ranking, check_fraction, is_weight
from leanbayes.likelihood import Categorical, Likelihood
from leanbayes.metrics.quality import accuracy
from leanbayes.prediction import predict
from leanbayes.subspace import Slot

__all__ = ["FRACTIONS", "PruningCurve", "accuracy_on", "pruning_curve", "seeded"]

FRACTIONS = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.96, 0.97, 0.98)
"""The fractions in the code of VDP++."""


@dataclass(frozen=True)
class PruningCurve:
    """A measure by the fraction of the weights that is pruned.

    Attributes:
        fractions: the fractions.
        values: the measure at each of them.
        nonzero: how many weights are not zero.
        bytes: the size of the pruned network with its zeros left out.
    """

    fractions: Tensor
    values: Tensor
    nonzero: Tensor
    bytes: Tensor


def pruning_curve(
    model: nn.Module,
    measure: Callable[[nn.Module], float | Tensor],
    fractions: Sequence[float] = FRACTIONS,
    *,
    by: By = "l1",
    eligible: Callable[[Slot], bool] = is_weight,
) -> PruningCurve:
    """Measure a model at each fraction pruned (VDP++, Figure 2). The weights are ranked once.

    Args:
        model: as for `leanbayes.evaluation.prune`; it is left as it was.
        measure: measures a pruned copy; `accuracy_on` makes such a function.
        fractions: each from 0 to 1.
        by: "l1" or "snr", as for `prune`.
        eligible: says which tensors hold weights that may be pruned.

    >>> pruning_curve(nn.Linear(4, 2), lambda m: m.weight.count_nonzero(), [0.0, 0.5, 1.0]).values.tolist()
    [8.0, 4.0, 0.0]
    """
    ranking = Ranking(model, by, eligible)
    if not len(fractions):
        raise InputError("give at least one fraction")
    for fraction in fractions:
        check_fraction(fraction)
    values, nonzero, sizes = [], [], []
    for fraction in fractions:
        pruned = ranking.prune(fraction)
        values.append(float(measure(pruned.model)))
        nonzero.append(pruned.nonzero)
        sizes.append(pruned.bytes)
    return PruningCurve(
        torch.tensor(list(fractions), dtype=torch.float64),
        torch.tensor(values, dtype=torch.float64),
        torch.tensor(nonzero),
        torch.tensor(sizes),
    )


def accuracy_on(
    x: Inputs,
    y: Tensor,
    *,
    likelihood: Likelihood | None = None,
    samples: int = 32,
    batch_size: int | None = None,
    seed: int = 0,
) -> Callable[[nn.Module], float]:
    """Return a measure for `pruning_curve`: the accuracy on ``x`` and ``y``, with the same noise every time.

    >>> accuracy_on(torch.tensor([[0.0, 1.0], [2.0, 0.0]]), torch.tensor([1, 0]))(nn.Identity())
    1.0
    """
    likelihood = likelihood or Categorical()

    def measure(model: nn.Module) -> float:
        prediction = predict(
            model,
            x,
            likelihood=likelihood,
            samples=samples,
            batch_size=batch_size,
            generator=seeded(model, seed),
        )
        targets = y.to(prediction.mean.device)
        return float(accuracy(prediction.mean, targets, ignore_index=likelihood.ignore_index))

    return measure


def seeded(model: object, seed: int) -> torch.Generator:
    """Return a seeded generator on the device of the model's parameters."""
    first = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    generator = torch.Generator() if first is None else torch.Generator(first.device)
    return generator.manual_seed(seed)
