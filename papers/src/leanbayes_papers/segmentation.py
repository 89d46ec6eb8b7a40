"""What studies of segmentation share: small U-Nets, where a network is unsure and wrong, and pictures of both."""

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
from leanbayes_papers.study import Job, Results, Size, every_job
from leanbayes_papers.training import repeatable, small_task, train_and_measure

__all__ = [
    "LONGER", "Segmented", "at_edges", "jobs_from_trained", "pictures", "results_with_pictures", "scenes",
    "segment_test", "segmentation_task", "train_and_measure_by_epochs", "train_and_segment",
]  # fmt: skip

_BATCH = 50
_SHOWN = 2  # how many images a figure shows
LONGER = "deterministic, twice the epochs"


def scenes(classes: int, count: int = 60, side: int = 16) -> Source:
    """Return made-up images for smoke tests: brighter classes lie below darker ones, and one column has no class."""
    random = np.random.default_rng(0)
    edges = np.sort(random.integers(2, side - 1, (count, classes - 1)), axis=1)
    masks = (np.arange(side)[None, :, None] >= edges[:, None, :]).sum(2)[:, :, None].repeat(side, axis=2)
    images = (masks + 0.5) / classes + 0.1 * random.normal(size=masks.shape)
    masks[:, :, 0] = classes
    x = np.clip(images, 0, 1).astype(np.float32)[:, None].repeat(3, axis=1)
    return from_arrays(Path("scenes"), {"train": (x, masks)}, "pixels", ignore=classes)


def segmentation_task(source: Source, counts: Sequence[int | None], width: int, depth: int) -> Task:
    """Return a task with ``counts`` images and a U-Net of ``width`` channels, which doubles them ``depth`` times."""
    plan = source.preparation
    return small_task(source, counts, partial(unet, plan.shape["in_channels"], len(plan.classes), width, depth))


def jobs_from_trained(size: Size, seeds: Sequence[int]) -> list[Job]:
    """Return every job, with twice the epochs for variational networks.

    A variational network spends half of its epochs as a plain network. So it starts exactly where the plain network
    ends. The method `LONGER` is a plain network with as many epochs, for a fair comparison.
    """

    def epochs(job: Job) -> int | None:
        longer = isinstance(parse(job.spec), Variational) or job.method == LONGER
        return 2 * size.budget.epochs if longer else None

    return [Job(job.method, job.spec, job.data, job.seed, epochs(job)) for job in every_job(size, seeds)]


@dataclass(frozen=True)
class Segmented:
    """The prediction of all test images, each tensor of shape (N, height, width).

    Args:
        truth: the true class.
        chosen: the most probable class.
        entropy: the entropy of the predicted classes in nats.
        counted: whether the pixel has a class at all.
    """

    truth: Tensor
    chosen: Tensor
    entropy: Tensor
    counted: Tensor


def train_and_measure_by_epochs(job: Job, size: Size, task: Task) -> tuple[dict[str, Any], Trained]:
    """Do what `train_and_measure` does, with FLOPs for the job's own number of epochs; see `jobs_from_trained`."""
    result, trained = train_and_measure(job, size, task)
    if "flops" in result["metrics"] and job.epochs is not None:
        result["metrics"]["flops"] *= job.epochs / size.budget.epochs
    return result, trained


def train_and_segment(job: Job, size: Size, task: Task) -> tuple[dict[str, Any], Trained, Segmented]:
    """Train a job and segment the test images.

    Returns:
        The result of the job, with the mean entropy of pixels at edges, inside, wrong and right, and pictures of the
        first images; the predictor; and the predictions.
    """
    result, trained = train_and_measure_by_epochs(job, size, task)
    metrics = result["metrics"]
    predicted = segment_test(trained, task, size, job.seed)
    edges = at_edges(predicted.truth, predicted.counted)
    right = predicted.chosen == predicted.truth
    regions = {"edges": edges, "inside": ~edges, "wrong": ~right, "right": right}
    for name, region in regions.items():
        pixels = region & predicted.counted
        if pixels.any():
            metrics[f"entropy@{name}"] = predicted.entropy[pixels].double().mean().item()
    maps = {"truth": predicted.truth, "chosen": predicted.chosen, "doubt": predicted.entropy}
    return result | {name: images[:_SHOWN].tolist() for name, images in maps.items()}, trained, predicted


def segment_test(trained: Trained, task: Task, size: Size, seed: int) -> Segmented:
    """Predict all test images."""
    predictor, generator = repeatable(trained.predictor), torch.Generator().manual_seed(seed)
    likelihood = trained.likelihood
    parts = []
    for x, y in DataLoader(task.test, _BATCH):
        predicted = predict(predictor, x, likelihood=likelihood, samples=size.samples, generator=generator)
        parts.append((y, predicted.mean.argmax(1), predicted.total, likelihood.counted(y)))
    return Segmented(*(torch.cat(batches) for batches in zip(*parts, strict=True)))


def at_edges(masks: Tensor, counted: Tensor) -> Tensor:
    """Return which pixels of (N, height, width) have a neighbour of another class, among the pixels that count.

    >>> at_edges(torch.tensor([[[0, 0, 1, 1]]]), torch.ones(1, 1, 4, dtype=torch.bool)).int()
    tensor([[[0, 1, 1, 0]]], dtype=torch.int32)
    """
    values = masks.double()
    high, low = (
        F.max_pool2d(side.masked_fill(~counted, -torch.inf)[:, None], 3, stride=1, padding=1)[:, 0]
        for side in (values, -values)
    )
    return counted & (high > -low)


def results_with_pictures(results: Results, methods: Sequence[str]) -> dict[str, Mapping[str, Any]]:
    """Return the first result of each of these methods that has pictures."""
    rows = {name: results.first(name) or {} for name in methods}
    return {name: row for name, row in rows.items() if "chosen" in row and "doubt" in row}


def pictures(rows: Mapping[str, Mapping[str, Any]], classes: int, against: bool = False) -> Figure:
    """Draw for each image the truth, and for each method the predicted classes and their entropy (dark is low).

    Args:
        rows: the results of the methods, see `results_with_pictures`.
        classes: the number of classes.
        against: colour lesions by comparison with the truth: green is right, blue is a false alarm, red is missed.
    """
    truth = np.asarray(next(iter(rows.values()))["truth"])
    figure = Figure(figsize=(1.3 * (1 + 2 * len(rows)), 1.2 * len(truth) + 0.2))
    panels = figure.subplots(len(truth), 1 + 2 * len(rows), squeeze=False)
    figure.subplots_adjust(0.01, 0.01, 0.99, 0.99 - 0.2 / figure.get_figheight(), 0.05, 0.05)
    compared = ListedColormap(["black", "tab:green", "tab:blue", "tab:red"])
    for axes in panels.flatten():
        axes.set_axis_off()
    for line, mask in zip(panels, truth, strict=True):
        line[0].imshow(mask, cmap="gray" if against else "tab20", vmin=0, vmax=1 if against else 19)
    panels[0, 0].set_title("truth", fontsize=7)
    for column, (name, row) in enumerate(rows.items()):
        panels[0, 1 + 2 * column].set_title(name, fontsize=7)
        panels[0, 2 + 2 * column].set_title("entropy", fontsize=7)
        for line, mask, chosen, doubt in zip(panels, truth, row["chosen"], row["doubt"], strict=True):
            drawn = np.asarray(chosen)
            if against:
                drawn = np.select([(drawn == 1) & (mask == 1), drawn == 1, mask == 1], [1, 2, 3], 0)
            colours = {"cmap": compared, "vmin": 0, "vmax": 3} if against else {"cmap": "tab20", "vmin": 0, "vmax": 19}
            line[1 + 2 * column].imshow(drawn, **colours)
            line[2 + 2 * column].imshow(np.asarray(doubt), cmap="inferno", vmin=0, vmax=float(np.log(classes)))
    return figure
