"""``leanbayes predict``: let a saved model predict images or arrays, with its uncertainty."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from leanbayes.errors import ForeignFile, InputError
from leanbayes.lab.cli.command import Command, Result, Session, print_line
from leanbayes.lab.cli.parser import argument
from leanbayes.lab.recipes import option

if TYPE_CHECKING:  # slow to import, and not needed for help
    from torch import Tensor

__all__ = ["COMMAND", "PredictOptions"]


@dataclass(frozen=True)
class PredictOptions:
    """What is predicted."""

    model: str = argument("The file of a model that leanbayes train or leanbayes compare saved.")
    inputs: str = argument("What to predict: an image, a folder of images, an .npz file or a .csv file.")
    samples: str = option(
        "32", "How many weight draws each prediction averages, or auto to draw only as often as each input needs."
    )
    tolerance: float = option(
        0.02, "The standard error of the uncertainty, in nats, at which --samples auto stops to draw."
    )
    batch_size: int = option(64, "How many inputs the model predicts at a time.")
    out: str = option("predictions", "The folder that receives predictions.csv and the maps of segmented images.")


def run(options: PredictOptions, session: Session) -> Result:
    """Write a table of predictions, and for segmentation the maps of each image; return where the table is."""
    import torch

    from leanbayes._files import write_text
    from leanbayes.lab.cli.maps import write_map
    from leanbayes.lab.cli.predictions import Predictions
    from leanbayes.lab.compare import Event
    from leanbayes.lab.data import Preparation, likelihood_for
    from leanbayes.lab.models import model_named
    from leanbayes.prediction import predict
    from leanbayes.storage import about, load

    samples = _read_samples(options.samples)
    if options.batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {options.batch_size}")
    saved = about(options.model)
    if not {"model", "shape", "preparation"} <= saved.keys():
        raise ForeignFile(
            f"{options.model} does not say how its inputs are prepared; save the model with leanbayes train or compare"
        )
    preparation = Preparation.from_json(saved["preparation"])
    predictor = load(options.model, model_named(saved["model"], **_shape(saved["shape"])))
    likelihood = likelihood_for(preparation)
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    table = Predictions(preparation)
    inputs = list(preparation.inputs(options.inputs))
    for start, batch in _batches(inputs, options.batch_size):
        prediction = predict(
            predictor,
            torch.stack([x for _, x in batch]),
            likelihood=likelihood,
            samples=samples,
            tolerance=options.tolerance,
        )
        prediction = preparation.in_units(prediction)
        for row, (name, _) in enumerate(batch):
            table.add(name, prediction, row)
            if preparation.kind == "pixels":
                write_map(folder, name, prediction, row)
        session.bars(Event(Path(options.model).name, 0, "predict", start + len(batch), len(inputs)))
    write_text(folder / "predictions.csv", table.text())
    return {"predictions": str(folder / "predictions.csv"), "inputs": len(inputs)}


def show(console: Console, result: Result) -> None:
    """Print where the table is."""
    print_line(console, f"predictions: {result['predictions']}")


def _shape(saved: dict[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in saved.items()}


def _read_samples(text: str) -> Any:
    if text == "auto":
        return text
    if not text.isdigit() or int(text) < 1:
        raise InputError(f"samples must be a whole number from 1 on, or auto, got {text!r}")
    return int(text)


def _batches(inputs: list[tuple[str, "Tensor"]], size: int) -> Iterator[tuple[int, list[tuple[str, "Tensor"]]]]:
    for start in range(0, len(inputs), size):
        yield start, inputs[start : start + size]


COMMAND = Command(
    "predict",
    "Predict images or arrays with a saved model, and say how sure it is of each.",
    PredictOptions,
    run,
    show,
)
