"""Data to learn from: data sets that are found by name, and the folders, arrays and tables of users."""

from leanbayes.lab.data.arrays import data_dir
from leanbayes.lab.data.named import DataSet, Origin, Remote
from leanbayes.lab.data.preparation import Kind, Preparation
from leanbayes.lab.data.rated import Raters, from_raters
from leanbayes.lab.data.reader import Reader, ReadOptions
from leanbayes.lab.data.reading import READERS, read
from leanbayes.lab.data.registry import DATA, load_data
from leanbayes.lab.data.sets.digits import digits, mnist
from leanbayes.lab.data.sets.lesions import lesions
from leanbayes.lab.data.sets.lidc import lidc
from leanbayes.lab.data.sets.toy import cubic
from leanbayes.lab.data.sets.uci import uci, uci_splits
from leanbayes.lab.data.shifts import (
    CORRUPTIONS,
    SEVERITIES,
    Corruption,
    HeldOut,
    cached,
    corrupt,
    hold_out,
    rotate,
    shift,
)
from leanbayes.lab.data.source import Examples, Source, likelihood_for
from leanbayes.lab.data.task import Task, length

__all__ = [
    "CORRUPTIONS",
    "DATA",
    "READERS",
    "SEVERITIES",
    "Corruption",
    "DataSet",
    "Examples",
    "HeldOut",
    "Kind",
    "Origin",
    "Preparation",
    "Raters",
    "ReadOptions",
    "Reader",
    "Remote",
    "Source",
    "Task",
    "cached",
    "corrupt",
    "cubic",
    "data_dir",
    "digits",
    "from_raters",
    "hold_out",
    "length",
    "lesions",
    "lidc",
    "likelihood_for",
    "load_data",
    "mnist",
    "read",
    "rotate",
    "shift",
    "uci",
    "uci_splits",
]
