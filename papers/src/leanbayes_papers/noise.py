"""Robustness to noise: how accurate and how unsure a predictor is when Gaussian noise is added to its inputs.

This is the experiment of VDP++, figures 1c and 3, which follows Dera et al. 2019. The paper does not say which signal
its signal-to-noise ratio refers to. Its code takes the variance of the values of each image, which is the default here.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError, NonFinite, ShapeMismatch, UnknownName
from leanbayes.likelihood import Categorical, Likelihood
from leanbayes.metrics.quality import accuracy
from leanbayes.prediction import Prediction, Predictor, predict
from leanbayes_papers.pruning import seeded

__all__ = ["SNRS", "NoiseCurve", "accuracy_under_noise", "add_noise", "noise_curve", "output_variance"]

SNRS = (-6.0, -3.0, 1.0, 5.0, 10.0, 20.0, 40.0)
"""Signal-to-noise ratios in decibels, as in the code of VDP++."""

Per = Literal["image", "set"]


@dataclass(frozen=True)
class NoiseCurve:
    """The score and the uncertainty of a predictor by signal-to-noise ratio, as means over the inputs.

    Args:
        snr: the signal-to-noise ratios in decibels.
        score: the accuracy, or the score that was asked for.
        variance: the variance of the predicted output over draws, see `output_variance`.
        total: the total uncertainty, as in `Prediction`.
        aleatoric: its aleatoric part.
        epistemic: its epistemic part.
    """

    snr: Tensor
    score: Tensor
    variance: Tensor
    total: Tensor
    aleatoric: Tensor
    epistemic: Tensor

    @property
    def normalised(self) -> Tensor:
        """The variance divided by that at the lowest ratio (VDP++, figure 3); NaN if the predictor has no variance."""
        return self.variance / self.variance[self.snr.argmin()]


def add_noise(x: Tensor, snr_db: float, *, per: Per = "image", generator: torch.Generator | None = None) -> Tensor:
    """Return x + n with n ~ N(0, s²) and 10 log₁₀(Var(x)/s²) = ``snr_db``. Values are not clipped.

    Args:
        x: inputs of shape (N, ...), floating point.
        snr_db: the signal-to-noise ratio in decibels; infinity adds no noise.
        per: "image" takes the variance of each image's own values, "set" that of the whole set. An image with the same
            value everywhere has no signal, so "image" gives it no noise.
        generator: the source of the noise, on the device of ``x``.

    >>> x = torch.randn(1, 100_000, generator=torch.Generator().manual_seed(0))
    >>> round(float((add_noise(x, 10.0) - x).var() / x.var()), 2)
    0.1
    """
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise InputError(
            f"noise needs a tensor of floating-point inputs, got {getattr(x, 'dtype', type(x).__name__)}; "
            "convert images first: x.float() / 255"
        )
    if per not in ("image", "set"):
        raise UnknownName.of("signal", per, ["image", "set"])
    if x.numel() == 0 or (per == "image" and (x.dim() < 2 or x[0].numel() < 2)):
        raise ShapeMismatch(
            f"inputs of shape {tuple(x.shape)} have no variance {'for each image' if per == 'image' else 'at all'}; "
            'give (N, ...) with several values each, or per="set"'
        )
    if not -math.inf < snr_db <= math.inf:
        raise InputError(f"snr_db must be a number of decibels or infinity, got {snr_db}")
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    if not torch.isfinite(wide).all():
        raise NonFinite("the inputs have NaN or infinite values; noise cannot be measured against them")
    if per == "image":
        power = wide.flatten(1).var(1, correction=0).view(-1, *[1] * (x.dim() - 1))
    else:
        power = wide.var(correction=0)
    noise = torch.randn(x.shape, dtype=wide.dtype, device=x.device, generator=generator)
    return (wide + noise * power.sqrt() * 10 ** (-snr_db / 20)).to(x.dtype)


def output_variance(samples: Tensor, *, classes: bool = True) -> Tensor:
    """Return the variance of a prediction over draws, one number for each input.

    For classes, (draws, N, C, ...), this is the variance of the probability of the most probable class, as in VDP++.
    For labels and real numbers it is the variance of each output. The result is the mean over the pixels, labels or
    outputs of an input. With one draw the variance is 0.

    >>> output_variance(torch.tensor([[[0.9, 0.1]], [[0.7, 0.3]]]))
    tensor([0.0200])
    """
    if samples.dim() < (3 if classes else 2):
        raise ShapeMismatch(
            f"need draws of shape (draws, N, {'C, ' if classes else ''}...), got {tuple(samples.shape)}"
        )
    wide = samples.to(torch.promote_types(samples.dtype, torch.float32))
    variance = wide.var(0) if len(wide) > 1 else torch.zeros_like(wide[0])
    if classes:
        variance = variance.gather(1, wide.mean(0).argmax(1, keepdim=True))
    return variance.flatten(1).mean(1) if variance.dim() > 1 else variance


def noise_curve(
    predictor: nn.Module | Callable[[Tensor], Prediction],
    x: Tensor,
    y: Tensor,
    snrs: Sequence[float] = SNRS,
    *,
    likelihood: Likelihood | None = None,
    samples: int = 32,
    by: str | None = None,
    per: Per = "image",
    score: Callable[[Tensor, Tensor], Tensor] = accuracy,
    batch_size: int | None = None,
    seed: int = 0,
) -> NoiseCurve:
    """Measure score, output variance and uncertainty against the signal-to-noise ratio (VDP++, figures 1c and 3).

    With the same ``seed`` the noise differs only in scale between ratios and not at all between predictors. So
    predictors can be compared pair by pair.

    Args:
        predictor: whatever `predict` takes, or a function of a batch that returns a `Prediction` with its samples.
        x: inputs of shape (N, ...).
        y: their targets.
        snrs: signal-to-noise ratios in decibels.
        likelihood: the meaning of the outputs; `Categorical` by default.
        samples: how many draws each prediction averages.
        by: another propagation than the one with which the `Bayesian` predicts, such as "moments" for VDP++.
        per: see `add_noise`.
        score: a function of predicted means and targets, such as the RMSE for real numbers.
        batch_size: how many inputs are predicted at a time; None predicts all at once.
        seed: the seed of the noise and of the draws.

    >>> x = torch.eye(3).repeat(50, 1)
    >>> curve = noise_curve(nn.Identity(), x, x.argmax(1), (-6.0, 60.0))
    >>> bool(curve.score[0] < curve.score[1] == 1)
    True
    """
    likelihood = likelihood or Categorical()
    if not len(snrs):
        raise InputError("give at least one signal-to-noise ratio")
    if len(x) != len(y):
        raise ShapeMismatch(f"{len(x)} inputs have {len(y)} targets")
    if batch_size is not None and batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {batch_size}")
    random = isinstance(predictor, Bayesian | Predictor)

    def predicted(batch: Tensor, source: torch.Generator) -> Prediction:
        if not isinstance(predictor, nn.Module):
            return predictor(batch)
        return predict(
            predictor,
            batch,
            likelihood=likelihood,
            samples=samples if random else 1,
            by=by,
            keep_samples=True,
            generator=source,
        )

    columns: list[list[float]] = []
    for snr in snrs:
        noisy = add_noise(x, snr, per=per, generator=torch.Generator(device=x.device).manual_seed(seed))
        source, predictions = seeded(predictor, seed), []
        variances: list[Tensor] = []
        for part in noisy.split(batch_size or len(noisy)):
            prediction = predicted(part, source)
            if prediction.samples is None:
                raise InputError(
                    "the prediction has no samples to take the variance of; use predict(..., keep_samples=True)"
                )
            variances.append(output_variance(prediction.samples, classes=prediction.mean.dim() > y.dim()))
            predictions.append((prediction.mean, prediction.total, prediction.aleatoric, prediction.epistemic))
        mean, *uncertainties = (torch.cat(parts) for parts in zip(*predictions, strict=True))
        values = [score(mean, y.to(mean.device)), torch.cat(variances).double().mean()]
        columns.append([float(snr), *(float(v) for v in values), *(float(u.double().mean()) for u in uncertainties)])
    return NoiseCurve(*torch.tensor(columns, dtype=torch.float64).unbind(1))


def accuracy_under_noise(
    predictor: nn.Module | Callable[[Tensor], Prediction],
    x: Tensor,
    y: Tensor,
    snr_db: float = -6.0,
    *,
    likelihood: Likelihood | None = None,
    samples: int = 32,
    by: str | None = None,
    batch_size: int | None = None,
    seed: int = 0,
) -> float:
    """Return the accuracy at one signal-to-noise ratio, by default the −6 dB of VDP++, figure 1c; see `noise_curve`.

    >>> accuracy_under_noise(nn.Identity(), torch.eye(3), torch.arange(3), 60.0)
    1.0
    """
    curve = noise_curve(
        predictor,
        x,
        y,
        (snr_db,),
        likelihood=likelihood,
        samples=samples,
        by=by,
        batch_size=batch_size,
        seed=seed,
    )
    return curve.score.item()
