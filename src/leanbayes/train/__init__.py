"""Training: fit, checkpoints, and what a random net needs beside the objective."""

from leanbayes.train.loop import Epoch, History, fit
from leanbayes.train.norms import fix_statistics, has_statistics

__all__ = ["Epoch", "History", "fit", "fix_statistics", "has_statistics"]
