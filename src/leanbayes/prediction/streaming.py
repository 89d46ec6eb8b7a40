"""`predict`: statistics that are updated draw by draw, and no more draws than needed."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from leanbayes._arrays import dtype_of, tensors_of
from leanbayes._calls import Inputs, prediction_tensor, require_function, require_generator, take
from leanbayes._calls import batch_size as size_of
from leanbayes._sharding import refuse_sharded
from leanbayes._wrappers import unwrap
from leanbayes.bayesian import Bayesian, refuse_random_parts
from leanbayes.errors import InputError, NonFinite, UnknownName
from leanbayes.likelihood import Categorical, Likelihood, Uncertainty
from leanbayes.likelihood.base import require_likelihood
from leanbayes.prediction.certain import predict_with_certain_weights
from leanbayes.prediction.draws import Draws
from leanbayes.prediction.one_pass import predict_in_one_pass
from leanbayes.prediction.prediction import Prediction, Predictor, in_eval, joined
from leanbayes.prediction.through import Through, whole_draws
from leanbayes.propagate import OnePass, PropagationLike, as_propagation

__all__ = ["predict"]

_GROUPS = 16  # running averages for the jackknife: memory is that of sixteen draws, whatever the number of draws
_MANY = 2**40  # draws whose mean has no error to speak of
_DOUBT = -1.645  # the 5 % quantile of the Normal: "auto" stops where the error is small enough at odds of 19 to 1


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
    by: PropagationLike | None = None,
    method: Literal["auto", "loop", "vmap"] = "auto",
    batch_size: int | None = None,
    generator: torch.Generator | None = None,
    output: Callable[[Any], Any] = prediction_tensor,
    through: Through | None = None,
) -> Prediction:
    """Predict a batch: the mean of the predictions and their uncertainty.

    The model is in eval mode meanwhile, and is left in the mode that it had. Work that precedes the first random weight
    is done once for all draws. The other work is done draw by draw, or for a chunk of draws with `vmap` where that is
    measured to be faster. Statistics are updated draw by draw, so memory does not grow with the number of draws.

    Propagations of one pass draw no weights: `Moments` gives the mean and variance of the outputs, and `Covariance`,
    for small models, their covariance.

    Args:
        model: a `Bayesian` or a `Predictor`, also inside a wrapper such as DistributedDataParallel or what
            ``torch.compile`` returns. Any other module has no uncertainty about its weights.
        x: a batch: a tensor, a tuple of positional arguments or a mapping of keyword arguments. NumPy arrays and pandas
            frames become tensors where the model is, fractions of its floating type and whole numbers of int64.
        likelihood: how outputs become probabilities; `Categorical` by default.
        samples: how many draws to make. An ensemble has as many as it has members. After one pass of moments the draws
            are evenly spread outputs, which cost next to nothing. ``"auto"`` draws for each input until its total
            uncertainty has settled: until its standard error, with a margin for the few draws that it is estimated
            from, is at most ``tolerance`` · √(draws / min_samples). Inputs with little uncertainty stop first. The root
            spends draws where they help: one more draw lowers the squared error by SE²/draws, and all inputs stop where
            that is equal, which makes the sum of squared errors least for the draws spent (Neyman allocation). An image
            whose pixels are predicted has one error, the mean of those of its pixels. Draws of ``Sample(balanced=n)``
            come in whole groups, at least two of them, because errors are estimated from groups; one group alone has
            the standard error infinity. One pass needs no draws: there "auto" doubles the evenly spread outputs, from
            32 on, until no total changes by more than ``tolerance``.
        tolerance: the error in nats that ``samples="auto"`` aims at.
        min_samples: the fewest draws of ``samples="auto"``; by default as many as the likelihood asks for.
        max_samples: the most draws of ``samples="auto"``.
        keep_samples: whether to keep what each draw predicts, (draws, N, ...).
        by: a propagation to use instead of ``model.predict_by``: a value of `leanbayes.propagate` or its name.
        method: how draws are computed. "auto" measures what is faster. The noise is the same either way, but the
            rounding may differ, so use "loop" or "vmap" where results must repeat bit for bit.
        batch_size: how many inputs are computed at a time; by default all.
        generator: the source of all random numbers.
        output: picks the tensor that is predicted from what the model returns.
        through: a function ``through(network, x)`` that returns the outputs for a batch and may call the network as
            often as it likes, for example window by window: ``lambda network, x: sliding_window_inference(x, roi, 4,
            network)``. In each draw ``network`` is one and the same network, with the same weights in every call. This
            needs draws of whole weights, so the model predicts by samples, whatever its ``predict_by``.

    Returns:
        The `Prediction`: mean, total, aleatoric and epistemic uncertainty.

    >>> p = predict(Bayesian(nn.Linear(2, 3)), torch.zeros(5, 2), samples=8)
    >>> p.mean.shape, p.total.shape, bool((p.total >= p.epistemic).all())
    (torch.Size([5, 3]), torch.Size([5]), True)
    """
    likelihood = Categorical() if likelihood is None else require_likelihood(likelihood)
    model = unwrap(model)
    refuse_sharded(model, "a prediction")
    require_generator(generator)
    require_function("output", output)
    if not isinstance(model, Predictor):
        refuse_random_parts(model)
    if isinstance(model, Predictor) and model.members is not None:
        samples = model.members if samples == "auto" else min(samples, model.members)
    if keep_samples and samples == "auto":
        raise InputError(
            'samples="auto" makes a different number of draws for each input, so they cannot be kept; give a number'
        )
    chosen = None if by is None else as_propagation(by)
    if isinstance(model, Bayesian):
        chosen = chosen or model.predict_by
    if through is not None:
        chosen = whole_draws(through, chosen, given=by is not None)
    fewest = likelihood.fewest if min_samples is None else min_samples
    rounds = _Rounds(samples, tolerance, fewest, max_samples, group=1 if chosen is None else chosen.group)
    if method not in ("auto", "loop", "vmap"):
        raise UnknownName.of("method", method, ["auto", "loop", "vmap"])
    device = next((parameter.device for parameter in model.parameters()), None)
    x = tensors_of(x, dtype_of(model), device)
    size = size_of(x)
    step = size if batch_size is None else batch_size
    if step < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}")
    with in_eval(model, likelihood), torch.no_grad():
        if through is None and (chosen is None or isinstance(chosen, OnePass)):
            points = rounds.limit if rounds.auto else rounds.first
            predicted = predict_in_one_pass(
                model,
                x,
                likelihood,
                chosen,
                points=points,
                tolerance=tolerance if rounds.auto else None,
                keep_samples=keep_samples,
                step=step,
                output=output,
            )
            if predicted is not None:
                return predicted
        source = Draws(model, x, by=chosen, method=method, generator=generator, output=output, through=through)
        if source.certain:
            return predict_with_certain_weights(
                source, likelihood, size, draws=rounds.first, keep_samples=keep_samples, step=step
            )
        return _Predicting(source, likelihood, rounds, keep_samples, step).run(size)


class _Rounds:
    """How many draws to make, and after which of them to check whether they are enough.

    Draws that depend on each other come in groups. "auto" makes whole groups, and at least two of them, because
    errors are estimated from groups.
    """

    def __init__(self, samples: int | str, tolerance: float, at_least: int, at_most: int, group: int) -> None:
        self.auto = samples == "auto"
        if not self.auto and not (isinstance(samples, int) and samples >= 1):
            raise InputError(f'samples must be at least 1, or "auto", got {samples!r}')
        if not 0 < tolerance < math.inf or not 2 <= at_least <= at_most:
            raise InputError(
                f"need a finite tolerance > 0 and 2 <= min_samples <= max_samples, "
                f"got {tolerance}, {at_least} and {at_most}"
            )
        self.tolerance, self.group = tolerance, group
        self.first = max(_up(at_least, group), 2 * group)
        self.limit = at_most - at_most % group
        if self.auto and self.first > self.limit:
            raise InputError(
                f'samples="auto" estimates errors from groups, so with {group} balanced draws to a group it makes at '
                f"least {self.first}, and max_samples is {at_most}; allow more draws, or take smaller groups"
            )
        if isinstance(samples, int):
            self.first = self.limit = samples

        self.ends = [self.first]  # draws in all after each round, which adds half as many again
        while self.ends[-1] < self.limit:
            more = _up(max(2, self.ends[-1] // 2), group)
            self.ends.append(min(self.ends[-1] + more, self.limit))

    def independent(self, draws: int) -> int:
        """Return how many groups of draws the first ``draws`` draws are."""
        return -(-draws // self.group)

    def worth(self, draws: int) -> float:
        """Return how many independent draws have a mean with the same error at first order.

        In a balanced group of n the noise has correlations of −1/(n − 1). So the sum over whole groups is zero, and
        over t draws of one group its variance is t(n − t)/(n − 1), compared with that of a single draw.
        """
        rest = draws % self.group
        if rest == 0:
            return draws if self.group == 1 else _MANY
        return draws**2 * (self.group - 1) / (rest * (self.group - rest))


def _up(count: int, group: int) -> int:
    """Return the least multiple of ``group`` that is not below ``count``."""
    return -(-count // group) * group


@dataclass
class _Rows:
    """Inputs that are being predicted.

    ``places`` are their positions in the batch, and ``sums`` the sums over draws, (groups, inputs, features, ...).
    """

    places: Tensor
    sums: Tensor | None = None
    centre: Tensor | None = None

    def __len__(self) -> int:
        return len(self.places)

    def part(self, rows: Tensor | slice) -> "_Rows":
        """Return the given rows only."""
        centre = None if self.centre is None else self.centre[rows]
        return _Rows(self.places[rows], None if self.sums is None else self.sums[:, rows], centre)

    @staticmethod
    def joined(parts: "list[_Rows]") -> "_Rows":
        """Join rows of several batches."""
        sums = torch.cat([part.sums for part in parts if part.sums is not None], dim=1)
        centres = [part.centre for part in parts if part.centre is not None]
        return _Rows(torch.cat([part.places for part in parts]), sums, torch.cat(centres) if centres else None)


class _Predicting:
    """Adds draws to group sums, round after round; inputs whose estimate has settled are finished.

    Inputs that a batch leaves unfinished wait for those of other batches, because a draw for a few inputs costs nearly
    as much as one for a full batch. Less than one batch waits for each round, so memory does not grow with the number
    of inputs.
    """

    def __init__(self, source: Draws, likelihood: Likelihood, rounds: _Rounds, keep: bool, batch: int) -> None:
        self.source, self.likelihood, self.rounds, self.keep, self.batch = source, likelihood, rounds, keep, batch
        self.whole = source.inputs
        self.waiting: list[list[_Rows]] = [[] for _ in rounds.ends]
        self.finished: list[tuple[Tensor, Prediction]] = []

    def run(self, size: int) -> Prediction:
        """Predict every input, and return the predictions in the order of the batch."""
        for start in range(0, size, self.batch):
            self._round(0, _Rows(torch.arange(start, min(start + self.batch, size))))
        for level in range(1, len(self.waiting)):
            if self.waiting[level]:
                self._round(level, _Rows.joined(self.waiting[level]))
        places = torch.cat([places for places, _ in self.finished])
        return joined([prediction for _, prediction in self.finished], places)

    def _round(self, level: int, rows: _Rows) -> None:
        samples = self._draw(level, rows)
        assert rows.sums is not None
        last, draws = level + 1 == len(self.rounds.ends), self.rounds.ends[level]
        settled = torch.ones(len(rows), dtype=torch.bool) if last else self._settled(rows, draws)
        settled = settled.to(rows.places.device)
        if settled.any():
            done = rows if settled.all() else rows.part(settled.nonzero()[:, 0])
            self.finished.append((done.places, self._prediction(done, draws, samples)))
        if settled.all():
            return
        self.waiting[level + 1].append(rows.part((~settled).nonzero()[:, 0]))
        if sum(len(part) for part in self.waiting[level + 1]) >= self.batch:
            together = _Rows.joined(self.waiting[level + 1])
            self.waiting[level + 1] = [together.part(slice(self.batch, None))] if len(together) > self.batch else []
            self._round(level + 1, together.part(slice(self.batch)))

    def _draw(self, level: int, rows: _Rows) -> list[Tensor]:
        """Add the draws of one round to the sums, and return what each draw predicts if the caller asked for it."""
        span = slice(int(rows.places[0]), int(rows.places[-1]) + 1) if level == 0 else rows.places
        self.source = self.source.only(take(self.whole, span))
        done, end = self.rounds.ends[level - 1] if level else 0, self.rounds.ends[level]
        samples = []
        for draw, out in enumerate(self.source.take(end - done), start=done):
            if rows.sums is None:
                rows.centre = self.likelihood.centre(out)
                first = self.likelihood.statistics(out, rows.centre)
                rows.sums = first.new_zeros(min(_GROUPS, self.rounds.independent(self.rounds.limit)), *first.shape)
            rows.sums[draw // self.rounds.group % len(rows.sums)] += self.likelihood.statistics(out, rows.centre)
            if self.keep:
                samples.append(self.likelihood.predictive(out))
        assert rows.sums is not None
        if not torch.isfinite(rows.sums).all():
            raise NonFinite("the model's output has NaN or infinite values; check the inputs and the weights")
        return samples

    def _settled(self, rows: _Rows, draws: int) -> Tensor:
        """Whether the standard error of each input, taken with caution, is worth no more draws."""
        error, bias = self._jackknife(rows, draws)
        allowed = self.rounds.tolerance * math.sqrt(draws / self.rounds.first)  # where one more draw is worth the same
        return error * _caution(min(self.rounds.independent(draws), _GROUPS)) + bias <= allowed

    def _prediction(self, rows: _Rows, draws: int, samples: list[Tensor]) -> Prediction:
        assert rows.sums is not None
        parts = self._uncertainty(rows.sums.sum(0), draws, rows.centre)
        error, _ = self._jackknife(rows, draws)
        counts = torch.full((len(rows),), draws, device=parts.mean.device)
        stacked = torch.stack(samples) if self.keep else None
        return Prediction(parts.mean, parts.total, parts.aleatoric, parts.epistemic, error, counts, stacked)

    def _uncertainty(self, sums: Tensor, draws: int, centre: Tensor | None) -> Uncertainty:
        counts = torch.full((len(sums),), self.rounds.worth(draws), device=sums.device)
        return self.likelihood.uncertainty(sums / draws, counts, centre)

    def _jackknife(self, rows: _Rows, draws: int) -> tuple[Tensor, Tensor]:
        """Estimate the standard error and the size of the bias of the total uncertainty in nats, for each input.

        The jackknife leaves out one group of draws at a time. The bias arises because the entropy of the mean of few
        draws is too small. Both are averaged over the pixels or labels of an input.
        """
        assert rows.sums is not None
        sums, total = rows.sums, rows.sums.sum(0)
        size = self.rounds.group
        groups = min(self.rounds.independent(draws), len(sums))
        if groups < 2:
            unknown = torch.full((len(rows),), torch.inf, dtype=sums.dtype, device=sums.device)
            return unknown, unknown
        left_out = []
        for group in range(groups):
            complete, rest = divmod(draws, size)
            count = draws - size * len(range(group, complete, groups)) - (rest if complete % groups == group else 0)
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
    """The factor √(ν/χ²_ν) by which an error may exceed its estimate from few groups, in 19 of 20 cases.

    Without it inputs would stop when their error happens to look small. Wilson and Hilferty give the χ² quantile.
    """
    freedom = max(groups - 1, 1)
    root = 1 - 2 / (9 * freedom) + _DOUBT * math.sqrt(2 / (9 * freedom))
    return float(max(root, 0.05) ** -1.5)
