"""The folder of a comparison. Each run has files of its own, and each file is written once, whole or not at all.

    runs/<method>-<seed>.json       what one training gave, or why it failed; it is written after the other files of
                                    the run, so that a run with this file is complete
    models/<method>-<seed>.lb       the trained predictor
    cases/<method>-<seed>.csv       the scores of each test case
    arrays/<method>.safetensors     the arrays behind the figures, of the first seed that was trained
    checkpoints/<method>-<seed>/    how far a training is; it is removed when the run is complete
    comparison.json                 what the comparison is about, written before the first training begins
    results.json                    all runs, tests between methods and a recommendation, written when it ends

A comparison that was killed continues from the files of its runs. Before that it removes what the killed process had
begun to write or to remove, and the checkpoints of complete runs.
"""

import inspect
import json
import math
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from leanbayes._files import discard, read_tensors, sweep, write_bytes, write_tensors, write_text
from leanbayes.errors import FileError, ForeignFile, InputError, LeanBayesError
from leanbayes.lab.compare.equivalents import equivalents
from leanbayes.lab.compare.judging import Judgement
from leanbayes.lab.compare.recommendation import Scores, recommend
from leanbayes.lab.recipes import Recipe, settings
from leanbayes.lab.statistics import seed_tests
from leanbayes.metrics import metric_named
from leanbayes.storage import about as saved_notes

__all__ = ["FORMAT", "Record", "file_name", "is_main_process", "summary_of"]

FORMAT = 1
_IDENTITY = ("format", "task", "about", "budget", "samples")  # a comparison continues only if these are the same


def is_main_process() -> bool:
    """Return whether this process is the only one, or the first of those that train together."""
    return os.environ.get("RANK", "0") == "0"


class Record:
    """The runs of a comparison, those of earlier calls included.

    The first process of the comparison must hold the lock of the folder, because a record removes what is left there.

    Args:
        folder: where the files are; it is made if it does not exist.
        header: what the comparison is about; ``results.json`` begins with it.
        recipes: the methods of this call. Runs of another recipe under the same name are removed.
    """

    def __init__(self, folder: Path, header: Mapping[str, Any], recipes: Mapping[str, Recipe]) -> None:
        self.folder, self.header = folder, _plain(header)
        _check_names(recipes)
        self.runs: dict[tuple[str, int], dict[str, Any]] = {}
        self.order: dict[tuple[str, int], int] = {}  # of runs that several workers did; others are in order of time
        for file in sorted((folder / "runs").glob("*.json")):
            run = self._read(file)
            self.runs[run["name"], run["seed"]] = run
        known = folder / "comparison.json"
        if known.exists():
            self._read_same(known, "comparison")
        elif not self.runs and (folder / "results.json").exists():
            raise ForeignFile(
                f"{folder / 'results.json'} belongs to no comparison that this version can continue, because there are "
                f"no files in {folder / 'runs'}; give another folder"
            )
        for name in ("runs", "models", "arrays", "cases"):
            (folder / name).mkdir(parents=True, exist_ok=True)
        if not known.exists() and is_main_process():
            write_text(known, json.dumps({"kind": "comparison"} | self._identity(), indent=1))
        for name, recipe in recipes.items():
            self._forget_other_recipes(name, recipe)
        if is_main_process():
            self._sweep()

    def has(self, name: str, seed: int) -> bool:
        """Return whether this run is complete: it did not fail, and its model is there. Otherwise it is tried again."""
        run = self.runs.get((name, seed))
        return run is not None and run["error"] is None and _is_model(self.model_file(name, seed))

    def needs_arrays(self, name: str) -> bool:
        """Return whether there are no arrays of this method yet: its first complete run gives them."""
        return not self._arrays_file(name).exists() or not any(self.has(*key) for key in self.runs if key[0] == name)

    def model_file(self, name: str, seed: int) -> Path:
        """Return where the trained predictor of a run is kept."""
        return self.folder / "models" / f"{file_name(name)}-{seed}.lb"

    def checkpoints(self, name: str, seed: int) -> Path:
        """Return where the checkpoints of a run are kept until it is complete."""
        return self.folder / "checkpoints" / f"{file_name(name)}-{seed}"

    def add(self, name: str, recipe: Recipe, seed: int, judgement: Judgement, layers: list[dict[str, Any]]) -> None:
        """Keep a run that is complete, with its arrays if there are any, and remove its checkpoints."""
        if judgement.arrays:
            self._write_arrays(name, judgement.arrays)
        measured: dict[str, Any] = {"metrics": judgement.metrics, "cost": judgement.cost, "scales": judgement.scales}
        if judgement.by_case:
            measured["by_case"] = judgement.by_case
            write_bytes(self.folder / "cases" / f"{file_name(name)}-{seed}.csv", judgement.cases.encode())
        if judgement.nll_by_members:
            measured["nll_by_members"] = judgement.nll_by_members
        self._write_run(name, recipe, seed, measured | {"layers": layers, "error": None})
        with suppress(FileError):  # nothing needs them any more, and the next call tries again
            discard(self.checkpoints(name, seed))

    def fail(self, name: str, recipe: Recipe, seed: int, error: Exception) -> None:
        """Keep why a run failed, in one line."""
        first_line = (str(error).strip().splitlines() or [""])[0]
        self._write_run(name, recipe, seed, {"error": f"seed {seed}: {type(error).__name__}: {first_line}"})

    def results(self) -> dict[str, Any]:
        """Return all runs as one record, with tests between methods over several seeds, and a recommendation."""
        methods: dict[str, dict[str, Any]] = {}
        for run in sorted(self.runs.values(), key=self._position):
            row = methods.setdefault(
                run["name"],
                {
                    "name": run["name"],
                    "recipe": run["recipe"],
                    "summary": run["summary"],
                    "error": None,
                    "runs": [],
                    "layers": [],
                },
            )
            if run["error"] is not None:
                row["error"] = run["error"]
                continue
            kept = {key: run[key] for key in ("seed", "metrics", "cost", "nll_by_members") if key in run}
            row["runs"].append(kept | {"scales": run.get("scales", {})})  # runs of version 0.1 have none
            row["layers"] = row["layers"] or run["layers"]
        metrics = sorted({metric for row in methods.values() for run in row["runs"] for metric in run["metrics"]})
        results = self.header | {
            "methods": list(methods.values()),
            "better": {metric: metric_named(metric).better for metric in metrics},
            "tests": seed_tests({metric: _by_method_and_seed(methods, metric) for metric in metrics}),
        }
        results["ensemble_equivalent"] = equivalents(results["methods"])
        recommendation = recommend(results, self._scores)
        results["recommendation"] = None if recommendation is None else recommendation.record()
        plain: dict[str, Any] = _plain(results)
        return plain

    def _position(self, run: Mapping[str, Any]) -> tuple[int, str]:
        return self.order.get((run["name"], run["seed"]), -1), run["finished"]

    def write_results(self) -> dict[str, Any]:
        """Write ``results.json`` if there is any run, and return its content."""
        results = self.results()
        if self.runs and is_main_process():
            write_text(self.folder / "results.json", json.dumps(results, indent=1))
        return results

    def _sweep(self) -> None:
        """Remove what earlier calls left that were killed or could not write, in all folders of the comparison."""
        for name in (".", "runs", "models", "arrays", "cases", "checkpoints"):
            sweep(self.folder / name, alone=True)
        for name, seed in self.runs:
            if self.has(name, seed):
                with suppress(FileError):
                    discard(self.checkpoints(name, seed))

    def _run_file(self, name: str, seed: int) -> Path:
        return self.folder / "runs" / f"{file_name(name)}-{seed}.json"

    def _arrays_file(self, name: str) -> Path:
        return self.folder / "arrays" / f"{file_name(name)}.safetensors"

    def _write_arrays(self, name: str, arrays: Mapping[str, Tensor]) -> None:
        tensors = {f"{name}/{key}": value for key, value in arrays.items()}
        write_tensors(self._arrays_file(name), tensors, {"kind": "arrays", "format": FORMAT})

    def _scores(self, name: str) -> Scores | None:
        """The NLL of each test input or patient, and its weight; None for a method whose arrays do not have them."""
        try:
            _, arrays = read_tensors(self._arrays_file(name), "arrays", FORMAT)
        except (LeanBayesError, OSError):
            return None
        parts = [arrays.get(f"{name}/{key}") for key in ("input_nll", "input_targets")]
        if any(part is None for part in parts):
            return None
        nll, weight = (np.asarray(part.tolist(), np.float64) for part in parts if part is not None)
        patients = arrays.get(f"{name}/input_patient")
        return (nll, weight) if patients is None else _by_patient(nll, weight, patients)

    def _write_run(self, name: str, recipe: Recipe, seed: int, outcome: Mapping[str, Any]) -> None:
        run = {
            "kind": "run",
            **self._identity(),
            "name": name,
            "recipe": settings(recipe),
            "summary": summary_of(recipe),
            "seed": seed,
            "finished": datetime.now(UTC).isoformat(timespec="microseconds"),
            **outcome,
        }
        self.runs[name, seed] = _plain(run)
        if is_main_process():
            write_text(self._run_file(name, seed), json.dumps(self.runs[name, seed], indent=1))

    def _identity(self) -> dict[str, Any]:
        return {key: self.header[key] for key in _IDENTITY}

    def _read(self, file: Path) -> dict[str, Any]:
        run = self._read_same(file, "run")
        if not _is_run(run):
            raise ForeignFile(
                f"{file} is not a run of leanbayes compare, or is damaged; remove it, and it is done again"
            )
        return run

    def _read_same(self, file: Path, kind: str) -> dict[str, Any]:
        """Read a file of this folder, and refuse one of another comparison."""
        try:
            content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            differ = [key for key in _IDENTITY if content[key] != self.header[key]]
            if content["kind"] != kind:
                raise KeyError(kind)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ForeignFile(f"{file} is not a {kind} of leanbayes compare; give another folder") from error
        if differ:
            raise InputError(
                f"{file} is a {kind} with other settings: {self._differences(content)}; give another folder"
            )
        return content

    def _differences(self, content: Mapping[str, Any]) -> str:
        old, new = (_flat({key: values[key] for key in _IDENTITY}) for values in (content, self.header))
        differ = [key for key in old | new if old.get(key) != new.get(key)]
        shown = [f"{key} was {_short(old.get(key))} and is now {_short(new.get(key))}" for key in differ[:3]]
        return "; ".join(shown) + (f"; and {len(differ) - 3} more" if len(differ) > 3 else "")

    def _forget_other_recipes(self, name: str, recipe: Recipe) -> None:
        others = [key for key, run in self.runs.items() if key[0] == name and run["recipe"] != _plain(settings(recipe))]
        for key in others:
            del self.runs[key]
            if is_main_process():
                discard(self.checkpoints(*key))  # before the record of the recipe to which they belong
                self._run_file(*key).unlink(missing_ok=True)
                self.model_file(*key).unlink(missing_ok=True)
                self._arrays_file(name).unlink(missing_ok=True)


def file_name(method: str) -> str:
    """Return a method's name for use in a file name: letters, digits and a few signs stay, all others become ``_``.

    >>> file_name("partial:rate=0.2")
    'partial_rate=0.2'
    """
    return "".join(sign if sign.isalnum() or sign in "+-=." else "_" for sign in method)


def summary_of(recipe: Recipe) -> str:
    """Return the first line of a recipe's documentation, which says what the method is."""
    text = inspect.cleandoc(type(recipe).__doc__ or "")
    generated = text.startswith(f"{type(recipe).__name__}(")  # a dataclass without words of its own
    return "" if generated else text.partition("\n")[0]


def _is_run(run: Mapping[str, Any]) -> bool:
    """Whether every field is there and has its type, so that a damaged file is found before anything is computed."""
    words = all(isinstance(run.get(key), str) for key in ("name", "finished", "summary"))
    seed, recipe, error = run.get("seed"), run.get("recipe"), run.get("error", ...)
    if not (words and type(seed) is int and isinstance(recipe, Mapping) and isinstance(error, str | None)):
        return False
    if error is not None:
        return True
    numbers = [run.get("metrics"), run.get("cost")]
    measured = all(isinstance(part, Mapping) and all(map(_is_number, part.values())) for part in numbers)
    layers, members, scales = run.get("layers"), run.get("nll_by_members", []), run.get("scales", {})
    whole = isinstance(layers, list) and all(isinstance(layer, Mapping) for layer in layers)
    by_members = isinstance(members, list) and all(_is_number(value) and value is not None for value in members)
    return measured and whole and by_members and isinstance(scales, Mapping)


def _is_number(value: Any) -> bool:
    """Whether it is None, which stands for what is not finite, or a number that a float can hold."""
    return value is None or (type(value) in (int, float) and -1e308 <= value <= 1e308)


def _is_model(file: Path) -> bool:
    try:
        saved_notes(file)
    except (LeanBayesError, OSError):
        return False
    return True


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(value, Mapping):
        return {prefix: value}
    flat: dict[str, Any] = {}
    for key, item in value.items():
        flat |= _flat(item, f"{prefix}.{key}".lstrip("."))
    return flat


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _check_names(recipes: Mapping[str, Recipe]) -> None:
    by_file: dict[str, str] = {}
    for name in recipes:
        other = by_file.setdefault(file_name(name), name)
        if other != name:
            raise InputError(f"the methods {other!r} and {name!r} would share their files; rename one of them")


def _by_patient(nll: NDArray[np.float64], weight: NDArray[np.float64], patients: Tensor) -> Scores:
    """Return the mean NLL of each patient, and the weight of all inputs of this patient together."""
    numbers = np.asarray(patients.tolist(), np.int64)
    weights: NDArray[np.float64] = np.bincount(numbers, weights=weight).astype(np.float64)
    sums = np.bincount(numbers, weights=nll * weight)
    seen = np.bincount(numbers) > 0
    return sums[seen] / np.maximum(weights[seen], 1e-300), weights[seen]


def _by_method_and_seed(methods: Mapping[str, Mapping[str, Any]], metric: str) -> dict[str, dict[int, float | None]]:
    return {
        name: {run["seed"]: run["metrics"][metric] for run in row["runs"] if metric in run["metrics"]}
        for name, row in methods.items()
    }


def _plain(value: Any) -> Any:
    """Return the value as JSON would read it back; NaN and infinity, which JSON lacks, become None."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
