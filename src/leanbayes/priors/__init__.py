"""Priors say what is believed of a weight before the data.

Any torch distribution of one number can be a prior, and so can a mapping of name patterns to priors:

```python
bnn = lb.Bayesian(model, prior={"fc.*": lb.priors.FittedPrior(), "*": torch.distributions.Normal(0.0, 1.0)})
```

`FittedPrior` fits its scale to the weights, and `CentredPrior` lies around the trained weights. The names that end in
``Law``, `wald` and `rayleigh` are distributions that torch lacks. `LAWS` holds the classes of these by name, because a
saved file names its prior; other packages add theirs through entry points of the group "leanbayes.priors".
"""

from leanbayes.priors.centred import CentredPrior
from leanbayes.priors.fitted import FittedPrior
from leanbayes.priors.fixed import FixedPrior
from leanbayes.priors.half_line import InverseGaussianLaw, rayleigh, wald
from leanbayes.priors.laws import LAWS
from leanbayes.priors.log_uniform import LogUniformLaw
from leanbayes.priors.prior import Prior, PriorLike
from leanbayes.priors.resolve import resolve_priors
from leanbayes.priors.whole_line import ErrorLaw, HorseshoeLaw, LogisticLaw, RadialLaw

__all__ = [
    "LAWS",
    "CentredPrior",
    "ErrorLaw",
    "FittedPrior",
    "FixedPrior",
    "HorseshoeLaw",
    "InverseGaussianLaw",
    "LogUniformLaw",
    "LogisticLaw",
    "Prior",
    "PriorLike",
    "RadialLaw",
    "rayleigh",
    "resolve_priors",
    "wald",
]
