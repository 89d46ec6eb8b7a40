"""A command: it counts the recipes."""

from dataclasses import dataclass

from leanbayes.lab.cli import Command, argument, print_line
from leanbayes.lab.recipes import RECIPES, option


@dataclass(frozen=True)
class CountOptions:
    """What is counted."""

    letter: str = argument("The first letter of the recipes to count.")
    twice: bool = option(False, "Count every recipe twice.")


def run(options, session):
    names = [name for name in RECIPES if name.startswith(options.letter)]
    return {"count": len(names) * (1 + options.twice), "names": names}


def show(console, result):
    print_line(console, f"{result['count']}: {', '.join(result['names'])}")


COMMAND = Command("count", "Count the recipes whose names begin with a letter.", CountOptions, run, show)
