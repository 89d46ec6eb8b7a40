"""Conformal prediction, which goes on top of any other recipe: ``lean+temperature+conformal``."""

from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import nn
from torch.utils.data import Subset

from leanbayes._calls import split_batch
from leanbayes.conformal import Intervals, RiskControl, Sets
from leanbayes.conformal.class_scores import as_class_score
from leanbayes.conformal.interval_scores import as_interval_score
from leanbayes.conformal.quantiles import fewest_scores
from leanbayes.errors import InputError
from leanbayes.lab.data.task import Task, length
from leanbayes.lab.recipes.base import OnTop, Recipe, Run, option
from leanbayes.lab.recipes.deterministic import Deterministic

__all__ = ["ConformalRecipe"]

_USUAL = {"classes": "aps", "regression": "scaled"}


@dataclass(frozen=True)
class ConformalRecipe(OnTop):
    """Another recipe's predictor with sets, intervals or masks that hold the truth as often as asked.

    Part of the validation set is split off before the training and serves the calibration alone. The recipe underneath
    chooses its settings on the other part, and learns from the same training set as without conformal prediction.
    """

    name = "conformal"
    of: Recipe = field(default_factory=Deterministic)
    level: float = option(
        0.9,
        "The probability that a set or interval holds the truth; masks miss at most the rest of the true pixels.",
        within="(0, 1)",
    )
    score: str | None = option(
        None, "What sets or intervals are made by: lac, aps, raps or top_k for classes; scaled, absolute or quantiles."
    )
    per: Literal["all", "class", "group"] = option(
        "all", "Whether the guarantee holds over all inputs, for each class, or for each group that the task names."
    )
    share: float = option(
        0.5, "The share of the validation set that is split off for the calibration.", within="(0, 1)"
    )

    def train(self, task: Task, run: Run) -> nn.Module:
        """Split off the calibration examples, train the recipe underneath without them, and calibrate."""
        kind = task.likelihood.kind(split_batch(next(iter(run.loader(task.test))))[1])
        self._check(kind, has_groups=task.groups is not None)
        calibration, rest = self._split(task)
        # A network that stopped early by the whole validation set would have seen the calibration examples.
        nets = run.nets if run.budget.patience is None else {}
        inner = replace(run, nets=nets)
        model = self.of.train(replace(task, validation=rest), inner)
        run.seconds = inner.seconds
        with run.charged():
            predictor = self._predictor(model, task, kind)
            return predictor.calibrate(run.tracked(calibration, "conformal"))

    def _check(self, kind: str, has_groups: bool) -> None:
        """Refuse settings that do not fit, before any training."""
        if kind == "classes":
            as_class_score(self.score or _USUAL[kind])
        elif kind == "regression":
            as_interval_score(self.score or _USUAL[kind])
        elif self.score is not None:
            raise InputError(f"conformal:score={self.score} is for classes and numbers, and these data are {kind}")
        if self.per == "class" and kind != "classes":
            raise InputError(f"conformal:per=class needs classes, and these data are {kind}")
        if self.per == "group" and (not has_groups or kind not in _USUAL):
            raise InputError(
                "conformal:per=group needs classes or numbers, and a task that names the group of each input: "
                "Task(..., groups=function)"
            )

    def _split(self, task: Task) -> tuple[Subset[Any], Subset[Any]]:
        """Divide the validation set at random, in the same way for every method and seed."""
        count = length(task.validation)
        order = torch.randperm(count, generator=torch.Generator().manual_seed(0)).tolist()
        cut = round(self.share * count)
        needed = fewest_scores(self.level)
        if cut < needed or cut >= count:
            raise InputError(
                f"conformal:share={self.share:g} of the {count} validation examples are {cut}; the level "
                f"{self.level:g} needs at least {needed} calibration examples, and one must stay for validation"
            )
        return Subset(task.validation, sorted(order[:cut])), Subset(task.validation, sorted(order[cut:]))

    def _predictor(self, model: nn.Module, task: Task, kind: str) -> Sets | Intervals | RiskControl:
        settings: dict[str, Any] = {"likelihood": task.likelihood}
        if kind in _USUAL:
            per: Any = {"all": None, "class": "class", "group": task.groups}[self.per]
            wrapper: type[Sets | Intervals] = Sets if kind == "classes" else Intervals
            return wrapper(model, self.level, self.score or _USUAL[kind], per=per, **settings)
        return RiskControl(model, "false_negatives", round(1 - self.level, 12), **settings)
