"""``leanbayes compare``: train several methods on the same data, and write a report."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from leanbayes.errors import InputError
from leanbayes.lab.cli.command import Command, Result, Session, print_line
from leanbayes.lab.cli.crew import EXECUTOR, make_crew
from leanbayes.lab.cli.folder import make_folder
from leanbayes.lab.cli.recipe_help import SPECIFICATION, recipe_help
from leanbayes.lab.cli.task import DataOptions, read_task
from leanbayes.lab.recipes import Budget, option, parse

if TYPE_CHECKING:  # slow to import, and not needed for help
    from leanbayes.lab.report import Row

__all__ = ["COMMAND", "CompareOptions"]

METHODS = ("deterministic", "deterministic+temperature", "ensemble", "lean", "partial", "layers")

# The terminal shows every metric but these, those of classes, levels or shifted sets, and most costs. The page has all.
_FIRST = ("accuracy", "auc", "dice", "miou", "rmse", "nll", "brier", "ece", "crps")
_ON_THE_PAGE = {"ece_mass", "aurc", "entropy", "mutual_information", "coverage_error", "conformal_empty"}
_GAP = 2  # between two columns
_COSTS = ("cost/parameters", "cost/random", "cost/train_seconds", "cost/predict_seconds")
_IMPORTANT = (  # what a narrow terminal shows first
    "nll",
    "cost/train_seconds",
    "cost/predict_seconds",
    "accuracy",
    "dice",
    "rmse",
    "conformal_coverage",
    "conformal_size",
    "conformal_risk",
    "conformal_marked",
    "ensemble_equivalent",
    "ece",
)


@dataclass(frozen=True)
class CompareOptions:
    """What is compared."""

    methods: tuple[str, ...] = option(METHODS, f"The recipes to compare, each written as {SPECIFICATION}.")
    seeds: tuple[int, ...] = option((0,), "The seeds. Each method is trained once for each of them.")
    samples: int = option(32, "How many weight draws each prediction averages.")
    out: str = option("out", "The folder that receives the results, the models and the report.")
    executor: str = option("local", EXECUTOR)
    data: DataOptions = field(default_factory=DataOptions)
    budget: Budget = field(default_factory=Budget)


def run(options: CompareOptions, session: Session) -> Result:
    """Train and judge every method, write the report, and return the record of the comparison."""
    from leanbayes.lab.compare import Protocol, compare, is_main_process
    from leanbayes.lab.report import write_report

    recipes = {text: parse(text) for text in options.methods}
    if len(recipes) < len(options.methods):
        raise InputError(f"--methods names a method twice: {' '.join(options.methods)}")
    crew = make_crew(options.executor, session)
    folder = make_folder(options.out)
    task, about = read_task(options.data, session.bars)
    epochs = [options.budget.epochs * recipe.networks() + 1 for recipe in recipes.values()]
    session.bars.begin("methods", len(recipes) * len(options.seeds), epochs * len(options.seeds))
    record = compare(
        task,
        recipes,
        folder,
        Protocol(options.seeds, options.budget, options.samples),
        watch=session.bars,
        about=about,
        command=session.command_line,
        crew=crew,
    )
    if is_main_process():
        record["report"] = str(write_report(folder))
    return record


def show(console: Console, record: Result) -> None:
    """Print the most important columns of the comparison, the errors, and where the report is."""
    from leanbayes.lab.report import comparison_table, describe, ranking_line

    rows = comparison_table(record)
    widths = {name: _width(name, rows) for name in _columns({name for row in rows for name in row.cells})}
    names = _that_fit(widths, console.width - max((len(row.method) for row in rows), default=0))
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("", no_wrap=True)
    for name in names:
        table.add_column(describe(name)[0], justify="right", min_width=widths[name])
    for row in rows:
        cells = [row.cells.get(name) for name in names]
        table.add_row(row.method, *("" if cell is None else _text(cell.text, cell.best) for cell in cells))
    console.print(table)
    if any({"conformal_coverage", "conformal_risk"} & row.cells.keys() for row in rows):
        print_line(console, "")
        print_line(console, ranking_line(rows))
    for row in rows:
        if row.error is not None:
            print_line(console, f"{row.method} failed: {row.error}")
    sentences = (record.get("recommendation") or {}).get("sentences", [])
    if sentences:
        print_line(console, "")
        print_line(console, " ".join(sentences))
    print_line(console, f"report: {record['report']}")


def failed(record: Result) -> bool:
    """Say whether a method could not be trained."""
    return any(row["error"] for row in record["methods"])


def _columns(available: Iterable[str]) -> list[str]:
    """Return the columns that the terminal shows: the usual metrics, then those of other packages, then costs."""
    names = set(available)
    plain = {name for name in names if not set("/@") & set(name)} - _ON_THE_PAGE
    return [
        *(name for name in _FIRST if name in plain),
        *sorted(plain.difference(_FIRST)),
        *(name for name in _COSTS if name in names),
    ]


def _width(name: str, rows: "Sequence[Row]") -> int:
    """Return the width that a column needs: that of its widest cell, or of the longest word of its title."""
    from leanbayes.lab.report import describe

    cells = [row.cells[name].text for row in rows if name in row.cells]
    return max(map(len, (*describe(name)[0].split(), *cells)))


def _that_fit(widths: Mapping[str, int], left: int) -> list[str]:
    """Return the columns, in the same order, without the least important ones that are too many for the terminal."""
    kept: set[str] = set()
    for name in sorted(widths, key=_importance):
        if widths[name] + _GAP <= left:
            kept.add(name)
            left -= widths[name] + _GAP
    return [name for name in widths if name in kept]


def _importance(name: str) -> int:
    return _IMPORTANT.index(name) if name in _IMPORTANT else len(_IMPORTANT)


def _text(text: str, best: bool) -> str:
    return f"[bold]{text}[/]" if best else text


COMMAND = Command(
    "compare",
    "Train several methods on the same data, and write a report that compares them.",
    CompareOptions,
    run,
    show,
    failed,
    recipe_help,
)
