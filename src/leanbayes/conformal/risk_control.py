"""Masks, or sets of labels, whose expected loss is at most a level."""

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn

from leanbayes._calls import Inputs
from leanbayes.baselines import PREDICTORS
from leanbayes.conformal.base import Conformal, Samples
from leanbayes.conformal.class_indices import class_indices
from leanbayes.conformal.class_scores.score import describe_score, restore_score
from leanbayes.conformal.mean_losses import MeanLosses
from leanbayes.conformal.quantiles import check_level
from leanbayes.conformal.risks import RISKS, FalsePositives, Risk, as_risk
from leanbayes.conformal.testing import hoeffding_bentkus
from leanbayes.errors import InputError, ShapeMismatch, UnknownName
from leanbayes.likelihood import Categorical, Likelihood
from leanbayes.metrics.nested_masks import GRID, count_masks
from leanbayes.prediction import Prediction

__all__ = ["RiskControl"]

_BY = ("probability", "total", "aleatoric", "epistemic")
_TESTED = slice(64, -64, 16)  # of the grid: the thresholds that are tested where a loss is not monotone


@PREDICTORS.register
class RiskControl(Conformal):
    """Masks of a lesion, or sets of labels, whose expected loss on a new case is at most ``level``.

    Masks grow as a threshold falls. Conformal risk control (Angelopoulos et al. 2024) takes the threshold at which
    (Σ losses + 1)/(n + 1) over n calibration cases is at most the level. The expectation is then over calibrations too:
    one calibration may have a somewhat higher risk. With ``confidence``, the expected loss is tested at fixed
    thresholds instead (learn then test, Angelopoulos et al. 2022), and the risk of a calibration exceeds the level with
    probability at most 1 − confidence. Losses that may fall and rise as masks grow, such as Dice, need that.

    Args:
        predictor: a plain module, a `Bayesian` or another `Predictor` of pixels or labels.
        risk: "false_negatives" (the share of the lesion that the mask misses), "missed_lesions" (the share of lesions),
            "false_positives", "dice", or a `Risk`.
        level: the largest expected loss.
        by: what a pixel must reach to be marked: a "probability" of the foreground; or an uncertainty, "total",
            "aleatoric" or "epistemic", where pixels of the foreground are marked anyway.
        foreground: the class that masks mark; None for all classes but class 0. Without meaning for labels.
        inner: the largest expected loss of the inner masks of `nested`, in false positives; None for no inner masks.
        confidence: the share of calibrations whose risk must be at most the level; None for risk control in
            expectation, which marks less.
        likelihood: what the outputs mean; `Categorical` by default.
        samples: how many draws each prediction averages.
        seed: decides the draws.

    >>> logits = torch.randn(40, 2, 8, 8, generator=torch.Generator().manual_seed(0)) * 3
    >>> control = RiskControl(nn.Identity(), level=0.1).calibrate([(logits, logits.argmax(1))])
    >>> bool(control.masks(logits)[logits.argmax(1) == 1].double().mean() >= 0.9)
    True
    """

    question: ClassVar[str] = "masks(x)"
    deciding: ClassVar[tuple[str, ...]] = ("risk", "level", "by", "foreground", "inner", "confidence")
    thresholds: Tensor

    def __init__(
        self,
        predictor: nn.Module,
        risk: Risk | str = "false_negatives",
        level: float = 0.1,
        *,
        by: Literal["probability", "total", "aleatoric", "epistemic"] = "probability",
        foreground: int | None = None,
        inner: float | None = None,
        confidence: float | None = None,
        likelihood: Likelihood | None = None,
        samples: Samples = 32,
        seed: int = 0,
    ) -> None:
        super().__init__(predictor, Categorical() if likelihood is None else likelihood, samples, seed)
        if not self.likelihood.has_logits:
            raise InputError(f"masks need classes or labels, and {type(self.likelihood).__name__} has numbers")
        self.risk, self.level = as_risk(risk), check_level(level)
        if by not in _BY:
            raise UnknownName.of("threshold", by, _BY)
        self.by, self.foreground = by, foreground
        self.inner = None if inner is None else check_level(inner, "inner")
        if self.inner is not None and self.risk.as_masks_grow != "falls":
            raise InputError(f"inner masks need a risk that falls as masks grow, and {self.risk} does not")
        self.confidence = None if confidence is None else check_level(confidence, "confidence")
        if self.confidence is None and self.risk.as_masks_grow is None:
            raise InputError(
                f"{self.risk} may fall and rise as masks grow, so it can only be bounded with a confidence; give "
                "confidence=0.9"
            )
        self.cases = 0
        self.register_buffer("thresholds", torch.zeros(0, dtype=torch.float64))

    @property
    def threshold(self) -> float:
        """What a pixel must reach to be marked."""
        self._check()
        return self.thresholds[0].item()

    @torch.no_grad()
    def calibrate(self, loader: Iterable[Any], *, patients: Sequence[Any] | Tensor | None = None) -> Self:
        """Find the threshold from cases that the predictor was not trained on, and return the predictor itself.

        Pixels are counted batch by batch, so the memory does not grow with the number of pixels or cases.

        Args:
            loader: batches (inputs, masks or labels).
            patients: the patient of each case, in the order of the loader. The loss of a patient is the mean over the
                patient's cases, and the guarantee is over patients. Otherwise each case counts by itself.
        """
        losses, spills = MeanLosses(patients), MeanLosses(patients)
        for x, y in self._batches(loader):
            prediction = self.prediction(x)
            truth, counted = self._truth(prediction, y)
            masks = count_masks(self._scores(prediction), truth, counted)
            losses.add(self.risk.losses(masks))
            if self.inner is not None:
                spills.add(FalsePositives().losses(masks))
        chosen = [self._threshold(losses, self.risk, self.level)]
        if self.inner is not None:
            spill = self._threshold(spills, FalsePositives(), self.inner)
            chosen.append(torch.maximum(spill, chosen[0]))  # an inner mask lies in the outer one
        self.thresholds = torch.stack(chosen)
        self.cases = losses.count
        self._trust()
        return self

    def _threshold(self, losses: MeanLosses, risk: Risk, level: float) -> Tensor:
        means, count = losses.means(), losses.count
        grid = GRID.to(means.device)
        if risk.as_masks_grow is None:
            return self._tested(means, count, risk, level, grid)
        if self.confidence is not None:
            return self._in_order(means, count, risk, level, grid, 1 - self.confidence)
        needed = math.ceil(1 / level - 1 - 1e-9)
        if count < needed:
            raise InputError(
                f"a risk of at most {level:g} needs at least {needed} calibration cases (or patients), got {count}; "
                "give more of them, or allow a higher risk"
            )
        allowed = (means * count + 1) / (count + 1) <= level * (1 + 1e-12)
        falls = risk.as_masks_grow == "falls"  # the safest masks hold every pixel, or else none
        safe = int((allowed if falls else allowed.flip(0)).long().cumprod(0).sum())
        self._require_safe(safe, means, risk, level, falls)
        return grid[safe - 1 if falls else len(grid) - safe]

    def _require_safe(self, safe: int, means: Tensor, risk: Risk, level: float, falls: bool) -> None:
        """Raise if not even the masks that lose least lose little enough. The risks of this package then lose 0."""
        if not safe:
            raise InputError(
                f"masks that hold {'every pixel' if falls else 'no pixel'} have a mean loss {risk.name!r} of "
                f"{means[0 if falls else -1].item():.3f}, which is too much for the level {level:g}; allow a higher "
                "risk"
            )

    def _in_order(self, means: Tensor, count: int, risk: Risk, level: float, grid: Tensor, error: float) -> Tensor:
        """Test the thresholds from the safest one on, each at the whole error, until the first that does not pass.

        The expected loss grows along this order. So if the first threshold with too high a risk is not passed, no later
        one is, and one test at the error is all that can go wrong.
        """
        falls = risk.as_masks_grow == "falls"
        needed = math.ceil(math.log(error) / math.log1p(-level))
        if count < needed:
            raise InputError(
                f"a risk of at most {level:g} with confidence {1 - error:g} needs at least {needed} calibration cases "
                f"(or patients), got {count}; give more of them, or ask for less"
            )
        ordered = means if falls else means.flip(0)
        # The means do not fall along this order, nor do their p-values, so bisection finds the last that passes.
        passed = bisect_right(ordered.tolist(), error, key=lambda mean: hoeffding_bentkus(mean, count, level))
        self._require_safe(passed, means, risk, level, falls)
        last = passed - 1
        return grid[last if falls else len(grid) - 1 - last]

    def _tested(self, means: Tensor, count: int, risk: Risk, level: float, grid: Tensor) -> Tensor:
        """Test each of some fixed thresholds at its part of the error, and return the best of those that pass."""
        assert self.confidence is not None
        means, candidates = means[_TESTED], grid[_TESTED]
        error = (1 - self.confidence) / len(candidates)
        passing = [hoeffding_bentkus(mean, count, level) <= error for mean in means.tolist()]
        if not any(passing):
            raise InputError(
                f"no threshold has an expected loss {risk.name!r} of at most {level:g} with confidence "
                f"{self.confidence:g}: the lowest mean over {count} cases is {means.min().item():.3f}; allow a "
                "higher risk, give more cases, or improve the model"
            )
        chosen = means.where(torch.tensor(passing, device=means.device), torch.inf).argmin()
        return candidates[chosen]

    @torch.no_grad()
    def masks(self, x: Inputs) -> Tensor:
        """Return which pixels, or labels, are marked, as booleans of the shape of the targets."""
        self._check()
        return self._scores(self.prediction(x)) >= self.thresholds[0]

    @torch.no_grad()
    def nested(self, x: Inputs) -> tuple[Tensor, Tensor]:
        """Return the inner and the outer masks: two contours, between which the true one lies but for the risks."""
        self._check()
        if self.inner is None:
            raise InputError("nested masks need a level for the inner ones; give RiskControl(..., inner=0.1)")
        scores = self._scores(self.prediction(x))
        return scores >= self.thresholds[1], scores >= self.thresholds[0]

    @torch.no_grad()
    def masks_of(self, prediction: Prediction) -> dict[str, Tensor]:
        """Return the masks of a prediction that is at hand: "outer", and "inner" if inner masks were asked for.

        Args:
            prediction: what the predictor inside predicts, or its average over windows of a large image.
        """
        self._check()
        scores = self._scores(prediction)
        names = ("outer", "inner")[: len(self.thresholds)]
        return {name: scores >= threshold for name, threshold in zip(names, self.thresholds, strict=True)}

    @torch.no_grad()
    def losses(self, x: Inputs, y: Tensor) -> Tensor:
        """Return the loss of each case of a batch at the threshold, (N,)."""
        return self.losses_and_shares(x, y)[0]

    @torch.no_grad()
    def losses_and_shares(self, x: Inputs, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of each case of a batch, and the share of its pixels (or labels) that is marked, (N,) each.

        Pixels that do not count are left out. A case without any that counts has the share 0.
        """
        self._check()
        prediction = self.prediction(x)
        truth, counted = self._truth(prediction, y)
        masks = count_masks(self._scores(prediction), truth, counted)
        place = int(torch.searchsorted(GRID.to(self.thresholds.device), self.thresholds[0]))
        marked = (masks.right + masks.wrong)[:, place] / counted.flatten(1).sum(1).clamp_min(1).double()
        return self.risk.losses(masks)[:, place], marked

    def config(self) -> dict[str, Any]:
        """Return the settings."""
        return super().config() | {
            "risk": describe_score(self.risk, RISKS),
            "level": self.level,
            "by": self.by,
            "foreground": self.foreground,
            "inner": self.inner,
            "confidence": self.confidence,
            "cases": self.cases,
        }

    @classmethod
    def rebuild(cls, parts: dict[str, nn.Module], **config: Any) -> Self:
        """Make the predictor of its parts and settings."""
        cases = config.pop("cases")
        predictor = super().rebuild(parts, risk=restore_score(config.pop("risk"), RISKS), **config)
        predictor.cases = int(cases)
        return predictor

    def extra_repr(self) -> str:
        """Describe the settings."""
        return f"risk={self.risk}, level={self.level:g}, by={self.by!r}, calibrated={self.calibrated}"

    def _scores(self, prediction: Prediction) -> Tensor:
        """Return what a mask grows by, between 0 and 1, in the shape of the targets."""
        probability = prediction.mean.double()
        most = math.log(2)
        if isinstance(self.likelihood, Categorical):
            most, classes = math.log(probability.shape[1]), probability.shape[1]
            if self.foreground is not None and not 0 <= self.foreground < classes:
                raise InputError(f"foreground must be a class from 0 to {classes - 1}, got {self.foreground}")
            probability = 1 - probability[:, 0] if self.foreground is None else probability[:, self.foreground]
        if self.by == "probability":
            return probability.clamp(0, 1)
        doubt = (getattr(prediction, self.by).double() / most).clamp(0, 1 - 1e-9)
        return torch.where(probability >= 0.5, 1.0, doubt)

    def _truth(self, prediction: Prediction, y: Tensor) -> tuple[Tensor, Tensor]:
        target = y.to(prediction.mean.device)
        expected = prediction.mean.shape
        if isinstance(self.likelihood, Categorical):
            expected = torch.Size([expected[0], *expected[2:]])
        if target.shape != expected or target.dim() < 2:
            raise ShapeMismatch(
                f"predictions of shape {tuple(prediction.mean.shape)} need masks of shape {tuple(expected)}, got "
                f"{tuple(target.shape)}; for one class of each input use Sets"
            )
        if not isinstance(self.likelihood, Categorical):
            if not ((target == 0) | (target == 1)).all():
                raise InputError("masks and labels must be 0 or 1")
            return target > 0.5, torch.ones_like(target, dtype=torch.bool)
        needs = "masks must hold class indices as integers"
        target, counted = class_indices(target, self.likelihood, prediction.mean, expected, needs)
        truth = target != 0 if self.foreground is None else target == self.foreground
        return truth, counted
