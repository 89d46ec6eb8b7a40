"""What a comparison left in its folder, checked once so that the rest of the report can trust it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from leanbayes._files import read_tensors
from leanbayes.errors import FileError, ForeignFile, NewerFile, TruncatedFile

__all__ = ["FORMAT", "Arrays", "Numbers", "read_comparison"]

FORMAT = 1
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Arrays:
    """The arrays of a comparison by key; any of them may be missing."""

    path: Path
    by_key: Mapping[str, Numbers]

    def take(self, prefix: str, **ranks: tuple[int, ...]) -> list[Numbers] | None:
        """The arrays ``prefix/name``, one entry per example in each; None when one is missing or empty.

        Args:
            prefix: what stands before the names.
            ranks: for each name, how many dimensions it may have.
        """
        found = {name: self.by_key[f"{prefix}/{name}"] for name in ranks if f"{prefix}/{name}" in self.by_key}
        for name, array in found.items():
            if array.ndim not in ranks[name]:
                raise FileError(
                    f"{self.path}: {prefix}/{name} has shape {array.shape}, but must have "
                    f"{' or '.join(map(str, ranks[name]))} dimensions; run the comparison again"
                )
        if len({len(array) for array in found.values()}) > 1:
            shapes = {f"{prefix}/{name}": array.shape for name, array in found.items()}
            raise FileError(f"{self.path}: these do not belong together: {shapes}; run the comparison again")
        if len(found) < len(ranks) or not all(array.size for array in found.values()):
            return None
        return [found[name] for name in ranks]


def read_comparison(folder: Path) -> tuple[dict[str, Any], Arrays]:
    """``results.json`` and ``arrays.safetensors`` of a folder that ``leanbayes compare`` wrote."""
    if not folder.is_dir():
        raise FileError(f"there is no folder {folder}; `leanbayes compare` makes one")
    results = _results(folder / "results.json")
    path = folder / "arrays.safetensors"
    if not path.is_file() and not any(method.get("runs") for method in results["methods"]):
        return results, Arrays(path, {})  # nothing was trained, so there is nothing to draw
    _, tensors = read_tensors(path, "arrays", FORMAT)
    return results, Arrays(path, {key: np.asarray(tensor.to(torch.float64)) for key, tensor in tensors.items()})


def _results(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileError(f"there is no file {path}; `leanbayes compare` writes it")
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(f"cannot read {path}: {error}") from error
    except json.JSONDecodeError as error:
        raise TruncatedFile(f"{path} is no whole JSON: cut short or damaged; copy it again ({error})") from error
    except (UnicodeDecodeError, RecursionError, ValueError) as error:
        raise ForeignFile(f"{path} is no JSON of a comparison: leanbayes did not write it") from error
    found = results.get("format") if isinstance(results, dict) else None
    if not isinstance(found, int) or isinstance(found, bool) or found < 1:
        raise ForeignFile(f"{path} does not say that it is a leanbayes comparison")
    if found > FORMAT:
        raise NewerFile(f"{path} is of format {found}, this version reads up to {FORMAT}; upgrade leanbayes")
    _check(path, results)
    checked: dict[str, Any] = results
    return checked


def _check(path: Path, results: dict[str, Any]) -> None:
    """Every field that is there has the type that the report relies on."""

    def need(value: object, kind: type | tuple[type, ...], where: str) -> None:
        if not isinstance(value, kind):
            raise ForeignFile(f"{path}: {where} is {value!r:.60}, which no leanbayes comparison holds")

    need(results.get("methods"), list, "methods")
    need(results.get("task"), dict, "task")
    for field in ("better", "tests", "machine", "budget"):
        need(results.get(field, {}), dict, field)
    need(results["task"].get("classes", []), list, "task.classes")
    need(results["task"].get("shifted", {}), dict, "task.shifted")
    for family, by_metric in results.get("tests", {}).items():
        need(by_metric, dict, f"tests.{family}")
        for metric, values in by_metric.items():
            need(values, dict, f"tests.{family}.{metric}")
    for index, method in enumerate(results["methods"]):
        where = f"methods[{index}]"
        need(method, dict, where)
        need(method.get("name"), str, f"{where}.name")
        need(method.get("error"), (str, type(None)), f"{where}.error")
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
        raise ForeignFile(f"{path}: two methods have one name: {sorted(names)}")
