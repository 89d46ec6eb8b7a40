"""The upper storey of moments: an author writes mean and variance, and declares the kind of the operation.

`RULES` holds a rule for every operation. For each kind it has a method that registers a rule; the rule's author writes
what is special about the operation, and the method adds what all operations of the kind have in common: it checks that
no other argument is random, follows ``order="taylor"``, and carries `Correlations` on. (Operations in place need no
care: the dispatch writes the result back.)

| kind | the author writes | for example |
|---|---|---|
| `RULES.elementwise` | mean and variance of f(z) for a Gaussian number z | activations |
| `RULES.linear` | mean and variance, and the layer as a `LinearMap` to keep noise correlated | convolutions |
| `RULES.rearranging` | nothing | transpose, split, indexing |
| `RULES.reducing` | nothing; whether the sum is divided by the count | sum, mean |
| `RULES.resampling` | the map for one axis | average pooling, interpolation |
| `RULES.norm` | the normed means and the statistics, as a `Norm` | batch norm, layer norm |

An operation of no kind is registered with `RULES.rule`; its author makes the resulting `MomentTensor`, and calls the
methods of `Correlations` himself.

For example, from outside of this package:

    from leanbayes.propagate.moments import RULES

    @RULES.elementwise(my_square, exact=True, assumes="a Gaussian input")
    def square(function, mean, variance):
        return function(mean) + variance, 4 * mean.square() * variance + 2 * variance.square()
"""

import functools
import inspect
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from leanbayes._ops.innermost_moments import is_innermost
from leanbayes._ops.moments import affine, channels_innermost
from leanbayes._ops.safe_sqrt import SafeSqrt
from leanbayes.propagate.linear_ops import Operation
from leanbayes.propagate.moments.correlations import Averages, Correlations, LinearMap, Noise
from leanbayes.propagate.moments.gaussian import taylor
from leanbayes.propagate.moments.tensor import MomentTensor, expected_of, first_random, only_first, variance_of
from leanbayes.propagate.registry import Registry

__all__ = ["RULES", "Layer", "MomentRules", "Norm", "Resampling", "apply_elementwise", "apply_norm"]

_ROW_BY_ROW = (torch.reshape, Tensor.reshape, torch.flatten, Tensor.flatten)  # which keep the order of entries
_COPYING: dict[Any, Any] = {Tensor.view: torch.reshape, Tensor.view_as: Tensor.reshape_as}  # or views
Function = Callable[[Tensor], Tensor]
Moments = tuple[Tensor, Tensor]
Body = Callable[..., Any]


class Layer(NamedTuple):
    """What the author of a linear rule returns; without ``map`` the outputs are taken as independent of each other."""

    mean: Tensor
    variance: Tensor
    map: LinearMap | None = None


class Resampling(NamedTuple):
    """A linear map over the last ``rank`` axes, which acts on each axis alone.

    Attributes:
        apply: The map itself.
        along: ``along(eye, axis)`` applies the map of one axis to the rows of ``eye``: its matrix, transposed.
        rank: How many axes the map acts on.
    """

    apply: Function
    along: Callable[[Tensor, int], Tensor]
    rank: int


class Norm(NamedTuple):
    """What the author of a norm returns: y = γ·(x − centre)·scale + β, with statistics that count as plain numbers.

    Attributes:
        mean: The mean of y.
        centre: What the norm subtracts.
        scale: What it multiplies by, without the gain: 1/√(Var + ε).
        gain: γ, random or not, or None.
        offset: β, random or not, or None.
        channel_axis: The axis along which γ and β lie; None if they lie along the last axes.
        axes: The axes over which the statistics are taken, if the norm removes noise that units have in common.
        by_channel: Whether the statistics are one number for each channel, so that one sweep over memory suffices.
    """

    mean: Tensor
    centre: Tensor
    scale: Tensor
    gain: Any = None
    offset: Any = None
    channel_axis: int | None = 1
    axes: tuple[int, ...] = ()
    by_channel: bool = False


class MomentRules(Registry):
    """The rules of moments by operation, with one method for each kind of operation that registers rules for it.

    Every method takes all spellings of an operation (``torch.relu``, ``Tensor.relu``, ``F.relu``), whether its rule is
    exact, and under which assumption. Both go into the table of the documentation.
    """

    def elementwise(
        self, *operations: Any, exact: bool, assumes: str = "", slope: bool = True, twice: Function | None = None
    ) -> Callable[[Body], Body]:
        """Register a function of single numbers.

        The author writes ``rule(function, mean, variance, *args, **kwargs)`` and returns the mean and the variance of
        function(z) for Gaussian z; ``function`` is the operation with its other arguments filled in. Correlations pass
        by the mean slope of the function. With ``slope=False`` only what positions share is kept, and unchanged.
        ``twice`` is the function in operations that torch can differentiate twice, if it cannot do so with its own.
        """

        def register(body: Body) -> Body:
            def apply(operation: Operation, input: Any, *args: Any, **kwargs: Any) -> MomentTensor:
                x = only_first(operation, (input, *args, *kwargs.values()))
                function: Function = (lambda z: operation(z, *args, **kwargs)) if args or kwargs else operation

                def moments(mean: Tensor, variance: Tensor) -> Moments:
                    mean, variance = body(function, mean, variance, *args, **kwargs)
                    return mean, variance

                return apply_elementwise(x, function, moments, slope, twice)

            return self._add(operations, exact, assumes, body, apply, drop=3)

        return register

    def linear(self, *operations: Any, exact: bool, assumes: str = "") -> Callable[[Body], Body]:
        """Register an operation that is linear in its input and its weight.

        The author writes ``rule(operation, input, weight, bias, *args, **kwargs)``, whose first three arguments may be
        random or not, and returns mean and variance, or a `Layer`.
        """

        def register(body: Body) -> Body:
            def apply(operation: Operation, *args: Any, **kwargs: Any) -> MomentTensor:
                mean, variance, linear_map = Layer(*body(operation, *args, **kwargs))
                random = first_random(*args, *kwargs.values())
                if linear_map is None:
                    return random.like(mean, variance)
                return random.like(mean, *Correlations.linear(variance, linear_map, random.setting))

            return self._add(operations, exact, assumes, body, apply)

        return register

    def rearranging(self, *operations: Any, exact: bool = True, assumes: str = "", shape_of: bool = False) -> None:
        """Register operations that move, copy or choose entries: they act alike on mean, variance and correlations.

        With ``shape_of=True`` further arguments may be random, because the operation only asks for their shapes.
        """

        def apply(operation: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
            """The operation itself, for mean and variance alike."""
            if shape_of:
                args = tuple(map(expected_of, args))
            x = only_first(operation, (input, *args, *kwargs.values()))
            # Rules store images and correlations in the layout that suits them, so a view that the plain network allows
            # may need a copy here.
            same = _COPYING.get(operation, operation)
            one_shape = same is torch.reshape and args and isinstance(args[0], int)  # view(2, 3) is reshape((2, 3))
            moved = (args,) if one_shape else args
            means, variances = same(x.expected, *moved, **kwargs), same(x.variance, *moved, **kwargs)
            flat = same in _ROW_BY_ROW and isinstance(means, Tensor) and means.dim() == 2 < x.dim()
            correlations: Any = x.correlations.flattened(x.shape) if flat and means.shape[0] == x.shape[0] else None
            if correlations is None:
                correlations = x.correlations.rearranged(x.shape, lambda value: same(value, *moved, **kwargs))
            if not isinstance(means, tuple | list):
                return x.like(means, variances, correlations).view_of(x)
            if isinstance(correlations, Correlations):  # nothing is shared
                correlations = [correlations] * len(means)
            parts = zip(means, variances, correlations, strict=True)
            return type(means)([x.like(*part).view_of(x) for part in parts])

        self.rule(*operations, exact=exact, assumes=assumes)(apply)

    def reducing(self, *sums: Any, means: tuple[Any, ...] = (), exact: bool = True, assumes: str = "") -> None:
        """Register sums over axes, and ``means``, which are sums divided by the count; they take torch's arguments."""

        def apply(
            operation: Operation,
            input: MomentTensor,
            dim: Any = None,
            keepdim: bool = False,
            *,
            axis: Any = None,
            dtype: Any = None,
        ) -> MomentTensor:
            """Variances of independent parts add up; n parts that are shared are n times one of them."""
            dim = axis if dim is None else dim
            mean = operation(input.expected, dim=dim, keepdim=keepdim, dtype=dtype)
            named = range(input.dim()) if dim is None or dim == () else [dim] if isinstance(dim, int) else dim
            axes = tuple(sorted(a % input.dim() for a in named))
            if not axes:
                return input.like(mean, input.variance)
            divisor = math.prod(input.shape[a] for a in axes) if operation in means else 1
            variance, correlations = input.correlations.reduced(input.noise, axes, divisor)
            if not keepdim:
                correlations = correlations.squeezed(axes)
            result = input.like(mean, variance.reshape(mean.shape).to(mean.dtype), correlations)
            result.mean_square_of = input.squares_of if operation in means else None
            return result

        self.rule(*sums, *means, exact=exact, assumes=assumes)(apply)

    def resampling(self, *operations: Any, exact: bool, assumes: str = "") -> Callable[[Body], Body]:
        """Register linear maps over positions that act on each axis alone.

        The author writes ``rule(operation, mean, *args, **kwargs)``, and returns a `Resampling`.
        """

        def register(body: Body) -> Body:
            def apply(operation: Operation, input: Any, *args: Any, **kwargs: Any) -> MomentTensor:
                x = only_first(operation, (input, *args, *kwargs.values()))
                if is_innermost(x.expected):
                    x.lay_out(channels_innermost)
                resampling: Resampling = body(operation, x.expected, *args, **kwargs)
                axes = tuple(range(x.dim() - resampling.rank, x.dim()))
                maps = [resampling.along(_eye(x.variance, dim).unsqueeze(0), i)[0] for i, dim in enumerate(axes)]
                resampled = x.correlations.resampled(x.noise, maps, resampling.apply, axes)
                return x.like(resampling.apply(x.expected), *resampled)

            return self._add(operations, exact, assumes, body, apply, drop=2)

        return register

    def norm(self, *operations: Any, exact: bool, assumes: str = "") -> Callable[[Body], Body]:
        """Register a norm.

        The author writes ``rule(operation, input, *args, **kwargs)``, whose arguments may be random or not, and returns
        a `Norm`. The variance is γ²s²σ² + σ_γ²(x̂² + s²σ²) + σ_β², with the scale s and x̂ = (x − centre)·s.
        """

        def register(body: Body) -> Body:
            def apply(operation: Operation, input: Any, *args: Any, **kwargs: Any) -> MomentTensor:
                norm: Norm = body(operation, input, *args, **kwargs)
                swept = _sweep_norm(input, norm) if norm.by_channel else None
                return apply_norm(input, norm) if swept is None else swept

            return self._add(operations, exact, assumes, body, apply)

        return register

    def _add(self, operations: Any, exact: bool, assumes: str, body: Body, apply: Body, drop: int = 0) -> Body:
        """Register ``apply`` under the name, the docstring and the signature of what the author wrote.

        The dispatch compares calls with the signature. ``drop`` counts the leading parameters of ``body`` that stand
        for the operation and its input; 0 if they are just these two.
        """
        functools.update_wrapper(apply, body)
        if drop:
            kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
            names = [inspect.Parameter(name, kind) for name in ("operation", "input")]
            own = list(inspect.signature(body).parameters.values())[drop:]
            apply.__signature__ = inspect.Signature([*names, *own])  # type: ignore[attr-defined]
        self.rule(*operations, exact=exact, assumes=assumes)(apply)
        return apply


RULES = MomentRules("moments")
"""The rules of moments. Other packages add theirs here."""
MomentTensor.rules = RULES


def apply_elementwise(
    x: MomentTensor,
    function: Function,
    moments: Callable[[Tensor, Tensor], Moments],
    slope: bool = True,
    twice: Function | None = None,
) -> MomentTensor:
    """Return function(x), whose mean and variance ``moments`` computes unless the setting asks for first order."""
    if x.setting.order == "taylor":
        mean, variance = taylor(function, x.expected, x.variance, twice)
    else:
        mean, variance = moments(x.expected, x.variance)
    if not slope:
        return x.like(mean, variance, x.correlations.positions_alone())

    def covariance(pick: Function) -> Tensor:
        """Return Cov(z, f(z)) = σ² E f'(z), by two nodes."""
        centre, deviation = pick(x.expected), SafeSqrt.apply(pick(x.variance))
        apart: Tensor = (function(centre + deviation) - function(centre - deviation)) / 2 * deviation
        return apart

    correlations = x.correlations.elementwise(x.noise, Noise(variance), covariance, x.setting.rank)
    return x.like(mean, variance, correlations)


def apply_norm(input: Any, norm: Norm) -> MomentTensor:
    """Return what a norm makes of its input, given its means and statistics."""
    x, x_variance = expected_of(input), variance_of(input)
    gain, gain_variance, offset_variance = expected_of(norm.gain), variance_of(norm.gain), variance_of(norm.offset)
    random = first_random(input, norm.gain, norm.offset)

    def along(vector: Tensor) -> Tensor:
        return _along(vector, x, norm.channel_axis)

    def copied(vector: Tensor) -> Tensor | None:
        """Return ρ of a vector that all positions share."""
        return Correlations().broadcast(vector, x.shape, random.setting)

    parts: list[tuple[Tensor, Tensor | None]] = []
    factor = norm.scale if gain is None else norm.scale * along(gain)
    if x_variance is not None:
        parts.append((factor.square() * x_variance, input.correlations.positions))
    if gain_variance is not None:
        square = ((x - norm.centre) * norm.scale).square()
        if x_variance is not None:
            square = square + norm.scale.square() * x_variance
        spread = along(gain_variance)
        parts.append((spread * square, copied(spread)))
    if offset_variance is not None:
        spread = along(offset_variance)
        parts.append((spread, copied(spread)))
    variance = sum((part for part, _ in parts[1:]), parts[0][0]).expand(norm.mean.shape)
    correlations = Correlations.mixed(parts, norm.mean.shape)
    if x_variance is None:
        return random.like(norm.mean, variance, correlations)
    normed = (x - norm.centre) * norm.scale if norm.axes and input.correlations.units is not None else None
    after = input.correlations.normed(correlations.positions, factor, input.noise, Noise(variance), normed, norm.axes)
    return random.like(norm.mean, *after)


def _sweep_norm(input: Any, norm: Norm) -> MomentTensor | None:
    """Do the same in one sweep over memory; return None if the sweep does not take these tensors."""
    x, x_variance = expected_of(input), variance_of(input)
    if x_variance is None or x.dim() != 4:
        return None
    gain, gain_variance = expected_of(norm.gain), variance_of(norm.gain)
    offset, offset_variance = expected_of(norm.offset), variance_of(norm.offset)
    centre, scale = norm.centre.flatten(), norm.scale.flatten()
    zero = torch.zeros_like(scale)
    factor = scale if gain is None else scale * gain
    gain_spread = zero if gain_variance is None else scale.square() * gain_variance
    offset_spread = zero if offset_variance is None else offset_variance
    vectors = centre, factor.square() + gain_spread, gain_spread, offset_spread
    swept = affine(x, x_variance, *vectors)
    if swept is None:
        return None
    variance, sums = swept
    random = first_random(input, norm.gain, norm.offset)
    rho = input.correlations.positions
    level, square = (sums * (x.shape[0] * x.shape[1] / x.numel())).unbind(1)
    common, passed = gain_spread * (level + square) + offset_spread, factor.square() * level
    total = passed + common
    fraction = None
    nothing_shared = gain_variance is None and offset_variance is None and rho is None
    if random.setting.positions != "independent" and not nothing_shared:
        if rho is not None:
            common = common + passed * rho.flatten(1)
        fraction = (common / torch.where(total > 0, total, 1)).view(*common.shape, *[1] * (x.dim() - 2))
    averages = None
    if random.setting.rank or not torch.is_grad_enabled():
        input.averages = input.averages or Averages(None, None, level[..., None, None])
        averages = Averages(None, None, total[..., None, None])
    after = Noise(variance, averages)
    correlations = input.correlations.scaled(_along(factor, x, 1), input.noise, after).with_positions(fraction)
    result = random.like(norm.mean, variance, correlations, averages)
    if result.requires_grad:
        start = (zero if offset is None else offset) - centre * factor
        result.remake = _normed_again(*(part.detach() for part in (x, x_variance, factor, start, *vectors)))
    return result


def _normed_again(
    x: Tensor, x_variance: Tensor, factor: Tensor, start: Tensor, *vectors: Tensor
) -> Callable[[], Moments]:
    """Return what computes mean and variance again, from the norm's input, which its own backward pass keeps anyway."""

    def again() -> Moments:
        mean = torch.addcmul(_along(start, x, 1), x, _along(factor, x, 1))
        swept = affine(x, x_variance, *vectors)
        assert swept is not None
        return mean, swept[0]

    return again


def _eye(x: Tensor, dim: int) -> Tensor:
    return torch.eye(x.shape[dim], dtype=x.dtype, device=x.device)


def _along(vector: Tensor, x: Tensor, channel_axis: int | None) -> Tensor:
    """Return a vector over channels, or a gain over the last axes, in a shape that broadcasts over ``x``."""
    if channel_axis is None:
        return vector.view([1] * (x.dim() - vector.dim()) + list(vector.shape))
    return vector.view([1, -1] + [1] * (x.dim() - 2))
