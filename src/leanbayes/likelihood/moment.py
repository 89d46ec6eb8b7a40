"""Two ways to score the mean and variance of outputs that need no draws: 002's own, and cross-entropy on the mean.

Each is put on top of the likelihood that says what the outputs mean, which makes the predictions: train with one of
these, predict with either. The third way, the expected log-likelihood over draws of the outputs, is what `Categorical`,
`Bernoulli` and `Gaussian` do by themselves under moments; ``benchmarks/moment_likelihoods.py`` compares the three.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes.errors import InputError
from leanbayes.likelihood import Bernoulli, Categorical, Gaussian, Likelihood, Uncertainty
from leanbayes.propagate.moments import MomentTensor, Setting

__all__ = ["MeanCrossEntropy", "MomentLikelihood"]


class _OnTop(Likelihood):
    """Another likelihood, of which only the score of moments is changed."""

    def __init__(self, of: Likelihood) -> None:
        super().__init__()
        self.of, self.fewest, self.closed_form = of, of.fewest, of.closed_form
        self.ignore_index = of.ignore_index

    def nll(self, output: Any, target: Tensor) -> Tensor:
        """One draw of the outputs has no variance: it is scored as the other likelihood does."""
        return self.of.nll(output, target)

    def kind(self, targets: Tensor) -> str:
        """As the other's."""
        return self.of.kind(targets)

    def input_uncertainty(self, total: Tensor, targets: Any) -> Tensor:
        """As the other's."""
        return self.of.input_uncertainty(total, targets)

    def statistics(self, output: Any, centre: Tensor | None) -> Tensor:
        """As the other's."""
        return self.of.statistics(output, centre)

    def uncertainty(self, averages: Tensor, draws: Tensor, centre: Tensor | None) -> Uncertainty:
        """As the other's."""
        return self.of.uncertainty(averages, draws, centre)

    def predictive(self, output: Any) -> Tensor:
        """As the other's."""
        return self.of.predictive(output)

    def centre(self, output: Any) -> Tensor | None:
        """As the other's."""
        return self.of.centre(output)

    def nats(self, found: Uncertainty) -> Tensor:
        """As the other's."""
        return self.of.nats(found)

    def uncertainty_of_moments(self, mean: Any, variance: Any, points: int) -> Uncertainty:
        """As the other's."""
        return self.of.uncertainty_of_moments(mean, variance, points)


class MeanCrossEntropy(_OnTop):
    """Cross-entropy of the mean logits; their variance is not scored, so the KL alone holds it (002, for ImageNet).

    Args:
        of: `Categorical` or `Bernoulli`, with its class weights.

    >>> moments = torch.zeros(2, 4), torch.ones(2, 4)
    >>> MeanCrossEntropy().expected_nll(*moments, torch.tensor([0, 3])) / math.log(4)
    tensor(2.)
    """

    def __init__(self, of: Likelihood | None = None) -> None:
        super().__init__(Categorical() if of is None else of)
        if not isinstance(self.of, Categorical | Bernoulli):
            raise InputError(
                f"cross-entropy needs logits, so Categorical or Bernoulli, got {type(self.of).__name__}; for real "
                "targets use MomentLikelihood, or the likelihood itself"
            )

    def expected_nll(
        self,
        mean: Any,
        variance: Any,  # noqa: ARG002
        target: Tensor,
        *,
        samples: int = 1,  # noqa: ARG002
        generator: torch.Generator | None = None,  # noqa: ARG002
    ) -> Tensor:
        """−log p(target | mean), summed."""
        return self.of.nll(mean, target)


class MomentLikelihood(_OnTop):
    """The density of the target under a Gaussian of the propagated moments (002, eq. 11, with the ½ that it lacks).

    ½ log 2πv + (y − m)²/2v, summed. For classes y is one-hot, and m and v are the moments of the probabilities: the
    propagated softmax, to first order with the full Jacobian (eq. 8, 9); for labels the sigmoid. For real targets they
    are those of the output, with the noise of the `Gaussian` added to v. Where a network is sure and wrong the softmax
    has no gradient: for that 002 left this likelihood on ImageNet.

    Args:
        of: what the outputs mean: `Categorical`, `Bernoulli` or `Gaussian`.
        floor: added to the variance of probabilities, so that a sure network has a finite loss.

    >>> moments = torch.tensor([[1.0]]), torch.tensor([[0.5]])
    >>> MomentLikelihood(Gaussian(noise=0.5 ** 0.5)).expected_nll(*moments, torch.tensor([[1.0]]))
    tensor(0.9189)
    """

    def __init__(self, of: Likelihood | None = None, floor: float = 1e-3) -> None:
        super().__init__(Categorical() if of is None else of)
        if not isinstance(self.of, Categorical | Bernoulli | Gaussian):
            raise InputError(
                f"MomentLikelihood knows Categorical, Bernoulli and Gaussian outputs, got {type(self.of).__name__}"
            )
        if not 0 < floor < math.inf:
            raise InputError(f"floor must be a positive finite number, got {floor}")
        self.floor = floor

    def expected_nll(
        self,
        mean: Any,
        variance: Any,
        target: Tensor,
        *,
        samples: int = 1,  # noqa: ARG002
        generator: torch.Generator | None = None,  # noqa: ARG002
    ) -> Tensor:
        """−log N(target; m, v), summed."""
        with torch.no_grad():
            self.of.nll(mean, target)  # checks that they fit
        if isinstance(self.of, Gaussian):
            said = self.of.uncertainty_of_moments(mean, variance, 1)
            return _density(said.mean, said.total, target.to(said.mean.dtype)).sum()
        wide = torch.promote_types(mean.dtype, torch.float32)
        logits: Tensor = MomentTensor.of(mean.to(wide), variance.to(wide), None, Setting())
        if isinstance(self.of, Bernoulli):
            p, v = _parts(torch.sigmoid(logits))
            y = target.to(p.dtype)
            weights = 1 if self.of.positive_weights is None else 1 + (self.of.positive_weights.to(p.dtype) - 1) * y
            return (weights * _density(p, v + self.floor, y)).sum()
        assert isinstance(self.of, Categorical)
        p, v = _parts(torch.softmax(logits, 1))
        counted = target != self.of.ignore_index
        label = target.where(counted, 0)
        weights = counted.to(p.dtype)
        if self.of.class_weights is not None:
            weights = weights * self.of.class_weights.to(p.dtype)[label]
        y = F.one_hot(label, p.shape[1]).movedim(-1, 1).to(p.dtype)
        return (weights * _density(p, v + self.floor, y).sum(1)).sum()


def _parts(value: Tensor) -> tuple[Tensor, Tensor]:
    assert isinstance(value, MomentTensor)
    return value.expected, value.variance


def _density(mean: Tensor, variance: Tensor, target: Tensor) -> Tensor:
    return 0.5 * ((2 * math.pi * variance).log() + (target - mean).square() / variance)
