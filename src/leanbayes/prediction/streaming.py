"""`predict`: statistics over draws that stream, and no more draws than needed."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from leanbayes._calls import Inputs, prediction_tensor, take
from leanbayes._calls import batch_size as size_of
from leanbayes.bayesian import Bayesian, refuse_random_parts
from leanbayes.errors import InputError, NonFinite, UnknownName
from leanbayes.likelihood import Categorical, Likelihood, Uncertainty
from leanbayes.prediction.draws import Draws
from leanbayes.prediction.one_pass import predict_in_one_pass
from leanbayes.prediction.prediction import Prediction, Predictor, in_eval, joined
from leanbayes.propagate import PROPAGATIONS

__all__ = ["predict"]

_GROUPS = 16  # running averages for the jackknife: memory is that of sixteen draws, however many are made
_DOUBT = -1.645  # quantile of the Normal law: "auto" stops where the error is small enough by nineteen to one


def predict(
    model: nn.Module,
    x: Inputs,
    *,
    likelihood: Likelihood | None = None,
    samples: int | Literal["auto"] = 32,
    tolerance: float = 0.02,
    min_samples: int | None = None,
    max_samples: int = 256,
    keep_samples: bool = False,
    propagate: str | None = None,
    method: Literal["auto", "loop", "vmap"] = "auto",
    batch_size: int | None = None,
    generator: torch.Generator | None = None,
    output: Callable[[Any], Any] = prediction_tensor,
) -> Prediction:
    """Mean and uncertainty of a model's predictions for a batch. The model is in eval mode inside, and left as it was.

    What precedes the first random weight is computed once for all draws; the rest runs draw by draw, or as a vmapped
    chunk where that is measured to be faster. Statistics stream: memory does not grow with the number of draws.
    With ``propagate="moments"`` no weight is drawn: one pass gives mean and variance of the outputs; with "covariance",
    for small models, their covariance.

    Args:
        model: a `Bayesian` or a `Predictor`; any other module is sure of its weights (one pass).
        x: a batch: a tensor, a tuple of positional arguments or a mapping of keyword arguments.
        likelihood: how outputs become probabilities; `Categorical` by default.
        samples: how many draws (an ensemble has as many as it has members; with moments they are of the outputs alone,
            evenly spread, and cost next to nothing); ``"auto"`` draws for each input until its
            total uncertainty has settled: until its standard error, with a margin for how few draws tell it, is at most
            ``tolerance`` · √(draws / min_samples). Inputs that are sure stop first. The root spends draws where they
            help: one more draw lowers the squared error by SE²/draws, and all inputs stop where that is equal, which
            for a given number of draws in all makes the sum of squared errors least (Neyman allocation).
        tolerance: nats, for ``samples="auto"``.
        min_samples: at least so many, for ``samples="auto"``; by default as many as the likelihood says.
        max_samples: at most so many, for ``samples="auto"``.
        keep_samples: keep each draw's mean, (draws, N, ...).
        propagate: another propagation than the model's own.
        method: how draws are computed. "auto" measures; the noise is the same either way, the rounding may not be,
            so give "loop" or "vmap" where results must repeat bit for bit.
        batch_size: work through ``x`` in parts of this size.
        generator: for the draws.
        output: picks the tensor that matters from what the model returns.

    >>> p = predict(Bayesian(nn.Linear(2, 3)), torch.zeros(5, 2), samples=8)
    >>> p.mean.shape, p.total.shape, bool((p.total >= p.epistemic).all())
    (torch.Size([5, 3]), torch.Size([5]), True)
    """
    likelihood = likelihood or Categorical()
    if not isinstance(model, Predictor):
        refuse_random_parts(model)
    if isinstance(model, Predictor) and model.members is not None:
        samples = model.members if samples == "auto" else min(samples, model.members)
    rounds = _Rounds(samples, tolerance, likelihood.fewest if min_samples is None else min_samples, max_samples)
    if keep_samples and samples == "auto":
        raise InputError('samples="auto" draws a different number for each input, so none can be kept; give a number')
    if isinstance(model, Bayesian) and propagate is not None and propagate not in PROPAGATIONS:
        raise UnknownName.of("propagation", propagate, PROPAGATIONS)
    if method not in ("auto", "loop", "vmap"):
        raise UnknownName.of("method", method, ["auto", "loop", "vmap"])
    in_one_pass = isinstance(model, Bayesian) and (propagate or model.propagate) in ("moments", "covariance")
    size = size_of(x)
    step = size if batch_size is None else batch_size
    if step < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}")
    with in_eval(model, likelihood), torch.no_grad():
        if in_one_pass:
            assert isinstance(model, Bayesian)
            points = rounds.limit if rounds.auto else rounds.first
            return predict_in_one_pass(
                *(model, x, likelihood),
                points=points,
                keep_samples=keep_samples,
                step=step,
                output=output,
                jointly=(propagate or model.propagate) == "covariance",
            )
        weights = model.weights() if isinstance(model, Bayesian) else {}
        source = Draws(model, weights, x, propagate=propagate, method=method, generator=generator, output=output)
        return _Predicting(source, likelihood, rounds, keep_samples, step).run(size)


class _Rounds:
    """How many draws to make, and when to look whether they are enough."""

    def __init__(self, samples: int | str, tolerance: float, at_least: int, at_most: int) -> None:
        self.auto = samples == "auto"
        if not self.auto and not (isinstance(samples, int) and samples >= 1):
            raise InputError(f'samples must be at least 1, or "auto", got {samples!r}')
        if not 0 < tolerance < math.inf or not 2 <= at_least <= at_most:
            raise InputError(
                f"need a finite tolerance > 0 and 2 <= min_samples <= max_samples, "
                f"got {tolerance}, {at_least} and {at_most}"
            )
        self.tolerance, self.first, self.limit = tolerance, at_least, at_most
        if isinstance(samples, int):
            self.first = self.limit = samples

        self.ends = [self.first]  # draws in all after each round: half as many again
        while self.ends[-1] < self.limit:
            self.ends.append(min(self.ends[-1] + max(2, self.ends[-1] // 2), self.limit))


@dataclass
class _Rows:
    """Inputs on their way: their places in the batch, and sums over draws in groups (groups, inputs, features, ...)."""

    places: Tensor
    sums: Tensor | None = None
    centre: Tensor | None = None

    def __len__(self) -> int:
        return len(self.places)

    def part(self, rows: Tensor | slice) -> "_Rows":
        """Some of them."""
        centre = None if self.centre is None else self.centre[rows]
        return _Rows(self.places[rows], None if self.sums is None else self.sums[:, rows], centre)

    @staticmethod
    def joined(parts: "list[_Rows]") -> "_Rows":
        """All together."""
        sums = torch.cat([part.sums for part in parts if part.sums is not None], dim=1)
        centres = [part.centre for part in parts if part.centre is not None]
        return _Rows(torch.cat([part.places for part in parts]), sums, torch.cat(centres) if centres else None)


class _Predicting:
    """Draws stream into group sums, in rounds; inputs whose estimate has settled leave.

    What a batch leaves open waits for its like from other batches, for a few inputs cost nearly as much a draw as a
    full batch. Less than one batch waits for each round, so memory does not grow with the number of inputs.
    """

    def __init__(self, source: Draws, likelihood: Likelihood, rounds: _Rounds, keep: bool, batch: int) -> None:
        self.source, self.likelihood, self.rounds, self.keep, self.batch = source, likelihood, rounds, keep, batch
        self.whole = source.inputs
        self.waiting: list[list[_Rows]] = [[] for _ in rounds.ends]
        self.found: list[tuple[Tensor, Prediction]] = []

    def run(self, size: int) -> Prediction:
        """Every input, in its place."""
        for start in range(0, size, self.batch):
            self._round(0, _Rows(torch.arange(start, min(start + self.batch, size))))
        for level in range(1, len(self.waiting)):
            if self.waiting[level]:
                self._round(level, _Rows.joined(self.waiting[level]))
        places = torch.cat([places for places, _ in self.found])
        return joined([found for _, found in self.found], places)

    def _round(self, level: int, rows: _Rows) -> None:
        kept = self._draw(level, rows)
        assert rows.sums is not None
        last, draws = level + 1 == len(self.rounds.ends), self.rounds.ends[level]
        settled = torch.ones(len(rows), dtype=torch.bool) if last else self._settled(rows, draws)
        settled = settled.to(rows.places.device)
        if settled.any():
            some = rows if settled.all() else rows.part(settled.nonzero()[:, 0])
            self.found.append((some.places, self._prediction(some, draws, kept)))
        if settled.all():
            return
        self.waiting[level + 1].append(rows.part((~settled).nonzero()[:, 0]))
        if sum(len(part) for part in self.waiting[level + 1]) >= self.batch:
            together = _Rows.joined(self.waiting[level + 1])
            self.waiting[level + 1] = [together.part(slice(self.batch, None))] if len(together) > self.batch else []
            self._round(level + 1, together.part(slice(self.batch)))

    def _draw(self, level: int, rows: _Rows) -> list[Tensor]:
        """Add the draws of one round to the sums; what each predicts, if that is to be kept."""
        span = slice(int(rows.places[0]), int(rows.places[-1]) + 1) if level == 0 else rows.places
        self.source = self.source.only(take(self.whole, span))
        done, end = self.rounds.ends[level - 1] if level else 0, self.rounds.ends[level]
        kept = []
        for draw, out in enumerate(self.source.take(end - done), start=done):
            if rows.sums is None:
                rows.centre = self.likelihood.centre(out)
                first = self.likelihood.statistics(out, rows.centre)
                rows.sums = first.new_zeros(min(_GROUPS, self.rounds.limit), *first.shape)
            rows.sums[draw % len(rows.sums)] += self.likelihood.statistics(out, rows.centre)
            if self.keep:
                kept.append(self.likelihood.predictive(out))
        assert rows.sums is not None
        if not torch.isfinite(rows.sums).all():
            raise NonFinite("the model's output has NaN or infinite values; check the inputs and the weights")
        return kept

    def _settled(self, rows: _Rows, draws: int) -> Tensor:
        """Whose standard error, with caution, is worth no more draws."""
        error, bias = self._jackknife(rows, draws)
        allowed = self.rounds.tolerance * math.sqrt(
            draws / self.rounds.first
        )  # what the next draw is worth, for all alike
        return error * _caution(min(draws, _GROUPS)) + bias <= allowed

    def _prediction(self, rows: _Rows, draws: int, kept: list[Tensor]) -> Prediction:
        assert rows.sums is not None
        found = self._uncertainty(rows.sums.sum(0), draws, rows.centre)
        error, _ = self._jackknife(rows, draws)
        counts = torch.full((len(rows),), draws, device=found.mean.device)
        samples = torch.stack(kept) if self.keep else None
        return Prediction(found.mean, found.total, found.aleatoric, found.epistemic, error, counts, samples)

    def _uncertainty(self, sums: Tensor, draws: int, centre: Tensor | None) -> Uncertainty:
        counts = torch.full((len(sums),), draws, device=sums.device)
        return self.likelihood.uncertainty(sums / draws, counts, centre)

    def _jackknife(self, rows: _Rows, draws: int) -> tuple[Tensor, Tensor]:
        """Standard error and size of the bias of the total uncertainty in nats, for each input.

        One group of draws is left out at a time. Few draws make the entropy of their mean too small: that is the bias.
        Both are averaged over the pixels or labels of an input.
        """
        assert rows.sums is not None
        sums, total = rows.sums, rows.sums.sum(0)
        groups = min(draws, len(sums))
        if groups < 2:
            unknown = torch.full((len(rows),), torch.inf, dtype=sums.dtype, device=sums.device)
            return unknown, unknown
        left_out = []
        for group in range(groups):
            count = draws - len(range(group, draws, groups))
            left_out.append(self.likelihood.nats(self._uncertainty(total - sums[group], count, rows.centre)))
        values = torch.stack(left_out)
        mean = values.mean(0)
        error = ((values - mean).square().mean(0) * (groups - 1)).sqrt()
        whole = self.likelihood.nats(self._uncertainty(total, draws, rows.centre))
        bias = (groups - 1) * (mean - whole).abs()
        if error.dim() > 1:
            error, bias = error.flatten(1).mean(1), bias.flatten(1).mean(1)
        return error, bias


def _caution(groups: int) -> float:
    """How many times larger than estimated from so few groups an error may be, but for one time in twenty: √(ν/χ²_ν).

    Without it inputs would stop when their error happens to look small. The χ² quantile is Wilson and Hilferty's.
    """
    freedom = max(groups - 1, 1)
    root = 1 - 2 / (9 * freedom) + _DOUBT * math.sqrt(2 / (9 * freedom))
    return float(max(root, 0.05) ** -1.5)
