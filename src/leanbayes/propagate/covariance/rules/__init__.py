"""The rules for mean and covariance, one file for each subject; importing a file registers its rules."""

from leanbayes.propagate.covariance.rules import activations, arithmetic, layers, norms, pooling, shapes

__all__ = ["activations", "arithmetic", "layers", "norms", "pooling", "shapes"]
