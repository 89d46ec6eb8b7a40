"""The rules of moments, one file for each subject; importing a file registers its rules."""

from leanbayes.propagate.moments.rules import (
    activations,
    arithmetic,
    attention,
    dropout,
    linear,
    norms,
    pooling,
    products,
    reductions,
    resizing,
    shapes,
    softmax,
)

__all__ = [
    "activations",
    "arithmetic",
    "attention",
    "dropout",
    "linear",
    "norms",
    "pooling",
    "products",
    "reductions",
    "resizing",
    "shapes",
    "softmax",
]
