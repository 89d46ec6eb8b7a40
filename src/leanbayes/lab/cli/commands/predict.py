"""``leanbayes predict``: let a saved model predict images, scans or arrays, with its uncertainty."""

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from leanbayes.errors import InputError
from leanbayes.lab.cli.command import Command, Result, Session, print_line
from leanbayes.lab.cli.crew import EXECUTOR, make_crew
from leanbayes.lab.cli.folder import make_folder
from leanbayes.lab.cli.parser import argument
from leanbayes.lab.recipes import option

if TYPE_CHECKING:  # slow to import, and not needed for help
    from leanbayes.lab.cli.predicting import SavedModel
    from leanbayes.lab.jobs import Crew

__all__ = ["COMMAND", "PredictOptions"]

_SHARD = 1000  # inputs


@dataclass(frozen=True)
class PredictOptions:
    """What is predicted."""

    file: str = argument("The file of a model that leanbayes train or leanbayes compare saved.")
    inputs: str = argument(
        "What to predict: an image, a scan (NIfTI or DICOM), a folder of them, an .npz file or a .csv file. In shards "
        "also: a WebDataset (.tar), a .parquet file, a folder of such files, or a .csv file whose column path names "
        "them."
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
    shard_size: int | None = option(
        None,
        "Predict in shards of this many inputs. Each shard becomes a folder below --out, and manifest.json lists them. "
        "Shards can be shared by many workers, and what is done stays done after a kill. By default there are shards, "
        "of 1000 inputs, only with --executor and for .tar and .parquet files.",
    )
    executor: str = option("local", EXECUTOR)
    review: bool = option(
        False,
        "Write review.html too, a page that shows every segmented case in order of doubt, slice by slice, with its "
        "outlines and maps.",
    )


def run(options: PredictOptions, session: Session) -> Result:
    """Write a table of predictions, and for segmentation the maps of each image; return where the table is."""
    import json

    from leanbayes._files import write_bytes, write_text
    from leanbayes.lab.cli.predicting import SavedModel, predict_cases
    from leanbayes.lab.cli.reviews import Reviewer
    from leanbayes.lab.cli.saved import read_model
    from leanbayes.lab.compare import Event
    from leanbayes.lab.data.new_cases import NewCases

    samples = _read_samples(options.samples)
    if options.batch_size < 1:
        raise InputError(f"batch_size must be at least 1, got {options.batch_size}")
    if options.shard_size is not None and options.shard_size < 1:
        raise InputError(f"shard_size must be at least 1, got {options.shard_size}")
    if not options.tolerance > 0:
        raise InputError(f"tolerance must be above 0, got {options.tolerance}")
    if not 0 <= options.seed < 2**63:
        raise InputError(f"seed must be a whole number from 0 on, got {options.seed}")
    crew = make_crew(options.executor, session)
    inputs = Path(options.inputs)
    predictor, preparation, digest = read_model(Path(options.file), options.model)
    model = SavedModel(predictor, preparation, digest, samples, options.tolerance, options.batch_size)
    folder = make_folder(options.out)
    pictures = preparation.kind == "pixels"
    if pictures and folder.resolve().is_relative_to(inputs.resolve()):
        raise InputError(
            f"--out {options.out} lies in {options.inputs}, so the next run would take the maps for images; "
            "give a folder elsewhere"
        )
    if crew is not None or options.shard_size is not None or inputs.suffix.lower() in (".tar", ".parquet", ".pq"):
        return _predict_shards(options, session, model, crew, folder)
    cases = NewCases(preparation, inputs)
    reviewer = Reviewer(folder, preparation, predictor) if options.review else None

    def watch(done: int, total: int) -> None:
        session.bars(Event(Path(options.file).name, 0, "predict", done, total))

    predicted = predict_cases(model, cases, folder, options.seed, reviewer=reviewer, watch=watch)
    write_bytes(folder / "predictions.csv", predicted.table.encode())
    without_segments = predicted.without_segments
    record = _record(options, session) | {
        "kind": "predictions",
        "format": 1,
        "seed": options.seed,
        "model_sha256": digest,
        "predictions_sha256": hashlib.sha256(predicted.table.encode()).hexdigest(),
        "maps": predicted.maps,
        "without_dicom_seg": without_segments,
    }
    write_text(folder / "predictions.json", json.dumps(record, indent=1))
    result: Result = {"predictions": str(folder / "predictions.csv"), "inputs": len(cases)}
    if reviewer is not None:
        result["review"] = str(reviewer.write(record))
    if without_segments:
        result["without_dicom_seg"] = without_segments
    return result


def _predict_shards(
    options: PredictOptions, session: Session, model: "SavedModel", crew: "Crew | None", folder: Path
) -> Result:
    from leanbayes.lab.cli.sharded import Throughput, predict_shards
    from leanbayes.lab.jobs import Crew, plan_of

    if options.review:
        raise InputError("--review shows all cases on one page, which is no use for shards; leave one of them out")

    def watch(throughput: Throughput) -> None:
        session.bars.tell(str(throughput))

    record = predict_shards(
        model,
        Path(options.inputs),
        folder,
        Crew(plan_of("shared"), say=session.bars.remark) if crew is None else crew,
        seed=options.seed,
        size=options.shard_size or _SHARD,
        header=_record(options, session),
        watch=watch,
    )
    result = {name: record[name] for name in ("manifest", "inputs_per_second")}
    result |= {"inputs": record["count"], "shards": len(record["shards"])}
    without = {name: why for row in record["shards"] for name, why in row["without_dicom_seg"].items()}
    return result | ({"without_dicom_seg": without} if without else {})


def show(console: Console, result: Result) -> None:
    """Print where the table is, and for how many series no DICOM SEG could be written, with the first reason."""
    without = result.get("without_dicom_seg", {})
    if without:
        print_line(
            console, f"No DICOM SEG for {len(without)} of {result['inputs']} cases: {next(iter(without.values()))}"
        )
    if "manifest" in result:
        rate = f", {result['inputs_per_second']:,.0f} inputs/s" if result["inputs_per_second"] else ""
        print_line(console, f"{result['inputs']:,} inputs in {result['shards']:,} shards{rate}")
        print_line(console, f"manifest: {result['manifest']}")
        return
    print_line(console, f"predictions: {result['predictions']}")
    if "review" in result:
        print_line(console, f"review: {result['review']}")


def _record(options: PredictOptions, session: Session) -> dict[str, Any]:
    """With which command, versions and machine the predictions were made."""
    from importlib.metadata import PackageNotFoundError, version

    from leanbayes._provenance import surroundings

    packages: dict[str, str | None] = {}
    for package in ("numpy", "monai", "nibabel", "pydicom", "highdicom", "pillow"):
        try:
            packages[package] = version(package)
        except PackageNotFoundError:
            packages[package] = None
    return {
        "command": session.command_line,
        "leanbayes": version("leanbayes"),
        **surroundings(),
        "packages": packages,
        "options": asdict(options),
    }


def _read_samples(text: str) -> Any:
    if text == "auto":
        return text
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text[:19]) < 2**31:
        raise InputError(f"samples must be a whole number from 1 on, or auto, got {text!r}")
    return int(text)


COMMAND = Command(
    "predict",
    "Predict images or scans with a saved model, and say how sure it is of each.",
    PredictOptions,
    run,
    show,
)
