"""Which weights a sparse network removes: the six criteria of SSVI (Li et al. 2024, section 3.3.1) for θ ~ N(μ, σ²).

A weight with a higher score is more important, and the weights with the lowest scores are removed. Only the order
counts. Where the number of the paper would overflow, or rounding would hide its order, the score is a growing function
of that number:

    name                   paper             score                     grows with
    magnitude              |μ|               itself                    |μ|
    snr                    |μ|/σ             itself                    |μ| and 1/σ
    expected_magnitude     E|θ|              itself                    |μ| and σ
    snr_magnitude          SNR(|θ|)          less its value at μ = 0   |μ| and 1/σ
    expected_exponential   E e^{λ|θ|}        log E e^{λ|θ|}            |μ| and σ
    snr_exponential        SNR(e^{λ|θ|})     −√log(1 + 1/SNR²)         1/|μ| and 1/σ

Two criteria are not what the paper takes them for. With r = |μ|/σ:

- **snr_magnitude and snr order weights alike**, so they remove the same ones. For m = E|θ|/σ,
  SNR(|θ|)² = m²/(1 + r² − m²) depends on r alone and grows with m²/(1 + r²). As m' = 2Φ(r) − 1 and m = r m' + 2φ(r),
  the derivative of that has the sign of m'(1 + r²) − m r = 2Φ(r) − 1 − 2rφ(r) = P(χ²₃ ≤ r²) > 0. A difference between
  the two (Li et al. 2024, figure 2 and D.2) is rounding or chance. In float32, eq. 7 as written loses the order below
  r = 0.02, because SNR(|θ|) rises only with r⁴ there, and it is infinite from about r = 5000 on.
- **snr_exponential falls with |μ|**: among equal σ it removes the largest means first, though the paper asks that
  larger weights count more. Let t = λσ, K(t) = log E e^{t|θ|/σ}, and let S(t) be the mean sign of θ (for μ > 0) under
  the law tilted by e^{t|θ|/σ}. Then ∂ log(1 + 1/SNR²)/∂r = ∂(K(2t) − 2K(t))/∂r = 2t(S(2t) − S(t)) > 0, because a tilt
  favours large |θ|, whose sign is more often that of μ. For large r the score is −λσ. In float32, eq. 8 as written is
  often infinite or NaN for λσ < 10⁻³.
- That snr_exponential falls with σ is a numerical observation. The other entries of the table are proved: the
  expectation of an even convex function grows with |μ| and with σ.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from leanbayes.errors import InputError, NonFinite, ShapeMismatch, UnknownName

__all__ = ["REMOVAL", "overlap", "removal_scores", "removed"]

_FARTHEST = 40.0  # in standard deviations: beyond it, a tail is 0 in float64
_SMALL_RATIO = 1.5  # below it, SNR(|θ|) is too near to its least value to subtract that value
_SMALL_TILT = 0.4  # below it, differences of K lose digits
_LEAST_SNR = math.sqrt(2 / (math.pi - 2))  # SNR(|θ|) at μ = 0

# Of (1 + x − √(π/2) m)/x² in x = r²/2, as m = √(2/π) M(−½, ½, −x): (−1)^k / ((2k − 1) k!), highest power first
_SERIES = [(-1) ** k / ((2 * k - 1) * math.factorial(k)) for k in range(18, 1, -1)]

# Gauss rules of five nodes, as (node, weight): a constant on [0, 1], and the triangle 1 − |x − 1| on [0, 2]
_CONSTANT = [((1 + x) / 2, w / 2) for x, w in np.transpose(np.polynomial.legendre.leggauss(5)).tolist()]
_INNER, _OUTER = (0.449920352459841963, 0.23947324070545739), (0.821440599738381528, 0.0516582577654906218)
_TRIANGLE = [(1 + side * x, w) for x, w in (_INNER, _OUTER) for side in (-1, 1)] + [(1.0, 0.417737003058103976)]

Criterion = Callable[[Tensor, Tensor, float], Tensor]


def magnitude(mean: Tensor, _scale: Tensor, _rate: float) -> Tensor:
    """Return |μ| (criterion 1, which RigL uses as well)."""
    return mean.abs()


def snr(mean: Tensor, scale: Tensor, _rate: float) -> Tensor:
    """Return |μ|/σ (criterion 2)."""
    return mean.abs() / scale


def expected_magnitude(mean: Tensor, scale: Tensor, _rate: float) -> Tensor:
    """Return E|θ| = |μ| + σδ(r) with δ(r) = 2(φ(r) − rΦ(−r)) (criterion 3, eq. 6)."""
    gain, _ = _tilted(mean.abs() / scale, 0.0)
    return mean.abs() + scale * gain


def snr_magnitude(mean: Tensor, scale: Tensor, _rate: float) -> Tensor:
    """Return SNR(|θ|) less its value √(2/(π − 2)) at μ = 0 (criterion 4, eq. 7, the default of the paper).

    SNR(|θ|) = (r + δ)/√v with v = 1 − 2rδ − δ², in which nothing cancels. The function is flat for small r. There its
    difference to the value s at 0 is s²c/(v(SNR + s)), with c = (π/2)m² − 1 − r² by a series in x = r²/2.
    """
    ratio = mean.abs() / scale
    gain, variance = _tilted(ratio, 0.0)
    value = (ratio + gain) / variance.sqrt()
    x = ratio.clamp_max(_SMALL_RATIO).square() / 2
    series = torch.zeros_like(x)
    for coefficient in _SERIES:
        series = series * x + coefficient
    curve = x.square() * (1 - 2 * series * (1 + x) + (series * x).square())
    excess = _LEAST_SNR**2 * curve / (variance * (value + _LEAST_SNR))
    return torch.where(ratio < _SMALL_RATIO, excess, value - _LEAST_SNR)


def expected_exponential(mean: Tensor, scale: Tensor, rate: float) -> Tensor:
    """Return log E e^{λ|θ|} = λ|μ| + λ²σ²/2 + L(λσ), three terms that are never negative (criterion 5, eq. 8).

    L(t) = log(Φ(r + t) + e^{−2rt}Φ(t − r)). For small t it is computed as the integral of its derivative.
    """
    tilt, lift, ratio = rate * scale, rate * mean.abs(), mean.abs() / scale
    near = _integral(_CONSTANT, lambda node: _tilted(ratio, tilt * node)[0])
    far = _log_gain(ratio, lift, tilt)
    return lift + tilt.square() / 2 + torch.where(tilt < _SMALL_TILT, tilt * near, far)


def snr_exponential(mean: Tensor, scale: Tensor, rate: float) -> Tensor:
    """Return −√log(1 + 1/SNR(e^{λ|θ|})²) = −√(K(2t) − 2K(t)) with t = λσ (criterion 6, eq. 8).

    K(2t) − 2K(t) = t² + L(2t) − 2L(t), without the terms in λ|μ|; for small t it is the integral of K'' over [0, 2t]
    with the weight t − |s − t|, and K'' is a variance: positive, and of the order of 1.
    """
    tilt, lift, ratio = rate * scale, rate * mean.abs(), mean.abs() / scale
    near = _integral(_TRIANGLE, lambda node: _tilted(ratio, tilt * node)[1])
    far = 1 + (_log_gain(ratio, 2 * lift, 2 * tilt) - 2 * _log_gain(ratio, lift, tilt)) / tilt.square()
    return -tilt * torch.where(tilt < _SMALL_TILT, near, far).sqrt()


REMOVAL: dict[str, Criterion] = {
    "magnitude": magnitude,
    "snr": snr,
    "expected_magnitude": expected_magnitude,
    "snr_magnitude": snr_magnitude,
    "expected_exponential": expected_exponential,
    "snr_exponential": snr_exponential,
}
"""The criteria by name. Each is a function of mean, scale and λ in float32 or float64 that does not check its input."""


@torch.no_grad()
def removal_scores(criterion: str, mean: Tensor, scale: Tensor | None, *, rate: float = 1.0) -> Tensor:
    """Return how important each weight is; the weights with the lowest scores are removed.

    Weights in half precision are scored in float32. The relative error is below 2e-6 in float32 and 2e-11 in float64.

    Args:
        criterion: a name in `REMOVAL`. The table of this module says what each criterion returns and how it orders.
        mean: the means μ, of any shape.
        scale: the scales σ > 0, of the same shape. It is None for weights that are not random, which have only
            "magnitude".
        rate: λ of the exponential criteria.

    >>> mean, scale = torch.tensor([0.0, -0.5, 1.0]), torch.tensor([0.1, 0.1, 1.0])
    >>> removal_scores("snr", mean, scale)
    tensor([0., 5., 1.])
    >>> removal_scores("snr_magnitude", mean, scale)
    tensor([0.0000, 3.6764, 0.1359])
    >>> removal_scores("magnitude", mean, None)
    tensor([0.0000, 0.5000, 1.0000])
    """
    if criterion not in REMOVAL:
        raise UnknownName.of("removal criterion", criterion, REMOVAL)
    if not 0 < rate < math.inf:
        raise InputError(f"rate is the λ of e^(λ|θ|) and must be above 0 and finite, got {rate}")
    _check("means", mean)
    if scale is None:
        if criterion != "magnitude":
            raise InputError(f"{criterion!r} needs the scales of the weights; without scales choose 'magnitude'")
        scale = mean.new_ones(())  # "magnitude" does not look at it
    elif scale.shape != mean.shape:
        raise ShapeMismatch(
            f"means and scales must have the same shape, got {tuple(mean.shape)} and {tuple(scale.shape)}"
        )
    elif criterion != "magnitude":
        _check("scales", scale)
        if not (scale > 0).all():
            bad = int((scale <= 0).sum())
            raise InputError(
                f"{bad} of {scale.numel()} scales are not above 0; a deterministic weight has only a 'magnitude', "
                f"not {criterion!r}"
            )
    wide = torch.promote_types(torch.promote_types(mean.dtype, scale.dtype), torch.float32)
    return REMOVAL[criterion](mean.to(wide), scale.to(wide), rate)


@torch.no_grad()
def removed(scores: Tensor, count: int) -> Tensor:
    """Return the flat positions of the ``count`` lowest scores, sorted. Of equal scores the first are taken.

    >>> removed(torch.tensor([3.0, 1.0, 2.0, 1.0, 1.0]), 2)
    tensor([1, 3])
    """
    if not 0 <= count <= scores.numel():
        raise InputError(f"cannot remove {count} of {scores.numel()} weights")
    if scores.isnan().any():
        raise NonFinite(f"{int(scores.isnan().sum())} of {scores.numel()} scores are NaN, so they have no order")
    return scores.flatten().argsort(stable=True)[:count].sort().values


def overlap(first: Tensor, second: Tensor, count: int) -> float:
    """Return the intersection over union of what two scores remove (Li et al. 2024, D.2).

    It is 1 if both remove the same weights, and 0 if they have none in common.

    >>> overlap(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([1.0, 4.0, 2.0, 3.0]), 2)
    0.3333333333333333
    """
    if first.shape != second.shape:
        raise ShapeMismatch(
            f"scores of shapes {tuple(first.shape)} and {tuple(second.shape)} are not of the same weights"
        )
    both = int(torch.isin(removed(first, count), removed(second, count), assume_unique=True).sum())
    return both / (2 * count - both) if count else 1.0


def _tilted(ratio: Tensor, tilt: Tensor | float) -> tuple[Tensor, Tensor]:
    """Return L'(t) and K''(t) for K(t) = log E e^{t|z|} = rt + t²/2 + L(t) with z ~ N(r, 1).

    K' and K'' are the mean and the variance of |z| under the tilted law.
    L' = 2(φ(r + t) − r e^{−2rt}Φ(t − r))/e^L, and K'' = 1 − L'(2r + L') − 2tφ(r + t)/e^L; at t = 0, L' = δ(r).
    All terms have the factor e^{−(r+t)²/2}. Without it, erfcx of arguments above −1 remains.
    """
    ratio = ratio.clamp_max(_FARTHEST)  # may be infinite
    tail = torch.exp(-(ratio + tilt).square() / 2)
    below, above = (tail * torch.special.erfcx(x / math.sqrt(2)) for x in (ratio - tilt, ratio + tilt))
    density = tail / math.sqrt(2 * math.pi)
    total = 1 + (below - above) / 2
    slope = (2 * density - ratio * below) / total
    return slope, 1 - slope * (2 * ratio + slope) - 2 * tilt * density / total


def _log_gain(ratio: Tensor, lift: Tensor, tilt: Tensor) -> Tensor:
    """Return L(t) = log(Φ(r + t) + e^{−2rt}Φ(t − r)), which lies between 0 and log 2; ``lift`` is rt."""
    below, above = (torch.special.erfc(x / math.sqrt(2)) for x in (ratio - tilt, ratio + tilt))
    return torch.log1p((torch.exp(-2 * lift) * below - above) / 2)


def _integral(rule: list[tuple[float, float]], function: Callable[[float], Tensor]) -> Tensor:
    terms = [weight * function(node) for node, weight in rule]
    return torch.stack(terms).sum(0)


def _check(what: str, numbers: Tensor) -> None:
    if not numbers.is_floating_point():
        raise InputError(f"the {what} must be real numbers, got {numbers.dtype}")
    if not numbers.isfinite().all():
        bad = int((~numbers.isfinite()).sum())
        raise NonFinite(f"{bad} of {numbers.numel()} {what} are NaN or infinite; the training has diverged")
