"""The contestants of benchmarks/peers.py: LeanBayes and its peers, each of which trains or predicts with one network.

A module holds one kind of method, and a dictionary ``ROWS`` with a builder for each row of the table.
"""

from collections.abc import Callable

from contestants import ensembles, laplaces, natural, plain, runtimes, sparse, variational
from contestants.base import Contestant, Task

ROWS: dict[str, Callable[[Task], Contestant]] = {
    **plain.ROWS, **variational.ROWS, **natural.ROWS, **ensembles.ROWS, **laplaces.ROWS, **sparse.ROWS, **runtimes.ROWS
}  # fmt: skip
"""The builder of each row, in the order of the table."""
