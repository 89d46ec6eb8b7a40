"""Predict cases with a saved model, batch by batch, and write the maps of segmented ones."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leanbayes.lab.cli.maps import map_names, write_map, write_segments
from leanbayes.lab.cli.predictions import Predictions
from leanbayes.lab.cli.reviews import Reviewer
from leanbayes.lab.data import Preparation, likelihood_for
from leanbayes.lab.shards import Cases
from leanbayes.lab.windows import Windowed
from leanbayes.prediction import predict

__all__ = ["Predicted", "SavedModel", "predict_cases"]

_DRAWS = 2**28  # bytes of what the draws predict for all cases of a batch
_MOST_DRAWS = 2**31  # the same for one case; of a larger one they are not kept


@dataclass(frozen=True)
class SavedModel:
    """A model from a file, and how it predicts.

    Args:
        predictor: the model.
        preparation: how it takes its inputs.
        digest: the SHA-256 of its file.
        samples: how many draws each prediction averages, or "auto".
        tolerance: the standard error at which "auto" stops to draw.
        batch_size: how many inputs are predicted at a time.
    """

    predictor: nn.Module
    preparation: Preparation
    digest: str
    samples: Any
    tolerance: float
    batch_size: int


@dataclass(frozen=True)
class Predicted:
    """What the prediction of some cases gave.

    Args:
        table: the text of the CSV file.
        maps: the name of each case's maps, for segmentations.
        without_segments: why a case has no DICOM SEG, by its name.
    """

    table: str
    maps: dict[str, str]
    without_segments: dict[str, str]


def predict_cases(
    model: SavedModel,
    cases: Cases,
    folder: Path,
    seed: int,
    *,
    reviewer: Reviewer | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> Predicted:
    """Predict cases and write their maps.

    Args:
        model: the model.
        cases: the cases.
        folder: where the maps go.
        seed: the seed of the weight draws.
        reviewer: receives each segmented case, for a page that people review.
        watch: is called after each batch with the number of cases done and of all.
    """
    plan = model.preparation
    pictures = plan.kind == "pixels"
    table = Predictions(plan)
    names = map_names(cases.names) if pictures else {}
    without_segments: dict[str, str] = {}
    predictor = model.predictor if plan.window is None else Windowed(model.predictor, plan.window)
    generator = torch.Generator().manual_seed(seed)
    size, keep = _batch_size(model, cases)
    for start in range(0, len(cases), size):
        batch = [cases[index] for index in range(start, min(start + size, len(cases)))]
        prediction = predict(
            predictor,
            torch.stack([case.x for case in batch]),
            likelihood=likelihood_for(plan),
            samples=model.samples,
            tolerance=model.tolerance,
            generator=generator,
            keep_samples=keep,
        )
        prediction = plan.in_units(prediction)
        for row, case in enumerate(batch):
            if not pictures:
                table.add(case.name, prediction, row)
                continue
            own = case.restored(prediction, row)
            voxel = None if case.geometry is None else math.prod(case.geometry.spacing)
            cells = table.add(case.name, own, 0, voxel)
            if reviewer is not None:
                reviewer.add(case, own, cells)
            write_map(folder, names[case.name], own, case)
            reason = write_segments(folder, names[case.name], own, case, plan.classes, model.digest)
            if reason is not None:
                without_segments[case.name] = reason
        if watch is not None:
            watch(start + len(batch), len(cases))
    return Predicted(table.text(), names, without_segments)


def _batch_size(model: SavedModel, cases: Cases) -> tuple[int, bool]:
    """Return how many cases are predicted at a time, and whether what each draw predicts is kept.

    Draws of a segmentation are kept, to see whether they agree, if they are not too large. Cases that are seen through
    windows may differ in size.
    """
    plan, samples = model.preparation, model.samples
    if plan.kind != "pixels":
        return model.batch_size, False
    first = cases[0].x
    of_one = 4 * len(plan.classes) * first[0].numel() * (samples if isinstance(samples, int) else 1)
    together = 1 if plan.window is not None else max(1, min(model.batch_size, _DRAWS // of_one))
    return together, isinstance(samples, int) and of_one <= _MOST_DRAWS
