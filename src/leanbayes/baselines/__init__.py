"""The methods that a lean Bayesian network is compared with. Each is a `Predictor` in a file of its own.

`PREDICTORS` holds them by name, for `leanbayes.load`. Another package adds a predictor through an entry point of the
group "leanbayes.predictors".
"""

from inspect import isabstract

from leanbayes._catalogue import Catalogue
from leanbayes.baselines.augmentation import Augmented
from leanbayes.baselines.dropout import MCDropout
from leanbayes.baselines.ensemble import Ensemble
from leanbayes.baselines.laplace import LaplaceApproximation
from leanbayes.baselines.noise_scale import NoiseScale
from leanbayes.baselines.swag import Swag
from leanbayes.baselines.temperature import Temperature
from leanbayes.likelihood import Gaussian, Likelihood
from leanbayes.prediction import Predictor

__all__ = [
    "PREDICTORS",
    "Augmented",
    "Ensemble",
    "LaplaceApproximation",
    "MCDropout",
    "NoiseScale",
    "Swag",
    "Temperature",
]


def _name_of(value: object) -> str | None:
    """The name of a public class of predictors, and None for anything else."""
    if not (isinstance(value, type) and issubclass(value, Predictor)) or isabstract(value):
        return None
    return None if value.__name__.startswith("_") else value.__name__


PREDICTORS: Catalogue[type[Predictor]] = Catalogue(
    "predictor", _name_of, package="leanbayes.baselines", group="leanbayes.predictors"
)
"""Every predictor that a file may name, by the name of its class."""


def rescaling_for(likelihood: Likelihood) -> type[Temperature] | type[NoiseScale] | None:
    """Return the predictor that calibrates a model by one number, or None if the likelihood has nothing to rescale.

    >>> rescaling_for(Gaussian(noise="input")).__name__
    'NoiseScale'
    """
    if likelihood.has_logits:
        return Temperature
    return NoiseScale if isinstance(likelihood, Gaussian) and likelihood.by_input else None
