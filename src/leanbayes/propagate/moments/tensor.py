"""`MomentTensor`: a tensor of random numbers, each known by its mean and variance."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes.errors import InputError, UnknownName
from leanbayes.posteriors import RandomWeight
from leanbayes.propagate.dispatch import Memory, apply_rule, leaves_of, missing, refuse_kernel
from leanbayes.propagate.moments.correlations import INDEPENDENT, Averages, Correlations, Noise
from leanbayes.propagate.registry import Registry
from leanbayes.propagate.uses import Origin

__all__ = [
    "KERNELS",
    "ORDERS",
    "POSITIONS",
    "MomentTensor",
    "Setting",
    "expected_of",
    "first_random",
    "missing",
    "only_first",
    "scale_of_norm",
    "variance_of",
]

KERNELS = ("exact", "box")
ORDERS = ("gaussian", "taylor")
POSITIONS = ("split", "shared", "independent")


@dataclass(frozen=True)
class Setting:
    """How moments pass through one call of a model. Every tensor of the call carries the same setting.

    Args:
        order: "gaussian" gives the moments of an activation of a Gaussian number; "taylor" gives first-order
            approximations (VDP++, eq. 4 and 5).
        positions: How positions that share a random filter are treated; see
            `leanbayes.propagate.moments.correlations`.
        model: The model whose modules an error names.
        examples: The axis that holds the examples where a linear layer is met. Torch's attention moves that axis.
        rank: How many factors the units of a layer have in common; 0 treats units as independent.
        kernels: How a convolution computes a variance; see `leanbayes.propagate.moments.rules.linear`.
    """

    order: str = "gaussian"
    positions: str = "split"
    model: nn.Module | None = None
    examples: int = 0
    rank: int = 0
    kernels: str = "exact"

    def __post_init__(self) -> None:
        if self.order not in ORDERS:
            raise UnknownName.of("order", self.order, ORDERS)
        if self.positions not in POSITIONS:
            raise UnknownName.of("treatment of positions", self.positions, POSITIONS)
        if self.kernels not in KERNELS:
            raise UnknownName.of("kernels of variances", self.kernels, KERNELS)
        if self.rank < 0:
            raise InputError(f"rank must not be negative, got {self.rank}; use rank=0 to treat units as independent")


class MomentTensor(Tensor):
    """Random numbers, each known by its mean ``expected`` and its ``variance``.

    The tensor has no storage of its own, so nobody can read values from it by accident: an operation that has no rule
    raises `MissingRule`.

    Attributes:
        expected: The means.
        variance: The variances.
        correlations: What the entries share.
        compact: The same, perhaps with loadings by runs (`leanbayes._ops.low_rank.Runs`), which linear layers take.
        averages: Means over positions, where a sweep over memory has left them.
        setting: How moments pass through this call of the model.
        weight: The random weight that this tensor stands for, if it stands for one.
        origin: The random weight whose entries these are, as they are or moved; None for what was computed.
        squares_of: The tensor whose squares these are, if they are squares.
        mean_square_of: The tensor whose mean squares these are, perhaps with a small number added.
        scale_of: The tensor whose root mean square this is, or one over it: a norm scales that tensor by it.
        remake: Computes mean and variance again from tensors that the backward pass keeps anyway; None if unknown.
        memory: Counts writes in place; a tensor and its views have one memory.
        version: The count when this tensor was made. A view with an old version is stale.
    """

    recomputable = False
    rules: Registry
    expected: Tensor
    compact: Correlations
    averages: Averages | None
    setting: Setting
    weight: RandomWeight | None
    origin: Origin | None
    squares_of: "MomentTensor | None"
    mean_square_of: "MomentTensor | None"
    scale_of: "MomentTensor | None"
    remake: Callable[[], tuple[Tensor, Tensor]] | None
    memory: Memory
    version: int

    @staticmethod
    def of(
        expected: Tensor,
        variance: Tensor,
        correlations: Correlations | None,
        setting: Setting,
        averages: Averages | None = None,
    ) -> "MomentTensor":
        """Make a tensor from means, variances and what the entries share; None says that they share nothing."""
        tensor: MomentTensor = Tensor._make_wrapper_subclass(
            MomentTensor, expected.shape, dtype=expected.dtype, device=expected.device
        )
        tensor.setting, tensor.memory, tensor.weight, tensor.origin = setting, Memory(), None, None
        tensor._fill(expected, variance, INDEPENDENT if correlations is None else correlations, averages)
        return tensor

    @staticmethod
    def of_weight(weight: RandomWeight, setting: Setting) -> "MomentTensor":
        """Make a tensor that stands for a random weight.

        Its variance is computed only when a rule asks for it, so that the variances of all weights never exist at once.
        """
        tensor: MomentTensor = Tensor._make_wrapper_subclass(
            MomentTensor, weight.mean.shape, dtype=weight.mean.dtype, device=weight.mean.device
        )
        tensor.setting, tensor.memory, tensor.weight = setting, Memory(), weight
        tensor.origin = Origin(weight.name, weight.mean)
        tensor._fill(weight.mean, None, INDEPENDENT, None)
        return tensor

    def apart(self) -> "TakenApart":
        """Return the plain tensors of which this one is made, for hooks of torch that follow gradients."""
        expected, variance = _no_view(self.expected), _no_view(self.variance)
        return TakenApart(expected, variance, self.compact, self.averages, _Opaque(self.setting))

    def scattered(self, index: Tensor, shape: tuple[int, ...]) -> "MomentTensor":
        """Return the weight of this shape whose stored entries, at the flat positions ``index``, are this tensor."""
        assert self.weight is not None
        # a gradient of the mean flows through a dense tensor, and a graph knows no sparse ones
        dense = torch.is_grad_enabled() or torch.compiler.is_compiling() or index.device.type != "cpu"
        dense = dense or torch._C._functorch.maybe_current_level() is not None
        whole = MomentTensor.of_weight(self.weight.scattered(index, shape, dense=dense), self.setting)
        whole.origin = self.origin
        return whole

    def like(
        self,
        expected: Tensor,
        variance: Tensor,
        correlations: Correlations | None = None,
        averages: Averages | None = None,
    ) -> "MomentTensor":
        """Return a tensor with other moments and the same setting."""
        return MomentTensor.of(expected, variance, correlations, self.setting, averages)

    def view_of(self, base: "MomentTensor") -> "MomentTensor":
        """Mark this tensor as a view of ``base``, so that a write to one makes the other stale, and return it."""
        self.memory, self.version = base.memory, base.version
        return self.moved_from(base)

    def moved_from(self, base: "MomentTensor") -> "MomentTensor":
        """Mark the entries of this tensor as entries of ``base``, and return it."""
        self.origin = base.origin
        return self

    @property
    def variance(self) -> Tensor:
        """The variance of each entry."""
        if self._variance is None:
            assert self.weight is not None
            return self.weight.variance()
        return self._variance

    @property
    def correlations(self) -> Correlations:
        """What the entries share, with loadings for each entry."""
        self.compact = self.compact.spelled_out()
        return self.compact

    @property
    def noise(self) -> Noise:
        """The variances with their averages, as the methods of `Correlations` take them."""
        return Noise(self.variance, self.averages)

    def _fill(
        self, expected: Tensor, variance: Tensor | None, correlations: Correlations, averages: Averages | None
    ) -> None:
        self.expected, self._variance, self.compact, self.averages = expected, variance, correlations, averages
        self.remake = self.squares_of = self.mean_square_of = self.scale_of = None
        self.version = self.memory.version

    def overwrite(self, other: "MomentTensor") -> None:
        """Take over the moments of another tensor. Views of this tensor become stale."""
        self.memory.version += 1
        self._fill(other.expected, other.variance, other.correlations, other.averages)
        self.weight, self.origin = None, other.origin

    def lay_out(self, arrange: Callable[[Tensor], Tensor]) -> None:
        """Rearrange means and variances in memory; they keep their values."""
        self.expected, self._variance = arrange(self.expected), arrange(self.variance)

    @property
    def requires_grad(self) -> bool:  # type: ignore[override]
        """Whether the mean or the variance requires a gradient."""
        if self._variance is None:
            assert self.weight is not None
            raw = self.weight.rho if self.weight.rho is not None else self.weight.spread
            return self.expected.requires_grad or raw.requires_grad
        return self.expected.requires_grad or self._variance.requires_grad

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:  # type: ignore[override]
        return f"MomentTensor(expected={self.expected}, variance={self.variance})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Apply the rule for ``func``."""
        return apply_rule(MomentTensor, func, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Refuse operations that bypass the rules."""
        refuse_kernel(MomentTensor, func, args, kwargs)


def _no_view(tensor: Tensor) -> Tensor:
    """Return the tensor, or a copy of a view: hooks of torch on a view are lost if somebody writes to its memory."""
    return tensor if tensor._base is None else tensor.clone()


class _Opaque:
    """A setting, in which torch does not look for tensors."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting


@dataclass(frozen=True)
class TakenApart:
    """The plain tensors of which a `MomentTensor` is made."""

    expected: Tensor
    variance: Tensor
    correlations: Correlations
    averages: Averages | None
    opaque: _Opaque

    def together(self) -> MomentTensor:
        """Return a tensor of these moments."""
        return MomentTensor.of(self.expected, self.variance, self.correlations, self.opaque.setting, self.averages)


def expected_of(value: Any) -> Any:
    """Return the mean of a random tensor, and anything else unchanged."""
    return value.expected if isinstance(value, MomentTensor) else value


def variance_of(value: Any) -> Tensor | None:
    """Return the variance of a random tensor, and None for anything else."""
    return value.variance if isinstance(value, MomentTensor) else None


def scale_of_norm(x: Any, factor: Any) -> Any:
    """Return a factor as a plain number, the expected one, if it is the scale by which a norm scales ``x``."""
    return factor.expected if isinstance(factor, MomentTensor) and factor.scale_of is x else factor


def first_random(*values: Any) -> MomentTensor:
    """Return the first argument that is random; its setting is the setting of the call."""
    return next(value for value in values if isinstance(value, MomentTensor))


def only_first(operation: Any, values: Any) -> MomentTensor:
    """Return the first of a rule's arguments; raise `MissingRule` if another argument is random."""
    random = [leaf for leaf in leaves_of(values) if isinstance(leaf, MomentTensor)]
    if len(random) != 1 or random[0] is not values[0]:
        missing(operation, random[0], "only its first argument may be random")
    first: MomentTensor = random[0]
    return first
