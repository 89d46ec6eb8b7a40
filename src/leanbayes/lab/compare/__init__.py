"""Methods side by side on one task."""

from leanbayes.lab.compare.arrays import figure_arrays, kind_of
from leanbayes.lab.compare.run import Event, compare, is_main_process, judge

__all__ = ["Event", "compare", "figure_arrays", "is_main_process", "judge", "kind_of"]
