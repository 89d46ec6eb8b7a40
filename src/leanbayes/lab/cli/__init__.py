"""The command ``leanbayes``: compare, train, tune, predict, report, reproduce.

Exit codes: 0 done; 1 a method or an experiment failed, the others are there; 2 bad input, said in one line.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from rich.console import Console
from rich.table import Table

from leanbayes.errors import LeanBayesError
from leanbayes.lab.cli.commands import (
    CompareOptions,
    DataOptions,
    PredictOptions,
    ReportOptions,
    TrainOptions,
    run_compare,
    run_predict,
    run_report,
    run_train,
)
from leanbayes.lab.cli.options import OneLineParser, add_options, chosen, read_config
from leanbayes.lab.cli.progress import Bars, bars
from leanbayes.lab.cli.tune import TuneOptions, run_tune
from leanbayes.lab.compare import is_main_process
from leanbayes.lab.recipes import RECIPES, Budget
from leanbayes.lab.report import comparison_table, describe
from leanbayes_papers.command import ReproduceOptions, run_reproduce, show_reproduced

__all__ = ["main"]

_COLUMNS = (
    "accuracy", "auc", "dice", "miou", "rmse", "nll", "brier", "ece", "crps",
    "cost/parameters", "cost/random", "cost/train_seconds", "cost/predict_seconds",
)  # fmt: skip

Command = Callable[[argparse.Namespace, dict[str, Any], Bars], dict[str, Any]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        options = _parser().parse_args(given)
        config = read_config(options.config, *options.groups)
        with bars(quiet=options.json or options.quiet) as progress:
            found = _COMMANDS[options.command](options, config, progress)
    except (LeanBayesError, OSError) as error:
        Console(stderr=True, soft_wrap=True).print(
            f"leanbayes: {' '.join(str(error).split())}", markup=False, highlight=False
        )
        return 2
    except KeyboardInterrupt:
        Console(stderr=True).print("leanbayes: stopped; the same command goes on from here", markup=False)
        return 130
    if is_main_process():
        _show(options, found)
    failed = found.get("failed") or any(row["error"] for row in found.get("methods", []))
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(prog="leanbayes", description="Makes a PyTorch network say how sure it is.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    plain = argparse.RawDescriptionHelpFormatter
    groups: dict[str, tuple[str, tuple[type[Any], ...]]] = {
        "compare": (
            "train several methods on the same data, and write a report",
            (DataOptions, CompareOptions, Budget),
        ),
        "train": ("train one method and save it", (DataOptions, TrainOptions, Budget)),
        "tune": ("search the options of a method on the validation set", (DataOptions, TuneOptions, Budget)),
        "predict": ("ask a saved model about images or arrays", (PredictOptions,)),
        "report": ("write the page of a comparison", (ReportOptions,)),
        "reproduce": ("run the papers' experiments by name, and judge their claims", (ReproduceOptions,)),
    }
    for name, (text, options) in groups.items():
        epilog = _recipes_help() if name in ("compare", "train", "tune") else None
        command = commands.add_parser(
            name, help=text, description=text.capitalize() + ".", epilog=epilog, formatter_class=plain
        )
        if name == "predict":
            command.add_argument("model_file", metavar="MODEL", help="what train or compare saved")
            command.add_argument("inputs", metavar="INPUTS", help="an image, a folder of images, an .npz or a .csv")
        if name == "report":
            command.add_argument("folder", metavar="FOLDER", help="what compare wrote")
        if name == "reproduce":
            command.add_argument("name", metavar="NAME", nargs="?", help="an experiment of --list, or all")
        add_options(command, *options)
        command.add_argument("--config", help="a YAML file with any of these options")
        command.add_argument("--json", action="store_true", help="print the result as JSON, and nothing else")
        command.add_argument("--quiet", action="store_true", help="no progress bars")
        command.set_defaults(groups=options)
    return parser


def _recipes_help() -> str:
    """Every recipe and its options, from the dataclasses."""
    lines = ["recipes, as name or name:option=value,option=value; any of them with +temperature:"]
    for name, recipe in sorted(RECIPES.items()):
        lines.append(f"  {name}: {(recipe.__doc__ or '').strip().splitlines()[0]}")
        for each in fields(recipe):  # type: ignore[arg-type]
            if "help" in each.metadata:
                lines.append(f"      {each.name}={each.default}: {each.metadata['help']}")
    return "\n".join(lines)


def _compare(given: argparse.Namespace, config: dict[str, Any], progress: Bars) -> dict[str, Any]:
    parts = (chosen(DataOptions, given, config), chosen(Budget, given, config), chosen(CompareOptions, given, config))
    return run_compare(*parts, progress, _as_typed())


def _train(given: argparse.Namespace, config: dict[str, Any], progress: Bars) -> dict[str, Any]:
    parts = (chosen(DataOptions, given, config), chosen(Budget, given, config), chosen(TrainOptions, given, config))
    return run_train(*parts, progress, _as_typed())


def _tune(given: argparse.Namespace, config: dict[str, Any], progress: Bars) -> dict[str, Any]:
    parts = (chosen(DataOptions, given, config), chosen(Budget, given, config), chosen(TuneOptions, given, config))
    return run_tune(*parts, progress, _as_typed())


def _predict(given: argparse.Namespace, config: dict[str, Any], progress: Bars) -> dict[str, Any]:
    return run_predict(given.model_file, given.inputs, chosen(PredictOptions, given, config), progress)


def _report(given: argparse.Namespace, config: dict[str, Any], progress: Bars) -> dict[str, Any]:  # noqa: ARG001
    return run_report(given.folder, chosen(ReportOptions, given, config))


def _reproduce(given: argparse.Namespace, config: dict[str, Any], progress: Bars) -> dict[str, Any]:
    return run_reproduce(given.name, chosen(ReproduceOptions, given, config), progress)


_COMMANDS: dict[str, Command] = {
    "compare": _compare,
    "train": _train,
    "tune": _tune,
    "predict": _predict,
    "report": _report,
    "reproduce": _reproduce,
}


def _as_typed() -> str:
    return "leanbayes " + " ".join(sys.argv[1:])


def _show(options: argparse.Namespace, found: dict[str, Any]) -> None:
    console = Console(soft_wrap=True)
    if not console.is_terminal:  # a file or a pipe has no width
        console = Console(width=200)
    if options.json:
        sys.stdout.write(json.dumps(found) + "\n")
        return
    if options.command == "compare":
        _print_table(console, found)
    elif options.command == "train":
        for name, value in found["metrics"].items():
            console.print(f"{name:24} {value:.4f}", highlight=False)
    elif options.command == "tune":
        _print_best(console, found)
    elif options.command == "reproduce":
        show_reproduced(console, found)
    for name in ("report", "model", "predictions", "record"):
        if isinstance(found.get(name), str):
            console.print(f"{name}: {found[name]}", markup=False, highlight=False)


def _print_table(console: Console, found: dict[str, Any]) -> None:
    """The columns that a line has room for; all of them are in the report."""
    rows = comparison_table(found)
    names = [name for name in _COLUMNS if any(name in row.cells for row in rows)]
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("")
    for name in names:
        table.add_column(describe(name)[0], justify="right")
    for row in rows:
        texts = [row.cells[name].text if name in row.cells else "" for name in names]
        best = [name in row.cells and row.cells[name].best for name in names]
        table.add_row(row.method, *(f"[bold]{t}[/]" if mark else t for t, mark in zip(texts, best, strict=True)))
    console.print(table)
    for row in rows:
        if row.error is not None:
            console.print(f"{row.method} failed: {row.error}", markup=False, highlight=False)


def _print_best(console: Console, found: dict[str, Any], most: int = 5) -> None:
    """The best trials; all of them are in the record."""
    metric, high = found["metric"], found["better"] == "high"
    done = [row for row in found["trials"] if row["state"] == "done"]
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("trial", *found["search"], f"{describe(metric)[0]} (validation)"):
        table.add_column(name, justify="right")
    for row in sorted(done, key=lambda row: -row["value"] if high else row["value"])[:most]:
        table.add_row(str(row["trial"]), *map(str, row["values"].values()), f"{row['value']:.4f}")
    console.print(table)
    for state, words in (("failed", "failed"), ("running", "under way in other processes")):
        count = sum(row["state"] == state for row in found["trials"])
        if count:
            console.print(f"{count} of {len(found['trials'])} trials {words}", highlight=False)
    if found["best"] is not None:
        console.print(f"best: {found['best']['method']}", markup=False, highlight=False)
