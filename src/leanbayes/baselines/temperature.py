"""Temperature scaling (Guo et al. 2017) of any predictor, by one number that is fitted to validation data."""

import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from leanbayes._calls import Inputs, prediction_tensor, split_batch
from leanbayes._wrappers import unwrap
from leanbayes.bayesian import Bayesian, refuse_random_parts
from leanbayes.errors import InputError, NonFinite
from leanbayes.likelihood import Likelihood
from leanbayes.likelihood.base import require_likelihood
from leanbayes.prediction import Predictor, in_eval, outputs_of
from leanbayes.prediction.prediction import networks_of

__all__ = ["Temperature"]

_MOST_LOGITS = 2**24  # that `fit` stores: 64 MB of float32
_RANGE = math.log(20)  # T lies between 1/20 and 20, because the best T would be 0 if no example is wrong
_GRID = 25


class Temperature(Predictor):
    """A model whose logits are divided by a temperature T in each draw. It returns the logits as a tensor.

    Args:
        model: a plain module, a `Bayesian` or another `Predictor`.

    >>> model = nn.Linear(1, 2)
    >>> scaled = Temperature(model)
    >>> _ = scaled.log_temperature.fill_(math.log(2.0))
    >>> round(scaled.temperature, 4)
    2.0
    >>> bool(torch.allclose(scaled(torch.ones(1, 1)), model(torch.ones(1, 1)) / 2))
    True
    """

    log_temperature: Tensor

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        model = unwrap(model)
        if not isinstance(model, Predictor):
            refuse_random_parts(model)
        self.model = model
        self.register_buffer("log_temperature", torch.zeros((), device=_device(model)))

    @property
    def members(self) -> int | None:  # type: ignore[override]
        """The number of draws of the model inside, which is one for a plain module."""
        if isinstance(self.model, Predictor):
            return self.model.members
        return None if isinstance(self.model, Bayesian) else 1

    @property
    def temperature(self) -> float:
        """The temperature T."""
        return math.exp(self.log_temperature.item())

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Run one pass and scale its logits."""
        return self._scaled(self.model(*args, **kwargs))

    def outputs(self, x: Inputs, draws: int, generator: torch.Generator | None) -> Iterator[Tensor]:
        """Yield the draws of the model inside, scaled."""
        for out in _draws(self.model, x, draws, generator):
            yield self._scaled(out)

    def networks(self, draws: int, source: torch.Generator) -> list[Callable[[Tensor], Any]]:
        """Return the draws of the model inside as differentiable functions, scaled."""

        def scaled(x: Tensor, network: Callable[[Tensor], Any]) -> Tensor:
            return self._scaled(network(x))

        return [partial(scaled, network=network) for network in networks_of(self.model, draws, source)]

    def parts(self) -> dict[str, nn.Module]:
        """Return the model."""
        return {"model": self.model}

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
    ) -> Self:
        """Find the T in [1/20, 20] with the least validation NLL of the mean prediction, −log 1/S Σₛ p(y | fₛ(x)/T).

        With one draw this is the method of Guo et al. T stays 1 if no other value is better. Class weights do not
        count, because the aim is to predict probabilities. The search stores the logits of every draw, at most 2²⁴
        numbers; of more data, most often pixels, it stores a random part of the targets.

        Args:
            model: anything that predicts logits.
            batches: validation data as pairs (inputs, targets).
            likelihood: a likelihood of logits, such as `Categorical` (also for each pixel) or `Bernoulli`.
            samples: how many draws are averaged; an ensemble has at most its members.
            generator: the source of randomness for the draws.

        Returns:
            The scaled model.
        """
        model = unwrap(model)
        require_likelihood(likelihood)
        if not likelihood.has_logits:
            raise InputError(
                f"temperature scaling needs logits, as Categorical and Bernoulli have, got {type(likelihood).__name__}"
                '; for regression learn the noise with Gaussian("learned")'
            )
        scaled = cls(model)
        draws = samples if scaled.members is None else min(samples, scaled.members)
        if draws < 1:
            raise InputError(f"samples must be at least 1, got {samples}")
        logits = _Logits(likelihood, draws)
        for batch in batches:
            x, y = split_batch(batch)
            logits.add(_draws(model, x, draws, generator), y)
        scaled.log_temperature.fill_(logits.best())
        return scaled

    def extra_repr(self) -> str:
        """Describe T."""
        return f"temperature={self.temperature:.4g}"

    def _scaled(self, out: Any) -> Tensor:
        logits = _logits(out)
        return logits / self.log_temperature.exp().to(logits)


class _Logits:
    """The logits of all draws, (draws, targets, ...), and their targets, or a uniform part of too many targets."""

    def __init__(self, likelihood: Likelihood, draws: int) -> None:
        self.likelihood, self.draws = likelihood, draws
        self.chunks: list[tuple[Tensor, Tensor, Tensor]] = []
        self.share = 1.0
        self.source = torch.Generator().manual_seed(0)

    def add(self, outs: Iterator[Any], y: Tensor) -> None:
        """Take in the draws of one batch."""
        flat_y = y.flatten()
        ticket = torch.rand(len(flat_y), generator=self.source).to(y.device)
        keep = (ticket < self.share) & self.likelihood.counted(y).flatten()
        rows: list[Tensor] = []
        for out in outs:
            logits = _logits(out)
            if not rows:
                self.likelihood.nll(logits, y)  # raises if logits and targets do not fit
            flat = self.likelihood.logit_rows(logits)
            rows.append(flat[keep.to(flat.device)])
        logits = torch.stack(rows)
        if not torch.isfinite(logits).all():
            raise NonFinite("the model's logits have NaN or infinite values; check the inputs and the weights")
        self.chunks.append((logits, flat_y[keep].to(logits.device), ticket[keep].to(logits.device)))
        while sum(part.numel() for part, _, _ in self.chunks) > _MOST_LOGITS:
            self.share /= 2
            self.chunks = [self._thinned(*chunk) for chunk in self.chunks]

    def best(self) -> float:
        """Return log T: the best of a grid, refined by a golden-section search between its neighbours."""
        if not sum(len(y) for _, y, _ in self.chunks):
            raise InputError("there are no targets to choose a temperature on; give validation batches")
        step = 2 * _RANGE / (_GRID - 1)
        grid = [-_RANGE + step * i for i in range(_GRID)]
        centre = min(grid, key=self.nll)
        refined = _golden(self.nll, max(centre - step, -_RANGE), min(centre + step, _RANGE))
        best = min(refined, centre, key=self.nll)
        return best if self.nll(best) < self.nll(0.0) else 0.0

    def nll(self, log_t: float) -> float:
        """Return the NLL of the mean prediction at this temperature, summed, in float64."""
        total = 0.0
        for logits, y, _ in self.chunks:
            total += self.likelihood.mixture_nll(logits.double() / math.exp(log_t), y).sum().item()
        return total

    def _thinned(self, logits: Tensor, y: Tensor, ticket: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        keep = ticket < self.share
        return logits[:, keep], y[keep], ticket[keep]


def _golden(function: Callable[[float], float], low: float, high: float, width: float = 1e-6) -> float:
    """Return the minimum of a function with one valley between ``low`` and ``high``."""
    ratio = (math.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    at_left, at_right = function(left), function(right)
    while high - low > width:
        if at_left < at_right:
            high, right, at_right = right, left, at_left
            left = high - ratio * (high - low)
            at_left = function(left)
        else:
            low, left, at_left = left, right, at_right
            right = low + ratio * (high - low)
            at_right = function(right)
    return (low + high) / 2


def _draws(model: nn.Module, x: Inputs, draws: int, generator: torch.Generator | None) -> Iterator[Any]:
    """Yield outputs of any model in eval mode and without gradients; between two draws neither is in force."""
    source = outputs_of(model, x, draws, generator)
    for _ in range(draws):
        with in_eval(model), torch.no_grad():
            out = next(source)
        yield out


def _logits(out: Any) -> Tensor:
    logits = prediction_tensor(out)
    if not isinstance(logits, Tensor):
        raise InputError(
            "the model returned a pair of mean and log-variance; temperature scaling needs a tensor of logits"
        )
    return logits


def _device(model: nn.Module) -> torch.device:
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device
