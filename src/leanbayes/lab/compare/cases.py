"""Scores of each case: how good the prediction of one image or scan is, and how unsure the method was of it.

A mean over pixels hides the one scan on which a method fails. The table of cases has a row for each test case, and its
summary says whether doubt finds the cases that fail.
"""

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leanbayes.evaluation.run import PredictedBatch
from leanbayes.lab.compare.doubt import DOUBTS, doubt_scores, quality_of, tells_apart
from leanbayes.lab.compare.nlls import nll_of_inputs
from leanbayes.lab.compare.segmentations import Segmentations, drawn_classes
from leanbayes.lab.data.rated import Raters
from leanbayes.lab.data.source import Cases
from leanbayes.lab.data.tables import csv_safe
from leanbayes.lab.data.task import Task
from leanbayes.lab.statistics import Values, interval_over_groups, spearman, spearman_over_groups
from leanbayes.likelihood import Likelihood
from leanbayes.metrics.calibration import error_of_bins

__all__ = ["CaseScores", "case_sentences", "referral"]

Row = dict[str, Any]
_REFERRED = 0.1  # the share of the cases that a person would look at
_FEWEST = 5  # cases, below which a rank correlation or a referral says nothing


class CaseScores:
    """Collects one row for each test case.

    Args:
        task: the data, which may know the names, the patients and the raters of its test cases.
        likelihood: what the predictions mean.
    """

    def __init__(self, task: Task, likelihood: Likelihood) -> None:
        self.likelihood = likelihood
        self.cases: Cases | None = getattr(task.test, "cases", None)
        targets = getattr(task.test, "targets", None)
        self.raters = targets if isinstance(targets, Raters) else None
        spacing = None if task.preparation is None else task.preparation.spacing
        self.segmentations = Segmentations(len(task.classes), spacing, likelihood.ignore_index)
        self.rows: list[Row] = []
        self.edges: Tensor | None = None  # sums over bins of confidence, of the pixels near true edges
        self.chosen: dict[str, Any] | None = None

    def use_doubt(self, chosen: dict[str, Any] | None) -> None:
        """Report the score of doubt that `chosen_doubt` has found on the validation cases."""
        self.chosen = chosen

    def add(self, batch: PredictedBatch) -> None:
        """Take in one batch of the test set, in the order of the set."""
        if batch.shifted is not None:
            return
        prediction, targets = batch.prediction, batch.targets
        nll, _ = nll_of_inputs(prediction, targets, self.likelihood)
        kind = self.likelihood.kind(targets)
        for number in range(len(prediction)):
            index = len(self.rows)
            row: Row = {"name": str(index) if self.cases is None else self.cases.names[index]}
            if self.cases is not None and self.cases.patients:
                row["patient"] = self.cases.patients[index]
            if kind == "classes":
                row["correct"] = float(prediction.mean[number].argmax() == targets[number])
            if kind == "pixels":
                row |= self._segmentation(batch, number, index)
            row["nll"] = float(nll[number])
            for name in ("total", "epistemic"):
                row[name] = float(getattr(prediction, name)[number].double().mean())
            self.rows.append(row)

    def _segmentation(self, batch: PredictedBatch, number: int, index: int) -> Row:
        samples = batch.prediction.samples
        draws = drawn_classes(None if samples is None else samples[:, number])
        masks = None if self.raters is None else self.raters.of(index)
        total, mean = batch.prediction.total[number], batch.prediction.mean[number]
        truth = batch.targets[number]
        row: Row = self.segmentations.scores(mean.argmax(0), total, truth, draws, masks)
        edges = self.segmentations.near_edges(mean, truth)
        self.edges = edges if self.edges is None else self.edges + edges
        if bool(edges.any()):
            row["boundary_ece"] = float(error_of_bins(edges))
        return row | doubt_scores(mean, total, batch.prediction.epistemic[number], self.segmentations.spacing)

    def metrics(self) -> dict[str, float]:
        """Return the metrics over all cases that need the spacing or connected components."""
        metrics: dict[str, float] = {}
        if self.edges is not None and bool(self.edges.any()):
            metrics["boundary_ece"] = float(error_of_bins(self.edges))
        rows = [row for row in self.rows if "lesions" in row]
        true = sum(row["lesions"] for row in rows)
        if true:
            metrics["lesion_sensitivity"] = sum(row["lesions_found"] for row in rows) / true
        if rows:
            metrics["lesion_false_positives"] = sum(row["lesions_false"] for row in rows) / len(rows)
        return metrics

    def text(self) -> str:
        """Return the rows as the text of a CSV file."""
        names = list(dict.fromkeys(name for row in self.rows for name in row))
        file = io.StringIO(newline="")
        writer = csv.writer(file)
        writer.writerow(names)
        writer.writerows([_cell(row.get(name)) for name in names] for row in self.rows)
        return file.getvalue()

    def summary(self) -> dict[str, Any]:
        """Return the means with their intervals over patients (or cases), and how well doubt finds bad cases."""
        groups = [row.get("patient", row["name"] + str(index)) for index, row in enumerate(self.rows)]
        over = "patients" if self.rows and "patient" in self.rows[0] else "cases"
        means = {}
        for name in dict.fromkeys(name for row in self.rows for name in row if name not in ("name", "patient")):
            known = [index for index, row in enumerate(self.rows) if math.isfinite(row.get(name, math.nan))]
            if known:
                values = [self.rows[index][name] for index in known]
                means[name] = asdict(interval_over_groups(values, [groups[index] for index in known]))
        doubt = self._doubt()
        best = next((score for score in self._preferred() if score in doubt), None)
        used = None if best is None else {"name": best, "chosen_on": self.chosen, "rank": self._rank(best, groups)}
        return {"cases": len(self.rows), "over": over, "means": means, "doubt": doubt, "doubt_score": used}

    def _rank(self, score: str, groups: list[str]) -> dict[str, Any]:
        """The rank correlation of Dice and the score of doubt that is reported, with its interval over patients."""
        known = [index for index, row in enumerate(self.rows) if "dice" in row and score in row]
        doubt = [self.rows[index][score] for index in known]
        quality = [quality_of(self.rows[index]) for index in known]
        return asdict(spearman_over_groups(doubt, quality, [groups[index] for index in known]))

    def doubt_about(self, row: Row) -> float:
        """Return the doubt about one case by the score that is reported, or by the next one that the case has."""
        return float(next((row[name] for name in self._preferred() if name in row), row["total"]))

    def _preferred(self) -> list[str]:
        return [*([] if self.chosen is None else [self.chosen["name"]]), *DOUBTS]

    def arrays(self) -> dict[str, Tensor]:
        """Return what the page draws of segmentations: the Dice of each case, and the doubt about it."""
        if not self.rows or "dice" not in self.rows[0]:
            return {}
        known = [name for name in DOUBTS if all(name in row for row in self.rows)]
        arrays = {f"case/{name}": torch.tensor([row[name] for row in self.rows]) for name in known}
        arrays["case/dice"] = torch.tensor([quality_of(row) for row in self.rows])
        doubt = next(f"case/{name}" for name in self._preferred() if f"case/{name}" in arrays)
        return arrays | {"case/doubt": arrays[doubt].clone()}

    def _doubt(self) -> dict[str, Any]:
        """Return for each score of doubt how it ranks the Dice of cases, and what referring the least sure gains."""
        found: dict[str, Any] = {}
        for name in DOUBTS:
            pairs = np.array([(quality_of(row), row[name]) for row in self.rows if "dice" in row and name in row])
            if len(pairs) < _FEWEST or not tells_apart(pairs):
                continue
            quality, doubt = pairs.T
            rank = spearman(doubt, quality)
            found[name] = {"rank_correlation": rank.rho, "p": rank.p, "referral": referral(quality, doubt)}
        return found


def referral(quality: Values, doubt: Values, share: float = _REFERRED) -> dict[str, Any]:
    """Return the mean quality of the cases that remain when the least sure ones are left to a person.

    Args:
        quality: the quality of each case, such as its Dice.
        doubt: the doubt about each case.
        share: the share of the cases that is referred, of which at least one is.

    Returns:
        The mean quality of all cases, that of the cases that remain, the best that this many referrals could reach, and
        the whole curve: the mean quality after 0, 1, 2, … referrals.

    >>> told = referral([0.9, 0.2, 0.8, 0.7], [0.1, 0.6, 0.2, 0.3], share=0.25)
    >>> round(told["before"], 3), round(told["after"], 3), told["after"] == told["best"]
    (0.65, 0.8, True)
    """
    values = np.asarray(quality, dtype=np.float64)
    order = np.argsort(np.asarray(doubt), kind="stable")
    count = len(values)
    referred = min(max(1, round(share * count)), count - 1)
    kept = np.arange(count, 0, -1)
    curve = np.cumsum(values[order])[::-1] / kept
    best = np.cumsum(np.sort(values)[::-1])[::-1] / kept
    return {
        "share": referred / count,
        "before": float(curve[0]),
        "after": float(curve[referred]),
        "best": float(best[referred]),
        "curve": curve.tolist(),
    }


def case_sentences(summary: Mapping[str, Any]) -> list[str]:
    """Return what the summary of the cases says, in one sentence for each finding."""
    means, sentences = summary["means"], []
    score = next((name for name in ("dice", "correct") if name in means), None)
    if score is not None and means[score]["low"] is not None:
        low, mean, high = (means[score][end] for end in ("low", "mean", "high"))
        title = {"dice": "Dice", "correct": "accuracy"}[score]
        sentences.append(
            f"Mean {title} of {summary['cases']} cases: {mean:.3f} (95 % interval {low:.3f} to {high:.3f} over "
            f"{means[score]['n']} {summary['over']})."
        )
    used = summary.get("doubt_score")
    if used is not None:
        doubt = summary["doubt"][used["name"]]
        told = doubt["referral"]
        change = "rises" if told["after"] > told["before"] else "goes"
        sentences.append(
            f"Refer the {told['share']:.0%} least sure cases: mean Dice {change} from {told['before']:.3f} to "
            f"{told['after']:.3f} (at best {told['best']:.3f}). Rank correlation of Dice and doubt: "
            f"{doubt['rank_correlation']:.2f}{_interval(used.get('rank'), summary['over'])}."
        )
        how = "which is the usual one, because there are too few validation cases to choose"
        if used["chosen_on"] is not None:
            how = f"which ranked the {used['chosen_on']['cases']} validation cases best"
        raters = " Dice is the mean over all raters of a case here." if "dice_of_raters" in means else ""
        sentences.append(f"Doubt is {DOUBTS[used['name']]}, {how}.{raters}")
    return sentences


def _interval(rank: Mapping[str, Any] | None, over: str) -> str:
    """The interval of a rank correlation as words; a folder of an earlier version has none."""
    if rank is None or rank["low"] is None:
        return ""
    return f" ({rank['level']:.0%} interval {rank['low']:.2f} to {rank['high']:.2f} over {rank['n']} {over})"


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.6g}" if math.isfinite(value) else ""
    return csv_safe(value) if isinstance(value, str) else "" if value is None else value
