"""The arrays behind the report's figures: what one trained predictor says of single inputs."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Subset

from leanbayes._calls import split_batch
from leanbayes.bayesian import Bayesian
from leanbayes.lab.data.task import Task, length
from leanbayes.likelihood import Likelihood
from leanbayes.metrics.quality import cells_of
from leanbayes.prediction import Prediction, Predictor, predict

__all__ = ["bayesian_inside", "figure_arrays", "kind_of"]

_INPUTS = 2000  # of each set, at most
_PIXELS = 20_000
_PICTURES = 6
_OVERLAYS = 3


def kind_of(task: Task) -> str:
    """What is predicted: classes, labels, pixels or (regression) numbers."""
    target = torch.as_tensor(split_batch(task.test[0])[1])
    return task.likelihood.kind(target.unsqueeze(0))


def bayesian_inside(predictor: nn.Module) -> Bayesian | None:
    """The `Bayesian` that a predictor stands on, if there is one."""
    if isinstance(predictor, Predictor):
        inside = [bayesian_inside(part) for part in predictor.parts().values()]
        return next((found for found in inside if found is not None), None)
    return predictor if isinstance(predictor, Bayesian) else None


def figure_arrays(
    predictor: nn.Module, task: Task, likelihood: Likelihood, *, samples: int, batch_size: int
) -> dict[str, Tensor]:
    """By the names that the report knows; of large sets a fixed random part."""
    x, y = _some(task.test)
    settings: dict[str, Any] = {"likelihood": likelihood, "samples": samples, "batch_size": batch_size}
    found = predict(predictor, x, **settings)
    kind = kind_of(task)
    arrays = _regression(found, y) if kind == "regression" else _confidence(found, y, likelihood)
    if kind != "regression":
        for name, data in task.shifted.items():
            total = predict(predictor, _some(data)[0], **settings).total
            arrays[f"shifted/{name}/entropy"] = _per_input(total)
    if kind == "classes" and _is_picture(x):
        arrays |= _examples(found, x, y)
    if kind == "pixels":
        arrays |= _overlays(found, x, y)
    bnn = bayesian_inside(predictor)
    if bnn is not None:
        arrays |= _sigma(bnn)
    return {name: value.detach().float().contiguous() for name, value in arrays.items()}


def _some(data: Dataset[Any]) -> tuple[Any, Tensor]:
    count = length(data)
    if count > _INPUTS:
        chosen = torch.randperm(count, generator=torch.Generator().manual_seed(0))[:_INPUTS]
        data = Subset(data, chosen.tolist())
    x, y = split_batch(next(iter(DataLoader(data, batch_size=_INPUTS))))
    return x, y


def _confidence(found: Prediction, y: Tensor, likelihood: Likelihood) -> dict[str, Tensor]:
    cells = cells_of(found.mean, y, likelihood.ignore_index)
    columns = [cells.confidence, cells.correct, found.total[cells.counted]]
    if len(columns[0]) > _PIXELS:
        chosen = torch.randperm(len(columns[0]), generator=torch.Generator().manual_seed(0))[:_PIXELS]
        columns = [column[chosen] for column in columns]
    return dict(zip(("confidence", "correct", "entropy"), columns, strict=True))


def _regression(found: Prediction, y: Tensor) -> dict[str, Tensor]:
    return {"predicted": found.mean.flatten(), "deviation": found.total.sqrt().flatten(), "truth": y.flatten()}


def _per_input(total: Tensor) -> Tensor:
    return total if total.dim() == 1 else total.flatten(1).mean(1)


def _is_picture(x: Any) -> bool:
    return isinstance(x, Tensor) and x.dim() == 4 and x.shape[1] in (1, 3)


def _pictures(x: Tensor) -> Tensor:
    """(k, H, W) or (k, H, W, 3), from 0 to 1: whatever normalisation the inputs went through."""
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    shown = (x - low) / (high - low).clamp_min(1e-12)
    return shown[:, 0] if x.shape[1] == 1 else shown.movedim(1, -1)


def _examples(found: Prediction, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    order = found.total.argsort()
    arrays = {}
    for name, rows in (("certain", order[:_PICTURES]), ("uncertain", order.flip(0)[:_PICTURES])):
        arrays[f"{name}/image"] = _pictures(x[rows])
        arrays[f"{name}/label"], arrays[f"{name}/predicted"] = y[rows], found.mean[rows].argmax(1)
        arrays[f"{name}/entropy"] = found.total[rows]
    return arrays


def _overlays(found: Prediction, x: Any, y: Tensor) -> dict[str, Tensor]:
    """The surest, the middle and the least sure image."""
    if not _is_picture(x):
        return {}
    several = found.mean.dim() == y.dim() + 1
    predicted = found.mean.argmax(1) if several else (found.mean > 0.5).long()
    entropy = found.total
    if not several and y.dim() == 4:  # (N, 1, H, W) of yes or no
        predicted, entropy, y = predicted[:, 0], entropy[:, 0], y[:, 0]
    order = entropy.flatten(1).mean(1).argsort()
    places = torch.linspace(0, len(order) - 1, min(_OVERLAYS, len(order))).round().long()
    rows = order[places.to(order.device)]
    return {
        "overlay/image": _pictures(x[rows]),
        "overlay/truth": y[rows],
        "overlay/predicted": predicted[rows],
        "overlay/entropy": entropy[rows],
    }


def _sigma(bnn: Bayesian) -> dict[str, Tensor]:
    """σ of the first layer with random weights, as a matrix; NaN where a weight is not random (001, figure 3)."""
    for weight in bnn.weights().values():
        if weight.mean.dim() > 1:
            deviation = weight.variance().sqrt()
            if weight.index is not None:
                fixed = torch.ones_like(deviation, dtype=torch.bool).flatten()
                fixed[weight.positions] = False
                deviation = deviation.masked_fill(fixed.view_as(deviation), torch.nan)
            return {"sigma": deviation.flatten(1)[:128, :512]}
    return {}
