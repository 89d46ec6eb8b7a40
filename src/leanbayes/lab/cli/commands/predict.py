"""``leanbayes predict``: let a saved model predict images, scans or arrays, with its uncertainty."""

import math
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
    from leanbayes.lab.data.new_cases import NewCases

__all__ = ["COMMAND", "PredictOptions"]

_DRAWS = 2**28  # bytes of what the draws predict for all cases of a batch
_MOST_DRAWS = 2**31  # the same for one case; of a larger one they are not kept


@dataclass(frozen=True)
class PredictOptions:
    """What is predicted."""

    file: str = argument("The file of a model that leanbayes train or leanbayes compare saved.")
    inputs: str = argument(
        "What to predict: an image, a scan (NIfTI or DICOM), a folder of them, an .npz file or a .csv file."
    )
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
    review: bool = option(
        False,
        "Write review.html too, a page that shows every segmented case in order of doubt, slice by slice, with its "
        "outlines and maps.",
    )


def run(options: PredictOptions, session: Session) -> Result:
    """Write a table of predictions, and for segmentation the maps of each image; return where the table is."""
    import json

    import torch

    from leanbayes._files import write_bytes, write_text
    from leanbayes.lab.cli.maps import map_names, write_map, write_segments
    from leanbayes.lab.cli.predictions import Predictions
    from leanbayes.lab.cli.reviews import Reviewer
    from leanbayes.lab.cli.saved import read_model
    from leanbayes.lab.compare import Event
    from leanbayes.lab.data import likelihood_for
    from leanbayes.lab.data.new_cases import NewCases
    from leanbayes.lab.windows import Windowed
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
    cases = NewCases(preparation, Path(options.inputs))
    names = map_names(cases.names) if pictures else {}
    without_segments: dict[str, str] = {}
    reviewer = Reviewer(folder, preparation, predictor) if options.review else None
    if preparation.window is not None:
        predictor = Windowed(predictor, preparation.window)
    generator = torch.Generator().manual_seed(options.seed)
    size, keep = _batch_size(options.batch_size, cases, samples)
    for start in range(0, len(cases), size):
        batch = [cases[index] for index in range(start, min(start + size, len(cases)))]
        prediction = predict(
            predictor,
            torch.stack([case.x for case in batch]),
            likelihood=likelihood,
            samples=samples,
            tolerance=options.tolerance,
            generator=generator,
            keep_samples=keep,
        )
        prediction = preparation.in_units(prediction)
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
            reason = write_segments(folder, names[case.name], own, case, preparation.classes, digest)
            if reason is not None:
                without_segments[case.name] = reason
        session.bars(Event(Path(options.file).name, 0, "predict", start + len(batch), len(cases)))
    write_bytes(folder / "predictions.csv", table.text().encode())
    record = _record(options, session, digest, table.text(), names) | {"without_dicom_seg": without_segments}
    write_text(folder / "predictions.json", json.dumps(record, indent=1))
    result: Result = {"predictions": str(folder / "predictions.csv"), "inputs": len(cases)}
    if reviewer is not None:
        result["review"] = str(reviewer.write(record))
    if without_segments:
        result["without_dicom_seg"] = without_segments
    return result


def show(console: Console, result: Result) -> None:
    """Print where the table is, and for how many series no DICOM SEG could be written, with the first reason."""
    without = result.get("without_dicom_seg", {})
    if without:
        print_line(
            console, f"No DICOM SEG for {len(without)} of {result['inputs']} cases: {next(iter(without.values()))}"
        )
    print_line(console, f"predictions: {result['predictions']}")
    if "review" in result:
        print_line(console, f"review: {result['review']}")


def _record(options: PredictOptions, session: Session, digest: str, table: str, maps: dict[str, str]) -> dict[str, Any]:
    """All that is needed to make the same table again, and the sums that tell whether a file has changed."""
    import hashlib
    from importlib.metadata import PackageNotFoundError, version

    from leanbayes._provenance import surroundings

    packages: dict[str, str | None] = {}
    for package in ("numpy", "monai", "nibabel", "pydicom", "highdicom", "pillow"):
        try:
            packages[package] = version(package)
        except PackageNotFoundError:
            packages[package] = None
    return {
        "kind": "predictions",
        "format": 1,
        "command": session.command_line,
        "leanbayes": version("leanbayes"),
        **surroundings(),
        "packages": packages,
        "options": asdict(options),
        "seed": options.seed,
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


def _batch_size(wanted: int, cases: "NewCases", samples: Any) -> tuple[int, bool]:
    """Return how many cases are predicted at a time, and whether what each draw predicts is kept.

    Draws of a segmentation are kept, to see whether they agree, if they are not too large. Cases that are seen through
    windows may differ in size.
    """
    plan = cases.plan
    if plan.kind != "pixels":
        return wanted, False
    first = cases[0].x
    of_one = 4 * len(plan.classes) * first[0].numel() * (samples if isinstance(samples, int) else 1)
    together = 1 if plan.window is not None else max(1, min(wanted, _DRAWS // of_one))
    return together, isinstance(samples, int) and of_one <= _MOST_DRAWS


COMMAND = Command(
    "predict",
    "Predict images or scans with a saved model, and say how sure it is of each.",
    PredictOptions,
    run,
    show,
)
