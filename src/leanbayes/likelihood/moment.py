"""Two ways to score the mean and variance of outputs without draws: that of VDP++, and cross-entropy on the mean.

Each wraps the likelihood that says what the outputs mean. The wrapped likelihood makes the predictions, so train with a
wrapper and predict with either. The third way is the expected log-likelihood over draws of the outputs, which
`Categorical`, `Bernoulli` and `Gaussian` compute by themselves when moments are propagated.
``benchmarks/moment_likelihoods.py`` compares the three.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from leanbayes.errors import InputError
from leanbayes.likelihood.base import Likelihood, Uncertainty
from leanbayes.likelihood.categorical import Categorical
from leanbayes.propagate.moments import MomentTensor, Setting

__all__ = ["MeanCrossEntropy", "MomentLikelihood"]


class _Wrapper(Likelihood):
    """Another likelihood, of which only the score of moments is changed."""

    def __init__(self, of: Likelihood) -> None:
        super().__init__()
        self.of, self.fewest, self.closed_form = of, of.fewest, of.closed_form
        self.ignore_index = of.ignore_index

    def nll(self, output: Any, target: Tensor) -> Tensor:
        """Return the score of the wrapped likelihood, because the outputs of one draw have no variance."""
        return self.of.nll(output, target)

    def statistics(self, output: Any, centre: Tensor | None) -> Tensor:
        """Return the statistics of the wrapped likelihood."""
        return self.of.statistics(output, centre)

    def uncertainty(self, averages: Tensor, draws: Tensor, centre: Tensor | None) -> Uncertainty:
        """Return the prediction of the wrapped likelihood."""
        return self.of.uncertainty(averages, draws, centre)

    def predictive(self, output: Any) -> Tensor:
        """Return the mean of y under the wrapped likelihood."""
        return self.of.predictive(output)

    def centre(self, output: Any) -> Tensor | None:
        """Return the origin that the wrapped likelihood chooses."""
        return self.of.centre(output)

    def nats(self, uncertainty: Uncertainty) -> Tensor:
        """Return the total uncertainty on the wrapped likelihood's scale of nats."""
        return self.of.nats(uncertainty)

    def uncertainty_of_moments(self, mean: Any, variance: Any, points: int) -> Uncertainty:
        """Return the prediction of the wrapped likelihood."""
        return self.of.uncertainty_of_moments(mean, variance, points)

    def mixed(self, parts: Sequence[Uncertainty]) -> Uncertainty:
        """Return what the likelihood inside returns."""
        return self.of.mixed(parts)

    def kind(self, targets: Tensor) -> str:
        """Return the kind of data of the wrapped likelihood."""
        return self.of.kind(targets)

    def counted(self, targets: Tensor) -> Tensor:
        """Return which targets count for the wrapped likelihood."""
        return self.of.counted(targets)

    def input_uncertainty(self, total: Tensor, targets: Any) -> Tensor:
        """Return the uncertainty of each input under the wrapped likelihood."""
        return self.of.input_uncertainty(total, targets)


class MeanCrossEntropy(_Wrapper):
    """The cross-entropy of the mean logits. It does not score their variance, which the KL alone holds in place.

    VDP++ is trained with it on ImageNet.

    Args:
        of: `Categorical` or `Bernoulli`, with its class weights.

    >>> moments = torch.zeros(2, 4), torch.ones(2, 4)
    >>> MeanCrossEntropy().expected_nll(*moments, torch.tensor([0, 3])) / math.log(4)
    tensor(2.)
    """

    def __init__(self, of: Likelihood | None = None) -> None:
        super().__init__(Categorical() if of is None else of)
        if not self.of.has_logits:
            raise InputError(
                f"cross-entropy needs logits, as Categorical and Bernoulli have, got {type(self.of).__name__}; for "
                "numbers use MomentLikelihood, or the likelihood itself"
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
        """Return −log p(target | mean), summed."""
        return self.of.nll(mean, target)


class MomentLikelihood(_Wrapper):
    """The density of the target under a Gaussian with the propagated moments (VDP++, eq. 11, with the ½ that it lacks).

    The score is ½ log 2πv + (y − m)²/2v, summed. For classes, y is one-hot, and m and v are the moments of the
    probabilities: those of the softmax, to first order with the full Jacobian (eq. 8 and 9). For labels they are those
    of the sigmoid. For numbers they are those of the output, with the noise of the `Gaussian` added to v. Where a
    network is sure and wrong the softmax has no gradient, for which reason VDP++ does not use this score on ImageNet.

    Args:
        of: what the outputs mean: `Categorical`, `Bernoulli`, `Gaussian`, or another likelihood that has logits or
            predicts from moments in closed form.
        floor: added to the variance of probabilities, so that a sure network has a finite loss.

    >>> from leanbayes.likelihood import Gaussian
    >>> moments = torch.tensor([[1.0]]), torch.tensor([[0.5]])
    >>> MomentLikelihood(Gaussian(noise=0.5 ** 0.5)).expected_nll(*moments, torch.tensor([[1.0]]))
    tensor(0.9189)
    """

    def __init__(self, of: Likelihood | None = None, floor: float = 1e-3) -> None:
        super().__init__(Categorical() if of is None else of)
        if not (self.of.has_logits or self.of.closed_form):
            raise InputError(
                "MomentLikelihood needs a likelihood with logits or with predictions in closed form, such as "
                f"Categorical, Bernoulli or Gaussian, got {type(self.of).__name__}"
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
        """Return −log N(target; m, v), summed."""
        with torch.no_grad():
            self.of.nll(mean, target)  # raises if outputs and targets do not fit
        if self.of.closed_form:
            predicted = self.of.uncertainty_of_moments(mean, variance, 1)
            return _density(predicted.mean, predicted.total, target.to(predicted.mean.dtype)).sum()
        dtype = torch.promote_types(mean.dtype, torch.float32)
        logits: Tensor = MomentTensor.of(mean.to(dtype), variance.to(dtype), None, Setting())
        probabilities = self.of.predictive(logits)
        assert isinstance(probabilities, MomentTensor)
        p, v = probabilities.expected, probabilities.variance
        y, weights = self.of.as_probabilities(target, p)
        return (weights * _density(p, v + self.floor, y)).sum()


def _density(mean: Tensor, variance: Tensor, target: Tensor) -> Tensor:
    return 0.5 * ((2 * math.pi * variance).log() + (target - mean).square() / variance)
