"""A tensor that is known by its mean and variance."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from leanbayes.errors import InputError, UnknownName
from leanbayes.posteriors import RandomWeight
from leanbayes.propagate.dispatch import Memory, apply_rule, missing, refuse_kernel
from leanbayes.propagate.registry import Registry

__all__ = [
    "KERNELS",
    "ORDERS",
    "POSITIONS",
    "RULES",
    "Averages",
    "MomentTensor",
    "Setting",
    "Ties",
    "expected_of",
    "first_random",
    "missing",
    "only_first",
    "parts_of",
]

RULES = Registry("moments")

KERNELS = ("exact", "box")
ORDERS = ("gaussian", "taylor")
POSITIONS = ("split", "shared", "independent")


@dataclass(frozen=True)
class Setting:
    """How moments pass through one call of a model; every tensor of the call carries it.

    Args:
        order: "gaussian": the moments of an activation of a Gaussian; "taylor": first order (002, eq. 4, 5).
        positions: how positions that share a random filter are taken; see `leanbayes.propagate.moments.shared`.
        model: whose modules name the place of an error.
        examples: the axis that holds the examples where a linear layer is met; attention in torch moves it.
        rank: how many factors units have in common; see `leanbayes.propagate.moments.ties`. 0: none.
        kernels: how a convolution takes a variance; see `leanbayes.propagate.moments.boxes`.
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
            raise InputError(f"rank must not be negative, got {self.rank}; 0 takes units as independent")


class Ties(NamedTuple):
    """What ties entries of a tensor to each other; see `leanbayes.propagate.moments.ties`.

    ``loadings`` (factors, ...) has length 1 where it is the same for all positions; ``near`` is, of the variance that
    is not shared by all positions, the fraction that neighbours share.
    """

    loadings: Tensor | None
    near: Tensor | None


class Averages(NamedTuple):
    """Means over the positions of each example and channel, (examples, channels, 1, …): of μ, μ² and σ²."""

    mean: Tensor | None
    square: Tensor | None
    variance: Tensor


class MomentTensor(Tensor):
    """Random numbers by their mean ``expected`` and ``variance``, entry by entry. It has no storage of its own.

    ``shared`` is the fraction of the variance that entries have in common along the axes where it has length 1;
    None where nothing is. No values can be read by accident: what has no rule raises `MissingRule`.
    """

    rules = RULES
    expected: Tensor
    shared: Tensor | None
    ties: Ties | None
    averages: Averages | None
    setting: Setting
    weight: RandomWeight | None
    memory: Memory
    version: int

    @staticmethod
    def of(expected: Tensor, variance: Tensor, shared: Tensor | None, setting: Setting) -> "MomentTensor":
        """Join mean, variance and the fraction that is shared."""
        made: MomentTensor = Tensor._make_wrapper_subclass(
            MomentTensor, expected.shape, dtype=expected.dtype, device=expected.device
        )
        made.setting, made.memory, made.weight = setting, Memory(), None
        made._fill(expected, variance, shared)
        return made

    @staticmethod
    def of_weight(weight: RandomWeight, setting: Setting) -> "MomentTensor":
        """A random weight; its variance is made when a rule asks for it, so that not all exist at once."""
        made: MomentTensor = Tensor._make_wrapper_subclass(
            MomentTensor, weight.mean.shape, dtype=weight.mean.dtype, device=weight.mean.device
        )
        made.setting, made.memory, made.weight = setting, Memory(), weight
        made._fill(weight.mean, None, None)
        return made

    def scattered(self, index: Tensor, shape: tuple[int, ...]) -> "MomentTensor":
        """The weight whose stored entries this one is."""
        assert self.weight is not None
        return MomentTensor.of_weight(self.weight.scattered(index, shape, dense=True), self.setting)

    def like(self, expected: Tensor, variance: Tensor, shared: Tensor | None = None) -> "MomentTensor":
        """Other moments under the same setting."""
        return MomentTensor.of(expected, variance, shared, self.setting)

    def tied(self, ties: Ties | None) -> "MomentTensor":
        """Itself, with these ties."""
        self.ties = ties
        return self

    def view_of(self, base: "MomentTensor") -> "MomentTensor":
        """Itself, known as a view of ``base``: writing to one makes the other stale."""
        self.memory, self.version = base.memory, base.version
        return self

    @property
    def variance(self) -> Tensor:
        """The variance of each entry."""
        if self._variance is None:
            assert self.weight is not None
            return self.weight.variance()
        return self._variance

    def _fill(self, expected: Tensor, variance: Tensor | None, shared: Tensor | None) -> None:
        self.expected, self._variance, self.shared = expected, variance, shared
        self.remake: Callable[[], tuple[Tensor, Tensor]] | None = None  # both again, from what is kept anyway
        self.ties = self.averages = None
        self.version = self.memory.version

    def overwrite(self, other: "MomentTensor") -> None:
        """Take the moments of another; views of this one become stale."""
        self.memory.version += 1
        self._fill(other.expected, other.variance, other.shared)
        self.weight = None
        self.averages = other.averages
        self.tied(other.ties)

    @property
    def requires_grad(self) -> bool:  # type: ignore[override]
        """Whether the mean or the variance does."""
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
        """Nothing may go round the rules."""
        refuse_kernel(MomentTensor, func, args, kwargs)


def expected_of(value: Any) -> Any:
    """The mean of a random tensor; anything else as it is."""
    return value.expected if isinstance(value, MomentTensor) else value


def parts_of(value: Any) -> tuple[Any, Tensor | None, Tensor | None]:
    """Mean, variance and shared fraction; the last two are None for anything plain."""
    if isinstance(value, MomentTensor):
        return value.expected, value.variance, value.shared
    return value, None, None


def first_random(*values: Any) -> MomentTensor:
    """The first argument that is random: its setting is the setting of the call."""
    return next(value for value in values if isinstance(value, MomentTensor))


def only_first(operation: Any, values: Any) -> MomentTensor:
    """The first of a rule's arguments, if no other is random."""
    random = [leaf for leaf in tree_leaves(values) if isinstance(leaf, MomentTensor)]
    if len(random) != 1 or random[0] is not values[0]:
        missing(operation, random[0], "only its first argument may be random")
    found: MomentTensor = random[0]
    return found
