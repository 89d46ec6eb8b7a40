"""Temperature scaling (Guo et al. 2017) of any predictor, by one number that is fitted to validation data."""

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from leanbayes._calls import Inputs, prediction_tensor, split_batch
from leanbayes._wrappers import unwrap
from leanbayes.baselines.rescaled import Rescaled, draws_of
from leanbayes.errors import InputError, NonFinite
from leanbayes.likelihood import Likelihood
from leanbayes.likelihood.base import require_likelihood
from leanbayes.prediction import in_eval, laws_of
from leanbayes.propagate.outputs import Outputs

__all__ = ["Temperature"]

_MOST_LOGITS = 2**24  # that `fit` stores: 64 MB of float32
_RANGE = math.log(20)  # T lies between 1/20 and 20, because the best T would be 0 if no example is wrong
_GRID = 25
_GRID_LOGITS = 2**19  # of which a grid sees where the valley is
_MANY = 2**14  # targets, from which the error of T itself, of the order of 1/√targets, exceeds that of float32 by far
_SWEEP = 2**22  # logits of one sweep over memory
_BLOCK = 2**17  # logits that are computed at a time, so that they stay in the cache


class Temperature(Rescaled):
    """A model whose logits are divided by a temperature T in each draw. It returns the logits as a tensor.

    Args:
        model: a plain module, a `Bayesian` or another `Predictor`.

    >>> model = nn.Linear(1, 2)
    >>> scaled = Temperature.by(model, 2.0)
    >>> round(scaled.temperature, 4)
    2.0
    >>> bool(torch.allclose(scaled(torch.ones(1, 1)), model(torch.ones(1, 1)) / 2))
    True
    """

    log_temperature: Tensor
    _buffer: ClassVar[str] = "log_temperature"

    @property
    def temperature(self) -> float:
        """The temperature T."""
        return self.number

    def rescaled(self, out: Any) -> Tensor:
        """Divide the logits by the temperature."""
        logits = _logits(out)
        return logits / self.log_temperature.exp().to(logits)

    def laws(self, x: Inputs, output: Callable[[Any], Any] = prediction_tensor) -> list[Outputs] | None:
        """Return the distributions of the model inside, scaled, if it predicts in one pass."""
        laws = laws_of(self.model, x, output)
        return None if laws is None else [law.divided(self.log_temperature.exp()) for law in laws]

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
        """Find the T in [1/20, 20] with the least validation NLL of the mean prediction, −log 1/S Σₛ p(y | fₛ(x)/T).

        With one draw this is the method of Guo et al. A model that predicts in one pass makes no draws: evenly spread
        outputs stand for the distribution of its logits. T stays 1 if no other value is better. Class weights do not
        count, because the aim is to predict probabilities. The search stores the logits of every draw, at most 2²⁴
        numbers; of more data, most often pixels, it stores a random part of the targets.

        Args:
            model: anything that predicts logits.
            batches: validation data as pairs (inputs, targets).
            likelihood: a likelihood of logits, such as `Categorical` (also for each pixel) or `Bernoulli`.
            samples: how many draws are averaged; an ensemble has at most its members.
            generator: the source of randomness for the draws.
            prior: the standard deviation of log T under a Normal prior around T = 1, which matters for small
                validation sets: if no example is wrong, the likelihood alone would make the predictions ever surer.
                By default there is no prior, as in the method of Guo et al.

        Returns:
            The scaled model.
        """
        model = unwrap(model)
        require_likelihood(likelihood)
        if not likelihood.has_logits:
            raise InputError(
                f"temperature scaling needs logits, as Categorical and Bernoulli have, got {type(likelihood).__name__}"
                '; for means and log-variances use NoiseScale, or learn the noise with Gaussian("learned")'
            )
        scaled = cls(model)
        draws = samples if scaled.members is None else min(samples, scaled.members)
        if draws < 1:
            raise InputError(f"samples must be at least 1, got {samples}")
        if prior is not None and not 0 < prior < math.inf:
            raise InputError(f"prior must be a positive, finite number, got {prior}; leave it None for no prior")
        logits = _Logits(likelihood, prior)
        for batch in batches:
            x, y = split_batch(batch)
            logits.add(_outputs(model, x, likelihood, draws, generator), y)
        best = logits.best()
        scaled.log_temperature.fill_(best)
        scaled.validation_nll, scaled.validation_targets = logits.nll(best) / logits.targets, logits.targets
        return scaled

    def extra_repr(self) -> str:
        """Describe T."""
        return f"temperature={self.temperature:.4g}"


class _Logits:
    """The logits of all draws, (draws, targets, ...), and their targets, or a uniform part of too many targets."""

    def __init__(self, likelihood: Likelihood, prior: float | None) -> None:
        self.likelihood, self.prior = likelihood, prior
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
        """Return log T: the best of a grid, refined by Brent's search between its neighbours.

        The grid is compared on a part of many targets, which suffices to see where the valley is; from there on all
        targets count, and the valley moves where they say so.
        """
        if not self.targets:
            raise InputError("there are no targets to choose a temperature on; give validation batches")
        step = 2 * _RANGE / (_GRID - 1)
        grid = [-_RANGE + step * i for i in range(_GRID)]
        rough, costs = self._part(_GRID_LOGITS), {}

        def cost(log_t: float) -> float:
            if log_t not in costs:
                costs[log_t] = self.cost(log_t)
            return costs[log_t]

        centre = min(range(_GRID), key=lambda i: rough.cost(grid[i]))
        while (lower := min(_around(centre), key=lambda i: cost(grid[i]))) != centre:
            centre = lower
        ends = grid[max(centre - 1, 0)], grid[centre], grid[min(centre + 1, _GRID - 1)]
        refined = _brent(cost, *ends, 1e-6 if self.fine else 1e-4)
        best = min(refined, grid[centre], key=cost)
        return best if cost(best) < cost(0.0) else 0.0

    def _part(self, most: int) -> "_Logits":
        """Return a random part of the targets, with at most about ``most`` logits, or all if there are so few.

        The prior counts for as much of the part as for the whole, so that the valley lies in the same place.
        """
        logits = sum(part.numel() for part, _, _ in self.chunks)
        if logits <= most:
            return self
        part = copy.copy(self)
        part.share = self.share * most / logits
        part.chunks = [part._thinned(*chunk) for chunk in self.chunks]
        if not part.targets:
            return self
        part.prior = None if self.prior is None else self.prior * math.sqrt(self.targets / part.targets)
        return part

    def cost(self, log_t: float) -> float:
        """Return the NLL and what the prior adds to it."""
        return self.nll(log_t, self.fine) + (0.0 if self.prior is None else 0.5 * (log_t / self.prior) ** 2)

    @property
    def fine(self) -> bool:
        """Whether the targets are so few that rounding in float32 would move the best temperature visibly."""
        return self.targets < _MANY

    @property
    def targets(self) -> int:
        """How many targets the search has stored."""
        return sum(len(y) for _, y, _ in self.chunks)

    def nll(self, log_t: float, fine: bool = True) -> float:
        """Return the NLL of the mean prediction at this temperature, summed in float64.

        A search over many targets is not ``fine``: its terms are computed in float32, in one sweep over memory.
        """
        coldness, total = math.exp(-log_t), None
        for logits, y, _ in self.chunks:
            rows = max(1, (_BLOCK if fine else _SWEEP) * len(y) // max(logits.numel(), 1))
            for part, targets in zip(logits.split(rows, 1), y.split(rows), strict=True):
                nll = self.likelihood.cold_mixture_nll(part, targets, coldness, fine)
                total = nll if total is None else total + nll
        return 0.0 if total is None else float(total)

    def _thinned(self, logits: Tensor, y: Tensor, ticket: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        keep = ticket < self.share
        return logits[:, keep], y[keep], ticket[keep]


def _around(centre: int) -> list[int]:
    """Return a place of the grid, first because it stays if nothing is better, and its neighbours."""
    return [i for i in (centre, centre - 1, centre + 1) if 0 <= i < _GRID]


def _brent(function: Callable[[float], float], low: float, start: float, high: float, width: float = 1e-6) -> float:
    """Return the minimum of a function with one valley between ``low`` and ``high`` (Brent 1973, chapter 5).

    Parabolas through the three best points so far find it in a few steps, and golden sections where they would not.
    """
    golden = (3 - math.sqrt(5)) / 2
    best = second = third = start
    at_best = at_second = at_third = function(start)
    step = before = 0.0
    while max(high - best, best - low) > width:
        middle = (low + high) / 2
        r, q = (best - second) * (at_best - at_third), (best - third) * (at_best - at_second)
        p, q = (best - third) * q - (best - second) * r, 2 * (q - r)
        p, q = (-p if q > 0 else p), abs(q)
        fits = abs(p) < abs(0.5 * q * before) and q * (low - best) < p < q * (high - best)
        if fits:
            before, step = step, p / q
        else:
            before = (low if best >= middle else high) - best
            step = golden * before
        least = width / 3
        if abs(step) < least:
            step = math.copysign(least, step if step else middle - best)
        point = min(max(best + step, low), high)
        at_point = function(point)
        if at_point <= at_best:
            low, high = (best, high) if point >= best else (low, best)
            third, at_third, second, at_second, best, at_best = second, at_second, best, at_best, point, at_point
        else:
            low, high = (point, high) if point < best else (low, point)
            if at_point <= at_second or second == best:
                third, at_third, second, at_second = second, at_second, point, at_point
            elif at_point <= at_third or third in (best, second):
                third, at_third = point, at_point
    return best


def _outputs(
    model: nn.Module, x: Inputs, likelihood: Likelihood, draws: int, generator: torch.Generator | None
) -> Iterator[Any]:
    """Yield outputs that stand for the prediction: evenly spread ones where one pass gives their law, else draws."""
    with in_eval(model), torch.no_grad():
        laws = laws_of(model, x)
    if laws is None:
        return draws_of(model, x, draws, generator)
    return (out for law in laws for out in law.spread(likelihood, draws))


def _logits(out: Any) -> Tensor:
    logits = prediction_tensor(out)
    if not isinstance(logits, Tensor):
        raise InputError(
            "the model returned a pair of mean and log-variance; temperature scaling needs a tensor of logits"
        )
    return logits
