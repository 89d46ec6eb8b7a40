"""Predicted cases for the review page: which arrays, numbers and masks of a prediction it shows."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from leanbayes.conformal import RiskControl
from leanbayes.errors import InputError
from leanbayes.lab.data import Preparation
from leanbayes.lab.data.new_cases import NewCase
from leanbayes.lab.report.review import Review, ReviewCase
from leanbayes.lab.slices import Values, View
from leanbayes.prediction import Prediction

__all__ = ["Reviewer"]

_DOUBTS = {
    "draw_disagreement": "Disagreement of draws",
    "expected_dice_loss": "Expected loss of Dice",
    "total": "Total uncertainty (nats)",
    "epistemic": "Epistemic uncertainty (nats)",
}


_ROUNDING = 1e-6  # below it lie the rounding errors of a network without random weights


class Reviewer:
    """Hands predictions to the review page.

    Args:
        folder: where the page goes.
        plan: how the model takes its inputs.
        predictor: the predictor. If it is a `RiskControl`, the page outlines its masks too.
    """

    def __init__(self, folder: Path, plan: Preparation, predictor: nn.Module) -> None:
        if plan.kind != "pixels":
            raise InputError(f"--review shows segmentations, and this model predicts {plan.kind}; leave --review out")
        self.plan = plan
        self.control = predictor if isinstance(predictor, RiskControl) else None
        self.page = Review(folder, plan.classes, math.log(len(plan.classes)))

    def add(self, case: NewCase, prediction: Prediction, row: Mapping[str, str]) -> None:
        """Take in one case.

        Args:
            case: the case.
            prediction: its prediction, at its own size.
            row: its row of ``predictions.csv``.
        """
        labels = _array(prediction.mean[0].argmax(0))
        doubts = {name: float(row[name]) for name in _DOUBTS if row.get(name)}
        facts = [(title, _number(doubts[name])) for name, title in _DOUBTS.items() if name in doubts]
        for name in self.plan.classes[1:]:
            volume, share = row.get(f"volume_ml({name})"), row[f"share({name})"]
            facts.append((f"{name} (ml)", volume) if volume else (f"{name} (share)", f"{float(share):.1%}"))
        facts.append(("Draws", row["draws"]))
        self.page.add(
            ReviewCase(
                name=case.name,
                image=_array(case.image),
                labels=labels,
                total=_array(prediction.total[0]),
                epistemic=_array(prediction.epistemic[0]),
                view=View.of(labels.shape, None if case.geometry is None else case.geometry.spacing),
                doubts=doubts,
                facts=facts,
                masks={} if self.control is None else _guaranteed(self.control, prediction),
            )
        )

    def write(self, record: Mapping[str, Any]) -> Path:
        """Write the page; return its path.

        Args:
            record: what ``predictions.json`` holds.
        """
        shown = {"Command": "command", "Seed": "seed", "SHA-256 of the model": "model_sha256", "LeanBayes": "leanbayes"}
        return self.page.write([(title, str(record[name])) for title, name in shown.items()])


def _guaranteed(control: RiskControl, prediction: Prediction) -> dict[str, Values]:
    """Return the masks of risk control by what they promise: the outer one, and the inner one if there is one."""
    how = "on average" if control.confidence is None else f"at {_percent(control.confidence)} confidence"
    risk = control.risk.name.replace("_", " ")
    words = {"outer": f"outer mask: {risk} at most {_percent(control.level)} {how}"}
    if control.inner is not None:
        words["inner"] = f"inner mask: false positives at most {_percent(control.inner)} {how}"
    return {words[name]: _array(mask[0]) for name, mask in control.masks_of(prediction).items()}


def _number(value: float) -> str:
    return "0" if abs(value) < _ROUNDING else f"{value:.3g}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _array(values: Tensor) -> Values:
    return np.asarray(values.detach().to("cpu"))
