"""``leanbayes predict``: let a saved model predict images or arrays, with its uncertainty."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from leanbayes.errors import InputError
from leanbayes.lab.cli.command import Command, Result, Session, print_line
from leanbayes.lab.cli.folder import make_folder
from leanbayes.lab.cli.parser import argument
from leanbayes.lab.recipes import option

if TYPE_CHECKING:  # slow to import, and not needed for help
    from torch import Tensor

__all__ = ["COMMAND", "PredictOptions"]


@dataclass(frozen=True)
class PredictOptions:
    """What is predicted."""

    file: str = argument("The file of a model that leanbayes train or leanbayes compare saved.")
    inputs: str = argument("What to predict: an image, a folder of images, an .npz file or a .csv file.")
    model: str | None = option(
        None,
        "The function of your own that builds the network, as package.module:function. It is needed if the model was "
        "trained with one, because a file must not decide which code runs.",
    )
    seed: int = option(0, "The seed of the weight draws. The same seed gives the same predictions.")
    samples: str = option(
        "32", "How many weight draws each prediction averages, or auto to draw only as often as each input needs."
    )
    tolerance: float = option(
        0.02, "The standard error of the uncertainty, in nats, at which --samples auto stops to draw."
    )
    batch_size: int = option(64, "How many inputs the model predicts at a time.")
    out: str = option(
        "predictions",
        "The folder that receives predictions.csv, predictions.json, which says how they were made, and the maps of "
        "segmented images.",
    )


def run(options: PredictOptions, session: Session) -> Result:
    """Write a table of predictions, and for segmentation the maps of each image; return where the table is."""
    import json

    import torch

    from leanbayes._files import write_bytes, write_text
    from leanbayes.lab.cli.maps import map_names, write_map
    from leanbayes.lab.cli.predictions import Predictions
    from leanbayes.lab.cli.saved import read_model
    from leanbayes.lab.compare import Event
    from leanbayes.lab.data import likelihood_for
    from leanbayes.prediction import predict

    samples = _read_samples(options.samples)
    if options.batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {options.batch_size}")
    if not options.tolerance > 0:
        raise InputError(f"tolerance must be above 0, got {options.tolerance}")
    if not 0 <= options.seed < 2**63:
        raise InputError(f"seed must be a whole number from 0 on, got {options.seed}")
    predictor, preparation, digest = read_model(Path(options.file), options.model)
    likelihood = likelihood_for(preparation)
    folder = make_folder(options.out)
    pictures = preparation.kind == "pixels"
    if pictures and folder.resolve().is_relative_to(Path(options.inputs).resolve()):
        raise InputError(
            f"--out {options.out} lies in {options.inputs}, so the next run would take the maps for images; "
            "give a folder elsewhere"
        )
    table = Predictions(preparation)
    inputs = list(preparation.inputs(options.inputs))
    names = map_names(name for name, _ in inputs) if pictures else {}
    generator = torch.Generator().manual_seed(options.seed)
    for start, batch in _batches(inputs, options.batch_size):
        prediction = predict(
            predictor,
            torch.stack([x for _, x in batch]),
            likelihood=likelihood,
            samples=samples,
            tolerance=options.tolerance,
            generator=generator,
        )
        prediction = preparation.in_units(prediction)
        for row, (name, _) in enumerate(batch):
            table.add(name, prediction, row)
            if pictures:
                write_map(folder, names[name], prediction, row)
        session.bars(Event(Path(options.file).name, 0, "predict", start + len(batch), len(inputs)))
    write_bytes(folder / "predictions.csv", table.text().encode())
    record = _record(options, session, digest, table.text(), names)
    write_text(folder / "predictions.json", json.dumps(record, indent=1))
    return {"predictions": str(folder / "predictions.csv"), "inputs": len(inputs)}


def show(console: Console, result: Result) -> None:
    """Print where the table is."""
    print_line(console, f"predictions: {result['predictions']}")


def _record(options: PredictOptions, session: Session, digest: str, table: str, maps: dict[str, str]) -> dict[str, Any]:
    """All that is needed to make the same table again, and the sums that tell whether a file has changed."""
    import hashlib
    from importlib.metadata import version

    from leanbayes._provenance import surroundings

    return {
        "kind": "predictions",
        "format": 1,
        "command": session.command_line,
        "leanbayes": version("leanbayes"),
        **surroundings(),
        "options": asdict(options),
        "model_sha256": digest,
        "predictions_sha256": hashlib.sha256(table.encode()).hexdigest(),
        "maps": maps,
    }


def _read_samples(text: str) -> Any:
    if text == "auto":
        return text
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:19]) < 2**31:
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
