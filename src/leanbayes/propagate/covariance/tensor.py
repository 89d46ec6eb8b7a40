"""A tensor that is known by its mean and by the covariance matrix of each example."""

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from leanbayes.errors import InputError
from leanbayes.posteriors import RandomWeight
from leanbayes.propagate.dispatch import Memory, apply_rule, missing, refuse_kernel
from leanbayes.propagate.registry import Registry
from leanbayes.propagate.uses import Origin

__all__ = ["RULES", "CovarianceTensor", "Setting", "expected_of", "first_random", "full", "merge", "only_first"]

RULES = Registry("covariance")


@dataclass(frozen=True)
class Setting:
    """How covariances pass through one call of a model; every tensor of the call carries it.

    Args:
        model: the model; errors name its modules.
        limit: the largest covariance, in GB (10⁹ bytes) for the whole batch.
    """

    model: nn.Module | None = None
    limit: float = 2.0

    def __post_init__(self) -> None:
        if not self.limit > 0:
            raise InputError(f"the limit of a covariance must be above 0 GB, got {self.limit}")

    def check(self, examples: int, groups: int, size: int, like: Tensor) -> None:
        """Raise if a covariance is larger than the limit, before its memory is allocated."""
        need = examples * groups * size**2 * like.dtype.itemsize / 1e9
        if need > self.limit:
            raise InputError(
                f"the covariance of {groups * size} numbers for each of {examples} examples takes {need:.3g} GB, more "
                f"than the limit of {self.limit:g} GB: give fewer examples at a time (batch_size), raise the limit, or "
                'propagate variances alone ("moments" instead of "covariance")'
            )


class CovarianceTensor(Tensor):
    """Random numbers (N, ...), known by their mean ``expected`` and their covariance ``blocks``, without values.

    ``blocks`` (N, G, B, B) holds the covariance matrix of the G·B flattened numbers of each example. It has G blocks on
    its diagonal and zeros elsewhere; in general G = 1. The covariance between examples is not followed. A random weight
    has no examples and no ``blocks``: its entries are independent, and ``weight`` gives their variances.
    """

    recomputable = False
    rules = RULES
    expected: Tensor
    blocks: Tensor
    setting: Setting
    weight: RandomWeight | None
    origin: Origin | None
    memory: Memory
    version: int

    @staticmethod
    def of(expected: Tensor, blocks: Tensor, setting: Setting) -> "CovarianceTensor":
        """Make a tensor from its mean and covariance."""
        made = _empty(expected, setting)
        made.blocks, made.weight = blocks, None
        return made

    @staticmethod
    def of_weight(weight: RandomWeight, setting: Setting) -> "CovarianceTensor":
        """Make a tensor that stands for a random weight; only the rules of layers and norms accept it."""
        made = _empty(weight.mean, setting)
        made.weight, made.origin = weight, Origin(weight.name, weight.mean)
        return made

    @staticmethod
    def independent(expected: Tensor, variance: Tensor, setting: Setting) -> "CovarianceTensor":
        """Make a tensor of uncorrelated numbers, such as an input with sensor noise."""
        return CovarianceTensor.of(
            expected, variance.reshape(len(expected), math.prod(expected.shape[1:]), 1, 1), setting
        )

    def scattered(self, index: Tensor, shape: tuple[int, ...]) -> "CovarianceTensor":
        """Return the sparse weight whose stored entries this tensor holds."""
        assert self.weight is not None
        whole = CovarianceTensor.of_weight(self.weight.scattered(index, shape, dense=True), self.setting)
        whole.origin = self.origin
        return whole

    def like(self, expected: Tensor, blocks: Tensor) -> "CovarianceTensor":
        """Make a tensor with other moments under the same setting."""
        return CovarianceTensor.of(expected, blocks, self.setting)

    def view_of(self, base: "CovarianceTensor") -> "CovarianceTensor":
        """Return this tensor, marked as a view of ``base``: writing to one makes the other stale."""
        self.memory, self.version, self.origin = base.memory, base.version, base.origin
        return self

    def overwrite(self, other: "CovarianceTensor") -> None:
        """Take over the moments of another tensor; views of this one become stale."""
        self.memory.version += 1
        self.expected, self.blocks, self.weight, self.origin = other.expected, other.blocks, None, other.origin
        self.version = self.memory.version

    def by_block(self, value: Tensor) -> Tensor:
        """Shape a value of each entry as (N, G, B), or as (1, G, B) if all examples share it."""
        groups, size = self.blocks.shape[1:3]
        return value.expand(len(value), *self.expected.shape[1:]).reshape(len(value), groups, size)

    @property
    def variance(self) -> Tensor:
        """The variance of each entry, as (N, G, B)."""
        return self.blocks.diagonal(dim1=-2, dim2=-1)

    @property
    def requires_grad(self) -> bool:  # type: ignore[override]
        """Whether the mean or the covariance requires gradients."""
        if self.weight is not None:
            spread = self.weight.rho if self.weight.rho is not None else self.weight.spread
            return self.expected.requires_grad or spread.requires_grad
        return self.expected.requires_grad or self.blocks.requires_grad

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:  # type: ignore[override]
        if self.weight is not None:
            return f"CovarianceTensor(weight {self.weight.name!r})"
        return f"CovarianceTensor(expected={self.expected}, blocks={self.blocks})"

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Apply the rule for ``func``."""
        return apply_rule(CovarianceTensor, func, args, kwargs)

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        """Refuse operations that bypass the rules."""
        refuse_kernel(CovarianceTensor, func, args, kwargs)


def _empty(expected: Tensor, setting: Setting) -> CovarianceTensor:
    made: CovarianceTensor = Tensor._make_wrapper_subclass(
        CovarianceTensor, expected.shape, dtype=expected.dtype, device=expected.device
    )
    made.expected, made.setting, made.memory, made.version = expected, setting, Memory(), 0
    made.origin = None
    return made


def expected_of(value: Any) -> Any:
    """Return the mean of a random tensor, and any other value as it is."""
    return value.expected if isinstance(value, CovarianceTensor) else value


def first_random(*values: Any) -> CovarianceTensor:
    """Return the first random argument, whose setting is the setting of the call."""
    return next(value for value in values if isinstance(value, CovarianceTensor))


def only_first(operation: Any, *values: Any) -> CovarianceTensor:
    """Return the first argument of a rule; raise if it is a weight or if another argument is random."""
    random = [value for value in values if isinstance(value, CovarianceTensor)]
    if len(random) != 1 or random[0] is not values[0] or random[0].weight is not None:
        missing(operation, random[0], "only its first argument may be random, and no weight")
    first: CovarianceTensor = random[0]
    return first


def merge(x: CovarianceTensor, groups: int) -> Tensor:
    """Return the same covariance in fewer blocks: the largest number that divides both its own and ``groups``."""
    examples, have, size, _ = x.blocks.shape
    wanted = math.gcd(have, groups)
    if wanted == have:
        return x.blocks
    each = have // wanted
    x.setting.check(examples, wanted, each * size, x.blocks)
    wide = x.blocks.new_zeros(examples, wanted, each, size, each, size)
    parts = x.blocks.reshape(examples, wanted, each, size, size)
    wide.diagonal(dim1=2, dim2=4).copy_(parts.movedim(2, -1))
    return wide.view(examples, wanted, each * size, each * size)


def full(x: CovarianceTensor) -> Tensor:
    """Return the covariance matrix of each example, (N, D, D)."""
    return merge(x, 1)[:, 0]
