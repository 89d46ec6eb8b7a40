"""HOW a random coordinate is distributed: families, and how their scales start."""

from leanbayes.posterior.erlang import Erlang
from leanbayes.posterior.exponential import Exponential
from leanbayes.posterior.family import Family
from leanbayes.posterior.gamma import Gamma
from leanbayes.posterior.generalised_error import GeneralisedError
from leanbayes.posterior.horseshoe import Horseshoe
from leanbayes.posterior.initial import GaussianRho, InitialScale, RelativeScale
from leanbayes.posterior.inverse_gamma import InverseGamma
from leanbayes.posterior.laplace import Laplace
from leanbayes.posterior.law import FamilyLaw
from leanbayes.posterior.log_gamma import LogGamma
from leanbayes.posterior.log_normal import LogNormal
from leanbayes.posterior.logistic import Logistic
from leanbayes.posterior.normal import Normal
from leanbayes.posterior.radial import Radial
from leanbayes.posterior.rayleigh import Rayleigh
from leanbayes.posterior.terms import Form, Statistics, Term
from leanbayes.posterior.wald import Wald
from leanbayes.posterior.weibull import Weibull
from leanbayes.posterior.weight import RandomWeight

FAMILIES: dict[str, type[Family]] = {
    family.__name__: family
    for family in (
        *(Normal, Laplace, Logistic, Radial, Horseshoe),
        *(Exponential, Wald, Rayleigh, Weibull, Erlang, Gamma, GeneralisedError, LogGamma, InverseGamma),
        LogNormal,
    )
}

__all__ = [
    "FAMILIES",
    "Erlang",
    "Exponential",
    "Family",
    "FamilyLaw",
    "Form",
    "Gamma",
    "GaussianRho",
    "GeneralisedError",
    "Horseshoe",
    "InitialScale",
    "InverseGamma",
    "Laplace",
    "LogGamma",
    "LogNormal",
    "Logistic",
    "Normal",
    "Radial",
    "RandomWeight",
    "Rayleigh",
    "RelativeScale",
    "Statistics",
    "Term",
    "Wald",
    "Weibull",
]
