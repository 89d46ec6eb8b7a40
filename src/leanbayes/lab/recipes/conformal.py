"""Conformal prediction, which goes on top of any other recipe: ``lean+temperature+conformal``."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

from torch import nn
from torch.utils.data import Dataset

from leanbayes._calls import split_batch
from leanbayes.conformal import Intervals, RiskControl, Sets
from leanbayes.conformal.class_scores import as_class_score
from leanbayes.conformal.interval_scores import as_interval_score
from leanbayes.conformal.quantiles import fewest_scores
from leanbayes.errors import InputError
from leanbayes.lab.data.division import Division, divide_validation
from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes.base import OnTop, Recipe, Run, option
from leanbayes.lab.recipes.deterministic import Deterministic
from leanbayes.lab.recipes.run import Tracked
from leanbayes.lab.windows import Windowed

__all__ = ["ConformalRecipe"]

_USUAL = {"classes": "aps", "regression": "scaled"}


@dataclass(frozen=True)
class ConformalRecipe(OnTop):
    """Another recipe's predictor with sets, intervals or masks that hold the truth as often as asked.

    Part of the validation set is split off before the training and serves the calibration alone: whole patients where
    these are known, and whole images where networks learn windows. The recipe underneath chooses its settings on the
    other part, and learns from the same training set as without conformal prediction.
    """

    name = "conformal"
    of: Recipe = field(default_factory=Deterministic)
    level: float = option(
        0.9,
        "The probability that a set or interval holds the truth; masks lose at most the rest.",
        within="(0, 1)",
    )
    score: str | None = option(
        None, "What sets or intervals are made by: lac, aps, raps or top_k for classes; scaled, absolute or quantiles."
    )
    per: Literal["all", "class", "group"] = option(
        "all", "Whether the guarantee holds over all inputs, for each class, or for each group or subgroup of the data."
    )
    share: float = option(
        0.5, "The share of the validation set that is split off for the calibration.", within="(0, 1)"
    )
    risk: str | None = option(
        None, "What masks may lose: false_negatives (the usual one), missed_lesions, false_positives or dice."
    )
    inner: float | None = option(
        None,
        "What inner masks may mark wrongly, as a share of the size of the truth. By default there are no inner masks.",
        within="(0, 1)",
    )
    confidence: float | None = option(
        None,
        "The share of calibrations whose masks must keep their promise. By default the promise is about the mean.",
        within="(0, 1)",
    )

    def train(self, task: Task, run: Run) -> nn.Module:
        """Split off the calibration examples, train the recipe underneath without them, and calibrate."""
        kind = task.likelihood.kind(split_batch(next(iter(run.loader(task.test, batch_size=1))))[1])
        division = divide_validation(task, self.share)
        self._check(kind, task, division)
        # Networks that the run shares had their best epoch chosen by the whole validation set, so they have seen the
        # calibration examples.
        inner = replace(run, nets={})
        model = self.of.train(replace(task, validation=division.rest), inner)
        run.seconds = inner.seconds
        with run.charged():
            return self._calibrated(model, task, kind, division, run)

    def _check(self, kind: str, task: Task, division: Division) -> None:
        """Refuse settings that do not fit, before any training."""
        if kind == "classes":
            as_class_score(self.score or _USUAL[kind])
        elif kind == "regression":
            as_interval_score(self.score or _USUAL[kind])
        elif self.score is not None:
            raise InputError(f"conformal:score={self.score} is for classes and numbers, and these data are {kind}")
        if kind in _USUAL and not (self.risk is None and self.inner is None and self.confidence is None):
            raise InputError(
                f"conformal:risk, conformal:inner and conformal:confidence are for masks and labels, not for {kind}"
            )
        if kind not in _USUAL:
            self._masks(nn.Identity(), task)
        if self.per == "class" and kind != "classes":
            raise InputError(f"conformal:per=class needs classes, and these data are {kind}")
        has_groups = task.groups is not None or division.subgroups is not None
        if self.per == "group" and (not has_groups or kind not in _USUAL):
            raise InputError(
                "conformal:per=group needs classes or numbers, and data that say the group of each input: --subgroups "
                "in the shell, or Task(..., groups=function)"
            )
        self._check_count(kind, division)

    def _check_count(self, kind: str, division: Division) -> None:
        highest = max(self.level, 0 if self.inner is None else round(1 - self.inner, 12))
        needed = fewest_scores(highest)
        by_patient = kind not in _USUAL and division.patients is not None
        count = len(set(division.patients or ())) if by_patient else len(division.rows)
        if count < needed:
            raise InputError(
                f"conformal:share={self.share:g} of the {division.total} validation examples are {count} "
                f"{'patients' if by_patient else 'examples'}; the level {highest:g} needs at least {needed} for the "
                "calibration"
            )
        if self.per == "group" and division.subgroups is not None:
            for number, name in enumerate(division.names):
                members = division.subgroups.count(number)
                if members < needed:
                    raise InputError(
                        f"the subgroup {name!r} has {members} calibration examples, and the level {self.level:g} needs "
                        f"at least {needed} of each subgroup; join small subgroups, or ask for a lower level"
                    )

    def _calibrated(self, model: nn.Module, task: Task, kind: str, division: Division, run: Run) -> nn.Module:
        window = None if task.preparation is None else task.preparation.window
        batches = _tracked(division.calibration, run, whole_images=window is not None)
        if kind not in _USUAL:
            whole = model if window is None else Windowed(model, window)
            return self._masks(whole, task).calibrate(batches, patients=division.patients)
        by_group: Any = "group" if task.groups is None else task.groups
        per: Any = {"all": None, "class": "class", "group": by_group}[self.per]
        wrapper: type[Sets | Intervals] = Sets if kind == "classes" else Intervals
        predictor = wrapper(model, self.level, self.score or _USUAL[kind], per=per, likelihood=task.likelihood)
        return predictor.calibrate(batches, groups=division.subgroups if per == "group" else None)

    def _masks(self, model: nn.Module, task: Task) -> RiskControl:
        level = round(1 - self.level, 12)
        risk = self.risk or "false_negatives"
        return RiskControl(model, risk, level, inner=self.inner, confidence=self.confidence, likelihood=task.likelihood)


def _tracked(data: Dataset[Any], run: Run, whole_images: bool) -> Tracked:
    """Return the calibration batches; whole images may differ in size, so each is a batch of its own."""
    loader = run.loader(data, batch_size=1 if whole_images else None)
    return Tracked(loader, lambda done, total: run.tell("conformal", done, total))
