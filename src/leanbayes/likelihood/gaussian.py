"""The likelihood of numbers with Gaussian noise."""

import math
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from leanbayes.errors import InputError, ShapeMismatch
from leanbayes.likelihood.base import Likelihood, Uncertainty, require_tensor, shape_of, wide

__all__ = ["Gaussian"]


class Gaussian(Likelihood):
    """Numbers with Gaussian noise, whose standard deviation is known, learned, or given by the model for each input.

    Args:
        noise: the standard deviation of y. A number means that it is known. ``"learned"`` makes it one parameter: add
            ``likelihood.parameters()`` to the optimizer. ``"input"`` means that the model gives it for each input: it
            returns a pair (mean, log-variance), or a tensor whose axis 1 holds the means and then the log-variances.
        initial: the value at which a learned noise starts.

    >>> Gaussian(noise=1.0).nll(torch.zeros(1), torch.zeros(1))
    tensor(0.9189)
    """

    closed_form = True
    usual_for: ClassVar[tuple[str, ...]] = ("regression",)
    fewest = 8  # a variance from fewer draws is too often far too small, and so is the error that they show

    def __init__(self, noise: float | str = 1.0, initial: float = 1.0) -> None:
        super().__init__()
        known = isinstance(noise, int | float) and 0 < noise < math.inf
        if not known and noise not in ("learned", "input"):
            raise InputError(f'noise must be a positive finite number, "learned" or "input", got {noise!r}')
        if not 0 < initial < math.inf:
            raise InputError(f"initial must be a positive finite number, got {initial}")
        self.by_input = noise == "input"
        start = 2 * math.log(float(noise) if known else initial)
        self.known = None if noise == "learned" else start  # a number is exact in any dtype
        if noise == "learned":
            self.log_variance = nn.Parameter(torch.tensor(start))
        else:
            self.register_buffer("log_variance", torch.tensor(start), persistent=False)

    @classmethod
    def for_data(cls, ignore_index: int | None = None) -> Self:  # noqa: ARG003
        """Return the likelihood whose noise the model gives for each input: its outputs are means and log-variances."""
        return cls(noise="input")

    @property
    def learned(self) -> bool:
        """Whether the noise is one number that training learns."""
        return self.known is None

    @property
    def noise(self) -> Tensor:
        """The standard deviation that is known or has been learned."""
        return (0.5 * self._log_variance(self.log_variance)).exp()

    def _log_variance(self, like: Tensor) -> Tensor:
        if self.known is None:
            return self.log_variance.to(like)
        return torch.tensor(self.known, dtype=like.dtype, device=like.device)

    def nll(self, output: Any, target: Tensor) -> Tensor:
        """Return ½ log 2πs² + (y − m)²/2s², summed over examples and outputs."""
        require_tensor(target)
        mean, log_variance = self._split(output)
        if mean.shape != target.shape:
            raise ShapeMismatch(f"Gaussian got means of shape {tuple(mean.shape)} and targets of {tuple(target.shape)}")
        mean, log_variance = wide(mean), wide(log_variance)
        squares = (target - mean).square() * torch.exp(-log_variance)
        return 0.5 * (squares + log_variance + math.log(2 * math.pi)).sum()

    def centre(self, output: Any) -> Tensor:
        """Return the means of the first draw, because squares around them keep their digits."""
        return wide(self._split(output)[0])

    def statistics(self, output: Any, centre: Tensor | None) -> Tensor:
        """Return the distance to the centre, its square, and the variance of the noise."""
        mean, log_variance = self._split(output)
        distance = wide(mean) if centre is None else wide(mean) - centre
        return torch.stack([distance, distance.square(), wide(log_variance).exp().expand_as(distance)], dim=1)

    def uncertainty(self, averages: Tensor, draws: Tensor, centre: Tensor | None) -> Uncertainty:
        """Return the mean and its uncertainty as variances.

        The aleatoric part is the variance of the noise, the epistemic part the unbiased variance of the means over
        draws, and the total is their sum.
        """
        distance, square, aleatoric = averages.unbind(1)
        count = draws.view(-1, *[1] * (distance.dim() - 1)).to(distance.dtype)
        epistemic = (square - distance.square()).clamp_min(0) * (count / (count - 1).clamp_min(1))
        mean = distance if centre is None else centre + distance
        return Uncertainty(mean, aleatoric + epistemic, aleatoric, epistemic)

    def expected_nll(
        self,
        mean: Any,
        variance: Any,
        target: Tensor,
        *,
        samples: int = 1,  # noqa: ARG002
        generator: torch.Generator | None = None,  # noqa: ARG002
    ) -> Tensor:
        """Return ½ log 2πs² + ((y − m)² + σ²)/2s² in closed form, summed.

        Where the model gives log s², it is Gaussian too, and E s⁻² = exp(−m' + σ'²/2).
        """
        centre, log_variance, spread, doubt = self._split_moments(mean, variance)
        if centre.shape != target.shape:
            raise ShapeMismatch(
                f"Gaussian got means of shape {tuple(centre.shape)} and targets of {tuple(target.shape)}"
            )
        squares = ((target - centre).square() + spread) * torch.exp(doubt / 2 - log_variance)
        return 0.5 * (squares + log_variance + math.log(2 * math.pi)).sum()

    def uncertainty_of_moments(self, mean: Any, variance: Any, points: int) -> Uncertainty:  # noqa: ARG002
        """Return the prediction in closed form: the variance of the outputs is the epistemic part."""
        centre, log_variance, spread, doubt = self._split_moments(mean, variance)
        aleatoric = torch.exp(log_variance + doubt / 2).expand_as(centre)
        return Uncertainty(centre, aleatoric + spread, aleatoric, spread)

    def _split_moments(self, mean: Any, variance: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        centre, log_variance = map(wide, self._split(mean))
        spread, doubt = self._split(variance)
        return centre, log_variance, wide(spread), wide(doubt) if self.by_input else centre.new_zeros(())

    def predictive(self, output: Any) -> Tensor:
        """Return the mean."""
        mean, _ = self._split(output)
        return mean

    def laplace_settings(self) -> tuple[str, float] | None:
        """Return "regression" and the noise; a noise for each input is not supported."""
        return None if self.by_input else ("regression", float(self.noise))

    def _split(self, output: Any) -> tuple[Tensor, Tensor]:
        if not self.by_input:
            if not isinstance(output, Tensor):
                raise ShapeMismatch(
                    f"Gaussian needs a tensor of means, got {shape_of(output)}; "
                    'a model that returns a pair needs noise="input"'
                )
            return output, self._log_variance(wide(output))
        if isinstance(output, tuple) and len(output) == 2:
            mean, log_variance = output
            return mean, log_variance
        if isinstance(output, Tensor) and output.dim() > 1 and output.shape[1] % 2 == 0:
            mean, log_variance = output.chunk(2, dim=1)
            return mean, log_variance
        raise ShapeMismatch(
            f'Gaussian(noise="input") needs a pair (mean, log-variance) or an even axis 1, got {shape_of(output)}'
        )
