"""Train several methods on one task, judge them all in the same way, and keep every result as soon as it is there."""

from leanbayes.lab.compare.judging import Judgement, judge
from leanbayes.lab.compare.record import is_main_process
from leanbayes.lab.compare.run import Protocol, compare
from leanbayes.lab.compare.single import Event, Watching

__all__ = ["Event", "Judgement", "Protocol", "Watching", "compare", "is_main_process", "judge"]
