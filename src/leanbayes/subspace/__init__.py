"""Which coordinates of a model are random, and which are stored at all.

A coordinate is one number of a parameter tensor. `everything`, `layers`, `top_k` and `random_k` choose the random
coordinates of a dense model. `sparse` stores a few coordinates of each layer and lets all others be zero.
"""

from leanbayes.subspace.removal import REMOVAL, overlap, removal_scores
from leanbayes.subspace.rewire import Move, Rewire, plan_move
from leanbayes.subspace.scores import sensitivity
from leanbayes.subspace.select import Subspace, everything, layers, random_k, top_k
from leanbayes.subspace.slots import Slot, last_layer, not_norm, slots_of
from leanbayes.subspace.sparse_subspace import make_sparse, sparse
from leanbayes.subspace.storage import Scatter, dense_name, densify, scatters, sparse_state
from leanbayes.subspace.summary import Summary, TensorSummary

__all__ = [
    "REMOVAL",
    "Move",
    "Rewire",
    "Scatter",
    "Slot",
    "Subspace",
    "Summary",
    "TensorSummary",
    "dense_name",
    "densify",
    "everything",
    "last_layer",
    "layers",
    "make_sparse",
    "not_norm",
    "overlap",
    "plan_move",
    "random_k",
    "removal_scores",
    "scatters",
    "sensitivity",
    "slots_of",
    "sparse",
    "sparse_state",
    "top_k",
]
