"""Training: `fit` with its options, checkpoints, schedules by name, and batch norm under randomness."""

from leanbayes.train.callbacks import EachStep, Step, Tracking
from leanbayes.train.data import Arrays
from leanbayes.train.history import Epoch, History, Scales, Stop
from leanbayes.train.lean import LeanTraining
from leanbayes.train.loop import fit
from leanbayes.train.norms import fix_statistics, has_statistics
from leanbayes.train.options import Checkpointing, Optimization
from leanbayes.train.schedules import SCHEDULES, NamedSchedule
from leanbayes.train.sharded import load_sharded, save_sharded

__all__ = [
    "SCHEDULES",
    "Arrays",
    "Checkpointing",
    "EachStep",
    "Epoch",
    "History",
    "LeanTraining",
    "NamedSchedule",
    "Optimization",
    "Scales",
    "Step",
    "Stop",
    "Tracking",
    "fit",
    "fix_statistics",
    "has_statistics",
    "load_sharded",
    "save_sharded",
]
