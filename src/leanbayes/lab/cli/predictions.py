"""The table of predictions: one row for each input, with its uncertainty."""

import csv
import io
from typing import Any

from torch import Tensor

from leanbayes.lab.compare.doubt import expected_dice_loss
from leanbayes.lab.compare.segmentations import drawn_classes, pairwise_dice
from leanbayes.lab.data import Preparation
from leanbayes.lab.data.tables import csv_safe
from leanbayes.prediction import Prediction

__all__ = ["Predictions"]

_UNCERTAINTIES = ("total", "aleatoric", "epistemic")


class Predictions:
    """Collects predictions as the text of a CSV file, in which no name is a formula of a spreadsheet.

    Args:
        preparation: says what kind of data is predicted, and what the classes are called.
    """

    def __init__(self, preparation: Preparation) -> None:
        self.preparation = preparation
        self._file = io.StringIO(newline="")
        self._writer = csv.writer(self._file)  # lines end in CR LF, for the writer quotes only signs that end a line
        more = ["draw_disagreement", "expected_dice_loss"] if preparation.kind == "pixels" else []
        if more and preparation.spacing is not None:
            more += [f"volume_ml({name})" for name in preparation.classes[1:]]
        columns = [*self._columns(), *_UNCERTAINTIES, "standard_error", "draws", *more]
        self.columns = columns
        self._writer.writerow(["name", *map(csv_safe, columns)])

    def add(self, name: str, prediction: Prediction, row: int, voxel: float | None = None) -> dict[str, str]:
        """Add one input: the row of a batch of predictions. Return its cells by column.

        Args:
            name: the name of the input.
            prediction: the predictions of a batch.
            row: which of them it is.
            voxel: the cubic millimetres of a voxel, for scans.
        """
        uncertainties = [_digits(getattr(prediction, kind)[row].double().mean()) for kind in _UNCERTAINTIES]
        end = [_digits(prediction.standard_error[row]), int(prediction.draws[row])]
        if self.preparation.kind == "pixels":
            end += self._of_segmentation(prediction, row, voxel)
        cells = [*self._cells(prediction, row), *uncertainties, *end]
        self._writer.writerow([csv_safe(name), *cells])
        return dict(zip(self.columns, map(str, cells), strict=True))

    def _of_segmentation(self, prediction: Prediction, row: int, voxel: float | None) -> list[Any]:
        """How much the draws disagree about a case, the Dice it may lose, and the volume of each class of a scan."""
        classes, samples = len(self.preparation.classes), prediction.samples
        drawn = drawn_classes(None if samples is None else samples[:, row])
        cells = [
            "" if drawn is None or len(drawn) < 2 else f"{1 - pairwise_dice(drawn, classes):.6g}",
            f"{expected_dice_loss(prediction.mean[row]):.6g}",
        ]
        if self.preparation.spacing is not None:
            chosen = prediction.mean[row].argmax(0)
            volumes = [
                (chosen == label).sum().double() * voxel / 1000 if voxel else None for label in range(1, classes)
            ]
            cells += ["" if volume is None else _digits(volume) for volume in volumes]
        return cells

    def text(self) -> str:
        """Return the text of the CSV file."""
        return self._file.getvalue()

    def _columns(self) -> list[str]:
        classes, outputs = self.preparation.classes, len(self.preparation.target_mean)
        numbers = [""] if outputs == 1 else [f"_{number}" for number in range(outputs)]
        return {
            "classes": ["predicted", "probability", *(f"p({name})" for name in classes)],
            "labels": [f"p({name})" for name in classes],
            "pixels": [f"share({name})" for name in classes],
            "regression": [f"{what}{number}" for number in numbers for what in ("mean", "deviation")],
        }[self.preparation.kind]

    def _cells(self, prediction: Prediction, row: int) -> list[Any]:
        mean, classes = prediction.mean[row], self.preparation.classes
        if self.preparation.kind == "classes":
            best = int(mean.argmax())
            return [csv_safe(classes[best]), _digits(mean[best]), *map(_digits, mean)]
        if self.preparation.kind == "labels":
            return [*map(_digits, mean)]
        if self.preparation.kind == "pixels":
            chosen = mean.argmax(0)
            return [_digits((chosen == label).double().mean()) for label in range(len(classes))]
        deviations = prediction.total[row].sqrt()
        return [_digits(value) for pair in zip(mean, deviations, strict=True) for value in pair]


def _digits(value: Tensor) -> str:
    return f"{value.item():.6g}"
