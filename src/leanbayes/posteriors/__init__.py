"""Posterior families say how a random coordinate is distributed, and where its scale starts.

```python
bnn = lb.Bayesian(model, posterior=lb.posteriors.Laplace(init_scale=0.02))
```

`FAMILIES` holds every family by name. A module in this package that defines a subclass of `Family` is found by lying
here; other packages add families through entry points of the group "leanbayes.posteriors".
"""

from leanbayes.posteriors.erlang import Erlang
from leanbayes.posteriors.exponential import Exponential
from leanbayes.posteriors.families import FAMILIES
from leanbayes.posteriors.family import Family
from leanbayes.posteriors.gamma import Gamma
from leanbayes.posteriors.gamma_power import GammaPower
from leanbayes.posteriors.generalised_error import GeneralisedError
from leanbayes.posteriors.horseshoe import Horseshoe
from leanbayes.posteriors.initial import GaussianRho, InitialScale, RelativeScale
from leanbayes.posteriors.inverse_gamma import InverseGamma
from leanbayes.posteriors.laplace import Laplace
from leanbayes.posteriors.law import FamilyLaw
from leanbayes.posteriors.location_scale import LocationScale
from leanbayes.posteriors.log_gamma import LogGamma
from leanbayes.posteriors.log_normal import LogNormal
from leanbayes.posteriors.logistic import Logistic
from leanbayes.posteriors.normal import Normal
from leanbayes.posteriors.radial import Radial
from leanbayes.posteriors.rayleigh import Rayleigh
from leanbayes.posteriors.terms import Form, Statistics, Term, log, power
from leanbayes.posteriors.wald import Wald
from leanbayes.posteriors.weibull import Weibull
from leanbayes.posteriors.weight import RandomWeight

__all__ = [
    "FAMILIES",
    "Erlang",
    "Exponential",
    "Family",
    "FamilyLaw",
    "Form",
    "Gamma",
    "GammaPower",
    "GaussianRho",
    "GeneralisedError",
    "Horseshoe",
    "InitialScale",
    "InverseGamma",
    "Laplace",
    "LocationScale",
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
    "log",
    "power",
]
