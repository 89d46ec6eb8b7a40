"""Metrics of predicted numbers: RMSE, Gaussian NLL, interval coverage and CRPS.

A prediction over draws is a mixture of Gaussians. A formula for one Gaussian uses the Gaussian with the mean and the
variance of the mixture (moment matching), which are the ``mean`` and the ``total`` of a `Prediction`.
"""

import math
from statistics import NormalDist

import torch
from torch import Tensor

from leanbayes.errors import InputError, NonFinite, ShapeMismatch

__all__ = ["gaussian_crps", "gaussian_nll", "gaussian_terms", "interval_coverage", "rmse", "sample_crps"]


def rmse(mean: Tensor, targets: Tensor) -> Tensor:
    """Return the root of the mean squared error over examples and outputs.

    >>> rmse(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 4.0]))
    tensor(1.4142)
    """
    _check(targets, mean=mean)
    return (_wide(mean) - targets).square().mean().sqrt()


def gaussian_nll(mean: Tensor, variance: Tensor, targets: Tensor) -> Tensor:
    """Return the mean of ½ log 2πs² + (y − m)²/2s² in nats, over examples and outputs.

    >>> gaussian_nll(torch.zeros(1), torch.ones(1), torch.zeros(1))
    tensor(0.9189)
    """
    return gaussian_terms(mean, variance, targets)["nll"].mean()


def gaussian_crps(mean: Tensor, variance: Tensor, targets: Tensor) -> Tensor:
    """Return the mean continuous ranked probability score ∫ (F(x) − 1{x ≥ y})² dx of a Gaussian, in the unit of y.

    It is s (z(2Φ(z) − 1) + 2φ(z) − 1/√π) with z = (y − m)/s (Gneiting and Raftery 2007, eq. 21).

    >>> gaussian_crps(torch.zeros(1), torch.ones(1), torch.zeros(1))
    tensor(0.2337)
    """
    return gaussian_terms(mean, variance, targets)["crps"].mean()


def interval_coverage(mean: Tensor, variance: Tensor, targets: Tensor, level: float = 0.9) -> Tensor:
    """Return the share of targets in the central interval m ± s Φ⁻¹((1 + level)/2), which should equal ``level``.

    >>> interval_coverage(torch.zeros(2), torch.ones(2), torch.tensor([1.0, 2.0]), level=0.9)
    tensor(0.5000)
    """
    distance = gaussian_terms(mean, variance, targets)["distance"]
    return (distance <= half_width(level)).to(distance.dtype).mean()


def sample_crps(samples: Tensor, targets: Tensor) -> Tensor:
    """Return the mean CRPS of the empirical distribution of draws of y, which is E|X − y| − ½ E|X − X'|.

    Args:
        samples: draws of y, (draws, N, ...). `Prediction.samples` are means of y, so add the noise first.
        targets: (N, ...).

    >>> sample_crps(torch.tensor([[0.0], [2.0]]), torch.tensor([1.0]))
    tensor(0.5000)
    """
    if samples.dim() < 1 or not len(samples):
        raise ShapeMismatch(f"need draws (draws, N, ...), at least one, got {tuple(samples.shape)}")
    _check(targets, samples=samples[0])
    draws = len(samples)
    ordered = _wide(samples).sort(0).values
    if not torch.isfinite(ordered).all():
        raise NonFinite("samples has NaN or infinite values; check the model that made them")
    # Σ_ij |x_i − x_j| = 2 Σ_i (2i − S − 1) x_(i) over the sorted draws
    factors = 2 * torch.arange(1, draws + 1, dtype=ordered.dtype, device=ordered.device) - draws - 1
    spread = (factors.view(-1, *[1] * targets.dim()) * ordered).sum(0) / draws**2
    return ((ordered - targets).abs().mean(0) - spread).mean()


def gaussian_terms(mean: Tensor, variance: Tensor, targets: Tensor) -> dict[str, Tensor]:
    """Check the arguments, and return NLL, CRPS, squared error and |z| = |y − m|/s of each target."""
    _check(targets, mean=mean, variance=variance)
    mean, variance = _wide(mean), _wide(variance)
    if not (variance > 0).all():
        raise InputError("the variance must be positive everywhere; a model without noise needs Gaussian(noise=...)")
    deviation = variance.sqrt()
    z = (targets - mean) / deviation
    density = torch.exp(-0.5 * z.square()) / math.sqrt(2 * math.pi)
    crps = deviation * (z * torch.special.erf(z / math.sqrt(2)) + 2 * density - 1 / math.sqrt(math.pi))
    nll = 0.5 * (variance.log() + z.square() + math.log(2 * math.pi))
    return {"nll": nll, "crps": crps, "square": (targets - mean).square(), "distance": z.abs(), "deviation": deviation}


def half_width(level: float) -> float:
    """Return the half width Φ⁻¹((1 + level)/2) of the central interval, in standard deviations."""
    if not 0 < level < 1:
        raise InputError(f"a level must lie between 0 and 1, got {level}")
    return NormalDist().inv_cdf((1 + level) / 2)


def _check(targets: Tensor, **parts: Tensor) -> None:
    for name, part in parts.items():
        if part.shape != targets.shape:
            raise ShapeMismatch(f"{name} has the shape {tuple(part.shape)} and targets {tuple(targets.shape)}")
        if not torch.isfinite(part).all():
            raise NonFinite(f"{name} has NaN or infinite values; check the model that made it")
    if not torch.isfinite(targets).all():
        raise NonFinite("the targets have NaN or infinite values; check the data")
    if not targets.numel():
        raise InputError("there are no examples to measure")


def _wide(values: Tensor) -> Tensor:
    """Return half precision and integers as float32, in which they are scored."""
    return values if values.is_floating_point() and values.dtype.itemsize >= 4 else values.float()
