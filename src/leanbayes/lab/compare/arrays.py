"""The arrays behind the report's figures, collected from the predictions that are scored.

A collector sees each batch once, and keeps a bounded number of rows: memory does not grow with the data.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes.bayesian import Bayesian
from leanbayes.evaluation.run import PredictedBatch
from leanbayes.lab.compare.nlls import nll_of_inputs
from leanbayes.likelihood import Likelihood
from leanbayes.metrics.quality import cells_of
from leanbayes.prediction import Prediction, Predictor

__all__ = ["FigureArrays", "Smallest", "bayesian_inside", "sigma_of_first_layer"]

_INPUTS = 2_000  # inputs of each set in histograms and curves, at most
_CELLS = 20_000  # the same for labels and pixels, of which one input has many
_SCORED = 50_000  # inputs whose NLL is kept, for the intervals of differences between methods
_PICTURES = 6  # examples in each strip of pictures
_OVERLAYS = 3  # segmentations: the most certain one, one in between and the least certain one
_CANDIDATES = 9  # random segmentations, from which the one in between is chosen
_CONFIDENT_KINDS = ("classes", "labels", "pixels")


def bayesian_inside(predictor: nn.Module) -> Bayesian | None:
    """Return the `Bayesian` that a predictor stands on; None if there is none."""
    if isinstance(predictor, Predictor):
        candidates = (bayesian_inside(part) for part in predictor.parts().values())
        return next((bnn for bnn in candidates if bnn is not None), None)
    return predictor if isinstance(predictor, Bayesian) else None


class Smallest:
    """Keeps the rows with the smallest keys of all batches so far, in memory for ``limit`` rows only.

    With random keys this is a uniform sample of all rows. With a score as the key it is the rows with the lowest score.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.keys: Tensor | None = None
        self.columns: dict[str, Tensor] = {}

    def add(self, keys: Tensor, columns: Mapping[str, Tensor]) -> None:
        """Take in a batch of rows: one key for each row, and columns with one entry for each row."""
        rows = self._rows(keys)
        keys, columns = keys[rows], {name: column[rows.to(column.device)] for name, column in columns.items()}
        if self.keys is not None:
            keys = torch.cat([self.keys, keys])
            columns = {name: torch.cat([self.columns[name], column]) for name, column in columns.items()}
            rows = self._rows(keys)
            keys, columns = keys[rows], {name: column[rows.to(column.device)] for name, column in columns.items()}
        self.keys, self.columns = keys, dict(columns)

    def by_key(self) -> dict[str, Tensor]:
        """Return the columns in the order of the keys; `columns` are in the order in which the rows came."""
        if self.keys is None:
            return {}
        order = self.keys.argsort(stable=True)
        return {name: column[order.to(column.device)] for name, column in self.columns.items()}

    def _rows(self, keys: Tensor) -> Tensor:
        if len(keys) <= self.limit:
            return torch.arange(len(keys), device=keys.device)
        return keys.topk(self.limit, largest=False, sorted=False).indices.sort().values


class FigureArrays:
    """Collects the arrays of one predictor, by the names that the report knows.

    Args:
        likelihood: what the predictor's outputs mean.
        patients: the patient of each test input; empty if patients are not known.
    """

    def __init__(self, likelihood: Likelihood, patients: Sequence[str] = ()) -> None:
        self.likelihood = likelihood
        numbers = {patient: number for number, patient in enumerate(dict.fromkeys(patients))}
        self.patients = torch.tensor([numbers[patient] for patient in patients])
        self.kind = ""
        self.generator = torch.Generator().manual_seed(0)  # the same rows for every method
        self.rows_of_nlls = torch.Generator().manual_seed(1)
        self.nlls = Smallest(_SCORED)
        self.cells = Smallest(_INPUTS)
        self.inputs = Smallest(_INPUTS)
        self.shifted: dict[str, Smallest] = {}
        self.certain, self.uncertain = Smallest(_PICTURES), Smallest(_PICTURES)
        self.segmentations = [Smallest(1), Smallest(1), Smallest(_CANDIDATES)]
        self.seen = 0

    def add(self, batch: PredictedBatch) -> None:
        """Take in one batch and its prediction, as `leanbayes.evaluate` hands them out."""
        if batch.shifted is not None:
            self._add_shifted(batch.shifted, batch.prediction)
            return
        self.kind = self.kind or self.likelihood.kind(batch.targets)
        if self.kind == "regression" or self.kind in _CONFIDENT_KINDS:
            nll, numbers = nll_of_inputs(batch.prediction, batch.targets, self.likelihood)
            keys = torch.rand(len(nll), generator=self.rows_of_nlls)
            columns = {"input_nll": nll, "input_targets": numbers}
            if len(self.patients):
                columns["input_patient"] = self.patients[self.seen : self.seen + len(nll)]
            self.nlls.add(keys, columns)
        if self.kind == "regression":
            self._add_numbers(batch.prediction, batch.targets)
        elif self.kind in _CONFIDENT_KINDS:
            self._add_cells(batch.prediction, batch.targets)
            if _are_pictures(batch.inputs):
                self._add_pictures(batch)
        self.seen += len(batch.prediction)

    def arrays(self) -> dict[str, Tensor]:
        """Return the arrays of all batches so far."""
        arrays = self.cells.columns | self.inputs.columns | self.nlls.columns
        for name, smallest in self.shifted.items():
            arrays |= {f"shifted/{name}/{key}": value for key, value in smallest.columns.items()}
        for name, smallest in (("certain", self.certain), ("uncertain", self.uncertain)):
            arrays |= {f"{name}/{key}": value for key, value in _with_pictures(smallest.by_key()).items()}
        arrays |= {f"overlay/{key}": value for key, value in self._overlays().items()}
        return {name: value.detach().float().contiguous() for name, value in arrays.items()}

    def _add_numbers(self, prediction: Prediction, targets: Tensor) -> None:
        columns = {"predicted": prediction.mean, "deviation": prediction.total.sqrt(), "truth": targets}
        self._sample(self.cells, {name: column.flatten() for name, column in columns.items()})

    def _add_cells(self, prediction: Prediction, targets: Tensor) -> None:
        cells = cells_of(prediction.mean, targets, self.likelihood.ignore_index)
        entropy = prediction.total[cells.counted]
        columns = {"confidence": cells.confidence, "correct": cells.correct, "entropy": entropy}
        if self.kind != "classes":
            self.cells.limit = _CELLS
            self._sample(self.inputs, {"input_entropy": _per_input(prediction.total)})
        self._sample(self.cells, columns)

    def _add_shifted(self, name: str, prediction: Prediction) -> None:
        if self.kind in _CONFIDENT_KINDS:
            smallest = self.shifted.setdefault(name, Smallest(_INPUTS))
            self._sample(smallest, {"entropy": _per_input(prediction.total)})

    def _sample(self, smallest: Smallest, columns: Mapping[str, Tensor]) -> None:
        count = len(next(iter(columns.values())))
        smallest.add(torch.rand(count, generator=self.generator), columns)

    def _add_pictures(self, batch: PredictedBatch) -> None:
        prediction, targets = batch.prediction, batch.targets
        entropy = _per_input(prediction.total)
        if self.kind == "classes":
            columns = {"image": batch.inputs, "label": targets, "predicted": prediction.mean.argmax(1)}
            columns["entropy"] = entropy
            self.certain.add(entropy, columns)
            self.uncertain.add(-entropy, columns)
        elif self.kind == "pixels":
            columns = _segmentation(prediction, targets) | {"image": batch.inputs}
            columns |= {"certainty": entropy, "number": self.seen + torch.arange(len(entropy))}
            keys = (entropy, -entropy, torch.rand(len(entropy), generator=self.generator))
            for smallest, key in zip(self.segmentations, keys, strict=True):
                smallest.add(key, columns)

    def _overlays(self) -> dict[str, Tensor]:
        """The most certain and the least certain segmentation of all, and one in between of a random few."""
        parts = [smallest.columns for smallest in self.segmentations if smallest.columns]
        if not parts:
            return {}
        merged = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
        first_places = {number: row for row, number in reversed(list(enumerate(merged.pop("number").tolist())))}
        rows = torch.tensor([row for _, row in sorted(first_places.items())])  # each segmentation once
        certainty = merged.pop("certainty")
        order = rows[certainty[rows.to(certainty.device)].argsort(stable=True).to(rows.device)]
        chosen = order[torch.linspace(0, len(order) - 1, min(_OVERLAYS, len(order))).round().long()]
        return _with_pictures({name: column[chosen.to(column.device)] for name, column in merged.items()})


def sigma_of_first_layer(predictor: nn.Module) -> dict[str, Tensor]:
    """Return σ of the first layer with random weights, as a matrix with NaN for weights that are not random.

    Figure 3 of the paper on sensitivity-guided subnetworks shows the same. A predictor without random weights has none.
    """
    bnn = bayesian_inside(predictor)
    for weight in bnn.weights().values() if bnn is not None else ():
        if weight.mean.dim() > 1:
            deviation = weight.variance().sqrt()
            if weight.index is not None:
                fixed = torch.ones_like(deviation, dtype=torch.bool).flatten()
                fixed[weight.positions] = False
                deviation = deviation.masked_fill(fixed.view_as(deviation), torch.nan)
            return {"sigma": deviation.detach().flatten(1)[:128, :512].float().contiguous()}
    return {}


def _per_input(total: Tensor) -> Tensor:
    return total if total.dim() == 1 else total.flatten(1).mean(1)


def _are_pictures(inputs: Any) -> bool:
    return isinstance(inputs, Tensor) and inputs.dim() == 4 and inputs.shape[1] in (1, 3)


def _with_pictures(columns: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the columns with images from 0 to 1, (k, H, W) or (k, H, W, 3), whatever their normalisation was."""
    if not columns:
        return {}
    x = columns["image"]
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    scaled = (x - low) / (high - low).clamp_min(1e-12)
    return columns | {"image": scaled[:, 0] if x.shape[1] == 1 else scaled.movedim(1, -1)}


def _segmentation(prediction: Prediction, targets: Tensor) -> dict[str, Tensor]:
    if prediction.mean.dim() == targets.dim() + 1:  # (N, classes, H, W)
        return {"truth": targets, "predicted": prediction.mean.argmax(1), "entropy": prediction.total}
    predicted, entropy = (prediction.mean > 0.5).long(), prediction.total
    if targets.dim() == 4:  # (N, 1, H, W): the only label of each pixel
        targets, predicted, entropy = targets[:, 0], predicted[:, 0], entropy[:, 0]
    return {"truth": targets, "predicted": predicted, "entropy": entropy}
