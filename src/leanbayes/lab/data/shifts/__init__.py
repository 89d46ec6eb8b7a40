"""Shifted data: images that are corrupted or rotated, or that belong to classes which the network never saw.

A whole other data set needs no function: put it into ``Task.shifted``.
"""

from leanbayes.lab.data.shifts.cache import cached
from leanbayes.lab.data.shifts.corruption import SEVERITIES, Corruption
from leanbayes.lab.data.shifts.examples import HeldOut, hold_out, shift
from leanbayes.lab.data.shifts.registry import CORRUPTIONS, corrupt
from leanbayes.lab.data.shifts.rotation import rotate

__all__ = ["CORRUPTIONS", "SEVERITIES", "Corruption", "HeldOut", "cached", "corrupt", "hold_out", "rotate", "shift"]
