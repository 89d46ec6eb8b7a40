"""Training: `fit` with its options, checkpoints, schedules by name, and batch norm under randomness."""

from leanbayes.train.history import Epoch, History, Scales
from leanbayes.train.loop import fit
from leanbayes.train.norms import fix_statistics, has_statistics
from leanbayes.train.options import Checkpointing, Optimization
from leanbayes.train.schedules import SCHEDULES, NamedSchedule

__all__ = [
    "SCHEDULES",
    "Checkpointing",
    "Epoch",
    "History",
    "NamedSchedule",
    "Optimization",
    "Scales",
    "fit",
    "fix_statistics",
    "has_statistics",
]
