"""``leanbayes tune``: search the options of a method on the validation set."""

from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.table import Table

from leanbayes.errors import InputError
from leanbayes.lab.cli.command import Command, Result, Session, print_line
from leanbayes.lab.cli.crew import EXECUTOR, make_crew
from leanbayes.lab.cli.folder import make_folder
from leanbayes.lab.cli.recipe_help import SPECIFICATION, recipe_help
from leanbayes.lab.cli.task import DataOptions, read_task
from leanbayes.lab.recipes import Budget, option

__all__ = ["COMMAND", "TuneOptions"]

_MOST = 5  # trials that the terminal shows; tune.json has all


@dataclass(frozen=True)
class TuneOptions:
    """What is searched."""

    method: str = option(
        "vi", f"The recipe whose options are searched, written as {SPECIFICATION}. Options that it sets stay fixed."
    )
    search: tuple[str, ...] = option(
        (),
        "The options to search, each as option=low..high, option=low..high:log (a logarithmic scale) or "
        "option=value,value. The option kl_weight is one weight of the KL divergence for all of training. By default "
        "kl_weight, init_scale and rate are searched, where the method has them.",
    )
    trials: int = option(
        20, "How many trials the study has in all, those of earlier runs and of other processes included."
    )
    metric: str = option(
        "nll", "The metric of the validation set that decides which trial is best, such as nll, accuracy or ece."
    )
    seed: int = option(0, "The seed of the search, and of the weights, the data order and the noise of every trial.")
    samples: int = option(32, "How many weight draws each prediction averages.")
    study: str = option("tune", "The name of the study in its file. One file may hold several studies.")
    storage: str | None = option(
        None,
        "The file of the study. Give the same file again to continue a study, or to several processes to share it. "
        "By default it is tune.db in the folder of --out.",
    )
    out: str = option("out", "The folder that receives tune.json, the record of all trials.")
    executor: str = option("local", EXECUTOR)
    data: DataOptions = field(default_factory=DataOptions)
    budget: Budget = field(default_factory=Budget)


def run(options: TuneOptions, session: Session) -> Result:
    """Search, write the record of all trials, and return it."""
    from leanbayes.lab.compare import Event
    from leanbayes.lab.tune import Search, tune

    searched = _read_search(options.search)
    crew = make_crew(options.executor, session)
    folder = make_folder(options.out)
    task, about = read_task(options.data, session.bars)
    session.bars.begin("trials", options.trials)
    trials_shown = 0

    def watch(stage: str, done: int, total: int) -> None:
        nonlocal trials_shown
        if stage != "trials":
            session.bars(Event(options.method, options.seed, stage, done, total))
            return
        for _ in range(done - trials_shown):
            session.bars.step()
        trials_shown = done

    record = tune(
        task,
        options.method,
        Search(searched, options.trials, options.metric, options.seed, options.budget, options.samples),
        storage=folder / "tune.db" if options.storage is None else Path(options.storage),
        study=options.study,
        out=folder / "tune.json",
        watch=watch,
        about=about | {"split_seed": options.data.split_seed},
        command=session.command_line,
        crew=crew,
    )
    errors = [row["error"] for row in record["trials"] if row["state"] == "failed"]
    if record["best"] is None and errors:
        raise InputError(f"none of {len(errors)} trials could be trained; the first error is: {errors[0]}")
    return record | {"record": str(folder / "tune.json")}


def show(console: Console, record: Result) -> None:
    """Print the best trials, how many failed, and the best specification."""
    from leanbayes.lab.report import describe

    high_is_better = record["better"] == "high"
    done = [row for row in record["trials"] if row["state"] == "done"]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("trial", *record["search"], f"{describe(record['metric'])[0]} (validation)"):
        table.add_column(name, justify="right")
    for row in sorted(done, key=lambda row: -row["value"] if high_is_better else row["value"])[:_MOST]:
        table.add_row(str(row["trial"]), *map(str, row["values"].values()), f"{row['value']:.4f}")
    console.print(table)
    for state, words in (("failed", "failed"), ("running", "are under way in other processes")):
        count = sum(row["state"] == state for row in record["trials"])
        if count:
            print_line(console, f"{count} of {len(record['trials'])} trials {words}")
    if record["best"] is not None:
        print_line(console, f"best: {record['best']['method']}")
    print_line(console, f"record: {record['record']}")


def _read_search(texts: tuple[str, ...]) -> dict[str, str]:
    search: dict[str, str] = {}
    for text in texts:
        name, equals, values = (part.strip() for part in text.partition("="))
        if not equals:
            raise InputError(f"--search takes option=low..high or option=value,value, got {text!r}")
        if name in search:
            raise InputError(f"--search names the option {name} twice")
        search[name] = values
    return search


COMMAND = Command(
    "tune",
    "Search the options of a method that are best on the validation set.",
    TuneOptions,
    run,
    show,
    epilog=recipe_help,
)
