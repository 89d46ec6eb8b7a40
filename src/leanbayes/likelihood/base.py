"""What a likelihood is: the object that says what the outputs of a network mean.

A likelihood scores targets. It says what must be averaged over draws, so that a prediction and its total, aleatoric and
epistemic uncertainty follow from the averages alone; this is how predictions stream over draws. It also owns everything
else that depends on the kind of data: the metrics that apply, which targets count, and how sure a prediction is.

A new likelihood is one class with `nll`, `statistics`, `uncertainty` and `predictive`; the other methods have defaults
that suit predictions of numbers. `LIKELIHOODS` finds it if it is registered or if an entry point names it.
"""

import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from leanbayes._calls import map_pairs, map_tensors
from leanbayes._catalogue import Catalogue
from leanbayes._ops.safe_sqrt import draw_normal
from leanbayes.errors import InputError, ShapeMismatch

__all__ = [
    "LIKELIHOODS",
    "Likelihood",
    "Uncertainty",
    "draw_outputs",
    "inside",
    "require_likelihood",
    "require_tensor",
    "surprise",
    "usual_likelihood",
]

_MOST_COLUMNS = 21_201  # torch has Sobol points of at most so many columns


@dataclass(frozen=True)
class Uncertainty:
    """A prediction and its uncertainty, for each input and for each pixel, label or output of it."""

    mean: Tensor
    total: Tensor
    aleatoric: Tensor
    epistemic: Tensor


class Likelihood(nn.Module, ABC):
    """The distribution p(y | f(x)) of the targets y given the outputs f(x) of a network.

    A likelihood is a module, so that class weights and a learned noise move with ``.to()`` and are trained.

    Attributes:
        fewest: how many draws ``samples="auto"`` makes before it asks whether they are enough.
        closed_form: whether `uncertainty_of_moments` is exact for Gaussian outputs and needs their variances alone.
        has_logits: whether the outputs are logits, that is, whether the prediction is a probability and dividing the
            outputs by a temperature makes it less sure.
        ignore_index: targets with this value do not count, if the likelihood has such targets.
        usual_for: the kinds of data for which the laboratory chooses this likelihood (see `usual_likelihood`).
    """

    fewest: int = 4
    closed_form: bool = False
    has_logits: bool = False
    ignore_index: int = -100
    usual_for: ClassVar[tuple[str, ...]] = ()

    @property
    def draws_outputs(self) -> bool:
        """Whether `expected_nll` is the default of this class, which draws outputs."""
        return type(self).expected_nll is Likelihood.expected_nll

    @abstractmethod
    def nll(self, output: Any, target: Tensor) -> Tensor:
        """Return −log p(target | output) in nats, summed over the batch."""

    def weighed(self, class_weights: Tensor) -> "Likelihood":
        """Return the same likelihood with these factors on the classes; one without classes raises `InputError`."""
        raise InputError(
            f"class weights {class_weights.tolist()} need classes or labels, and {type(self).__name__} has none; leave "
            "class_weights out"
        )

    def balanced_weights(self, targets: Tensor, classes: int) -> Tensor:  # noqa: ARG002
        """Return the class weights with which every class counts alike over these targets."""
        raise InputError(
            f"balanced class weights need classes or labels, and {type(self).__name__} has none; leave class_weights "
            "out"
        )

    @abstractmethod
    def statistics(self, output: Any, centre: Tensor | None) -> Tensor:
        """Return what is averaged over draws, with the inputs along axis 0 and the features along axis 1."""

    @abstractmethod
    def uncertainty(self, averages: Tensor, draws: Tensor, centre: Tensor | None) -> Uncertainty:
        """Return the prediction that follows from averages of the statistics.

        Args:
            averages: the statistics, averaged over draws.
            draws: how many draws each input had.
            centre: the origin that the statistics were taken around.
        """

    @abstractmethod
    def predictive(self, output: Any) -> Tensor:
        """Return the mean of y given the output of one draw."""

    def centre(self, output: Any) -> Tensor | None:  # noqa: ARG002
        """Return an origin for the statistics, taken from the first draw, where that saves digits."""
        return None

    def nats(self, uncertainty: Uncertainty) -> Tensor:
        """Return the total uncertainty on a scale of nats, on which ``samples="auto"`` decides.

        For a variance it is ½ log of it: the entropy of the Gaussian with that variance, but for a constant.
        """
        return 0.5 * uncertainty.total.log()

    def expected_nll(
        self, mean: Any, variance: Any, target: Tensor, *, samples: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return E[−log p(target | f)], summed over the batch, for Gaussian outputs f with these moments.

        By default it is estimated from draws of the outputs, which needs no further pass through the network.
        """
        draws = [self.nll(draw_outputs(mean, variance, generator), target) for _ in range(samples)]
        return torch.stack(draws).mean()

    def uncertainty_of_moments(self, mean: Any, variance: Any, points: int) -> Uncertainty:
        """Return the prediction for Gaussian outputs with these moments, by default from evenly spread outputs."""
        return self.uncertainty_of_outputs(self.spread_outputs(mean, variance, points), points)

    def uncertainty_of_outputs(self, outputs: Iterator[Any], points: int) -> Uncertainty:
        """Return the prediction from ``points`` outputs that are equally likely."""
        total, centre = None, None
        for output in outputs:
            centre = self.centre(output) if total is None else centre
            statistics = self.statistics(output, centre)
            total = statistics if total is None else total + statistics
        assert total is not None
        return self.uncertainty(total / points, torch.full(total.shape[:1], points, device=total.device), centre)

    def mixed(self, parts: Sequence[Uncertainty]) -> Uncertainty:
        """Return the prediction of an equal mixture of predictions, such as those of the members of an ensemble.

        By default the uncertainties are variances: the means of the parts differ, and their variance is epistemic.
        """
        means, aleatoric = torch.stack([part.mean for part in parts]), _average([part.aleatoric for part in parts])
        epistemic = _average([part.epistemic for part in parts]) + means.var(0, correction=0)
        return Uncertainty(means.mean(0), aleatoric + epistemic, aleatoric, epistemic)

    def spread_outputs(self, mean: Any, variance: Any, points: int) -> Iterator[Any]:
        """Yield outputs that stand for a Gaussian with these moments: even points, alike for each input and pixel."""
        columns: list[int] = []
        map_tensors(lambda leaf: columns.append(leaf.shape[1] if leaf.dim() > 1 else 1), mean)
        for row in even_noise(sum(columns), points):
            parts = iter(row.split(columns))

            def shifted(m: Tensor, v: Tensor, parts: Iterator[Tensor] = parts) -> Tensor:
                return m + v.clamp_min(0).sqrt() * next(parts).to(m).view(-1, *[1] * (m.dim() - 2))

            yield map_pairs(shifted, mean, variance)

    def kind(self, targets: Tensor) -> str:  # noqa: ARG002
        """Return the kind of data that a batch of such targets is, which decides the metrics and the figures.

        The library knows "classes", "labels", "pixels" and "regression". The last means numbers: the mean of a
        prediction has the shape of the targets, and its uncertainties are variances. It is the kind of any likelihood
        that does not say otherwise. A likelihood may name a new kind, for which metrics are then registered.
        """
        return "regression"

    def counted(self, targets: Tensor) -> Tensor:
        """Return which targets count, as booleans of their shape."""
        return torch.ones_like(targets, dtype=torch.bool)

    def input_uncertainty(self, total: Tensor, targets: Any) -> Tensor:  # noqa: ARG002
        """Return one number ≥ 0 for each input, by which shifted inputs are told from known ones.

        For variances it is the geometric mean of the outputs' standard deviations, which does not depend on units.

        Args:
            total: the total uncertainty of a prediction, (N, ...).
            targets: the targets of the batch, of which some may not count; None or any other object for shifted sets.
        """
        return (0.5 * total.reshape(len(total), -1).log().mean(1)).exp()

    def logit_rows(self, output: Tensor) -> Tensor:  # noqa: ARG002
        """Return the logits with one row for each target, in the order of the flattened targets."""
        raise InputError(f"{type(self).__name__} has no logits; this needs Categorical or Bernoulli")

    def mixture_nll(self, rows: Tensor, targets: Tensor) -> Tensor:  # noqa: ARG002
        """Return −log of the mean over draws of p(target | logits), for each target, without class weights.

        Args:
            rows: draws of `logit_rows`, along axis 0.
            targets: the flattened targets.
        """
        raise InputError(f"{type(self).__name__} has no logits; this needs Categorical or Bernoulli")

    def cold_mixture_nll(self, rows: Tensor, targets: Tensor, coldness: float, fine: bool = True) -> Tensor | float:
        """Return the sum of `mixture_nll` for logits times a coldness, in float64.

        Args:
            rows: draws of finite `logit_rows`, along axis 0.
            targets: the flattened targets.
            coldness: 1/T.
            fine: whether each term must be computed in float64, too. Otherwise float32 may do for many of them.
        """
        del fine
        return self.mixture_nll(rows.double() * coldness, targets).sum()

    def as_probabilities(self, target: Tensor, like: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return the targets as certain probabilities of the shape of ``like``, a prediction, and their weights."""
        raise InputError(f"{type(self).__name__} has no logits; this needs Categorical or Bernoulli")

    def laplace_settings(self) -> tuple[str, float] | None:
        """Return what laplace-torch calls this likelihood, and the noise's standard deviation; None if it cannot."""
        return None

    @classmethod
    def for_data(cls, ignore_index: int | None = None) -> Self:  # noqa: ARG003
        """Return the likelihood for a data set, of whose targets those that equal ``ignore_index`` do not count."""
        return cls()

    def forward(self, output: Any, target: Tensor) -> Tensor:
        """Return −log p(target | output) in nats as the mean over examples: a loss like any other in torch."""
        return self.nll(output, target) / len(target)


def require_likelihood(value: Any) -> Likelihood:
    """Return the likelihood itself, or raise an error that says what to write instead of a loss or a class."""
    if isinstance(value, Likelihood):
        return value
    names = ", ".join(f"{name}()" for name in LIKELIHOODS)
    if isinstance(value, type) and issubclass(value, Likelihood):
        raise InputError(f"the likelihood is the class {value.__name__}; give an instance: {value.__name__}()")
    kind = getattr(value, "__name__", None) or type(value).__name__
    raise InputError(
        f"{kind!r} is no leanbayes.Likelihood, which says what the outputs mean; choose one of {names}. Categorical() "
        "takes the place of cross_entropy, Bernoulli() that of binary_cross_entropy_with_logits, and Gaussian() that "
        "of mse_loss"
    )


def require_tensor(target: Any) -> None:
    """Raise if the targets are no tensor."""
    if not isinstance(target, Tensor):
        raise ShapeMismatch(
            f"the targets must be a tensor, got a {type(target).__name__}; give torch.as_tensor(targets)"
        )


def inside(allowed: Tensor, loss: Callable[[Tensor], Tensor], target: Tensor, complaint: Callable[[], str]) -> Tensor:
    """Return ``loss(target)`` if all targets are allowed.

    On the CPU another target raises an error at once. To look at a target on a GPU would make every step wait for it,
    so there the loss becomes NaN, which whoever reads the loss reports; the same holds in transforms such as `vmap`.

    Args:
        allowed: which targets are allowed, as booleans.
        loss: the loss as a function of the targets, which are 0 where they are not allowed.
        target: the targets.
        complaint: the words of the error.
    """
    if _readable(allowed):
        if not bool(allowed.all()):
            raise InputError(complaint())
        return loss(target)
    total = loss(target.where(allowed, torch.zeros_like(target)))
    return torch.where(allowed.all(), total, torch.full_like(total, torch.nan))


def _readable(tensor: Tensor) -> bool:
    """Whether reading a value costs nothing: not on a GPU, not in a transform and not while a graph is traced."""
    wrapped = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return tensor.device.type == "cpu" and type(tensor) is Tensor and not wrapped and not torch.compiler.is_compiling()


def _average(values: list[Tensor]) -> Tensor:
    return torch.stack(values).mean(0)


def _name_of(value: object) -> str | None:
    if not (isinstance(value, type) and issubclass(value, Likelihood)):
        return None
    return None if inspect.isabstract(value) or value.__name__.startswith("_") else value.__name__


LIKELIHOODS: Catalogue[type[Likelihood]] = Catalogue(
    "likelihood", _name_of, package="leanbayes.likelihood", group="leanbayes.likelihoods"
)
"""Every class of likelihoods by its name. ``@LIKELIHOODS.register`` adds one."""


def usual_likelihood(kind: str, ignore_index: int | None = None) -> Likelihood:
    """Return the likelihood that is usual for a kind of data.

    Args:
        kind: "classes", "labels", "pixels", "regression", or what a likelihood of your own names in ``usual_for``.
        ignore_index: targets with this value do not count.

    >>> usual_likelihood("labels")
    Bernoulli()
    """
    for member in LIKELIHOODS.values():
        if kind in member.usual_for:
            return member.for_data(ignore_index)
    known = sorted({known for member in LIKELIHOODS.values() for known in member.usual_for})
    raise InputError(f"no likelihood is usual for the kind of data {kind!r}; the kinds are {', '.join(known)}")


def draw_outputs(mean: Any, variance: Any, generator: torch.Generator | None = None) -> Any:
    """Draw independent Gaussian outputs once; gradients reach the mean and the variance."""
    return map_pairs(lambda m, v: draw_normal(m, v, generator), mean, variance)


@functools.lru_cache(maxsize=8)
def even_noise(columns: int, points: int) -> Tensor:
    """Return evenly spread standard normal numbers (points, columns); nobody may write to them.

    They are Sobol points and their mirror images, so that all odd moments vanish, and 0 if ``points`` is odd. Each
    column has the variance 1 and, where there are enough points for that, no two columns are correlated. Means of
    functions of degree three are then exact, and the error of smooth functions is of fourth order in the spread.
    """
    half, width = points // 2, min(columns, _MOST_COLUMNS)
    with torch.inference_mode(False):
        if half == 0:
            return torch.zeros(points, columns, dtype=torch.float64)
        even = torch.quasirandom.SobolEngine(width, scramble=True, seed=0).draw(half, dtype=torch.float64)
        noise = torch.special.ndtri(even.clamp(1e-9, 1 - 1e-9))
        if half >= width:
            values, vectors = torch.linalg.eigh(2 * noise.mT @ noise / points)
            noise = noise @ (vectors * values.clamp_min(1e-12).rsqrt()) @ vectors.mT
        else:
            noise = noise / (2 * noise.square().sum(0) / points).clamp_min(1e-12).sqrt()
        noise = torch.cat([noise, noise.new_zeros(points - 2 * half, width), -noise])
        repeated: Tensor = noise.repeat(1, -(-columns // width))
    return repeated[:, :columns]


def wide(output: Tensor) -> Tensor:
    """Return half precision as float32, in which it is averaged; other tensors stay as they are."""
    return output.float() if output.dtype.itemsize < 4 else output


def surprise(p: Tensor) -> Tensor:
    """Return −p log p, which is 0 where p is; entropies in nats are sums of it.

    It is ``torch.special.entr`` in a third of the time, because that function computes its logarithms one by one. A
    probability that was rounded below zero gives 0 up to rounding, and no infinity.

    >>> surprise(torch.tensor([0.0, 0.5, 1.0]))
    tensor([0.0000, 0.3466, -0.0000])
    """
    return -(p * p.clamp_min(torch.finfo(p.dtype).tiny).log())


def shape_of(output: Any) -> str:
    """Return the words for an output in error messages."""
    return f"shape {tuple(output.shape)}" if isinstance(output, Tensor) else f"a {type(output).__name__}"
