"""Referral: which inputs the machine decides alone, such that its errors among them are at most a share."""

import math
from collections.abc import Iterable
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from leanbayes._calls import Inputs
from leanbayes.baselines import PREDICTORS
from leanbayes.conformal.base import Conformal, Samples
from leanbayes.conformal.binomial import at_most, clopper_pearson
from leanbayes.conformal.class_indices import class_indices
from leanbayes.conformal.quantiles import check_level
from leanbayes.conformal.testing import fallback
from leanbayes.errors import InputError, ShapeMismatch, UnknownName
from leanbayes.likelihood import Categorical, Likelihood
from leanbayes.prediction import Prediction

__all__ = ["Referral"]

_BY = ("confidence", "total", "aleatoric", "epistemic")
_STEPS = 61
GRID = torch.logspace(-6, 0, _STEPS, dtype=torch.float64)
"""The thresholds of uncertainty among which a calibration chooses. They are fixed in advance, as the tests ask."""


@PREDICTORS.register
class Referral(Conformal):
    """A rule that refers unsure inputs to a person.

    With probability at least ``confidence`` over the calibration examples, the error rate among the inputs that are not
    referred is at most ``error``. At each of 61 fixed thresholds of uncertainty the exact binomial test asks whether
    the errors among the calibration examples below it are too few for a higher rate, and the errors of all tests add up
    to at most 1 − confidence (learn then test, Angelopoulos et al. 2022). The rule takes the highest threshold that
    passes. If none does, it refers every input.

    Args:
        predictor: a plain module, a `Bayesian` or another `Predictor` of classes.
        error: the largest error rate among what the machine decides alone.
        confidence: how sure the guarantee is.
        by: what the uncertainty of an input is: "confidence" for 1 − the highest probability, or "total", "aleatoric"
            or "epistemic" in parts of log(classes).
        likelihood: what the outputs mean; `Categorical` by default.
        samples: how many draws each prediction averages.
        seed: decides the draws.
    """

    question: ClassVar[str] = "refers(x)"
    deciding: ClassVar[tuple[str, ...]] = ("error", "confidence", "by")
    record: Tensor  # the threshold, and how many of the calibration examples were kept, wrong and there

    def __init__(
        self,
        predictor: nn.Module,
        error: float = 0.05,
        confidence: float = 0.95,
        *,
        by: Literal["confidence", "total", "aleatoric", "epistemic"] = "confidence",
        likelihood: Likelihood | None = None,
        samples: Samples = 32,
        seed: int = 0,
    ) -> None:
        super().__init__(predictor, Categorical() if likelihood is None else likelihood, samples, seed)
        self.error, self.confidence = check_level(error, "error"), check_level(confidence, "confidence")
        if by not in _BY:
            raise UnknownName.of("uncertainty", by, _BY)
        self.by = by
        self.register_buffer("record", torch.zeros(0, dtype=torch.float64))

    @property
    def fewest(self) -> int:
        """How many calibration examples a threshold needs at least, even if none of them is wrong."""
        part = (1 - self.confidence) / len(GRID)
        return math.ceil(math.log(part) / math.log1p(-self.error))

    @property
    def threshold(self) -> float:
        """The uncertainty above which an input is referred; −1 if every input is."""
        self._check()
        return self.record[0].item()

    @property
    def share_referred(self) -> float:
        """The share of the calibration examples that is referred."""
        self._check()
        return 1 - (self.record[1] / self.record[3]).item()

    def share_interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return the interval of Clopper and Pearson for the share of all inputs that is referred."""
        self._check()
        kept, _, count = (int(number) for number in self.record[1:].tolist())
        return clopper_pearson(count - kept, count, confidence)

    @torch.no_grad()
    def calibrate(self, loader: Iterable[Any]) -> Self:
        """Find the threshold from examples that the predictor was not trained on, and return the predictor itself.

        Args:
            loader: batches (inputs, class indices).
        """
        kept = torch.zeros(len(GRID), dtype=torch.int64)
        wrong, count = torch.zeros_like(kept), 0
        for x, y in self._batches(loader):
            prediction = self.prediction(x)
            doubt = self._doubt(prediction)
            needs = f"referral needs one class index for each of {len(doubt)} inputs"
            labels, counted = class_indices(y, self.likelihood, prediction.mean, doubt.shape, needs)
            below = (doubt[:, None] <= GRID.to(doubt.device)) & counted[:, None]
            failed = (prediction.mean.argmax(1) != labels)[:, None]
            kept, wrong = kept.to(doubt.device) + below.sum(0), wrong.to(doubt.device) + (below & failed).sum(0)
            count += int(counted.sum())
        if count < self.fewest:
            raise InputError(
                f"an error of at most {self.error:g} with confidence {self.confidence:g} needs at least {self.fewest} "
                f"calibration examples, got {count}; give more of them, or ask for less"
            )
        pairs = list(zip(wrong.tolist(), kept.tolist(), strict=True))
        p_values = [at_most(failures, number, self.error) if number else 1.0 for failures, number in pairs]
        passing = [place for place, passes in enumerate(fallback(p_values, 1 - self.confidence)) if passes]
        chosen = (GRID[passing[-1]].item(), *pairs[passing[-1]][::-1]) if passing else (-1.0, 0, 0)
        self.record = torch.tensor([*chosen, count], dtype=torch.float64, device=kept.device)
        self._trust()
        return self

    @torch.no_grad()
    def refers(self, x: Inputs) -> Tensor:
        """Return which inputs a person should decide, as booleans (N,)."""
        self._check()
        return self._doubt(self.prediction(x)) > self.record[0]

    def config(self) -> dict[str, Any]:
        """Return the settings."""
        return super().config() | {"error": self.error, "confidence": self.confidence, "by": self.by}

    def extra_repr(self) -> str:
        """Describe the settings."""
        return f"error={self.error:g}, confidence={self.confidence:g}, by={self.by!r}, calibrated={self.calibrated}"

    def _doubt(self, prediction: Prediction) -> Tensor:
        if prediction.mean.dim() != 2 or not isinstance(self.likelihood, Categorical):
            raise ShapeMismatch(
                f"referral needs predictions of classes, (N, classes), got shape {tuple(prediction.mean.shape)}"
            )
        if prediction.mean.shape[1] < 2:
            raise ShapeMismatch("referral needs at least two classes, because one class leaves no doubt")
        if self.by == "confidence":
            return 1 - prediction.mean.double().amax(1)
        doubt: Tensor = getattr(prediction, self.by)
        return doubt.double() / math.log(prediction.mean.shape[1])
