"""HOW a random coordinate is distributed: families, and how their scales start."""

from leanbayes.posteriors.erlang import Erlang
from leanbayes.posteriors.exponential import Exponential
from leanbayes.posteriors.family import Family
from leanbayes.posteriors.gamma import Gamma
from leanbayes.posteriors.generalised_error import GeneralisedError
from leanbayes.posteriors.horseshoe import Horseshoe
from leanbayes.posteriors.initial import GaussianRho, InitialScale, RelativeScale
from leanbayes.posteriors.inverse_gamma import InverseGamma
from leanbayes.posteriors.laplace import Laplace
from leanbayes.posteriors.law import FamilyLaw
from leanbayes.posteriors.log_gamma import LogGamma
from leanbayes.posteriors.log_normal import LogNormal
from leanbayes.posteriors.logistic import Logistic
from leanbayes.posteriors.normal import Normal
from leanbayes.posteriors.radial import Radial
from leanbayes.posteriors.rayleigh import Rayleigh
from leanbayes.posteriors.terms import Form, Statistics, Term
from leanbayes.posteriors.wald import Wald
from leanbayes.posteriors.weibull import Weibull
from leanbayes.posteriors.weight import RandomWeight

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
