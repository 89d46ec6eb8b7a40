"""Segmented test cases as the page shows them: the slice that shows most, with what the method predicts and doubts.

Every method keeps the same cases, so that the page can show them side by side. Which of them are the worst and the best
is only known when all methods are judged, so each method keeps all cases of small test sets, and a fixed random sample
of large ones.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from leanbayes.evaluation.run import PredictedBatch
from leanbayes.lab.compare.doubt import quality_of
from leanbayes.lab.data.rated import Raters
from leanbayes.lab.data.source import Cases
from leanbayes.lab.data.task import Task, length
from leanbayes.lab.slices import View, largest_slice, reduced, reduced_labels, shades

__all__ = ["ShownCases", "shown_cases"]

_CANDIDATES = 96  # cases that a method keeps: about 14 MB at most
_LONGEST = 128  # pixels of the longer side
_RATERS = 4  # whose outlines are shown at most


def shown_cases(task: Task) -> dict[int, str]:
    """Return the numbers and the names of the test cases that every method keeps."""
    count = length(task.test)
    rows = torch.randperm(count, generator=torch.Generator().manual_seed(0))[:_CANDIDATES].sort().values.tolist()
    cases: Cases | None = getattr(task.test, "cases", None)
    return {row: str(row) if cases is None else cases.names[row] for row in rows}


class ShownCases:
    """Collects the arrays of one method.

    Args:
        task: the data.
    """

    def __init__(self, task: Task) -> None:
        self.plan = task.preparation
        self.ignore = task.likelihood.ignore_index
        self.wanted = frozenset(shown_cases(task))
        targets = getattr(task.test, "targets", None)
        self.raters = targets if isinstance(targets, Raters) else None
        self.kept: dict[str, Tensor] = {}
        self.seen = 0

    def add(
        self, batch: PredictedBatch, rows: Sequence[Mapping[str, Any]], doubt: Callable[[dict[str, Any]], float]
    ) -> None:
        """Take in one batch of the test set, in the order of the set.

        Args:
            batch: the batch and its prediction.
            rows: the scores of its cases.
            doubt: the doubt about a case with these scores.
        """
        if batch.shifted is not None:
            return
        whole = isinstance(batch.inputs, Tensor) and batch.prediction.mean.dim() == batch.targets.dim() + 1
        for number, row in enumerate(rows):
            if "dice" in row and whole and self.seen + number in self.wanted:
                self._keep(batch, number, (quality_of(row), doubt(dict(row))), self.seen + number)
        self.seen += len(rows)

    def arrays(self) -> dict[str, Tensor]:
        """Return the arrays of all cases so far, by the number of the case and what they hold."""
        return self.kept

    def _keep(self, batch: PredictedBatch, number: int, judged: tuple[float, float], index: int) -> None:
        prediction = batch.prediction
        x = batch.inputs[number] if self.plan is None else self.plan.original(batch.inputs[number])
        truth = batch.targets[number]
        truth = truth.where(truth != self.ignore, 0)
        view = View.of(tuple(truth.shape), None if self.plan is None else self.plan.spacing)

        def slices(values: Tensor) -> Any:
            return view.slices(np.asarray(values.detach().to("cpu")))

        true, guess = slices(truth), slices(prediction.mean[number].argmax(0))
        total, epistemic = (slices(values[number].float()) for values in (prediction.total, prediction.epistemic))
        at = largest_slice(true, np.where(guess > 0, 1.0, 0.0) + 1e-9 * total)
        factor = -(-max(true.shape[1:]) // _LONGEST)
        channels = view.slices(shades(np.asarray((x if len(x) == 3 else x[:1]).detach().to("cpu"))))
        image = np.stack([reduced(channel[at], factor) for channel in channels])
        parts: dict[str, Any] = {
            "image": np.moveaxis((image * 255).round().astype(np.uint8), 0, -1),
            "truth": reduced_labels(true[at], factor).astype(np.uint8),
            "predicted": reduced_labels(guess[at], factor).astype(np.uint8),
            "total": reduced(total[at], factor).astype(np.float16),
            "epistemic": reduced(epistemic[at], factor).astype(np.float16),
            "facts": np.array([*judged, at, len(true), view.aspect], np.float32),
        }
        masks = None if self.raters is None else self.raters.of(index)[:_RATERS]
        if masks is not None and len(masks) > 1:
            parts["raters"] = np.stack([reduced_labels(slices(mask)[at], factor) for mask in masks]).astype(np.uint8)
        for name, values in parts.items():
            self.kept[f"shown/{index}/{name}"] = torch.from_numpy(np.ascontiguousarray(values))
