"""Sets of classes that hold the true class as often as asked."""

from collections.abc import Iterable
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from leanbayes._arrays import dtype_of, tensors_of
from leanbayes._calls import Inputs
from leanbayes.baselines import PREDICTORS
from leanbayes.conformal.base import Conformal, Samples
from leanbayes.conformal.bits import noise_of
from leanbayes.conformal.class_indices import class_indices
from leanbayes.conformal.class_scores import CLASS_SCORES, ClassScore, as_class_score
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
from leanbayes.conformal.quantiles import SortedScores, check_level, check_scores
from leanbayes.errors import InputError, NonFinite, ShapeMismatch, UnknownName
from leanbayes.likelihood import Categorical, Likelihood
from leanbayes.prediction import Prediction

__all__ = ["Sets"]

_EMPTY = ("keep", "top")


@PREDICTORS.register
class Sets(Conformal):
    """Sets of classes: the true class of a new example lies in its set with probability at least ``level``.

    The guarantee holds for any model and any number of calibration examples, if these and the new ones are exchangeable
    and the model was not trained on them. It is an average over inputs; ``per`` makes it hold for each class or group.

    Args:
        predictor: a plain module, a `Bayesian` or another `Predictor`.
        level: the probability.
        score: how badly a class conforms to a prediction: "lac" for the smallest sets, "aps" for sets that adapt to the
            input, "raps" for "aps" without very large sets, "top_k" for sets of one size, or a `ClassScore`.
        per: what the guarantee holds for. None: all inputs together. "class": each true class. "group": each group,
            where `calibrate` and `sets` are given the groups. A function of the inputs of a batch that returns an
            integer for each: each group as well.
        empty: whether a set without any class stays empty ("keep") or gets the most probable class ("top"). The second
            can only raise the coverage. Only "lac" and the randomised scores have empty sets.
        likelihood: what the outputs mean; `Categorical` by default.
        samples: how many draws each prediction averages.
        seed: decides the draws, and the noise of scores that are randomised.

    >>> logits = torch.randn(200, 3, generator=torch.Generator().manual_seed(0))
    >>> labels = torch.distributions.Categorical(logits=logits).sample()
    >>> sets = Sets(nn.Identity(), level=0.9, score="lac").calibrate([(logits, labels)])
    >>> sets.sets(torch.tensor([[9.0, 0.0, 0.0]]))
    tensor([[ True, False, False]])
    """

    question: ClassVar[str] = "sets(x)"
    deciding: ClassVar[tuple[str, ...]] = ("level", "score", "per")
    scores_seen: Tensor
    groups_seen: Tensor
    weights_seen: Tensor
    group_names: Tensor
    thresholds: Tensor

    def __init__(
        self,
        predictor: nn.Module,
        level: float = 0.9,
        score: ClassScore | str = "aps",
        per: Literal["class", "group"] | GroupFunction | None = None,
        *,
        empty: Literal["keep", "top"] = "keep",
        likelihood: Likelihood | None = None,
        samples: Samples = 32,
        seed: int = 0,
    ) -> None:
        super().__init__(predictor, Categorical() if likelihood is None else likelihood, samples, seed)
        if not self.likelihood.has_logits:
            raise InputError(
                f"sets need classes, and {type(self.likelihood).__name__} is a likelihood of numbers; use Intervals"
            )
        self.level, self.score = check_level(level), as_class_score(score)
        if empty not in _EMPTY:
            raise UnknownName.of("choice for empty sets", empty, _EMPTY)
        self.per = check_per(per, "class")
        self.empty = empty
        self.weight: WeightFunction | None = None
        self.classes = 0
        for name in ("scores_seen", "weights_seen", "thresholds"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.float64))
        for name in ("groups_seen", "group_names"):
            self.register_buffer(name, torch.zeros(0, dtype=torch.int64))

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
            loader: batches (inputs, class indices).
            weight: for new inputs from another distribution than these (known covariate shift): a function of the
                inputs of a batch that returns dP_new/dP_calibration for each, up to a factor. Weights make a threshold
                for each input, which is infinite, so that the set holds every class, where these examples say too
                little.
            groups: the group of each example, in the order of the loader, instead of what the function ``per`` says.

        Raises:
            InputError: too few examples, of any class or group, for the level.
        """
        given = GivenGroups.to_calibrate(groups, self.per)
        scores, numbers, weights, classes = [], [], [], 0
        for x, y in self._batches(loader):
            prediction = self.prediction(x)
            labels, counted = self._labels(prediction, y)
            if classes not in (0, prediction.mean.shape[1]):
                raise ShapeMismatch(f"one batch has {classes} classes and another {prediction.mean.shape[1]}")
            classes = prediction.mean.shape[1]
            scores.append(self._true_scores(prediction, x, labels, counted))
            size, device = len(labels), labels.device
            if self.per == "class":
                numbers.append(labels[counted])
            elif self.per is None:
                numbers.append(torch.zeros_like(labels[counted]))
            else:
                numbers.append(labels_for(self.per, x, given.take(size), size, device)[counted])
            if weight is not None:
                weights.append(weights_for(weight, x, None, size, device)[counted])
        given.finish()
        self._keep(torch.cat(scores), torch.cat(numbers), torch.cat(weights) if weights else None, classes)
        self.weight = weight
        self._trust()
        return self

    def _keep(self, scores: Tensor, labels: Tensor, weights: Tensor | None, classes: int) -> None:
        """Compute the thresholds, and only then replace those of an earlier calibration."""
        if self.per == "class":
            names, groups = torch.arange(classes, device=labels.device), labels
        elif self.per is None:
            names, groups = labels.new_zeros(1), labels
        else:
            names, groups = labels.unique(return_inverse=True)
        check_scores(scores)
        if not len(scores):
            raise InputError("none of the calibration targets counts; check ignore_index of the likelihood")
        if weights is None:
            word = "class" if self.per == "class" else "group"
            thresholds = group_thresholds(
                scores, groups, len(names), self.level, lambda group: f"{word} {int(names[group])}"
            )
        else:
            thresholds = scores.new_zeros(0)
            absent = (torch.bincount(groups, weights, minlength=len(names)) == 0).nonzero()[:, 0].tolist()
            if absent:
                raise InputError(
                    f"the calibration examples of {[int(names[group]) for group in absent[:5]]} have no weight at all; "
                    "give examples that the new distribution can have"
                )
        self.scores_seen, self.groups_seen, self.thresholds = scores, groups, thresholds
        self.weights_seen = scores.new_zeros(0) if weights is None else weights
        self.group_names, self.classes = names, classes

    @torch.no_grad()
    def sets(self, x: Inputs, *, groups: Any = None, weights: Any = None) -> Tensor:
        """Return which classes lie in the set of each input, as booleans (N, classes).

        Args:
            x: a batch of inputs.
            groups: the group of each input, instead of what the function ``per`` says.
            weights: the weight of each input, instead of what the function of `calibrate` says.
        """
        self._check()
        prediction = self.prediction(x)
        scores = self._scores(prediction, x)
        if scores.shape[1] != self.classes:
            raise ShapeMismatch(f"the predictor gives {scores.shape[1]} classes and was calibrated with {self.classes}")
        chosen = scores <= self._thresholds(x, len(scores), groups, weights).to(scores.device)
        if self.empty == "top":
            best = prediction.mean.argmax(1, keepdim=True)
            chosen |= torch.zeros_like(chosen).scatter_(1, best, ~chosen.any(1, keepdim=True))
        return chosen

    @torch.no_grad()
    def scores(self, x: Inputs, y: Tensor) -> Tensor:
        """Return the scores of these labels, (N,): high ones conform badly. A `Monitor` watches them."""
        prediction = self.prediction(x)
        labels, counted = self._labels(prediction, y)
        return self._true_scores(prediction, x, labels, counted)

    @torch.no_grad()
    def p_values(self, x: Inputs) -> Tensor:
        """Return the conformal p-value of each class, (N, classes): small ones say that the class does not fit.

        For the true class it is at most α with probability at most α. Only calibrations over all inputs together or for
        each class have it, and only without weights.
        """
        self._check()
        if len(self.weights_seen) or self.per not in (None, "class"):
            raise InputError("p-values need a calibration without weights and without groups other than classes")
        scores = self._scores(self.prediction(x), x)
        if self.per is None:
            return SortedScores.of(self.scores_seen).p_values(scores.to(self.scores_seen.device))
        columns = [
            SortedScores.of(self.scores_seen[self.groups_seen == group]).p_values(scores[:, group])
            for group in range(self.classes)
        ]
        return torch.stack(columns, 1)

    def config(self) -> dict[str, Any]:
        """Return the settings."""
        return super().config() | {
            "level": self.level,
            "score": describe_score(self.score, CLASS_SCORES),
            "per": "group" if callable(self.per) else self.per,
            "empty": self.empty,
            "classes": self.classes,
        }

    @classmethod
    def rebuild(cls, parts: dict[str, nn.Module], **config: Any) -> Self:
        """Make the predictor of its parts and settings."""
        classes = config.pop("classes")
        score = restore_score(config.pop("score"), CLASS_SCORES)
        predictor = super().rebuild(parts, score=score, **config)
        predictor.classes = int(classes)
        return predictor

    def extra_repr(self) -> str:
        """Describe the settings."""
        return f"level={self.level:g}, score={self.score}, calibrated={self.calibrated}"

    def _scores(self, prediction: Prediction, x: Inputs) -> Tensor:
        if prediction.mean.dim() != 2:
            raise ShapeMismatch(
                f"sets of classes need predictions of shape (N, classes), got {tuple(prediction.mean.shape)}; for "
                "pixels use RiskControl"
            )
        probabilities = prediction.mean.double()
        noise = probabilities.new_zeros(len(probabilities))
        if self.score.needs_noise:  # as a tensor of the model's precision, which is how the model sees an array
            noise = noise_of(tensors_of(x, dtype_of(self.model), probabilities.device), self.seed)
        scores = self.score.scores(probabilities, noise.to(probabilities.device))
        if scores.isnan().any():
            raise NonFinite(f"the score {self.score} gave NaN; look for NaN in the inputs and the outputs")
        return scores

    def _true_scores(self, prediction: Prediction, x: Inputs, labels: Tensor, counted: Tensor) -> Tensor:
        """Return the scores of the labels that count."""
        place = labels.where(counted, 0)[:, None]  # one that does not count may lie outside the classes
        return self._scores(prediction, x).gather(1, place)[:, 0][counted]

    def _labels(self, prediction: Prediction, y: Tensor) -> tuple[Tensor, Tensor]:
        needs = (
            f"sets of classes (for pixels use RiskControl) need one class index for each of {len(prediction)} inputs"
        )
        return class_indices(y, self.likelihood, prediction.mean, prediction.mean.shape[:1], needs)

    def _thresholds(self, x: Inputs, size: int, groups: Any, weights: Any) -> Tensor:
        """Return the threshold of each input and class, in a shape that (N, classes) can be compared with."""
        device = self.scores_seen.device
        by_class = self.per == "class"
        if by_class or self.per is None:
            if groups is not None:
                raise InputError('groups= needs a predictor that was calibrated by group: per="group"')
            place = None
        else:
            place = places_of(labels_for(self.per, x, groups, size, device), self.group_names)
        if len(self.weights_seen):
            new = weights_for(self.weight, x, weights, size, device)
            count = len(self.group_names)
            table = thresholds_for(self.scores_seen, self.groups_seen, self.weights_seen, self.level, count, new)
            return table if place is None else table.gather(1, place[:, None])
        if weights is not None:
            raise InputError("weights= needs a calibration with weights: calibrate(loader, weight=...)")
        return self.thresholds[None] if place is None else self.thresholds[place][:, None]
