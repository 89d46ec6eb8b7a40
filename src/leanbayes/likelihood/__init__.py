"""How outputs become probabilities: classes (also per pixel), independent labels, and real numbers.

A likelihood is an object. It scores targets, and it says what must be averaged over draws so that a prediction and its
total, aleatoric and epistemic uncertainty follow from the averages alone: that is how statistics stream.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes._calls import map_tensors
from leanbayes._ops.safe_sqrt import draw_normal
from leanbayes.errors import InputError, ShapeMismatch

__all__ = ["Bernoulli", "Categorical", "Gaussian", "Likelihood", "Uncertainty", "draw_outputs"]

_MOST_COLUMNS = 21_201  # of torch's Sobol points


@dataclass(frozen=True)
class Uncertainty:
    """A prediction and its uncertainty; for each input, and each pixel, label or output of it."""

    mean: Tensor
    total: Tensor
    aleatoric: Tensor
    epistemic: Tensor


class Likelihood(nn.Module, ABC):
    """log p(y | f(x)) and what follows from it. Class weights and learned noise move with ``.to()``.

    ``fewest`` is how many draws ``samples="auto"`` makes before it asks whether they are enough; ``closed_form`` says
    that the prediction for Gaussian outputs needs their variances alone.
    """

    fewest: int = 4
    closed_form: bool = False
    ignore_index: int = -100

    @abstractmethod
    def nll(self, output: Any, target: Tensor) -> Tensor:
        """−log p(target | output) in nats, summed over the batch."""

    def kind(self, targets: Tensor) -> str:  # noqa: ARG002
        """Return the kind of data that a batch of such targets is, which decides the metrics and the figures.

        The library knows "classes", "labels", "pixels" and "regression". The last means numbers: the mean of a
        prediction has the shape of the targets, and its uncertainties are variances. It is the kind of any likelihood
        that does not say otherwise. A likelihood may name a new kind, for which metrics are then registered.
        """
        return "regression"

    def input_uncertainty(self, total: Tensor, targets: Any) -> Tensor:  # noqa: ARG002
        """Return one number ≥ 0 for each input, by which shifted inputs are told from known ones.

        For variances it is the geometric mean of the outputs' standard deviations, which does not depend on units.

        Args:
            total: the total uncertainty of a prediction, (N, ...).
            targets: the targets of the batch, of which some may not count; None or any other object for shifted sets.
        """
        return (0.5 * total.reshape(len(total), -1).log().mean(1)).exp()

    @abstractmethod
    def statistics(self, output: Any, centre: Tensor | None) -> Tensor:
        """What to average over draws: features along axis 1, inputs along axis 0."""

    @abstractmethod
    def uncertainty(self, averages: Tensor, draws: Tensor, centre: Tensor | None) -> Uncertainty:
        """The prediction from averages over ``draws`` draws (one count for each input)."""

    @abstractmethod
    def predictive(self, output: Any) -> Tensor:
        """The mean of y given one draw's output."""

    def centre(self, output: Any) -> Tensor | None:  # noqa: ARG002
        """An origin for the statistics, taken from the first draw, where that saves digits."""
        return None

    def nats(self, found: Uncertainty) -> Tensor:
        """The total uncertainty on a scale of nats, on which ``samples="auto"`` decides."""
        return found.total

    def expected_nll(
        self, mean: Any, variance: Any, target: Tensor, *, samples: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        """E[−log p(target | f)] for Gaussian outputs f of these moments, summed: by draws of the outputs alone."""
        draws = [self.nll(draw_outputs(mean, variance, generator), target) for _ in range(samples)]
        return torch.stack(draws).mean()

    def uncertainty_of_moments(self, mean: Any, variance: Any, points: int) -> Uncertainty:
        """The prediction for Gaussian outputs of these moments: by so many outputs, evenly spread."""
        return self.uncertainty_of_outputs(self.spread_outputs(mean, variance, points), points)

    def uncertainty_of_outputs(self, outputs: Iterator[Any], points: int) -> Uncertainty:
        """The prediction from so many equally likely outputs."""
        total, centre = None, None
        for output in outputs:
            centre = self.centre(output) if total is None else centre
            found = self.statistics(output, centre)
            total = found if total is None else total + found
        assert total is not None
        return self.uncertainty(total / points, torch.full((len(total),), points, device=total.device), centre)

    def spread_outputs(self, mean: Any, variance: Any, points: int) -> Iterator[Any]:
        """Outputs that stand for a Gaussian of these moments: Sobol points, the same for each input and pixel."""
        columns: list[int] = []
        map_tensors(lambda leaf: columns.append(leaf.shape[1] if leaf.dim() > 1 else 1), mean)
        width = min(sum(columns), _MOST_COLUMNS)
        even = torch.quasirandom.SobolEngine(width, scramble=True, seed=0).draw(points, dtype=torch.float64)
        noise = torch.special.ndtri(even.clamp(1e-9, 1 - 1e-9))
        for row in noise.repeat(1, -(-sum(columns) // width)):
            parts = iter(row.split([*columns, row.numel() - sum(columns)]))

            def place(m: Tensor, v: Tensor, parts: Iterator[Tensor] = parts) -> Tensor:
                return m + v.clamp_min(0).sqrt() * next(parts).to(m).view(-1, *[1] * (m.dim() - 2))

            yield _combine(place, mean, variance)

    def forward(self, output: Any, target: Tensor) -> Tensor:
        """−log p in nats, the mean over examples: a loss like any other in torch."""
        return self.nll(output, target) / len(target)


class Categorical(Likelihood):
    """One class of C, for an image or for each pixel: output (N, C, ...) of logits, target (N, ...) of class indices.

    Args:
        class_weights: C factors on the log-likelihood (000 and 001 weigh rare classes so).
        ignore_index: targets that do not count, such as void pixels.

    >>> Categorical().nll(torch.zeros(2, 4), torch.tensor([0, 3])) / math.log(4)
    tensor(2.)
    """

    class_weights: Tensor | None

    def kind(self, targets: Tensor) -> str:
        """Return "pixels" if the targets have more axes than the batch, else "classes"."""
        return "pixels" if targets.dim() > 1 else "classes"

    def input_uncertainty(self, total: Tensor, targets: Any) -> Tensor:
        """Return the mean entropy of each input over the targets that count; inputs without any are left out."""
        counted = torch.ones_like(total, dtype=torch.bool)
        if isinstance(targets, Tensor) and targets.shape == total.shape:
            counted = targets.long() != self.ignore_index
        total, counted = total.reshape(len(total), -1), counted.reshape(len(total), -1)
        means = (total * counted).sum(1) / counted.sum(1)
        return means[counted.any(1)]

    def __init__(self, class_weights: Tensor | None = None, ignore_index: int = -100) -> None:
        super().__init__()
        if class_weights is not None and not (torch.isfinite(class_weights).all() and (class_weights >= 0).all()):
            raise InputError(f"class weights must be finite and not negative, got {class_weights}")
        self.register_buffer("class_weights", class_weights)
        self.ignore_index = ignore_index

    def nll(self, output: Any, target: Tensor) -> Tensor:
        """Cross-entropy, summed over examples and pixels."""
        self._check(output, target)
        wide = _wide(output)
        weight = None if self.class_weights is None else self.class_weights.to(wide.dtype)
        return F.cross_entropy(wide, target, weight=weight, ignore_index=self.ignore_index, reduction="sum")

    def statistics(self, output: Any, centre: Tensor | None) -> Tensor:  # noqa: ARG002
        """The C probabilities, and the entropy of this draw."""
        log_p = F.log_softmax(_wide(output), dim=1)
        p = log_p.exp()
        return torch.cat([p, -(p * log_p).sum(1, keepdim=True)], dim=1)

    def uncertainty(self, averages: Tensor, draws: Tensor, centre: Tensor | None) -> Uncertainty:  # noqa: ARG002
        """Total: entropy of the mean. Aleatoric: mean entropy. Epistemic: the difference, the mutual information."""
        mean, aleatoric = averages[:, :-1], averages[:, -1]
        total = torch.special.entr(mean).sum(1)
        return Uncertainty(mean, total, aleatoric, (total - aleatoric).clamp_min(0))

    def predictive(self, output: Any) -> Tensor:
        """Softmax."""
        return torch.softmax(output, 1)

    def _check(self, output: Any, target: Tensor) -> None:
        if not isinstance(output, Tensor) or output.dim() < 2:
            raise ShapeMismatch(f"Categorical needs logits of shape (N, classes, ...), got {_shape(output)}")
        if target.is_floating_point():
            raise ShapeMismatch(f"Categorical needs class indices as integers, got targets of {target.dtype}")
        if target.shape != (output.shape[0], *output.shape[2:]):
            raise ShapeMismatch(
                f"logits of shape {tuple(output.shape)} need targets of shape {(output.shape[0], *output.shape[2:])}, "
                f"got {tuple(target.shape)}; for independent labels use Bernoulli()"
            )
        if self.class_weights is not None and len(self.class_weights) != output.shape[1]:
            raise ShapeMismatch(f"{len(self.class_weights)} class weights for {output.shape[1]} classes")


class Bernoulli(Likelihood):
    """Independent yes-or-no labels: output logits and targets of one shape (N, ...).

    Args:
        positive_weights: factors on the positive terms, one for each label, or one for all.
        polynomial: expectations over Gaussian logits in closed form, by the series of log(1 + e^−u) to second order
            (003, Observation 1, where the coefficient must be ⅛, not ¼): for logits well below 2 in size.

    >>> Bernoulli().nll(torch.zeros(2, 3), torch.ones(2, 3)) / math.log(2)
    tensor(6.)
    """

    positive_weights: Tensor | None

    def kind(self, targets: Tensor) -> str:
        """Return "pixels" if the targets have axes beyond (N, labels), else "labels"."""
        return "pixels" if targets.dim() > 2 else "labels"

    def input_uncertainty(self, total: Tensor, targets: Any) -> Tensor:  # noqa: ARG002
        """Return the mean entropy of each input's labels, in nats."""
        return total.reshape(len(total), -1).mean(1)

    def __init__(self, positive_weights: Tensor | None = None, polynomial: bool = False) -> None:
        super().__init__()
        self.polynomial = polynomial
        if positive_weights is not None and not (
            torch.isfinite(positive_weights).all() and (positive_weights >= 0).all()
        ):
            raise InputError(f"positive weights must be finite and not negative, got {positive_weights}")
        self.register_buffer("positive_weights", positive_weights)

    def nll(self, output: Any, target: Tensor) -> Tensor:
        """Binary cross-entropy, summed over examples and labels."""
        if not isinstance(output, Tensor) or output.shape != target.shape:
            raise ShapeMismatch(
                f"Bernoulli needs logits and targets of one shape, got {_shape(output)} and {tuple(target.shape)}; "
                "for one class of several use Categorical()"
            )
        wide = _wide(output)
        weight = None if self.positive_weights is None else self.positive_weights.to(wide.dtype)
        return F.binary_cross_entropy_with_logits(wide, target.to(wide.dtype), pos_weight=weight, reduction="sum")

    def expected_nll(
        self, mean: Any, variance: Any, target: Tensor, *, samples: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        """By draws of the logits, or log 2 + (½ − y)·μ + (μ² + σ²)/8 if ``polynomial``."""
        if not self.polynomial:
            return super().expected_nll(mean, variance, target, samples=samples, generator=generator)
        if self.positive_weights is not None or mean.shape != target.shape:
            raise ShapeMismatch(
                f"the polynomial needs logits and targets of one shape and no positive weights, got {_shape(mean)} and "
                f"{tuple(target.shape)}"
            )
        m, v = _wide(mean), _wide(variance)
        return (math.log(2) + (0.5 - target.to(m.dtype)) * m + (m.square() + v) / 8).sum()

    def statistics(self, output: Any, centre: Tensor | None) -> Tensor:  # noqa: ARG002
        """The probability of yes, and the entropy of this draw."""
        p = _wide(output).sigmoid()
        return torch.stack([p, _binary_entropy(p)], dim=1)

    def uncertainty(self, averages: Tensor, draws: Tensor, centre: Tensor | None) -> Uncertainty:  # noqa: ARG002
        """As for classes, label by label."""
        mean, aleatoric = averages.unbind(1)
        total = _binary_entropy(mean)
        return Uncertainty(mean, total, aleatoric, (total - aleatoric).clamp_min(0))

    def predictive(self, output: Any) -> Tensor:
        """Sigmoid."""
        return torch.sigmoid(output)


class Gaussian(Likelihood):
    """Real targets with Gaussian noise: known, learned, or given by the model for each input.

    Args:
        noise: the standard deviation of y: a number (known), ``"learned"`` (one number, trained with the rest:
            add ``likelihood.parameters()`` to the optimizer) or ``"input"`` (the model gives it: it returns a pair
            (mean, log-variance), or a tensor whose axis 1 holds the means and then as many log-variances).
        initial: where learned noise starts.

    >>> Gaussian(noise=1.0).nll(torch.zeros(1), torch.zeros(1))
    tensor(0.9189)
    """

    closed_form = True
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
        self.known = None if noise == "learned" else start  # as a number: exact in whatever dtype it meets
        if noise == "learned":
            self.log_variance = nn.Parameter(torch.tensor(start))
        else:
            self.register_buffer("log_variance", torch.tensor(start), persistent=False)

    @property
    def noise(self) -> Tensor:
        """The standard deviation that is known or has been learned."""
        return (0.5 * self._log_variance(self.log_variance)).exp()

    def _log_variance(self, like: Tensor) -> Tensor:
        if self.known is None:
            return self.log_variance.to(like)
        return torch.tensor(self.known, dtype=like.dtype, device=like.device)

    def nll(self, output: Any, target: Tensor) -> Tensor:
        """½ log 2πs² + (y − m)²/2s², summed over examples and outputs."""
        mean, log_variance = self._split(output)
        if mean.shape != target.shape:
            raise ShapeMismatch(f"Gaussian has means of shape {tuple(mean.shape)} and targets of {tuple(target.shape)}")
        mean, log_variance = _wide(mean), _wide(log_variance)
        squares = (target - mean).square() * torch.exp(-log_variance)
        return 0.5 * (squares + log_variance + math.log(2 * math.pi)).sum()

    def centre(self, output: Any) -> Tensor:
        """The first draw's means: squares around them keep their digits."""
        return _wide(self._split(output)[0])

    def statistics(self, output: Any, centre: Tensor | None) -> Tensor:
        """Distance to the centre, its square, and the noise's variance."""
        mean, log_variance = self._split(output)
        distance = _wide(mean) if centre is None else _wide(mean) - centre
        return torch.stack([distance, distance.square(), _wide(log_variance).exp().expand_as(distance)], dim=1)

    def uncertainty(self, averages: Tensor, draws: Tensor, centre: Tensor | None) -> Uncertainty:
        """Variances: the noise's (aleatoric), the unbiased one of the means over draws (epistemic), and their sum."""
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
        """In closed form: ½ log 2πs² + ((y − m)² + σ²)/2s²; log s² itself may be Gaussian: E s⁻² = exp(−m' + σ'²/2)."""
        centre, log_variance, spread, doubt = self._split_moments(mean, variance)
        if centre.shape != target.shape:
            raise ShapeMismatch(
                f"Gaussian has means of shape {tuple(centre.shape)} and targets of {tuple(target.shape)}"
            )
        squares = ((target - centre).square() + spread) * torch.exp(doubt / 2 - log_variance)
        return 0.5 * (squares + log_variance + math.log(2 * math.pi)).sum()

    def uncertainty_of_moments(self, mean: Any, variance: Any, points: int) -> Uncertainty:  # noqa: ARG002
        """In closed form: the variance of the outputs is the epistemic part."""
        centre, log_variance, spread, doubt = self._split_moments(mean, variance)
        aleatoric = torch.exp(log_variance + doubt / 2).expand_as(centre)
        return Uncertainty(centre, aleatoric + spread, aleatoric, spread)

    def _split_moments(self, mean: Any, variance: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        centre, log_variance = map(_wide, self._split(mean))
        spread, doubt = self._split(variance)
        return centre, log_variance, _wide(spread), _wide(doubt) if self.by_input else centre.new_zeros(())

    def predictive(self, output: Any) -> Tensor:
        """The mean."""
        mean, _ = self._split(output)
        return mean

    def nats(self, found: Uncertainty) -> Tensor:
        """½ log of the total variance: the entropy of the Gaussian with that variance, but for a constant."""
        return 0.5 * found.total.log()

    def _split(self, output: Any) -> tuple[Tensor, Tensor]:
        if not self.by_input:
            if not isinstance(output, Tensor):
                raise ShapeMismatch(
                    f'Gaussian needs a tensor of means, got {_shape(output)}; for a pair: noise="input"'
                )
            return output, self._log_variance(_wide(output))
        if isinstance(output, tuple) and len(output) == 2:
            mean, log_variance = output
            return mean, log_variance
        if isinstance(output, Tensor) and output.dim() > 1 and output.shape[1] % 2 == 0:
            mean, log_variance = output.chunk(2, dim=1)
            return mean, log_variance
        raise ShapeMismatch(
            f'Gaussian(noise="input") needs a pair (mean, log-variance) or an even axis 1, got {_shape(output)}'
        )


def draw_outputs(mean: Any, variance: Any, generator: torch.Generator | None = None) -> Any:
    """One draw of independent Gaussian outputs; gradients reach mean and variance."""
    return _combine(lambda m, v: draw_normal(m, v, generator), mean, variance)


def _combine(function: Callable[[Tensor, Tensor], Tensor], mean: Any, variance: Any) -> Any:
    """Apply ``function`` to each tensor of ``mean`` and its like in ``variance``."""
    others: list[Tensor] = []
    map_tensors(others.append, variance)
    rest = iter(others)
    return map_tensors(lambda leaf: function(leaf, next(rest)), mean)


def _binary_entropy(p: Tensor) -> Tensor:
    entropy: Tensor = torch.special.entr(p) + torch.special.entr(1 - p)
    return entropy


def _wide(output: Tensor) -> Tensor:
    """Half precision is averaged in float32."""
    return output.float() if output.dtype.itemsize < 4 else output


def _shape(output: Any) -> str:
    return f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
