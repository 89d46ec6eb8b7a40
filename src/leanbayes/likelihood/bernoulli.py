"""The likelihood of independent labels, each of which is a yes or a no."""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes._ops.logistic import logistic_moments
from leanbayes.errors import InputError, ShapeMismatch
from leanbayes.likelihood.base import Likelihood, Uncertainty, inside, require_tensor, shape_of, surprise, wide

__all__ = ["Bernoulli"]


class Bernoulli(Likelihood):
    """Independent yes-or-no labels: the outputs are logits, and the targets have the same shape (N, ...).

    Args:
        positive_weights: factors on the positive terms, one for each label, or one for all.
        polynomial: computes expectations over Gaussian logits in closed form, from the series of log(1 + e^−u) to
            second order. It suits logits well below 2 in size. Nazarovs et al. 2021, Observation 1, propose it with the
            coefficient ¼, which must be ⅛.

    >>> Bernoulli().nll(torch.zeros(2, 3), torch.ones(2, 3)) / math.log(2)
    tensor(6.)
    """

    has_logits = True
    usual_for: ClassVar[tuple[str, ...]] = ("labels",)
    positive_weights: Tensor | None

    def __init__(self, positive_weights: Tensor | None = None, polynomial: bool = False) -> None:
        super().__init__()
        self.polynomial = polynomial
        if positive_weights is not None and not isinstance(positive_weights, Tensor):
            raise InputError(f"positive_weights must be a tensor, got {positive_weights!r}; give torch.tensor(...)")
        if positive_weights is not None and not (
            torch.isfinite(positive_weights).all() and (positive_weights >= 0).all()
        ):
            raise InputError(f"positive weights must be finite and not negative, got {positive_weights}")
        self.register_buffer("positive_weights", positive_weights)

    def nll(self, output: Any, target: Tensor) -> Tensor:
        """Return the binary cross-entropy, summed over examples and labels."""
        require_tensor(target)
        if not isinstance(output, Tensor) or output.shape != target.shape:
            raise ShapeMismatch(
                f"Bernoulli needs logits and targets of one shape, got {shape_of(output)} and {tuple(target.shape)}; "
                "for one class of several use Categorical()"
            )
        logits = wide(output)
        weight = None if self.positive_weights is None else self.positive_weights.to(logits.dtype)

        def loss(label: Tensor) -> Tensor:
            return F.binary_cross_entropy_with_logits(logits, label, pos_weight=weight, reduction="sum")

        return _between_0_and_1(target.to(logits.dtype), loss)

    def weighed(self, class_weights: Tensor) -> "Bernoulli":
        """Return the same likelihood with these factors on the positive terms of the labels."""
        return Bernoulli(class_weights, self.polynomial)

    def balanced_weights(self, targets: Tensor, classes: int) -> Tensor:  # noqa: ARG002
        """Return, for each label, how many negatives there are for one positive.

        >>> Bernoulli().balanced_weights(torch.tensor([[1, 0], [0, 0], [0, 1], [0, 1]]), 2)
        tensor([3., 1.])
        """
        positive = targets.double().sum(0)
        return ((len(targets) - positive) / positive.clamp_min(1)).float()

    def expected_nll(
        self, mean: Any, variance: Any, target: Tensor, *, samples: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the expected cross-entropy from draws of the logits.

        If ``polynomial``, it is log 2 + (½ − y)·μ + (μ² + σ²)/8 in closed form.
        """
        if not self.polynomial:
            return super().expected_nll(mean, variance, target, samples=samples, generator=generator)
        if self.positive_weights is not None or mean.shape != target.shape:
            raise ShapeMismatch(
                "the polynomial needs logits and targets of one shape and no positive weights, got "
                f"{shape_of(mean)} and {tuple(target.shape)}"
            )
        m, v = wide(mean), wide(variance)
        return _between_0_and_1(
            target.to(m.dtype), lambda label: (math.log(2) + (0.5 - label) * m + (m.square() + v) / 8).sum()
        )

    def statistics(self, output: Any, centre: Tensor | None) -> Tensor:  # noqa: ARG002
        """Return the probability of yes and the entropy of this draw."""
        p = wide(output).sigmoid()
        return torch.stack([p, _binary_entropy(p)], dim=1)

    def uncertainty(self, averages: Tensor, draws: Tensor, centre: Tensor | None) -> Uncertainty:  # noqa: ARG002
        """Return the mean probability of yes and its uncertainty in nats, label by label, as `Categorical` does."""
        mean, aleatoric = averages.unbind(1)
        total = _binary_entropy(mean)
        return Uncertainty(mean, total, aleatoric, (total - aleatoric).clamp_min(0))

    def mixed(self, parts: Sequence[Uncertainty]) -> Uncertainty:
        """Return the mean of the probabilities, as `Categorical` does."""
        mean = torch.stack([torch.stack([part.mean, part.aleatoric], dim=1) for part in parts]).mean(0)
        return self.uncertainty(mean, torch.full((len(mean),), len(parts), device=mean.device), None)

    def uncertainty_of_moments(self, mean: Any, variance: Any, points: int) -> Uncertainty:  # noqa: ARG002
        """Return the prediction by quadrature, whose error `leanbayes._ops.logistic` states."""
        yes, no, aleatoric = logistic_moments(wide(mean), wide(variance))
        total = surprise(yes) + surprise(no)
        return Uncertainty(yes, total, aleatoric, (total - aleatoric).clamp_min(0))

    def predictive(self, output: Any) -> Tensor:
        """Return the sigmoid of the logits."""
        return torch.sigmoid(output)

    def nats(self, uncertainty: Uncertainty) -> Tensor:
        """Return the total uncertainty, which is an entropy in nats."""
        return uncertainty.total

    def kind(self, targets: Tensor) -> str:
        """Return "pixels" if the targets have axes beyond (N, labels), else "labels"."""
        return "pixels" if targets.dim() > 2 else "labels"

    def input_uncertainty(self, total: Tensor, targets: Any) -> Tensor:  # noqa: ARG002
        """Return the mean entropy of each input's labels, in nats."""
        return total.reshape(len(total), -1).mean(1)

    def logit_rows(self, output: Tensor) -> Tensor:
        """Return the flattened logits."""
        return output.flatten()

    def mixture_nll(self, rows: Tensor, targets: Tensor) -> Tensor:
        """Return −log of the mean over draws of the probability of the true answer."""
        yes, no = (F.logsigmoid(z).logsumexp(0) - math.log(len(rows)) for z in (rows, -rows))
        return -(targets * yes + (1 - targets.to(rows.dtype)) * no)

    def as_probabilities(self, target: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:
        """Return the targets as numbers; the weights are those of the positive terms where a target is yes, else 1."""
        y = target.to(like.dtype)
        if self.positive_weights is None:
            return y, torch.ones_like(y)
        return y, 1 + (self.positive_weights.to(like.dtype) - 1) * y


def _between_0_and_1(target: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the loss of targets that are probabilities; NaN goes on into the loss, which then says so."""
    allowed = ~((target < 0) | (target > 1))

    def complaint() -> str:
        low, high = target.min().item(), target.max().item()
        advice = "this looks like a mask of 0 and 255: give mask / 255" if high == 255 else "correct the targets"
        return f"Bernoulli needs targets between 0 and 1, and they lie between {low:g} and {high:g}; {advice}"

    return inside(allowed, loss, target, complaint)


def _binary_entropy(p: Tensor) -> Tensor:
    return surprise(p) + surprise(1 - p)
