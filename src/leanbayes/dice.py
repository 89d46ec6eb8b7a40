"""The Dice loss as a term beside the likelihood, for segmentations of small structures.

The Dice loss is no likelihood: it is the negative logarithm of no distribution of the masks. A loss with this term is
therefore no bound on the evidence any more, the posterior that minimises it is not the Bayesian one, and probabilities
tend to be surer than they should be. It is here because it finds small structures that the likelihood alone may miss.
Calibrate what it trains, and judge it by its negative log-likelihood too.
"""

from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from leanbayes.errors import InputError
from leanbayes.likelihood import Likelihood
from leanbayes.likelihood.base import draw_outputs, wide

__all__ = ["DiceTerm", "LikelihoodWithDice", "dice_loss", "require_masks"]


@dataclass(frozen=True)
class DiceTerm:
    """How the Dice loss stands beside the likelihood: `leanbayes.Terms` takes one as ``dice``.

    With P pixels that count in an example, the loss of the example is −log p(y | x, w) + weight · P · DiceLoss. The
    likelihood is a sum over pixels, so the factor P makes ``weight`` what is usual elsewhere: with ``weight=1`` the
    loss is P times the "DiceCE" loss of MONAI and nnU-Net, the mean cross-entropy of a pixel plus the Dice loss.

    Args:
        weight: the weight of the Dice loss against the mean negative log-likelihood of a pixel.
        background: whether class 0 of several classes is one of the classes whose Dice is averaged.
        smooth: is added to the numerator and to the denominator, so that a class without a pixel has a finite loss.

    >>> DiceTerm(0.5).weight
    0.5
    """

    weight: float = 1.0
    background: bool = False
    smooth: float = 1e-5

    def __post_init__(self) -> None:
        if not (isfinite(self.weight) and self.weight >= 0):
            raise InputError(f"dice, the weight of the Dice loss, must be finite and at least 0, got {self.weight}")
        if not (isfinite(self.smooth) and self.smooth > 0):
            raise InputError(f"smooth must be a positive finite number, got {self.smooth}")


def dice_loss(
    output: Any, target: Tensor, likelihood: Likelihood, *, background: bool = False, smooth: float = 1e-5
) -> Tensor:
    """Compute the soft Dice loss 1 − (2 Σ p y + s) / (Σ p + Σ y + s) of each example, averaged over its classes.

    Args:
        output: the outputs of a network, such as logits (N, C, H, W).
        target: the masks, as the likelihood takes them.
        likelihood: `Categorical` or `Bernoulli`, which says what the probabilities are and which pixels count.
        background: whether class 0 of several classes is averaged too. The labels of `Bernoulli` have no background.
        smooth: s.

    Returns:
        One number for each example, (N,).

    >>> from leanbayes.likelihood import Categorical
    >>> sure = torch.tensor([[[[9.0, -9.0]], [[-9.0, 9.0]]]])
    >>> bool(dice_loss(sure, torch.tensor([[[0, 1]]]), Categorical()) < 1e-4)
    True
    """
    require_masks(likelihood, target)
    likelihood.nll(output.detach(), target)  # raises if outputs and targets do not fit
    return _soft_dice(output, target, likelihood, background, smooth)


def require_masks(likelihood: Likelihood, target: Tensor) -> None:
    """Raise unless the targets are masks of classes or labels, which alone have a Dice."""
    if not likelihood.has_logits:
        raise InputError(
            f"the Dice loss needs probabilities of classes, and {type(likelihood).__name__} has none; leave dice out"
        )
    if likelihood.kind(target) != "pixels":
        raise InputError(
            f"the Dice loss compares masks, and the targets have the shape {tuple(target.shape)}, without pixels; "
            "leave dice out"
        )


def _soft_dice(output: Tensor, target: Tensor, likelihood: Likelihood, background: bool, smooth: float) -> Tensor:
    p = likelihood.predictive(wide(output))
    y, _ = likelihood.as_probabilities(target if target.is_floating_point() else target.long(), p)
    counted = likelihood.counted(target)
    several = p.shape != target.shape  # classes along axis 1, of which the first is the background
    counted = counted.unsqueeze(1) if several else counted
    p, y = (part * counted.to(p.dtype) for part in (p, y))
    if several and not background:
        if p.shape[1] < 2:
            raise InputError(f"one class is no foreground, got probabilities of shape {tuple(p.shape)}")
        p, y = p[:, 1:], y[:, 1:]
    p, y = p.flatten(2), y.flatten(2)
    overlap, size = (p * y).sum(2), p.sum(2) + y.sum(2)
    return (1 - (2 * overlap + smooth) / (size + smooth)).mean(1)


class LikelihoodWithDice:
    """A likelihood with a Dice term for one loss: it scores outputs as `leanbayes.propagate` asks for.

    Args:
        likelihood: the likelihood.
        term: the Dice term.
    """

    def __init__(self, likelihood: Likelihood, term: DiceTerm) -> None:
        self.likelihood, self.term = likelihood, term
        self.penalties: list[Tensor] = []
        self.closed_form = likelihood.closed_form

    @property
    def draws_outputs(self) -> bool:
        """Whether expected scores are means over draws of the outputs."""
        return self.likelihood.draws_outputs

    def penalty(self) -> Tensor:
        """Return the Dice term of one example: the mean over all outputs that were scored."""
        return torch.stack(self.penalties).mean()

    def nll(self, output: Any, target: Tensor) -> Tensor:
        """Return −log p(target | output) plus the Dice term, summed over the batch."""
        return self.likelihood.nll(output, target) + self._penalty(output, target) * len(target)

    def expected_nll(
        self, mean: Any, variance: Any, target: Tensor, *, samples: int = 1, generator: torch.Generator | None = None
    ) -> Tensor:
        """Return the expectation over Gaussian outputs; that of the Dice term is a mean over ``samples`` draws."""
        expected = self.likelihood.expected_nll(mean, variance, target, samples=samples, generator=generator)
        drawn = [self._penalty(draw_outputs(mean, variance, generator), target) for _ in range(samples)]
        return expected + torch.stack(drawn).mean() * len(target)

    def spread_outputs(self, mean: Any, variance: Any, points: int) -> Any:
        """Yield what the likelihood yields."""
        return self.likelihood.spread_outputs(mean, variance, points)

    def uncertainty_of_outputs(self, outputs: Any, points: int) -> Any:
        """Return what the likelihood returns."""
        return self.likelihood.uncertainty_of_outputs(outputs, points)

    def uncertainty_of_moments(self, mean: Any, variance: Any, points: int) -> Any:
        """Return what the likelihood returns."""
        return self.likelihood.uncertainty_of_moments(mean, variance, points)

    def _penalty(self, output: Any, target: Tensor) -> Tensor:
        """Return weight · P · DiceLoss as the mean over examples, and remember it."""
        term = self.term
        require_masks(self.likelihood, target)
        losses = _soft_dice(output, target, self.likelihood, term.background, term.smooth)
        pixels = self.likelihood.counted(target).sum() / len(target)
        self.penalties.append(term.weight * pixels * losses.mean())
        return self.penalties[-1]
