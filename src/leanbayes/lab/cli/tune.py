"""The command ``tune``: what it is asked, and what it leaves behind."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leanbayes.errors import InputError
from leanbayes.lab.cli.commands import DataOptions, read_task
from leanbayes.lab.cli.progress import Bars
from leanbayes.lab.compare import Event
from leanbayes.lab.recipes import Budget
from leanbayes.lab.recipes.base import option
from leanbayes.lab.tune import tune

__all__ = ["TuneOptions", "run_tune"]


@dataclass(frozen=True)
class TuneOptions:
    """The search."""

    method: str = option("vi", "as in compare: name, name:option=value,... or name+temperature; what it fixes stays")
    search: tuple[str, ...] = option(
        (),
        "option=low..high, option=low..high:log or option=value,value,...; kl_weight is one weight of the KL "
        "throughout; by default kl_weight, init_scale and rate, where the method has them",
    )
    trials: int = option(20, "in all, those of earlier runs and of other processes on this storage with them")
    metric: str = option("nll", "what is best on the validation set: nll, accuracy, brier, ece, ...")
    seed: int = option(0, "of the search, and of weights, data order and noise in every trial")
    samples: int = option(32, "draws for each prediction")
    study: str = option("tune", "its name in the storage")
    storage: str | None = option(None, "the file of the study, to go on with or to share; by default in the folder")
    out: str = option("out", "folder for tune.json, the record of all trials")


def run_tune(data: DataOptions, budget: Budget, options: TuneOptions, bars: Bars, command: str) -> dict[str, Any]:
    """Search, and write all trials; the record."""
    search = _search(options.search)
    task, kept = read_task(data, bars)
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    bars.begin("trials", options.trials)
    seen = 0

    def watch(stage: str, done: int, total: int) -> None:
        nonlocal seen
        if stage != "trials":
            bars(Event(options.method, options.seed, stage, done, total))
            return
        for _ in range(done - seen):
            bars.step()
        seen = done

    found = tune(
        task,
        options.method,
        storage=folder / "tune.db" if options.storage is None else Path(options.storage),
        search=search,
        trials=options.trials,
        metric=options.metric,
        study=options.study,
        seed=options.seed,
        budget=budget,
        samples=options.samples,
        out=folder / "tune.json",
        watch=watch,
        about=kept | {"split_seed": data.split_seed},
        command=command,
    )
    errors = [row["error"] for row in found["trials"] if row["state"] == "failed"]
    if found["best"] is None and errors:
        raise InputError(f"none of {len(errors)} trials could be trained; the first says: {errors[0]}")
    return found | {"record": str(folder / "tune.json")}


def _search(given: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for text in given:
        name, equals, values = (part.strip() for part in text.partition("="))
        if not equals:
            raise InputError(f"--search takes option=low..high or option=value,value, got {text!r}")
        if name in found:
            raise InputError(f"--search has {name} twice")
        found[name] = values
    return found
