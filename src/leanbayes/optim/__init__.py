"""Optimizers by name, and what an optimizer that owns the scales of random weights can rely on.

`OPTIMIZERS` holds what ``leanbayes.fit(..., optimizer="name")`` can find: the objects of type `NamedOptimizer`, and the
classes that satisfy `OptimizerBuilder`, in the modules of this package and behind entry points of the group
"leanbayes.optimizers". `leanbayes.optim.protocol` describes what such an optimizer is given.
"""

import inspect

from leanbayes._catalogue import Catalogue
from leanbayes.optim.curvature import CurvatureSummary
from leanbayes.optim.ivon import IVON
from leanbayes.optim.natural_gradients import NaturalGradients
from leanbayes.optim.protocol import NamedOptimizer, OptimizerBuilder, Problem
from leanbayes.optim.random_tensor import RandomTensor, random_tensors

__all__ = [
    "IVON", "OPTIMIZERS", "CurvatureSummary", "NamedOptimizer", "NaturalGradients", "OptimizerBuilder", "Problem",
    "RandomTensor", "random_tensors",
]  # fmt: skip


def _name_of(value: object) -> str | None:
    """Return the name of a builder. A class is one if ``build`` works on the class itself, not only on its objects."""
    name, build = getattr(value, "name", None), inspect.getattr_static(value, "build", None)
    usable = isinstance(build, classmethod | staticmethod) if isinstance(value, type) else build is not None
    return name if isinstance(name, str) and usable else None


OPTIMIZERS: Catalogue[OptimizerBuilder] = Catalogue(
    "optimizer", _name_of, package="leanbayes.optim", group="leanbayes.optimizers"
)
