"""``leanbayes report``: write the page of a comparison again."""

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from leanbayes.lab.cli.command import Command, Result, Session, print_line
from leanbayes.lab.cli.parser import argument
from leanbayes.lab.recipes import option

__all__ = ["COMMAND", "ReportOptions"]


@dataclass(frozen=True)
class ReportOptions:
    """Which page is written."""

    folder: str = argument("The folder that leanbayes compare wrote its results to.")
    out: str | None = option(None, "The file to write the page to. By default it is report.html in the folder.")


def run(options: ReportOptions, session: Session) -> Result:  # noqa: ARG001
    """Write the page, and return where it is."""
    from leanbayes.lab.report import write_report

    page = write_report(Path(options.folder), None if options.out is None else Path(options.out))
    return {"report": str(page)}


def show(console: Console, result: Result) -> None:
    """Print where the page is."""
    print_line(console, f"report: {result['report']}")


COMMAND = Command("report", "Write the page of a comparison again from its results.", ReportOptions, run, show)
