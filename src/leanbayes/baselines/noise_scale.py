"""Scaling of the noise that a model of numbers predicts, by one number that is fitted to validation data.

It is to numbers what a temperature is to classes (Levi et al. 2022): a network that gives a mean and a log-variance is
often too sure of both, and one factor on the standard deviation, fitted on data that it was not trained on, repairs it
on average.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from leanbayes._calls import Inputs, prediction_tensor, split_batch
from leanbayes._wrappers import unwrap
from leanbayes.baselines.rescaled import Rescaled
from leanbayes.errors import InputError, NonFinite
from leanbayes.likelihood import Gaussian, Likelihood
from leanbayes.likelihood.base import require_likelihood
from leanbayes.prediction import laws_of, predict
from leanbayes.propagate.outputs import Outputs

__all__ = ["NoiseScale"]

_RANGE = math.log(20)  # the factor lies between 1/20 and 20
_GRID = 401  # values of its logarithm, which are 0.015 apart
_ROWS = 2**20  # targets whose cost is computed at a time


class NoiseScale(Rescaled):
    """A model of means and log-variances, whose noise has its standard deviation multiplied by a factor.

    The factor changes the aleatoric part of the uncertainty. What comes from the weights stays as it is.

    Args:
        model: a plain module, a `Bayesian` or another `Predictor`, whose outputs are what
            ``lb.Gaussian(noise="input")`` takes.

    >>> twice = NoiseScale.by(nn.Identity(), 2.0)       # twice the deviation is four times the variance
    >>> round(twice(torch.tensor([[3.0, 0.0]]))[0, 1].exp().item(), 4)
    4.0
    """

    log_factor: Tensor
    _buffer: ClassVar[str] = "log_factor"

    @property
    def factor(self) -> float:
        """The factor of the noise's standard deviation."""
        return self.number

    def rescaled(self, out: Any) -> Any:
        """Add 2 log(factor) to the log-variances."""
        out = prediction_tensor(out)
        if isinstance(out, tuple) and len(out) == 2:
            mean, log_variance = out
            return mean, log_variance + 2 * self.log_factor.to(log_variance)
        if isinstance(out, Tensor) and out.dim() > 1 and out.shape[1] % 2 == 0:
            mean, log_variance = out.chunk(2, dim=1)
            return torch.cat([mean, log_variance + 2 * self.log_factor.to(log_variance)], dim=1)
        shape = f"a tensor of shape {tuple(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
        raise InputError(
            f"NoiseScale needs means and log-variances, as a pair or along an even axis 1, got {shape}; a model that "
            'gives means alone learns its noise with Gaussian("learned")'
        )

    def laws(self, x: Inputs, output: Callable[[Any], Any] = prediction_tensor) -> list[Outputs] | None:
        """Return the distributions of the model inside, rescaled, if it predicts in one pass."""
        laws = laws_of(self.model, x, output)
        return None if laws is None else [law.shifted(self.rescaled) for law in laws]

    @classmethod
    @torch.no_grad()
    def fit(
        cls,
        model: nn.Module,
        batches: Iterable[Any],
        likelihood: Likelihood,
        samples: int = 32,
        *,
        generator: torch.Generator | None = None,
        prior: float | None = None,
    ) -> Self:
        """Find the factor in [1/20, 20] with the least validation NLL of N(m, factor² a + e).

        Here m is the predicted mean, a the aleatoric and e the epistemic variance. The factor stays 1 if no other value
        is better.

        Args:
            model: anything that predicts means and log-variances.
            batches: validation data as pairs (inputs, targets).
            likelihood: ``lb.Gaussian(noise="input")``.
            samples: how many draws are averaged, where the model predicts by draws.
            generator: the source of randomness for the draws.
            prior: the standard deviation of the factor's logarithm under a Normal prior around a factor of 1, which
                matters for small validation sets. By default there is no prior.

        Returns:
            The scaled model.
        """
        model = unwrap(model)
        require_likelihood(likelihood)
        if not (isinstance(likelihood, Gaussian) and likelihood.by_input):
            raise InputError(
                f'scaling the noise needs Gaussian(noise="input"), got {type(likelihood).__name__}; for classes and '
                "labels use Temperature"
            )
        if prior is not None and not 0 < prior < math.inf:
            raise InputError(f"prior must be a positive, finite number, got {prior}; leave it None for no prior")
        squares, noises, doubts = [], [], []
        for batch in batches:
            x, y = split_batch(batch)
            prediction = predict(model, x, likelihood=likelihood, samples=samples, generator=generator)
            squares.append((y.to(prediction.mean) - prediction.mean).square().flatten().double())
            noises.append(prediction.aleatoric.flatten().double())
            doubts.append(prediction.epistemic.flatten().double())
        if not squares or not sum(map(len, squares)):
            raise InputError("there are no targets to choose the noise on; give validation batches")
        square, noise, doubt = torch.cat(squares), torch.cat(noises), torch.cat(doubts)
        if not torch.isfinite(square + noise + doubt).all():
            raise NonFinite("predictions or targets have NaN or infinite values; check the inputs and the weights")
        best, nll = _best_factor(square, noise, doubt, prior)
        scaled = cls(model)
        scaled.log_factor.fill_(best)
        scaled.validation_nll, scaled.validation_targets = nll / len(square), len(square)
        return scaled

    def extra_repr(self) -> str:
        """Describe the factor."""
        return f"factor={self.factor:.4g}"


def _best_factor(square: Tensor, noise: Tensor, doubt: Tensor, prior: float | None) -> tuple[float, float]:
    """Return the logarithm of the best factor and the summed NLL there.

    The NLL may have more than one valley, so a fine grid decides, and a parabola through its best point and the two
    beside it refines it.
    """

    def nll(log_factors: Tensor) -> Tensor:
        total = torch.zeros_like(log_factors)
        rows = max(1, _ROWS // len(log_factors))
        for parts in zip(square.split(rows), noise.split(rows), doubt.split(rows), strict=True):
            squares, noises, doubts = (part.unsqueeze(1) for part in parts)
            variance = noises * (2 * log_factors).exp() + doubts
            total += 0.5 * (squares / variance + (2 * math.pi * variance).log()).sum(0)
        return total

    def penalty(log_factors: Tensor) -> Tensor:
        return torch.zeros_like(log_factors) if prior is None else 0.5 * (log_factors / prior).square()

    grid = torch.linspace(-_RANGE, _RANGE, _GRID, dtype=square.dtype, device=square.device)
    cost = nll(grid) + penalty(grid)
    best = int(cost.argmin())
    candidates = [grid[best], torch.zeros_like(grid[0])]
    if 0 < best < _GRID - 1:
        left, middle, right = cost[best - 1 : best + 2]
        bend = left - 2 * middle + right
        if bend > 0:
            candidates.append(grid[best] + 0.5 * (left - right) / bend * (grid[1] - grid[0]))
    points = torch.stack(candidates)
    costs = nll(points) + penalty(points)
    chosen = int(costs.argmin())
    if not costs[chosen] < costs[1]:
        chosen = 1
    return float(points[chosen]), float(nll(points)[chosen])
