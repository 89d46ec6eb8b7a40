"""Data to learn from: the built-in digits, MNIST, and the user's own folders, arrays and tables."""

from leanbayes.data.arrays import data_dir
from leanbayes.data.digits import digits, mnist
from leanbayes.data.preparation import Kind, Preparation
from leanbayes.data.source import Examples, Source, likelihood_for, read
from leanbayes.data.task import Task, length

__all__ = [
    "Examples",
    "Kind",
    "Preparation",
    "Source",
    "Task",
    "data_dir",
    "digits",
    "length",
    "likelihood_for",
    "mnist",
    "read",
]
