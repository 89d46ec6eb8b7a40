"""The command line ``leanbayes``: commands, each a record in a file, and the program that runs them."""

from leanbayes.lab.cli.command import COMMANDS, Command, Result, Session, print_line
from leanbayes.lab.cli.crew import EXECUTOR, make_crew
from leanbayes.lab.cli.parser import argument
from leanbayes.lab.cli.program import main
from leanbayes.lab.cli.progress import Bars

__all__ = [
    "COMMANDS",
    "EXECUTOR",
    "Bars",
    "Command",
    "Result",
    "Session",
    "argument",
    "main",
    "make_crew",
    "print_line",
]
