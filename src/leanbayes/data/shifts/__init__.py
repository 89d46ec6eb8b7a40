"""Data that a network was not trained for: corrupted, rotated, or of classes that it never saw.

Gaussian noise by signal-to-noise ratio is `leanbayes.evaluate.add_noise`; an unseen data set needs no function, only a
place in ``Task.shifted``.
"""

from leanbayes.data.shifts.cache import cached
from leanbayes.data.shifts.corruption import SEVERITIES, Corruption
from leanbayes.data.shifts.examples import HeldOut, hold_out, shift
from leanbayes.data.shifts.registry import CORRUPTIONS, corrupt
from leanbayes.data.shifts.rotation import rotate

__all__ = ["CORRUPTIONS", "SEVERITIES", "Corruption", "HeldOut", "cached", "corrupt", "hold_out", "rotate", "shift"]
