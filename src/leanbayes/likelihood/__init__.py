"""What the outputs of a network mean: classes (also for each pixel), independent labels, or numbers.

A `Likelihood` is an object that owns everything that depends on the kind of data. Each kind is one file.
"""

from leanbayes.likelihood.base import LIKELIHOODS, Likelihood, Uncertainty, draw_outputs, usual_likelihood
from leanbayes.likelihood.bernoulli import Bernoulli
from leanbayes.likelihood.categorical import Categorical
from leanbayes.likelihood.gaussian import Gaussian
from leanbayes.likelihood.moment import MeanCrossEntropy, MomentLikelihood

__all__ = [
    "LIKELIHOODS",
    "Bernoulli",
    "Categorical",
    "Gaussian",
    "Likelihood",
    "MeanCrossEntropy",
    "MomentLikelihood",
    "Uncertainty",
    "draw_outputs",
    "usual_likelihood",
]
