"""What the validation set decides after natural gradients: the width of the posterior, and a temperature or a noise.

Training gives the posterior N(m, 1/(λ(h + δ))) for one λ, the effective number of examples. Multiplying every scale by
a width w is the posterior of λ/w² examples around the same means, so the search over w is a search over λ that needs no
second training. For each width, one pass over the validation set also gives the best temperature of the logits or, for
numbers, the best factor of the noise that the network predicts, or the best noise where it is one learned number.

Width and temperature have a weak prior around 1: a factor of two costs half a nat in all. It decides nothing where the
validation set has hundreds of examples. Where it has few, and all of them are right, the likelihood alone would make
the predictions ever surer.

For classes, labels and pixels the choice is not always the width with the least NLL. If predictions are too sure
there, logits are divided by a temperature above 1, which changes familiar and unfamiliar inputs alike. A wider
posterior makes the predictions less sure too, but above all those for unfamiliar inputs. So the posterior is made wider
instead, as long as the best temperature falls by it, but not below 1, and the NLL stays within half a percent of the
least.

A pass of moments without correlations (``rank=0``) costs little more than half of one with them. It is taken unless the
NLL of the other one is lower by more than half a percent.

Both rules were tried together, against the least NLL and passes with correlations, in trials that no command repeats.
Networks were trained on 10,000 images of Fashion-MNIST and judged on 10,000 other training images, with images of MNIST
as unfamiliar ones. Five LeNet-5 kept their NLL of 0.310 on average, and the AUROC rose from 0.805 to 0.809, by the
epistemic part from 0.889 to 0.896. For two networks with batch norm the NLL rose from 0.271 to 0.272, and the AUROC
from 0.864 to 0.865, by the epistemic part from 0.908 to 0.919.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from leanbayes._calls import split_batch
from leanbayes.baselines import rescaling_for
from leanbayes.bayesian import Bayesian
from leanbayes.evaluation import evaluate
from leanbayes.likelihood import Gaussian, Likelihood
from leanbayes.optim import random_tensors
from leanbayes.prediction import predict
from leanbayes.propagate import Moments

__all__ = ["Calibration", "calibrate", "calibrate_one_pass"]

_STEP = 2**0.25  # from one width to the next
_STRIDE = 2  # steps at a time in the search for the least NLL
_PRIOR = math.log(2)  # the standard deviation of log w and log T
_FARTHEST = 8  # steps in either direction: widths from 1/4 to 4
_TOLERANCE = 0.005  # the share of the least NLL that a wider posterior, or a cheaper pass, may cost


@dataclass(frozen=True)
class Calibration:
    """What the validation set decided.

    Attributes:
        width: the factor of every scale.
        rescaling: the number that logits are divided by, or the factor of the predicted noise; None where the
            likelihood has neither.
        noise: the standard deviation of the noise; None where the likelihood has no learned one.
        nll: the mean negative log-likelihood of the validation set with both.
        cost: the summed one and what the prior adds to it, by which widths are compared.
    """

    width: float
    rescaling: float | None
    nll: float
    cost: float
    noise: float | None = None

    @torch.no_grad()
    def applied(self, bnn: Bayesian, likelihood: Likelihood) -> nn.Module:
        """Scale the posterior and set the noise in place, and return the predictor with the rescaling on top."""
        widen(bnn, self.width)
        if self.noise is not None:
            assert isinstance(likelihood, Gaussian)
            likelihood.log_variance.fill_(2 * math.log(self.noise))
        rescaling = rescaling_for(likelihood)
        if self.rescaling is None or rescaling is None:
            return bnn
        return rescaling.by(bnn, self.rescaling)


def calibrate_one_pass(bnn: Bayesian, batches: Iterable[Any], likelihood: Likelihood, seed: int = 0) -> Calibration:
    """Choose as `calibrate` does for a network that predicts by moments, and choose the cheaper pass if it is as good.

    The network's ``predict_by`` is then the pass that was chosen.
    """
    if not likelihood.has_logits:
        return calibrate(bnn, batches, likelihood, seed)
    with_correlations, without = Moments(), Moments(rank=0)
    bnn.predict_by = without
    chosen = calibrate(bnn, batches, likelihood, seed)
    bnn.predict_by = with_correlations
    other = _at_width(bnn, batches, likelihood, chosen.width, seed)
    if other.nll * (1 + _TOLERANCE) < chosen.nll:
        return calibrate(bnn, batches, likelihood, seed)
    bnn.predict_by = without
    return chosen


def calibrate(bnn: Bayesian, batches: Iterable[Any], likelihood: Likelihood, seed: int = 0) -> Calibration:
    """Choose the width, each with its own best temperature; leave the network as it was.

    The search for the least validation NLL starts at width 1 and walks in the direction that lowers it, in steps of √2,
    until it rises. For likelihoods of logits it then walks to wider posteriors, in steps of the fourth root of 2, as
    long as the temperature falls, but not below 1, and the NLL stays within half a percent of the least.

    Args:
        bnn: the trained network.
        batches: the validation set, which is passed through once for each width.
        likelihood: what the outputs mean.
        seed: decides the draws of a network that predicts by draws. All widths get the same draws, which makes them
            easier to compare, and the result repeatable.
    """
    known: dict[int, Calibration] = {}

    def at(steps: int) -> Calibration:
        if steps not in known:
            known[steps] = _at_width(bnn, batches, likelihood, _STEP**steps, seed)
        return known[steps]

    best = at(_least(at))
    if not likelihood.has_logits:
        return best
    widest = best
    for steps in range(_least(at) + 1, _FARTHEST + 1):
        wider = at(steps)
        in_its_place = 1 <= (wider.rescaling or 0) < (widest.rescaling or 0)
        if not in_its_place or wider.nll > (1 + _TOLERANCE) * best.nll:
            break
        widest = wider
    return widest


def _least(at: Callable[[int], Calibration]) -> int:
    """Return how many steps from width 1 the cost is least."""
    best = 0
    for direction in (-_STRIDE, _STRIDE):
        while abs(best + direction) <= _FARTHEST and at(best + direction).cost < at(best).cost:
            best += direction
        if best:
            break  # a lower cost on one side: the other side is higher
    return best


@torch.no_grad()
def widen(bnn: Bayesian, width: float) -> None:
    """Multiply the scale of every random weight by a number."""
    for tensor in random_tensors(bnn):
        tensor.set_scale(tensor.scale() * width)


def _at_width(bnn: Bayesian, batches: Iterable[Any], likelihood: Likelihood, width: float, seed: int) -> Calibration:
    generator = torch.Generator(next(bnn.parameters()).device).manual_seed(seed)
    raw = [(tensor.rho, tensor.rho.detach().clone()) for tensor in random_tensors(bnn)]
    widen(bnn, width)
    penalty = 0.5 * (math.log(width) / _PRIOR) ** 2
    try:
        if (rescaling := rescaling_for(likelihood)) is not None:
            fitted = rescaling.fit(bnn, batches, likelihood, prior=_PRIOR, generator=generator)
            assert fitted.validation_nll is not None
            penalty += 0.5 * (math.log(fitted.number) / _PRIOR) ** 2
            nll, count = fitted.validation_nll, fitted.validation_targets
            return Calibration(width, fitted.number, nll, nll * count + penalty)
        if isinstance(likelihood, Gaussian) and likelihood.learned:
            noise, nll, count = _best_noise(bnn, batches, likelihood, generator)
            return Calibration(width, None, nll, nll * count + penalty, noise)
        scores = evaluate(bnn, batches, likelihood=likelihood, generator=generator)
        return Calibration(width, None, scores.metrics["nll"], scores.metrics["nll"] * scores.examples + penalty)
    finally:
        with torch.no_grad():
            for rho, before in raw:
                rho.copy_(before)


def _best_noise(
    bnn: Bayesian, batches: Iterable[Any], likelihood: Gaussian, generator: torch.Generator
) -> tuple[float, float, int]:
    """Return the noise s that minimises the NLL of N(m, v + s²), with the mean NLL and the number of examples.

    The search is over a fine grid of log s, because the NLL may have more than one valley.
    """
    squares, variances = [], []
    for batch in batches:
        x, y = split_batch(batch)
        prediction = predict(bnn, x, likelihood=likelihood, generator=generator)
        squares.append((y.to(prediction.mean) - prediction.mean).square().double())
        variances.append(prediction.epistemic.double())
    square, variance = torch.cat(squares), torch.cat(variances)
    largest = square.mean().clamp_min(1e-30).sqrt()
    grid = largest * torch.logspace(-2, 0.5, 251, dtype=torch.float64, device=square.device)
    totals = [variance + noise.square() for noise in grid]
    nll = torch.stack([0.5 * (square / total + (2 * math.pi * total).log()).sum() / len(square) for total in totals])
    best = int(nll.argmin())
    return float(grid[best]), float(nll[best]), len(square)
