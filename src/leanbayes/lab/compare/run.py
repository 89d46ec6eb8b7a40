"""`compare` trains several recipes on one task and judges them all in the same way."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from leanbayes._calls import split_batch
from leanbayes._provenance import surroundings
from leanbayes.errors import FileError, InputError, LeanBayesError
from leanbayes.lab.compare.queued import QUEUE, compare_by_crew
from leanbayes.lab.compare.record import FORMAT, Record, is_main_process
from leanbayes.lab.compare.shown import shown_cases
from leanbayes.lab.compare.single import Event, Watch, Watching, train_and_judge
from leanbayes.lab.data.division import subgroup_names
from leanbayes.lab.data.fingerprint import fingerprint
from leanbayes.lab.data.task import Task, length
from leanbayes.lab.jobs import Crew
from leanbayes.lab.processes import only_user_of
from leanbayes.lab.recipes import Budget, Recipe, Run

__all__ = ["Event", "Protocol", "Watching", "compare"]


@dataclass(frozen=True)
class Protocol:
    """How every method of a comparison is trained and judged.

    Args:
        seeds: each method is trained once for each seed.
        budget: what the training of one network may cost.
        samples: how many weight draws each prediction averages.
    """

    seeds: tuple[int, ...] = (0,)
    budget: Budget = field(default_factory=Budget)
    samples: int = 32

    def __post_init__(self) -> None:
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"a comparison needs at least one seed, and each seed once, got {self.seeds}")
        if self.samples < 1:
            raise InputError(f"samples must be at least 1, got {self.samples}")


def compare(
    task: Task,
    recipes: Mapping[str, Recipe],
    folder: Path,
    protocol: Protocol | None = None,
    *,
    watch: Watch | None = None,
    about: Mapping[str, Any] | None = None,
    command: str = "",
    crew: Crew | None = None,
) -> dict[str, Any]:
    """Train every recipe with every seed, and judge it on the test set.

    If a method fails, the record keeps its error and the other methods are still trained. A comparison that was killed
    continues when it is called again with the same folder: complete runs are kept, the run that was under way resumes
    from its checkpoint, and runs that failed or whose model is missing are trained again. One process at a time may
    use a folder.

    Args:
        task: the data, the model and the likelihood.
        recipes: the methods, by the names that tables show.
        folder: where the results and models go; see `leanbayes.lab.compare.record`.
        protocol: seeds, budget and samples.
        watch: is called with an `Event` after each step.
        about: is stored with each saved model.
        command: is stored with the results.
        crew: the workers that do the runs, each of which is a job; None lets this process do all of them.

    Returns:
        The record of all runs, as ``results.json`` in the folder holds it.
    """
    if not recipes:
        raise InputError("a comparison needs at least one recipe, got none")
    protocol = protocol or Protocol()
    protocol = replace(protocol, budget=protocol.budget.fitting(task))
    _refuse_too_few_epochs(recipes, protocol.budget.epochs)
    folder.mkdir(parents=True, exist_ok=True)
    if crew is not None:
        header = _header(task, protocol, command, about or {})
        return compare_by_crew(
            task,
            recipes,
            folder,
            header,
            crew,
            seeds=protocol.seeds,
            budget=protocol.budget,
            samples=protocol.samples,
            watch=watch,
            about=about,
        )
    if (folder / QUEUE).exists():
        raise FileError(
            f"workers share the jobs of {folder}, or did so until they were killed; continue with --executor shared, "
            f"or remove {folder / QUEUE} to do the jobs again that are not in the results"
        )
    with only_user_of(folder) if is_main_process() else nullcontext():
        record = Record(folder, _header(task, protocol, command, about or {}), recipes)
        try:
            for seed in protocol.seeds:
                nets: dict[Any, Any] = {}  # recipes of one seed share the plain networks that they start from
                for name, recipe in recipes.items():
                    watching = Watching(watch, name, seed)
                    if record.has(name, seed):
                        watching.end()
                        continue
                    checkpoints = record.checkpoints(name, seed)
                    run = Run(protocol.budget, seed, checkpoints, watching, nets, watch_epochs=watching.remember)
                    try:
                        train_and_judge(record, name, recipe, task, run, protocol.samples, about)
                    except (LeanBayesError, RuntimeError, ValueError, ImportError, OSError) as error:
                        record.fail(name, recipe, seed, error)
                    watching.end()
        finally:
            results = record.write_results()
    return results


def _refuse_too_few_epochs(recipes: Mapping[str, Recipe], epochs: int) -> None:
    """Find methods of several stages that cannot be trained for so few epochs, before others are trained for hours."""
    short = {name: recipe.least_epochs() for name, recipe in recipes.items() if recipe.least_epochs() > epochs}
    if short:
        needs = ", ".join(f"{name} needs at least {least}" for name, least in short.items())
        raise InputError(f"the budget has {epochs} epoch{'s' * (epochs != 1)}, and {needs}; take more epochs")


def _header(task: Task, protocol: Protocol, command: str, about: Mapping[str, Any]) -> dict[str, Any]:
    target = torch.as_tensor(split_batch(task.test[0])[1])
    kind = task.likelihood.kind(target[None])
    shown = shown_cases(task) if kind == "pixels" else {}
    return {
        "kind": "comparison",
        "format": FORMAT,
        "command": command,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        **surroundings(),
        "task": {
            "name": task.name,
            "kind": kind,
            "classes": list(task.classes),
            **{name: length(getattr(task, name)) for name in ("train", "validation", "test")},
            "shifted": {name: length(data) for name, data in task.shifted.items()},
            "fingerprint": fingerprint(task),
            **_patients(task),
            **_subgroups(task),
        },
        "shown": [{"case": case, "name": name} for case, name in shown.items()],
        "about": dict(about),
        "budget": asdict(protocol.budget),
        "samples": protocol.samples,
    }


def _patients(task: Task) -> dict[str, int]:
    """Return how many patients the test set has; nothing if it does not know them."""
    cases = getattr(task.test, "cases", None)
    return {"patients": len(set(cases.patients))} if cases is not None and cases.patients else {}


def _subgroups(task: Task) -> dict[str, list[str]]:
    """Return the names of the subgroups in the order of their numbers; nothing if the data have none."""
    names = subgroup_names(task)
    return {"subgroups": list(names)} if names else {}
