"""The arithmetic of a step of IVON and of Adam, on lists of tensors.

A step of IVON needs about twenty elementwise operations. On large tensors each of them would read and write main
memory. On the CPU a compiled kernel therefore updates large tensors in one sweep over memory. Where there is no kernel,
the sweeps work on pieces of the tensors that stay in the cache. On other devices they work on whole tensors, of which
one call of ``torch._foreach_*`` updates many.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes._ops.natural import (
    Kept,
    all_finite,
    flat_array,
    kernel_fits,
    natural_step,
    plain_call,
    steps_with_adam,
    worth_kernel,
)
from leanbayes.errors import NonFinite

__all__ = [
    "AdamRule",
    "FusedRow",
    "Kept",
    "NaturalRule",
    "adam_sweep",
    "by_kernel",
    "flat_array",
    "fused_sweep",
    "fuses",
    "in_pieces",
    "natural_sweep",
    "plain_call",
    "refuse_non_finite",
    "worth_kernel",
]

_CACHED = 2**16  # numbers of a piece on the CPU, the fastest of the powers of 2 from 2**12 to 2**17
_AT_ONCE = 2**24  # numbers of all tensors that one call updates on other devices, because it needs memory for several


@dataclass(frozen=True)
class NaturalRule:
    """The numbers of one natural-gradient step, the same for all coordinates of a sweep.

    Attributes:
        size: λ, the effective number of examples.
        decay: δ, the precision of the prior divided by λ.
        centre: the mean of the prior, if it is one number.
        start: h₀, the curvature at the start.
        lr: the learning rate α.
        beta1: how much of the momentum a step keeps.
        forget: 1 − β₂, how much of the curvature a step replaces.
        correction: 1 − β₁ᵗ, by which the momentum is divided because it began at 0.
        clip: the largest absolute value of a coordinate of the preconditioned step, or None.
    """

    size: float
    decay: float
    centre: float
    start: float
    lr: float
    beta1: float
    forget: float
    correction: float
    clip: float | None


@dataclass(frozen=True)
class AdamRule:
    """The numbers of one step of Adam: the learning rate, the two decays, ε, and 1 − βᵗ for both decays."""

    lr: float
    betas: tuple[float, float]
    epsilon: float
    corrections: tuple[float, float]


@dataclass(frozen=True)
class FusedRow:
    """A random tensor whose scales follow the curvature and whose means follow Adam, for one sweep of one kernel.

    Attributes:
        tensors: h, ρ, ∂loss/∂ρ, m, ∂loss/∂m, and the two running means of Adam.
        average: the running average of m, or None.
        share: the share that the new means have in the average.
        natural: the numbers of the step of the curvature.
        adam: those of Adam.
        arrays: the tensors and the average, or an empty one, as flat arrays, where the caller has kept them.
    """

    tensors: tuple[Tensor, ...]
    average: Tensor | None
    share: float
    natural: NaturalRule
    adam: AdamRule
    arrays: Sequence[Any] | None = None

    def all_finite(self) -> bool:
        """Return whether both gradients have finite sums, for a row with arrays."""
        assert self.arrays is not None
        return all_finite((self.arrays[2], self.arrays[4]))


def fuses(tensors: Sequence[Tensor]) -> bool:
    """Return whether the kernel of `fused_sweep` can update these tensors, which may be small."""
    return kernel_fits(tensors, least=1)


def fused_sweep(rows: Sequence[FusedRow]) -> None:
    """Make the steps of `natural_sweep` and `adam_sweep`, with the gradient of the prior, and average the means."""
    settings: dict[tuple[int, int, float], Any] = {}  # most rows share their rules
    steps = []
    for row in rows:
        key = (id(row.natural), id(row.adam), row.share)
        if key not in settings:
            settings[key] = _settings(row)
        steps.append((row.arrays or _arrays(row), settings[key]))
    steps_with_adam(steps)


def _arrays(row: FusedRow) -> list[Any]:
    average = torch.empty(0) if row.average is None else row.average
    return [np.asarray(tensor.detach()).reshape(-1) for tensor in (*row.tensors, average)]


def _settings(row: FusedRow) -> Any:
    """Return the numbers of a step in the order of the kernel."""
    natural, adam = row.natural, row.adam
    numbers = (
        natural.size,
        natural.decay,
        torch.finfo(torch.float32).eps * natural.decay,
        natural.forget,
        natural.centre,
        1 - adam.betas[0],
        1 - adam.betas[1],
        adam.corrections[1] ** 0.5,
        adam.epsilon,
        adam.lr / adam.corrections[0],
        row.share,
    )
    return np.asarray(numbers, np.float64)


def in_pieces(rows: Iterable[Sequence[Tensor]]) -> Iterator[tuple[list[Tensor], ...]]:
    """Group rows of tensors for the sweeps.

    The tensors of a row have the same number of elements: the means, the gradients and so on of one parameter. Each
    group holds one list for each column.

    >>> rows = [(torch.zeros(3), torch.ones(3)), (torch.zeros(2), torch.ones(2))]
    >>> [[len(column) for column in group] for group in in_pieces(rows)]
    [[2, 2]]
    """
    group: list[Sequence[Tensor]] = []
    numbers = 0
    for row in rows:
        first = row[0]
        limit = _CACHED if first.device.type == "cpu" else _AT_ONCE
        for piece in _split(row, limit):
            if group and numbers + piece[0].numel() > limit:
                yield tuple(list(column) for column in zip(*group, strict=True))
                group, numbers = [], 0
            group.append(piece)
            numbers += piece[0].numel()
    if group:
        yield tuple(list(column) for column in zip(*group, strict=True))


def _split(row: Sequence[Tensor], limit: int) -> Iterator[Sequence[Tensor]]:
    """Cut the tensors of a row alike. A row of which a tensor is not contiguous stays whole, in its own order."""
    count = row[0].numel()
    if not count:
        return
    if count <= limit or row[0].device.type != "cpu" or not all(tensor.is_contiguous() for tensor in row):
        yield row
        return
    yield from zip(*(tensor.view(-1).split(limit) for tensor in row), strict=True)


def by_kernel(rule: NaturalRule, row: Sequence[Tensor]) -> bool:
    """Make the natural-gradient step of one large tensor by the kernel, and return whether there is one that fits.

    Args:
        rule: the numbers of the step.
        row: h, ρ, ∂loss/∂ρ, m, ∂loss/∂m and the momentum, or only the first three if the means stay.
    """
    if not kernel_fits(row):
        return False
    least = torch.finfo(row[0].dtype).eps * rule.decay
    most = math.inf if rule.clip is None else rule.clip
    factor = rule.start + rule.decay
    numbers = (rule.size, rule.decay, least, rule.forget, 1 - rule.beta1, 1 / rule.correction, rule.centre, factor)
    natural_step(row, (*numbers, most, rule.lr))
    return True


def natural_sweep(
    rule: NaturalRule,
    curvature: list[Tensor],
    rho: list[Tensor],
    rho_gradient: list[Tensor] | None,
    means: tuple[list[Tensor], list[Tensor], list[Tensor]] | None,
    centre: list[Tensor] | None = None,
) -> None:
    """Make one natural-gradient step in place.

    Args:
        rule: the numbers of the step.
        curvature: h, which changes if ``rho_gradient`` is given.
        rho: the raw scales, which become those of σ = 1/√(λ(h + δ)).
        rho_gradient: ∂loss/∂ρ, or None if the loss does not depend on the scales, so that it says nothing of h.
        means: m, its gradient and its momentum, or None if the means stay.
        centre: the mean of the prior for each coordinate, in place of the one number of the rule.
    """
    # In exact arithmetic h + δ is positive. Where h has almost reached −δ, rounding could make the sum 0.
    least = torch.finfo(rho[0].dtype).eps * rule.decay
    precision = _at_least(list(torch._foreach_add(curvature, rule.decay)), least)
    if rho_gradient is not None:
        tiny = torch.finfo(rho[0].dtype).tiny
        change = list(
            torch._foreach_div(rho_gradient, _at_least([F.softplus(values, threshold=40) for values in rho], tiny))
        )
        torch._foreach_div_(change, _at_least(list(torch._foreach_sigmoid(rho)), tiny))  # ĥ = (∂loss/∂ρ)/(σ dσ/dρ)
        torch._foreach_sub_(change, curvature)
        torch._foreach_mul_(change, rule.forget)
        growth = torch._foreach_mul(change, change)
        torch._foreach_div_(growth, precision)
        torch._foreach_add_(change, growth, alpha=0.5)
        torch._foreach_add_(curvature, change)
        _at_least(precision := list(torch._foreach_add(curvature, rule.decay)), least)
    if means is not None:
        mean, gradient, momentum = means
        torch._foreach_lerp_(momentum, gradient, 1 - rule.beta1)
        if centre is None and not rule.centre:
            step = torch._foreach_mul(mean, rule.decay)
        else:
            step = torch._foreach_sub(mean, rule.centre if centre is None else centre)
            torch._foreach_mul_(step, rule.decay)
        torch._foreach_add_(step, momentum, alpha=1 / rule.correction)
        torch._foreach_div_(step, precision)
        factor = rule.start + rule.decay
        if rule.clip is not None:
            torch._foreach_clamp_min_(step, -rule.clip / factor)
            torch._foreach_clamp_max_(step, rule.clip / factor)
        torch._foreach_add_(mean, step, alpha=-rule.lr * factor)
    torch._foreach_mul_(precision, rule.size)
    torch._foreach_rsqrt_(precision)
    write_scales(rho, precision)


def write_scales(rho: list[Tensor], scale: list[Tensor]) -> None:
    """Write ρ = σ + log(1 − e^−σ), the inverse of σ = softplus(ρ)."""
    log = torch._foreach_neg(scale)
    torch._foreach_expm1_(log)
    torch._foreach_neg_(log)
    torch._foreach_log_(log)
    torch._foreach_add_(log, scale)
    torch._foreach_copy_(rho, log)


def adam_sweep(
    rule: AdamRule, values: list[Tensor], gradient: list[Tensor], first: list[Tensor], second: list[Tensor]
) -> None:
    """Make one step of Adam in place, with the running means of the gradient and of its square."""
    torch._foreach_lerp_(first, gradient, 1 - rule.betas[0])
    torch._foreach_mul_(second, rule.betas[1])
    torch._foreach_addcmul_(second, gradient, gradient, 1 - rule.betas[1])
    root = torch._foreach_sqrt(second)
    torch._foreach_div_(root, rule.corrections[1] ** 0.5)
    torch._foreach_add_(root, rule.epsilon)
    torch._foreach_addcdiv_(values, first, root, -rule.lr / rule.corrections[0])


def refuse_non_finite(
    gradients: Sequence[Tensor], name_of: Callable[[int], str], anywhere: Callable[[bool], bool] = bool
) -> None:
    """Raise `NonFinite` if a gradient in main memory has a NaN or infinite value.

    On a GPU this question would make every step wait for the device, so it is not asked there.

    Args:
        gradients: all gradients.
        name_of: returns what to call the gradient of a position.
        anywhere: returns whether what holds here holds in any process, each of which may have other gradients.
    """
    sums = [values.sum() for values in gradients if values.device.type == "cpu"]
    suspicious = not all(map(math.isfinite, map(float, sums)))  # one value that is not finite would make the sum so
    if not sums or not anywhere(suspicious):
        return
    spoiled = [
        position
        for position, values in enumerate(gradients)
        if values.device.type == "cpu" and not torch.isfinite(values).all()
    ]
    if not anywhere(bool(spoiled)):  # a sum of large numbers overflows, though each of them is finite
        return
    name = name_of(spoiled[0]) if spoiled else "a weight, of which another process has a piece,"
    raise NonFinite(
        f"the gradient of {name} has NaN or infinite values, and the optimizer has changed nothing; "
        "look at the loss, lower the learning rate or, in half precision, scale the loss with torch.amp.GradScaler, "
        "which leaves such steps out"
    )


def _at_least(values: list[Tensor], least: float) -> list[Tensor]:
    torch._foreach_clamp_min_(values, least)
    return values
