"""Training: what a random net needs beside the objective."""

from leanbayes.train.norms import fix_statistics

__all__ = ["fix_statistics"]
