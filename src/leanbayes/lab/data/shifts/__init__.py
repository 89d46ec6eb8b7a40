"""Data that a network was not trained for: corrupted, rotated, or of classes that it never saw.

An unseen data set needs no function, only a place in ``Task.shifted``.
"""

from leanbayes.lab.data.shifts.cache import cached
from leanbayes.lab.data.shifts.corruption import SEVERITIES, Corruption
from leanbayes.lab.data.shifts.examples import HeldOut, hold_out, shift
from leanbayes.lab.data.shifts.registry import CORRUPTIONS, corrupt
from leanbayes.lab.data.shifts.rotation import rotate

__all__ = ["CORRUPTIONS", "SEVERITIES", "Corruption", "HeldOut", "cached", "corrupt", "hold_out", "rotate", "shift"]
