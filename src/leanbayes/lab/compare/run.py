"""Train several recipes on one task, judge them all in the same way, and keep each result as soon as it is there."""

import json
import math
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from leanbayes._calls import split_batch
from leanbayes._files import read_tensors, write_tensors, write_text
from leanbayes.errors import ForeignFile, InputError, LeanBayesError
from leanbayes.evaluation import evaluate
from leanbayes.evaluation.cost import cost_of, forward_flops
from leanbayes.lab.compare.arrays import bayesian_inside, figure_arrays, kind_of
from leanbayes.lab.data.task import Task, length
from leanbayes.lab.recipes import Budget, Recipe, Run, Trained, prepare, settings
from leanbayes.lab.statistics import seed_tests
from leanbayes.metrics import metric_named
from leanbayes.storage import save

__all__ = ["Event", "compare", "is_main_process", "judge"]

FORMAT = 1


@dataclass(frozen=True)
class Event:
    """How far a comparison is: ``done`` of ``total`` steps of a ``stage`` of one method."""

    method: str
    seed: int
    stage: str
    done: int
    total: int


def compare(
    task: Task,
    recipes: Mapping[str, Recipe],
    folder: Path,
    *,
    seeds: Sequence[int] = (0,),
    budget: Budget | None = None,
    samples: int = 32,
    watch: Callable[[Event], None] | None = None,
    about: Mapping[str, Any] | None = None,
    command: str = "",
) -> dict[str, Any]:
    """Train every recipe with every seed and judge it on the test set; the record, which is also in ``folder``.

    A method that fails is recorded with its error and the others go on. A comparison that was killed goes on where it
    was: what is finished is not done again, and what was under way resumes from its checkpoint.

    Args:
        task: data, model and likelihood.
        recipes: by the names they have in tables.
        folder: for ``results.json``, ``arrays.safetensors``, the models, and checkpoints while they are needed.
        seeds: one training of each recipe for each.
        budget: what one network may cost.
        samples: draws for each prediction.
        watch: told how far it is.
        about: kept with each saved model.
        command: kept with the results.
    """
    if not recipes or not seeds:
        raise InputError("a comparison needs at least one recipe and one seed")
    budget = budget or Budget()
    record = _Record(folder, _header(task, budget, samples, command))
    nets: dict[int, dict[Any, Any]] = {seed: {} for seed in seeds}
    for seed in seeds:
        for name, recipe in recipes.items():
            if record.has(name, recipe, seed):
                continue
            place = folder / "checkpoints" / _file_name(name, seed)
            run = Run(budget, seed, place, _watcher(watch, name, seed), nets[seed])
            try:
                trained = prepare(recipe, task, run)
                if is_main_process():
                    found = judge(recipe, trained, task, samples, budget.batch_size, seed, watch=watch, name=name)
                    arrays = {}
                    if seed == seeds[0]:
                        arrays = figure_arrays(
                            trained.predictor,
                            task,
                            trained.likelihood,
                            samples=samples,
                            batch_size=budget.batch_size,
                        )
                    record.add(name, recipe, found, _layers(trained.predictor), arrays)
                    save(trained.predictor, record.model_file(name, seed), about=about)
            except (LeanBayesError, RuntimeError, ValueError, ImportError, OSError) as error:
                record.fail(name, recipe, seed, error)
            else:
                if is_main_process():
                    shutil.rmtree(place, ignore_errors=True)
    return record.finish()


def _file_name(method: str, seed: int) -> str:
    """A method's name may hold options: only letters, digits and a few signs go into a file's name."""
    return "".join(sign if sign.isalnum() or sign in "+-=." else "_" for sign in method) + f"-{seed}"


def is_main_process() -> bool:
    """Whether this is the first of the processes that work together, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def judge(
    recipe: Recipe,
    trained: Trained,
    task: Task,
    samples: int,
    batch_size: int,
    seed: int,
    *,
    watch: Callable[[Event], None] | None = None,
    name: str = "",
) -> dict[str, Any]:
    """Quality and cost of one predictor, as a record keeps them."""
    run = Run(Budget(batch_size=batch_size))
    loaders = {"": run.loader(task.test)} | {shift: run.loader(data) for shift, data in task.shifted.items()}
    total, done = sum(map(len, loaders.values())) + 1, 0

    def told() -> None:
        nonlocal done
        done += 1
        _tell(watch, name, seed, "evaluate", done, total)

    begin = time.perf_counter()
    found = evaluate(
        trained.predictor,
        loaders.pop(""),
        likelihood=trained.likelihood,
        samples=samples,
        shifted=loaders,
        generator=torch.Generator().manual_seed(seed),
        on_prediction=lambda _: told(),
    )
    seconds = time.perf_counter() - begin
    x, y = split_batch(next(iter(run.loader(task.test))))
    cost = asdict(cost_of(trained.predictor, x, y, trained.likelihood))
    cost |= {"train_seconds": trained.seconds, "predict_seconds": seconds}
    relative = recipe.relative_cost()
    if relative is not None:
        cost["flops_formula"] = relative.flops * forward_flops(run.new_model(task), x)
    told()
    return {"seed": seed, "metrics": found.metrics, "cost": cost}


def _layers(predictor: nn.Module) -> list[dict[str, Any]]:
    bnn = bayesian_inside(predictor)
    if bnn is None:
        return []
    return [{"name": part.name, "random": part.random, "size": part.size} for part in bnn.summary()]


class _Record:
    """The results so far, on disk after every step."""

    def __init__(self, folder: Path, header: dict[str, Any]) -> None:
        self.folder = folder
        (folder / "models").mkdir(parents=True, exist_ok=True)
        self.file, self.arrays_file = folder / "results.json", folder / "arrays.safetensors"
        self.data = header | {"methods": [], "better": {}, "tests": {}}
        self.arrays: dict[str, Tensor] = {}
        if self.file.is_file():
            self._go_on(header)

    def _go_on(self, header: dict[str, Any]) -> None:
        try:
            before = json.loads(self.file.read_text())
            same = all(before[key] == header[key] for key in ("format", "task", "budget", "samples"))
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ForeignFile(f"{self.file} is no comparison of leanbayes; give another folder") from error
        if not same:
            raise InputError(f"{self.file} holds a comparison with other data or another budget; give another folder")
        self.data = before | {key: header[key] for key in ("command", "date", "commit", "machine")}
        if self.arrays_file.is_file():
            _, self.arrays = read_tensors(self.arrays_file, "arrays", FORMAT)

    def method(self, name: str, recipe: Recipe) -> dict[str, Any]:
        """The method's row; another recipe under its name begins anew."""
        for row in self.data["methods"]:
            if row["name"] == name and row["recipe"] == settings(recipe):
                return cast(dict[str, Any], row)
        self.data["methods"] = [row for row in self.data["methods"] if row["name"] != name]
        fresh: dict[str, Any] = {"name": name, "recipe": settings(recipe), "error": None, "runs": [], "layers": []}
        self.data["methods"].append(fresh)
        return fresh

    def has(self, name: str, recipe: Recipe, seed: int) -> bool:
        """Whether this run is finished."""
        return any(run["seed"] == seed for run in self.method(name, recipe)["runs"])

    def model_file(self, name: str, seed: int) -> Path:
        """Where a trained predictor is kept."""
        return self.folder / "models" / f"{_file_name(name, seed)}.lb"

    def add(
        self, name: str, recipe: Recipe, run: dict[str, Any], layers: list[dict[str, Any]], arrays: dict[str, Tensor]
    ) -> None:
        """Keep a finished run."""
        row = self.method(name, recipe)
        row["error"] = None
        row["runs"].append(run)
        row["layers"] = row["layers"] or layers
        self.data["better"] |= {metric: metric_named(metric).better for metric in run["metrics"]}
        if arrays:
            self.arrays |= {f"{name}/{key}": value for key, value in arrays.items()}
            write_tensors(self.arrays_file, self.arrays, {"kind": "arrays", "format": FORMAT})
        self._write()

    def fail(self, name: str, recipe: Recipe, seed: int, error: Exception) -> None:
        """Keep what went wrong, in one line."""
        first = (str(error).strip().splitlines() or [""])[0]
        self.method(name, recipe)["error"] = f"seed {seed}: {type(error).__name__}: {first}"
        self._write()

    def finish(self) -> dict[str, Any]:
        """The whole record, with tests between methods where there are several seeds."""
        names = {metric for row in self.data["methods"] for run in row["runs"] for metric in run["metrics"]}
        tables = {}
        for metric in sorted(names):
            rows = {
                row["name"]: {run["seed"]: run["metrics"][metric] for run in row["runs"] if metric in run["metrics"]}
                for row in self.data["methods"]
            }
            tables[metric] = rows
        self.data["tests"] = seed_tests(tables)
        self._write()
        return self.data

    def _write(self) -> None:
        if is_main_process():
            write_text(self.file, json.dumps(_plain(self.data), indent=1))


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity: they become null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _header(task: Task, budget: Budget, samples: int, command: str) -> dict[str, Any]:
    sizes = {name: length(getattr(task, name)) for name in ("train", "validation", "test")}
    shifted = {name: length(data) for name, data in task.shifted.items()}
    return {
        "kind": "comparison",
        "format": FORMAT,
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": {
            "platform": platform.platform(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "python": platform.python_version(),
            "torch": str(torch.__version__),
        },
        "task": {"name": task.name, "kind": kind_of(task), "classes": list(task.classes), **sizes, "shifted": shifted},
        "budget": asdict(budget),
        "samples": samples,
    }


def _commit() -> str | None:
    """Of the package's own repository, where it is used from one."""
    root = Path(__file__).parents[4]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "rev-parse", "HEAD"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


def _watcher(watch: Callable[[Event], None] | None, method: str, seed: int) -> Callable[[str, int, int], None]:
    def told(stage: str, done: int, total: int) -> None:
        _tell(watch, method, seed, stage, done, total)

    return told


def _tell(watch: Callable[[Event], None] | None, method: str, seed: int, stage: str, done: int, total: int) -> None:
    if watch is not None and is_main_process():
        watch(Event(method, seed, stage, done, total))
