"""The command ``reproduce``: experiments by name, all of them, the list of them, and the page of claims."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from leanbayes.errors import InputError, LeanBayesError, UnknownName
from leanbayes.lab.cli.progress import Bars
from leanbayes.lab.recipes.base import option
from leanbayes_papers import EXPERIMENTS, SIZES, Experiment, experiment_named, reproduce, write_claims

__all__ = ["ReproduceOptions", "run_reproduce", "show_reproduced"]

_MOST = 8  # columns that a line has room for


@dataclass(frozen=True)
class ReproduceOptions:
    """The experiments."""

    list: bool = option(False, "which experiments there are, and how long each takes on two cores")
    page: bool = option(False, "write claims.md, what holds of all claims, from the records in --out")
    size: str = option("cpu", "smoke (needs no data, tests that it runs), cpu (two cores) or paper")
    data_dir: str | None = option(None, "where data sets by name are; else what LEANBAYES_DATA names, or ./data")
    seeds: tuple[int, ...] = option((), "numbers from 0 on; by default as many as the experiment says")
    workers: int = option(2, "processes, each with one thread")
    out: str = option("docs/results", "folder: records and figures go to experiments/ in it")
    cache: str = option(
        "out/experiments", "folder of what each job found: the same command goes on where it was stopped"
    )


def run_reproduce(name: str | None, options: ReproduceOptions, bars: Bars) -> dict[str, Any]:
    """Run one experiment or all; the records, and which failed.

    An experiment fails where a job of it does. One that cannot begin is bad input; among all it is left out, and said.
    """
    if options.size not in SIZES:
        raise UnknownName.of("size", options.size, SIZES)
    if options.list:
        return {"list": [_listed(each) for each in EXPERIMENTS.values()]}
    if name is None and options.page:
        return {"page": str(write_claims(EXPERIMENTS.values(), Path(options.out)))}
    if name is None:
        raise InputError("say which experiment, or all; leanbayes reproduce --list has their names")
    chosen = list(EXPERIMENTS.values()) if name == "all" else [experiment_named(name)]
    records, failed = [], []
    for each in chosen:
        try:
            record = _one(each, options, bars)
        except LeanBayesError as error:
            if name != "all":
                raise
            failed.append({"name": each.name, "error": " ".join(str(error).split())})
            continue
        records.append(record)
        jobs = len(record["failed"])
        if jobs or record["error"]:
            first = record["error"] or f"{jobs} of {jobs + len(record['jobs'])} jobs: {record['failed'][0]['error']}"
            failed.append({"name": each.name, "error": first})
    found: dict[str, Any] = {"experiments": records, "failed": failed}
    if options.page:
        found["page"] = str(write_claims(EXPERIMENTS.values(), Path(options.out)))
    return found


def show_reproduced(console: Console, found: dict[str, Any]) -> None:
    """For people: what there is, or tables, verdicts and failures."""
    for row in found.get("list", []):
        sizes = ", ".join(f"{size} {minutes:g} min" for size, minutes in row["minutes"].items())
        console.print(f"{row['name']}: {row['title']}", markup=False, highlight=False)
        console.print(f"    {sizes}; data for cpu: {', '.join(row['needs']) or 'none'}", markup=False, highlight=False)
    for record in found.get("experiments", []):
        console.print(f"{record['name']}, {record['size']}: {record['title']}", markup=False, highlight=False)
        for title, rows in record["tables"].items():
            _print_table(console, title, rows)
        if record["size"] == "smoke":
            console.print("a smoke test: its numbers say nothing of the claims", markup=False, highlight=False)
        for verdict in record["verdicts"]:
            claim = verdict["claim"]
            told = f"{verdict['answer']}: {claim['paper']}, {claim['where']}: {claim['text']}\n    {verdict['why']}"
            console.print(told, markup=False, highlight=False)
    for row in found.get("failed", []):
        console.print(f"{row['name']} failed: {row['error']}", markup=False, highlight=False)
    if "page" in found:
        console.print(f"page: {found['page']}", markup=False, highlight=False)


def _one(each: Experiment, options: ReproduceOptions, bars: Bars) -> dict[str, Any]:
    def watch(done: int, total: int) -> None:
        if done:
            bars.step()
        else:
            bars.begin(f"{each.name}, jobs", total)

    return reproduce(
        each,
        options.size,
        folder=options.data_dir,
        seeds=options.seeds or None,
        workers=options.workers,
        out=Path(options.out) / "experiments",
        cache=options.cache,
        watch=watch,
    )


def _listed(each: Experiment) -> dict[str, Any]:
    return {
        "name": each.name,
        "title": each.title,
        "minutes": {size: found.minutes for size, found in each.sizes.items()},
        "needs": list(each.sizes["cpu"].needs),
        "claims": len(each.claims),
    }


def _print_table(console: Console, title: str, rows: list[dict[str, Any]]) -> None:
    """Means, with half their intervals; all columns are in the record."""
    columns = list(dict.fromkeys(name for row in rows for name in row if name != "method"))[:_MOST]
    table = Table(box=None, header_style="bold", pad_edge=False, title=title, title_justify="left")
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(row["method"], *(_cell(row.get(name)) for name in columns))
    console.print(table)


def _cell(found: dict[str, Any] | None) -> str:
    if found is None:
        return ""
    half = "" if found["high"] is None else f" ± {found['high'] - found['mean']:.2g}"
    return f"{found['mean']:.4g}{half}"
