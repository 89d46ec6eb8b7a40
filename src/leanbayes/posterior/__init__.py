"""HOW a random coordinate is distributed: families, and how their scales start."""

from leanbayes.posterior.family import Family
from leanbayes.posterior.initial import GaussianRho, InitialScale, RelativeScale
from leanbayes.posterior.normal import Normal
from leanbayes.posterior.weight import RandomWeight

FAMILIES: dict[str, type[Family]] = {"Normal": Normal}

__all__ = ["FAMILIES", "Family", "GaussianRho", "InitialScale", "Normal", "RandomWeight", "RelativeScale"]
