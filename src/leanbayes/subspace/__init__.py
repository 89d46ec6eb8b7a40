"""WHICH coordinates are random: everything, layers, the most sensitive, or a random draw of them."""

from leanbayes.subspace.select import (
    Slot,
    Subspace,
    everything,
    last_layer,
    layers,
    not_norm,
    random_k,
    slots_of,
    top_k,
)
from leanbayes.subspace.sensitivity import sensitivity
from leanbayes.subspace.summary import Summary, TensorSummary

__all__ = [
    "Slot",
    "Subspace",
    "Summary",
    "TensorSummary",
    "everything",
    "last_layer",
    "layers",
    "not_norm",
    "random_k",
    "sensitivity",
    "slots_of",
    "top_k",
]
