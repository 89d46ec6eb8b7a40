"""The NLL of ensembles of 1, 2, …, M plain networks, from the one pass in which an ensemble of M is judged."""

import math
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._calls import Inputs, prediction_tensor
from leanbayes.baselines import Ensemble
from leanbayes.bayesian import Bayesian
from leanbayes.lab.compare.nlls import nll_of_inputs
from leanbayes.lab.recipes import Recipe, settings
from leanbayes.likelihood import Likelihood
from leanbayes.prediction import Prediction, Predictor

__all__ = ["MemberScores", "is_ensemble_of_plain_networks", "remembering"]

_SUBSETS = 10  # of each size, at most; an ensemble of five members has no more


def is_ensemble_of_plain_networks(recipe: Recipe, predictor: nn.Module) -> bool:
    """Return whether these are plain networks from different seeds, to whose number a method can be compared."""
    record = settings(recipe)
    member = record.get("of") or "deterministic"  # what each member is, if the recipe has a choice
    name = member.get("name") if isinstance(member, Mapping) else member
    if record["name"] != "ensemble" or name != "deterministic" or not isinstance(predictor, Ensemble):
        return False
    return not any(isinstance(model, Bayesian | Predictor) for model in predictor.models)


class _Remembering(Predictor):
    """An ensemble that remembers what each member returned for the last batch.

    Args:
        ensemble: the ensemble, which predicts as always.
    """

    def __init__(self, ensemble: Ensemble) -> None:
        super().__init__()
        self.ensemble = ensemble
        self.last: list[Any] = []

    @property
    def members(self) -> int | None:  # type: ignore[override]
        """The number of members."""
        return self.ensemble.members

    def outputs(self, x: Inputs, draws: int, generator: torch.Generator | None) -> Iterator[Any]:
        """Yield what the members return, and remember it."""
        self.last = []
        for out in self.ensemble.outputs(x, draws, generator):
            self.last.append(prediction_tensor(out))
            yield out

    def parts(self) -> dict[str, nn.Module]:
        """Return the ensemble."""
        return {"ensemble": self.ensemble}


def remembering(recipe: Recipe, predictor: nn.Module) -> _Remembering | None:
    """Return an ensemble of plain networks so that it remembers its members' outputs; None for other predictors."""
    if not is_ensemble_of_plain_networks(recipe, predictor):
        return None
    assert isinstance(predictor, Ensemble)
    return _Remembering(predictor).eval()


class MemberScores:
    """Adds up, batch by batch, the NLL of subsets of the members: of all subsets of a size, or of ten random ones.

    Args:
        likelihood: what the outputs of the members mean.
        in_units: returns a prediction as it is scored.
    """

    def __init__(self, likelihood: Likelihood, in_units: Callable[[Prediction], Prediction]) -> None:
        self.likelihood, self.in_units = likelihood, in_units
        self.sums: dict[tuple[int, ...], Tensor | float] = {}
        self.cells: Tensor | float = 0.0

    def add(self, outputs: list[Any], targets: Tensor) -> None:
        """Take in what each member returned for a batch, and the targets as they are scored."""
        if not self.sums:
            self.sums = {subset: 0.0 for size in range(1, len(outputs) + 1) for subset in _subsets(len(outputs), size)}
        with torch.no_grad():
            centre = self.likelihood.centre(outputs[0])
            statistics = [self.likelihood.statistics(output, centre) for output in outputs]
            for subset in self.sums:
                average = sum(statistics[index] for index in subset) / len(subset)
                assert isinstance(average, Tensor)
                draws = torch.full((len(average),), len(subset), device=average.device)
                parts = self.likelihood.uncertainty(average, draws, centre)
                error = torch.zeros(len(average), device=average.device)
                prediction = Prediction(parts.mean, parts.total, parts.aleatoric, parts.epistemic, error, draws)
                nll, cells = nll_of_inputs(self.in_units(prediction), targets, self.likelihood)
                self.sums[subset] = self.sums[subset] + (nll * cells).sum(dtype=torch.float64)
            self.cells = self.cells + cells.sum(dtype=torch.float64)

    def by_size(self) -> list[float]:
        """Return the NLL of ensembles of 1, 2, … members, each the mean over its subsets."""
        largest = max(map(len, self.sums), default=0)
        sizes = [[self.sums[subset] for subset in self.sums if len(subset) == size] for size in range(1, largest + 1)]
        return [float(sum(sums)) / len(sums) / float(self.cells) for sums in sizes]


def _subsets(members: int, size: int) -> list[tuple[int, ...]]:
    if math.comb(members, size) <= _SUBSETS:
        return list(combinations(range(members), size))
    source = torch.Generator().manual_seed(size)
    chosen: dict[tuple[int, ...], None] = {}
    while len(chosen) < _SUBSETS:
        chosen[tuple(sorted(torch.randperm(members, generator=source)[:size].tolist()))] = None
    return list(chosen)
