"""``leanbayes reproduce``: run studies by name, list them, and write the page of claims."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from leanbayes.errors import InputError, LeanBayesError, UnknownName
from leanbayes.lab.cli import EXECUTOR, Command, Result, Session, argument, make_crew, print_line
from leanbayes.lab.recipes import option
from leanbayes_papers import SIZES, STUDIES, Study, reproduce, study_named, write_claims

__all__ = ["COMMAND", "ReproduceOptions"]

_MOST_COLUMNS = 8  # that a table in the terminal has; the record has all


@dataclass(frozen=True)
class ReproduceOptions:
    """Which studies run, and how."""

    name: str | None = argument("The name of a study (--list shows them), or all.", default=None)
    list: bool = option(False, "List the studies, how long each takes on two cores, and which data it needs.")
    page: bool = option(
        False, "Write claims.md from the records in the folder of --out: every claim, and whether it holds."
    )
    size: str = option(
        "cpu",
        "How large the study is: smoke (needs no data and only tests that it runs), cpu (for two cores) or paper "
        "(as in the paper).",
    )
    data_dir: str | None = option(
        None,
        "The folder that holds the data sets. By default it is the folder that the environment variable "
        "LEANBAYES_DATA names, or ./data.",
    )
    seeds: tuple[int, ...] = option((), "The seeds. By default each study says how many it needs.")
    workers: int = option(2, "How many processes work at once with --executor local, each with one thread.")
    executor: str = option("local", EXECUTOR)
    out: str = option("docs/results", "The folder that receives claims.md, and in experiments/ records and figures.")
    cache: str = option(
        "out/experiments",
        "The folder that keeps the result of each finished job, so that the same command continues after a stop.",
    )


def run(options: ReproduceOptions, session: Session) -> Result:
    """Run one study or all of them, and return the records and what failed.

    A study fails if one of its jobs does. A study that cannot begin, such as one without its data, is bad input; among
    all studies it is left out and listed as failed.
    """
    if options.size not in SIZES:
        raise UnknownName.of("size", options.size, SIZES)
    if options.list:
        return {"list": [_summary(study) for study in STUDIES.values()]}
    if options.name is None and options.page:
        return {"page": _write_page(options)}
    if options.name is None:
        raise InputError("say which study to run, or all; leanbayes reproduce --list shows their names")
    every = options.name == "all"
    records, failed = [], []
    for study in STUDIES.values() if every else [study_named(options.name)]:
        try:
            record = _reproduce(study, options, session)
        except LeanBayesError as error:
            if not every:
                raise
            failed.append({"name": study.name, "error": " ".join(str(error).split())})
            continue
        records.append(record)
        if record["failed"] or record["error"]:
            failed.append({"name": study.name, "error": record["error"] or _first_failure(record)})
    result: Result = {"experiments": records, "failed": failed}
    if options.page:
        result["page"] = _write_page(options)
    return result


def show(console: Console, result: Result) -> None:
    """Print the list of studies, or the tables, verdicts and failures of those that ran."""
    for row in result.get("list", []):
        sizes = ", ".join(f"{size} {minutes:g} min" for size, minutes in row["minutes"].items())
        print_line(console, f"{row['name']}: {row['title']}")
        print_line(console, f"    {sizes}; data for cpu: {', '.join(row['needs']) or 'none'}")
    for record in result.get("experiments", []):
        _show_record(console, record)
    for row in result.get("failed", []):
        print_line(console, f"{row['name']} failed: {row['error']}")
    if "page" in result:
        print_line(console, f"page: {result['page']}")


def failed(result: Result) -> bool:
    """Say whether a study failed."""
    return bool(result.get("failed"))


def _reproduce(study: Study, options: ReproduceOptions, session: Session) -> dict[str, Any]:
    shown = 0

    def watch(done: int, total: int) -> None:
        nonlocal shown
        if not done:
            session.bars.begin(f"{study.name}, jobs", total)
        for _ in range(done - shown):
            session.bars.step()
        shown = done

    return reproduce(
        study,
        options.size,
        folder=options.data_dir,
        seeds=options.seeds or None,
        workers=options.workers,
        out=Path(options.out) / "experiments",
        cache=options.cache,
        watch=watch,
        crew=make_crew(options.executor, session, {"all": study.name}),  # a worker does the jobs of one study
    )


def _write_page(options: ReproduceOptions) -> str:
    return str(write_claims(STUDIES.values(), Path(options.out)))


def _first_failure(record: dict[str, Any]) -> str:
    jobs = len(record["failed"])
    return f"{jobs} of {jobs + len(record['jobs'])} jobs: {record['failed'][0]['error']}"


def _summary(study: Study) -> dict[str, Any]:
    return {
        "name": study.name,
        "title": study.title,
        "minutes": {name: size.minutes for name, size in study.sizes.items()},
        "needs": list(study.sizes["cpu"].needs),
        "claims": len(study.claims),
    }


def _show_record(console: Console, record: dict[str, Any]) -> None:
    print_line(console, f"{record['name']}, {record['size']}: {record['title']}")
    for title, rows in record["tables"].items():
        _show_table(console, title, rows)
    if record["size"] == "smoke":
        print_line(console, "this is a smoke test: its numbers say nothing about the claims")
    for verdict in record["verdicts"]:
        claim = verdict["claim"]
        print_line(console, f"{verdict['answer']}: {claim['paper']}, {claim['where']}: {claim['text']}")
        print_line(console, f"    {verdict['why']}")


def _show_table(console: Console, title: str, rows: list[dict[str, Any]]) -> None:
    columns = list(dict.fromkeys(name for row in rows for name in row if name != "method"))[:_MOST_COLUMNS]
    table = Table(box=None, header_style="bold", pad_edge=False, title=title, title_justify="left")
    table.add_column("")
    for name in columns:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(row["method"], *(_mean_and_half(row.get(name)) for name in columns))
    console.print(table)


def _mean_and_half(cell: dict[str, Any] | None) -> str:
    """Return the mean and half the width of its interval."""
    if cell is None:
        return ""
    half = "" if cell["high"] is None else f" ± {cell['high'] - cell['mean']:.2g}"
    return f"{cell['mean']:.4g}{half}"


COMMAND = Command(
    "reproduce",
    "Repeat figures and tables of the papers, and judge the papers' claims.",
    ReproduceOptions,
    run,
    show,
    failed,
)
