"""Intervals of numbers that hold the target as often as asked."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from leanbayes._calls import Inputs
from leanbayes.baselines import PREDICTORS
from leanbayes.conformal.base import Conformal, Samples
from leanbayes.conformal.class_scores.score import describe_score, restore_score
from leanbayes.conformal.grouped import (
    GivenGroups,
    GroupFunction,
    WeightFunction,
    check_per,
    group_thresholds,
    labels_for,
    places_of,
    thresholds_for,
    weights_for,
)
from leanbayes.conformal.interval_scores import INTERVAL_SCORES, IntervalScore, as_interval_score
from leanbayes.conformal.quantiles import check_level
from leanbayes.errors import InputError, NonFinite, ShapeMismatch
from leanbayes.likelihood import Gaussian, Likelihood
from leanbayes.prediction import Prediction

__all__ = ["Intervals"]


@PREDICTORS.register
class Intervals(Conformal):
    """Intervals of numbers: the target of a new example lies in its interval with probability at least ``level``.

    The guarantee holds for any model, if calibration examples and new ones are exchangeable and the model was not
    trained on them. Of several outputs each one has the guarantee by itself.

    Args:
        predictor: a plain module, a `Bayesian` or another `Predictor`.
        level: the probability.
        score: "scaled" for intervals as wide as the predicted deviation, "absolute" for intervals of one width,
            "quantiles" for predicted quantiles that are moved by a constant, or an `IntervalScore`.
        asymmetric: whether each end gets a threshold of its own, so that each side is missed with probability at most
            (1 − level)/2. Otherwise both ends share one threshold, and intervals are narrower.
        per: None: the guarantee holds for all inputs together. "group": it holds for each group, where `calibrate` and
            `intervals` are given the groups. A function of the inputs of a batch that returns an integer for each: it
            holds for each group as well.
        likelihood: what the outputs mean; `Gaussian` with known noise 1 by default. Give the one of the training.
        samples: how many draws each prediction averages.
        seed: decides the draws.

    >>> x = torch.linspace(-1, 1, 99)[:, None]
    >>> intervals = Intervals(nn.Identity(), level=0.9, score="absolute").calibrate([(x, torch.zeros_like(x))])
    >>> [end.item() for end in intervals.intervals(torch.zeros(1, 1))] == [-x[4].abs().item(), x[4].abs().item()]
    True
    """

    question: ClassVar[str] = "intervals(x)"
    deciding: ClassVar[tuple[str, ...]] = ("level", "score", "asymmetric", "per")
    scores_seen: Tensor
    groups_seen: Tensor
    weights_seen: Tensor
    group_names: Tensor
    thresholds: Tensor

    def __init__(
        self,
        predictor: nn.Module,
        level: float = 0.9,
        score: IntervalScore | str = "scaled",
        *,
        asymmetric: bool = False,
        per: Literal["group"] | GroupFunction | None = None,
        likelihood: Likelihood | None = None,
        samples: Samples = 32,
        seed: int = 0,
    ) -> None:
        super().__init__(predictor, Gaussian() if likelihood is None else likelihood, samples, seed)
        if self.likelihood.has_logits:
            raise InputError(f"intervals need numbers, and {type(self.likelihood).__name__} has logits; use Sets")
        self.level, self.score = check_level(level), as_interval_score(score)
        self.per = check_per(per)
        if not isinstance(asymmetric, bool):
            raise InputError(f"asymmetric must be True or False, got {asymmetric!r}")
        self.asymmetric = asymmetric
        self.weight: WeightFunction | None = None
        for name in ("scores_seen", "weights_seen", "thresholds"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.float64))
        for name in ("groups_seen", "group_names"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.int64))

    @property
    def _end_level(self) -> float:
        """The level of each threshold: of two, each may miss half as often."""
        return round(1 - (1 - self.level) / 2, 15) if self.asymmetric else self.level

    @torch.no_grad()
    def calibrate(
        self,
        loader: Iterable[Any],
        *,
        weight: WeightFunction | None = None,
        groups: Iterable[int] | Tensor | None = None,
    ) -> Self:
        """Find the thresholds from examples that the predictor was not trained on, and return the predictor itself.

        Args:
            loader: batches (inputs, targets).
            weight: as for `Sets.calibrate`: dP_new/dP_calibration for each input, where new inputs come from another
                distribution.
            groups: the group of each example, in the order of the loader, instead of what the function ``per`` says.
        """
        given = GivenGroups.to_calibrate(groups, self.per)
        scores, labels, weights = [], [], []
        for x, y in self._batches(loader):
            scores.append(self._side_scores(x, y))
            size, device = len(y), scores[-1].device
            everything = torch.zeros(size, dtype=torch.int64, device=device)
            labels.append(everything if self.per is None else labels_for(self.per, x, given.take(size), size, device))
            if weight is not None:
                weights.append(weights_for(weight, x, None, size, device))
        given.finish()
        widths = {part.shape[1:] for part in scores}
        if len(widths) > 1:
            raise ShapeMismatch(f"batches have targets of different shapes: {sorted(map(tuple, widths))}")
        self._keep(torch.cat(scores), torch.cat(labels), torch.cat(weights) if weights else None)
        self.weight = weight
        self._trust()
        return self

    def _keep(self, scores: Tensor, labels: Tensor, weights: Tensor | None) -> None:
        names, groups = labels.unique(return_inverse=True)
        if not torch.isfinite(scores).all():
            raise NonFinite("a calibration score is NaN or infinite; look for NaN in the targets and the predictions")
        if weights is None:

            def describe(group: int) -> str:
                return f"group {int(names[group])}"

            columns = [
                group_thresholds(column, groups, len(names), self._end_level, describe)
                for column in scores.flatten(1).unbind(1)
            ]
            thresholds = torch.stack(columns, 1).view(len(names), *scores.shape[1:])
        else:
            thresholds = scores.new_zeros(0)
            if not (torch.bincount(groups, weights) > 0).all():
                raise InputError("the calibration examples of a group have no weight at all")
        self.scores_seen, self.groups_seen, self.group_names, self.thresholds = scores, groups, names, thresholds
        self.weights_seen = scores.new_zeros(0) if weights is None else weights

    @torch.no_grad()
    def intervals(self, x: Inputs, *, groups: Any = None, weights: Any = None) -> tuple[Tensor, Tensor]:
        """Return the lower and the upper ends, each of the shape of the targets, in float64.

        An interval may be empty, with its lower end above the upper one, where "quantiles" move far in. With weights an
        end may be infinite.

        Args:
            x: a batch of inputs.
            groups: the group of each input, instead of what the function ``per`` says.
            weights: the weight of each input, instead of what the function of `calibrate` says.
        """
        self._check()
        lower, upper, unit = self._first(self._wide(x))
        expected = self.scores_seen.shape[2:]
        if lower.shape[1:] != expected:
            raise ShapeMismatch(f"predictions have shape {tuple(lower.shape[1:])}, calibrated was {tuple(expected)}")
        out = self._outwards(x, len(lower), groups, weights).to(lower.device)
        # 0·∞ has no value, and an infinite threshold means an infinite interval.
        steps = torch.where(torch.isinf(out), out, out * unit[:, None])
        return lower - steps[:, 0], upper + steps[:, -1]

    @torch.no_grad()
    def scores(self, x: Inputs, y: Tensor) -> Tensor:
        """Return the scores of these targets, the largest over ends and outputs, (N,). A `Monitor` watches them."""
        return self._side_scores(x, y).flatten(1).amax(1)

    def config(self) -> dict[str, Any]:
        """Return the settings."""
        return super().config() | {
            "level": self.level,
            "score": describe_score(self.score, INTERVAL_SCORES),
            "asymmetric": self.asymmetric,
            "per": "group" if callable(self.per) else self.per,
        }

    @classmethod
    def rebuild(cls, parts: dict[str, nn.Module], **config: Any) -> Self:
        """Make the predictor of its parts and settings."""
        return super().rebuild(parts, score=restore_score(config.pop("score"), INTERVAL_SCORES), **config)

    def extra_repr(self) -> str:
        """Describe the settings."""
        return f"level={self.level:g}, score={self.score}, calibrated={self.calibrated}"

    def _wide(self, x: Inputs) -> Prediction:
        prediction = self.prediction(x, keep_samples=self.score.needs_samples)
        names = ("mean", "total", "aleatoric", "epistemic")
        return replace(prediction, **{name: getattr(prediction, name).double() for name in names})

    def _first(self, prediction: Prediction) -> tuple[Tensor, Tensor, Tensor]:
        return self.score.interval(prediction, self.level)

    def _side_scores(self, x: Inputs, y: Tensor) -> Tensor:
        """Return the scores (N, sides, ...): of both ends, or the larger one of them if they share a threshold."""
        lower, upper, unit = self._first(self._wide(x))
        if y.shape != lower.shape:
            raise ShapeMismatch(f"predictions have shape {tuple(lower.shape)} and targets {tuple(y.shape)}")
        target = y.to(lower)
        sides = torch.stack([(lower - target) / unit, (target - upper) / unit], 1)
        return sides if self.asymmetric else sides.amax(1, keepdim=True)

    def _outwards(self, x: Inputs, size: int, groups: Any, weights: Any) -> Tensor:
        """Return by how many units each end of each input moves out, (N, sides, ...)."""
        device, shape = self.scores_seen.device, self.scores_seen.shape[1:]
        if self.per is None:
            if groups is not None:
                raise InputError('groups= needs a predictor that was calibrated by group: per="group"')
            place = torch.zeros(size, dtype=torch.int64, device=device)
        else:
            place = places_of(labels_for(self.per, x, groups, size, device), self.group_names)
        if not len(self.weights_seen):
            if weights is not None:
                raise InputError("weights= needs a calibration with weights: calibrate(loader, weight=...)")
            return self.thresholds[place]
        new = weights_for(self.weight, x, weights, size, device)
        columns = [
            thresholds_for(column, self.groups_seen, self.weights_seen, self._end_level, len(self.group_names), new)
            for column in self.scores_seen.flatten(1).unbind(1)
        ]
        return torch.stack(columns, 2)[torch.arange(size, device=device), place].view(size, *shape)
