"""What experiments on segmentation share: small U-Nets, where a network doubts and errs, and pictures of that."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from torch import Tensor
from torch.utils.data import DataLoader

from leanbayes.lab.data import Source, Task
from leanbayes.lab.data.source import from_arrays
from leanbayes.lab.models import unet
from leanbayes.lab.recipes import Trained, parse
from leanbayes.lab.recipes.variational import Variational
from leanbayes.prediction import predict
from leanbayes_papers.base import Job, Results, Size, every_job
from leanbayes_papers.training import measured, repeatable, small_task

__all__ = [
    "LONGER", "Segmented", "at_edges", "from_trained", "measured_by_epochs", "pictures", "scenes", "segmentation_task",
    "segmented", "shown", "trained_and_measured",
]  # fmt: skip

_BATCH = 50
_SHOWN = 2  # images in a figure
LONGER = "deterministic, twice the epochs"


def scenes(classes: int, count: int = 60, side: int = 16) -> Source:
    """Made-up images of one class above the other, of growing brightness, and a column of void: for smoke tests."""
    random = np.random.default_rng(0)
    edges = np.sort(random.integers(2, side - 1, (count, classes - 1)), axis=1)
    masks = (np.arange(side)[None, :, None] >= edges[:, None, :]).sum(2)[:, :, None].repeat(side, axis=2)
    images = (masks + 0.5) / classes + 0.1 * random.normal(size=masks.shape)
    masks[:, :, 0] = classes
    x = np.clip(images, 0, 1).astype(np.float32)[:, None].repeat(3, axis=1)
    return from_arrays(Path("scenes"), {"train": (x, masks)}, "pixels", ignore=classes)


def segmentation_task(source: Source, counts: Sequence[int | None], width: int, depth: int) -> Task:
    """So many of the images, and a U-Net of ``width`` channels that doubles them ``depth`` times."""
    plan = source.preparation
    return small_task(source, counts, partial(unet, plan.shape["in_channels"], len(plan.classes), width, depth))


def from_trained(size: Size, seeds: Sequence[int]) -> list[Job]:
    """Every job; the variational ones have twice the epochs, so that they start from what the plain network ends as.

    A plain network with as many epochs is there to compare with: `LONGER`.
    """

    def epochs(job: Job) -> int | None:
        longer = isinstance(parse(job.spec), Variational) or job.method == LONGER
        return 2 * size.budget.epochs if longer else None

    return [Job(job.method, job.spec, job.data, job.seed, epochs(job)) for job in every_job(size, seeds)]


@dataclass(frozen=True)
class Segmented:
    """All test images (N, height, width): the true and the most probable class, entropy, and which pixels count."""

    truth: Tensor
    chosen: Tensor
    entropy: Tensor
    counted: Tensor


def measured_by_epochs(job: Job, size: Size, task: Task) -> tuple[dict[str, Any], Trained]:
    """As `measured`, with FLOPs by the job's own epochs: see `from_trained`."""
    found, trained = measured(job, size, task)
    if "flops" in found["metrics"] and job.epochs is not None:
        found["metrics"]["flops"] *= job.epochs / size.budget.epochs
    return found, trained


def trained_and_measured(job: Job, size: Size, task: Task) -> tuple[dict[str, Any], Trained, Segmented]:
    """What a job returns, with entropies by place and pictures; and what was predicted."""
    found, trained = measured_by_epochs(job, size, task)
    metrics = found["metrics"]
    said = segmented(trained, task, size, job.seed)
    edges = at_edges(said.truth, said.counted)
    right = said.chosen == said.truth
    places = {"edges": edges, "inside": ~edges, "wrong": ~right, "right": right}
    for name, where in places.items():
        inside = where & said.counted
        if inside.any():
            metrics[f"entropy@{name}"] = said.entropy[inside].double().mean().item()
    some = {"truth": said.truth, "chosen": said.chosen, "doubt": said.entropy}
    return found | {name: maps[:_SHOWN].tolist() for name, maps in some.items()}, trained, said


def segmented(trained: Trained, task: Task, size: Size, seed: int) -> Segmented:
    """Predict the test set."""
    predictor, generator = repeatable(trained.predictor), torch.Generator().manual_seed(seed)
    likelihood = trained.likelihood
    parts = []
    for x, y in DataLoader(task.test, _BATCH):
        said = predict(predictor, x, likelihood=likelihood, samples=size.samples, generator=generator)
        parts.append((y, said.mean.argmax(1), said.total, likelihood.counted(y)))
    return Segmented(*(torch.cat(each) for each in zip(*parts, strict=True)))


def at_edges(masks: Tensor, counted: Tensor) -> Tensor:
    """Pixels of (N, height, width) that count and have one of another class, which counts, among their neighbours.

    >>> at_edges(torch.tensor([[[0, 0, 1, 1]]]), torch.ones(1, 1, 4, dtype=torch.bool)).int()
    tensor([[[0, 1, 1, 0]]], dtype=torch.int32)
    """
    values = masks.double()
    high, low = (
        F.max_pool2d(side.masked_fill(~counted, -torch.inf)[:, None], 3, stride=1, padding=1)[:, 0]
        for side in (values, -values)
    )
    return counted & (high > -low)


def shown(results: Results, methods: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Of each of these methods what its first run has to show; of those without pictures nothing."""
    rows = {name: results.first(name) or {} for name in methods}
    return {name: row for name, row in rows.items() if "chosen" in row and "doubt" in row}


def pictures(rows: Mapping[str, Mapping[str, Any]], classes: int, against: bool = False) -> Figure:
    """Of each image the truth, and of each method the classes and their entropy (dark is low).

    ``against`` colours a lesion by how it was found: green is right, blue is found where there is none, red is missed.
    """
    truth = np.asarray(next(iter(rows.values()))["truth"])
    figure = Figure(figsize=(1.3 * (1 + 2 * len(rows)), 1.2 * len(truth) + 0.2))
    panels = figure.subplots(len(truth), 1 + 2 * len(rows), squeeze=False)
    figure.subplots_adjust(0.01, 0.01, 0.99, 0.99 - 0.2 / figure.get_figheight(), 0.05, 0.05)
    found = ListedColormap(["black", "tab:green", "tab:blue", "tab:red"])
    for axes in panels.flatten():
        axes.set_axis_off()
    for line, mask in zip(panels, truth, strict=True):
        line[0].imshow(mask, cmap="gray" if against else "tab20", vmin=0, vmax=1 if against else 19)
    panels[0, 0].set_title("truth", fontsize=7)
    for column, (name, row) in enumerate(rows.items()):
        panels[0, 1 + 2 * column].set_title(name, fontsize=7)
        panels[0, 2 + 2 * column].set_title("entropy", fontsize=7)
        for line, mask, chosen, doubt in zip(panels, truth, row["chosen"], row["doubt"], strict=True):
            own = np.asarray(chosen)
            if against:
                own = np.select([(own == 1) & (mask == 1), own == 1, mask == 1], [1, 2, 3], 0)
            colours = {"cmap": found, "vmin": 0, "vmax": 3} if against else {"cmap": "tab20", "vmin": 0, "vmax": 19}
            line[1 + 2 * column].imshow(own, **colours)
            line[2 + 2 * column].imshow(np.asarray(doubt), cmap="inferno", vmin=0, vmax=float(np.log(classes)))
    return figure
