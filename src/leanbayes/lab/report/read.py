"""Read what a comparison left in its folder, and check it once so that the rest of the report can trust it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from leanbayes._files import read_tensors
from leanbayes.errors import FileError, ForeignFile, NewerFile, TruncatedFile

__all__ = ["FORMAT", "SHOWN", "Arrays", "Numbers", "read_comparison"]

FORMAT = 1
SHOWN = "/shown/"  # in the keys of what the page shows of single cases
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Arrays:
    """The arrays of a comparison by key; any of them may be missing.

    Args:
        path: where they come from, for messages.
        by_key: the arrays; a key begins with the name of the method.
    """

    path: Path
    by_key: Mapping[str, Numbers]

    def take(self, prefix: str, **ranks: tuple[int, ...]) -> list[Numbers] | None:
        """Return the arrays ``prefix/name``, which have one entry for each example; None if one is missing or empty.

        Args:
            prefix: what stands before the names.
            **ranks: for each name, how many dimensions the array may have.
        """
        keys = {name: f"{prefix}/{name}" for name in ranks}
        arrays = {name: self.by_key[key] for name, key in keys.items() if key in self.by_key}
        for name, array in arrays.items():
            if array.ndim not in ranks[name]:
                raise FileError(
                    f"{self.path}: {keys[name]} has shape {array.shape}, but must have "
                    f"{' or '.join(map(str, ranks[name]))} dimensions; run the comparison again"
                )
        if len({len(array) for array in arrays.values()}) > 1:
            shapes = {keys[name]: array.shape for name, array in arrays.items()}
            raise FileError(
                f"{self.path}: these arrays should have one length, but have the shapes {shapes}; "
                "run the comparison again"
            )
        if len(arrays) < len(ranks) or not all(array.size for array in arrays.values()):
            return None
        return [arrays[name] for name in ranks]


def read_comparison(folder: Path) -> tuple[dict[str, Any], Arrays]:
    """Read ``results.json`` and the arrays of a folder that ``leanbayes compare`` filled.

    Raises:
        FileError: a file is missing, damaged, of a newer version, or was not written by leanbayes.
    """
    if not folder.is_dir():
        raise FileError(f"there is no folder {folder}; `leanbayes compare` makes one")
    results = _results(folder / "results.json")
    return results, _arrays(folder, needed=any(method.get("runs") for method in results["methods"]))


def _arrays(folder: Path, needed: bool) -> Arrays:
    """Each method has a file in ``arrays/``; comparisons of earlier versions have one file for all methods."""
    path = folder / "arrays"
    files = sorted(path.glob("*.safetensors"))
    if not path.is_dir() and (folder / "arrays.safetensors").is_file():
        path = folder / "arrays.safetensors"
        files = [path]
    if needed and not path.exists():
        raise FileError(f"there is no folder {path} with the arrays behind the figures; run the comparison again")
    by_key: dict[str, Numbers] = {}
    for file in files:
        _, tensors = read_tensors(file, "arrays", FORMAT)
        by_key |= {key: _numbers(key, tensor) for key, tensor in tensors.items()}
    return Arrays(path, by_key)


def _numbers(key: str, tensor: torch.Tensor) -> Numbers:
    """Pictures of cases stay as small as they are in the file: a page shows few of them."""
    return np.asarray(tensor if SHOWN in key else tensor.to(torch.float64))


def _results(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileError(
            f"there is no file {path}; `leanbayes compare` writes it when it ends. Let the comparison finish"
        )
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"cannot read {path}: {error}") from error
    except json.JSONDecodeError as error:
        raise TruncatedFile(
            f"{path} is cut short or damaged, because it is no whole JSON; copy it again ({error})"
        ) from error
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ForeignFile(f"{path} was not written by leanbayes: it is no JSON of a comparison") from error
    version = results.get("format") if isinstance(results, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ForeignFile(f"{path} was not written by leanbayes: it does not say that it is a comparison")
    if version > FORMAT:
        raise NewerFile(
            f"{path} has format {version}, and this version reads formats up to {FORMAT}; upgrade leanbayes"
        )
    _check(path, results)
    checked: dict[str, Any] = results
    return checked


def _check(path: Path, results: dict[str, Any]) -> None:
    """Check that every field has the type that the report relies on."""

    def need(value: object, kind: type | tuple[type, ...], where: str) -> None:
        if not isinstance(value, kind):
            raise ForeignFile(f"{path} was not written by leanbayes: {where} is {value!r:.60}")

    need(results.get("methods"), list, "methods")
    need(results.get("task"), dict, "task")
    for field in ("better", "tests", "machine", "budget"):
        need(results.get(field, {}), dict, field)
    _check_equivalents(results.get("ensemble_equivalent") or {}, need)
    recommendation = results.get("recommendation") or {}
    need(recommendation, dict, "recommendation")
    for number, sentence in enumerate(recommendation.get("sentences", [])):
        need(sentence, str, f"recommendation.sentences[{number}]")
    need(results["task"].get("classes", []), list, "task.classes")
    need(results.get("shown", []), list, "shown")
    for number, case in enumerate(results.get("shown", [])):
        need(case, dict, f"shown[{number}]")
        need(case.get("case"), int, f"shown[{number}].case")
        need(case.get("name"), str, f"shown[{number}].name")
    need(results["task"].get("shifted", {}), dict, "task.shifted")
    for family, by_metric in results.get("tests", {}).items():
        need(by_metric, dict, f"tests.{family}")
        for metric, values in by_metric.items():
            need(values, dict, f"tests.{family}.{metric}")
    for index, method in enumerate(results["methods"]):
        where = f"methods[{index}]"
        need(method, dict, where)
        need(method.get("name"), str, f"{where}.name")
        for field in ("error", "summary"):
            need(method.get(field), (str, type(None)), f"{where}.{field}")
        need(method.get("recipe", {}), dict, f"{where}.recipe")
        for field in ("runs", "layers"):
            need(method.get(field, []), list, f"{where}.{field}")
        for number, run in enumerate(method.get("runs", [])):
            need(run, dict, f"{where}.runs[{number}]")
            for field in ("metrics", "cost"):
                need(run.get(field, {}), dict, f"{where}.runs[{number}].{field}")
                for name, value in run.get(field, {}).items():
                    need(value, (int, float, type(None)), f"{where}.runs[{number}].{field}.{name}")
        for number, layer in enumerate(method.get("layers", [])):
            need(layer, dict, f"{where}.layers[{number}]")
            need(layer.get("name"), str, f"{where}.layers[{number}].name")
            for field in ("random", "size"):
                need(layer.get(field), int, f"{where}.layers[{number}].{field}")
    names = [method["name"] for method in results["methods"]]
    if len(set(names)) < len(names):
        raise ForeignFile(f"{path} was not written by leanbayes: two methods have the same name, {sorted(names)}")


def _check_equivalents(record: Any, need: Callable[[object, type | tuple[type, ...], str], None]) -> None:
    where = "ensemble_equivalent"
    need(record, dict, where)
    need(record.get("reason"), (str, type(None)), f"{where}.reason")
    need(record.get("nll", []), list, f"{where}.nll")
    need(record.get("methods", {}), dict, f"{where}.methods")
    limits = ("<1", f">{len(record.get('nll', []))}")
    for name, equivalent in record.get("methods", {}).items():
        need(equivalent, dict, f"{where}.methods.{name}")
        need(equivalent.get("text"), str, f"{where}.methods.{name}.text")
        kinds = (int, float, type(None)) if equivalent["text"] in limits else (int, float)
        need(equivalent.get("value"), kinds, f"{where}.methods.{name}.value")
