"""The commands: what they are asked, and what they leave behind. No maths here."""

import csv
import io
import json
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from leanbayes._files import write_text
from leanbayes.errors import ForeignFile, InputError
from leanbayes.lab.cli.maps import write_map
from leanbayes.lab.cli.progress import Bars
from leanbayes.lab.compare import Event, Protocol, compare, is_main_process, judge
from leanbayes.lab.data import DATA, Preparation, Source, Task, digits, likelihood_for, load_data, read
from leanbayes.lab.models import model_named
from leanbayes.lab.recipes import Budget, Run, parse, prepare, settings
from leanbayes.lab.recipes.base import option
from leanbayes.lab.report import write_report
from leanbayes.prediction import Prediction, predict
from leanbayes.storage import about, load, save

__all__ = [
    "CompareOptions", "DataOptions", "PredictOptions", "ReportOptions", "TrainOptions", "read_task",
    "run_compare", "run_predict", "run_report", "run_train",
]  # fmt: skip

METHODS = ("deterministic", "ensemble", "dropout", "vi", "partial", "layers")


@dataclass(frozen=True)
class DataOptions:
    """The data."""

    data: str = option(
        "digits", "digits, a data set by name, a folder of class folders or of images, an .npz or a .csv"
    )
    data_dir: str | None = option(None, "where data sets by name are; else what LEANBAYES_DATA names, or ./data")
    download: bool = option(False, "of a data set by name: fetch what is missing, where its source allows it")
    masks: str | None = option(None, "for segmentation: the folder of masks, one for each image of --data")
    target: str | None = option(None, "of a .csv: the column to predict")
    size: int | None = option(None, "bring images to this height and width")
    ignore: int | None = option(None, "the value of mask pixels that do not count")
    model: str | None = option(None, "small_cnn, resnet18, unet, mlp, or your own as package.module:function")
    split_seed: int = option(0, "of the split into training, validation and test data, where the data have none")


@dataclass(frozen=True)
class CompareOptions:
    """The comparison."""

    methods: tuple[str, ...] = option(METHODS, "recipes, each as name, name:option=value,... or name+temperature")
    seeds: tuple[int, ...] = option((0,), "one training of each method for each")
    samples: int = option(32, "draws for each prediction")
    out: str = option("out", "folder for results, models and the report")


@dataclass(frozen=True)
class TrainOptions:
    """The training."""

    recipe: str = option("partial", "as in compare: name, name:option=value,... or name+temperature")
    seed: int = option(0, "of weights, data order and noise")
    samples: int = option(32, "draws for each prediction")
    out: str = option("out", "folder for the model and its scores")


@dataclass(frozen=True)
class PredictOptions:
    """The prediction."""

    samples: str = option("32", "draws for each input, or auto")
    tolerance: float = option(0.02, "nats, for auto")
    batch_size: int = option(64, "inputs at a time")
    out: str = option("predictions", "folder for predictions.csv and the maps")


@dataclass(frozen=True)
class ReportOptions:
    """The report."""

    out: str | None = option(None, "the page to write; by default report.html in the folder")


def run_compare(data: DataOptions, budget: Budget, options: CompareOptions, bars: Bars, command: str) -> dict[str, Any]:
    """Train every method, judge it, write the report; the record."""
    recipes = {spec: parse(spec) for spec in options.methods}
    if len(recipes) < len(options.methods):
        raise InputError(f"a method is named twice: {' '.join(options.methods)}")
    task, kept = read_task(data, bars)
    bars.begin("methods", len(recipes) * len(options.seeds))

    def watch(event: Event) -> None:
        bars(event)
        if event.stage == "evaluate" and event.done == event.total:
            bars.step()

    found = compare(
        task,
        recipes,
        Path(options.out),
        Protocol(options.seeds, budget, options.samples),
        watch=watch,
        about=kept,
        command=command,
    )
    if is_main_process():
        found["report"] = str(write_report(Path(options.out)))
    return found


def run_train(data: DataOptions, budget: Budget, options: TrainOptions, bars: Bars, command: str) -> dict[str, Any]:
    """Train one recipe and save it; its scores on the test set."""
    recipe = parse(options.recipe)
    task, kept = read_task(data, bars)
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    checkpoints = folder / "checkpoints"

    def watch(stage: str, done: int, total: int) -> None:
        bars(Event(options.recipe, options.seed, stage, done, total))

    run = Run(budget, options.seed, checkpoints, watch)
    trained = prepare(recipe, task, run)
    record: dict[str, Any] = {"command": command, "recipe": settings(recipe), "budget": asdict(budget)}
    if is_main_process():
        judgement = judge(recipe, trained, task, run, samples=options.samples)
        record |= {"seed": options.seed, "metrics": judgement.metrics, "cost": judgement.cost}
        record["model"] = str(folder / "model.lb")
        save(trained.predictor, folder / "model.lb", about=kept | {"recipe": settings(recipe)})
        write_text(folder / "scores.json", json.dumps(record, indent=1))
        shutil.rmtree(checkpoints, ignore_errors=True)
    return record


def run_predict(model: str, inputs: str, options: PredictOptions, bars: Bars) -> dict[str, Any]:
    """A saved model on images or arrays: a CSV, and for segmentation a map of each image's uncertainty."""
    samples = _samples(options.samples)
    if options.batch_size < 1:
        raise InputError(f"--batch-size must be at least 1, got {options.batch_size}")
    kept = about(model)
    if not {"model", "shape", "preparation"} <= kept.keys():
        raise ForeignFile(f"{model} does not say how its inputs are prepared; save it with leanbayes train or compare")
    preparation = Preparation.from_json(kept["preparation"])
    predictor = load(model, model_named(kept["model"], **_shape(kept["shape"])))
    likelihood = likelihood_for(preparation)
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    names: list[str] = []
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_columns(preparation))
    source = list(preparation.inputs(inputs))
    for start, batch in _batches(source, options.batch_size):
        found = predict(
            predictor,
            torch.stack([x for _, x in batch]),
            likelihood=likelihood,
            samples=samples,
            tolerance=options.tolerance,
        )
        found = preparation.in_units(found)
        for row, (name, _) in enumerate(batch):
            writer.writerow([name, *_cells(preparation, found, row)])
            if preparation.kind == "pixels":
                write_map(folder, name, found, row)
        names += [name for name, _ in batch]
        bars(Event(Path(model).name, 0, "predict", start + len(batch), len(source)))
    write_text(folder / "predictions.csv", text.getvalue())
    return {"predictions": str(folder / "predictions.csv"), "inputs": len(names)}


def run_report(folder: str, options: ReportOptions) -> dict[str, Any]:
    """The page of a comparison."""
    return {"report": str(write_report(Path(folder), None if options.out is None else Path(options.out)))}


def read_task(options: DataOptions, bars: Bars) -> tuple[Task, dict[str, Any]]:
    """The task, and what must be kept beside a model trained on it."""
    if options.data == "digits":
        task = digits(options.split_seed)
        preparation = Preparation("classes", (0.0,), (1.0,), task.classes, size=(8, 8), resize=True)
        name = options.model or "small_cnn"
        if options.model is not None:
            task = replace(task, model=partial(model_named, name, **preparation.shape))
            task.model()  # a wrong name must be known before anything is trained
    else:
        source = _by_name(options, bars) if options.data in DATA else _from_files(options, bars)
        preparation = source.preparation
        name = options.model or source.usual_model
        task = source.task(name)
    return task, {"model": name, "shape": preparation.shape, "preparation": preparation.to_json()}


def _from_files(options: DataOptions, bars: Bars) -> Source:
    return read(
        options.data,
        masks=options.masks,
        target=options.target,
        size=options.size,
        ignore=options.ignore,
        seed=options.split_seed,
        track=bars.track,
    )


def _by_name(options: DataOptions, bars: Bars) -> Source:
    """A data set of `DATA`; a folder of the same name is given as ./name."""
    for name in ("masks", "target", "ignore"):
        if getattr(options, name) is not None:
            raise InputError(
                f"{options.data} is a data set by name; leave --{name} out, or give the folder ./{options.data}"
            )
    return load_data(
        options.data,
        options.data_dir,
        seed=options.split_seed,
        size=options.size,
        download=options.download,
        track=bars.track,
    )


def _shape(kept: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in kept.items()}


def _samples(text: str) -> Any:
    if text == "auto":
        return text
    if not text.isdigit() or int(text) < 1:
        raise InputError(f"--samples must be a number from 1 on, or auto, got {text!r}")
    return int(text)


def _batches(source: list[tuple[str, Tensor]], size: int) -> Iterator[tuple[int, list[tuple[str, Tensor]]]]:
    for start in range(0, len(source), size):
        yield start, list(islice(source, start, start + size))


def _columns(preparation: Preparation) -> list[str]:
    names = {
        "classes": ["predicted", "probability", *(f"p({name})" for name in preparation.classes)],
        "labels": [f"p({name})" for name in preparation.classes],
        "pixels": [f"share({name})" for name in preparation.classes],
        "regression": [f"{what}{number}" for number in _numbers(preparation) for what in ("mean", "deviation")],
    }[preparation.kind]
    return ["name", *names, "total", "aleatoric", "epistemic", "standard_error", "draws"]


def _numbers(preparation: Preparation) -> list[str]:
    """What tells a regression's outputs apart: nothing, if there is one."""
    count = len(preparation.target_mean)
    return [""] if count == 1 else [f"_{number}" for number in range(count)]


def _cells(preparation: Preparation, found: Prediction, row: int) -> list[Any]:
    mean = found.mean[row]
    if preparation.kind == "classes":
        best = int(mean.argmax())
        cells: list[Any] = [preparation.classes[best], _number(mean[best]), *map(_number, mean)]
    elif preparation.kind == "labels":
        cells = [*map(_number, mean)]
    elif preparation.kind == "pixels":
        chosen = mean.argmax(0)
        cells = [_number((chosen == label).double().mean()) for label in range(len(preparation.classes))]
    else:
        deviations = found.total[row].sqrt()
        cells = [_number(value) for pair in zip(mean, deviations, strict=True) for value in pair]
    cells += [_number(getattr(found, name)[row].double().mean()) for name in ("total", "aleatoric", "epistemic")]
    return [*cells, _number(found.standard_error[row]), int(found.draws[row])]


def _number(value: Tensor) -> str:
    return f"{value.item():.6g}"
