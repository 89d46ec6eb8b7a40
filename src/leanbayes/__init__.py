"""LeanBayes: any PyTorch network says how sure it is, for close to the price of the plain network.

```python
scores = lb.sensitivity(model, batches, loss)                         # which weights matter
bnn = lb.Bayesian(model, subspace=lb.top_k(scores, rate=0.01))        # make the first 1 % of them random
prediction = lb.predict(bnn, x)                                       # mean, total, aleatoric, epistemic
```
"""

from leanbayes.baselines import Ensemble, LaplaceApproximation, MCDropout, Swag, Temperature
from leanbayes.bayesian import Bayesian
from leanbayes.covariance import covariance
from leanbayes.errors import (
    FileError,
    ForeignFile,
    InputError,
    LeanBayesError,
    MissingRule,
    NewerFile,
    NoClosedForm,
    NonFinite,
    SelectionError,
    ShapeMismatch,
    TruncatedFile,
    UnknownName,
    WrongModel,
)
from leanbayes.evaluate import Evaluation, evaluate
from leanbayes.kl import Estimate, Exact, MonteCarlo
from leanbayes.likelihood import Bernoulli, Categorical, Gaussian, Likelihood
from leanbayes.moment_likelihood import MeanCrossEntropy, MomentLikelihood
from leanbayes.moments import moments
from leanbayes.objective import Elbo, anneal, constant, elbo, warm_up
from leanbayes.posterior import (
    Erlang,
    Exponential,
    Gamma,
    GaussianRho,
    GeneralisedError,
    Horseshoe,
    InverseGamma,
    Laplace,
    LogGamma,
    Logistic,
    LogNormal,
    Normal,
    Radial,
    Rayleigh,
    RelativeScale,
    Wald,
    Weibull,
)
from leanbayes.predict import Prediction, Predictor, predict
from leanbayes.prior import (
    CentredPrior,
    ErrorLaw,
    FittedPrior,
    FixedPrior,
    HorseshoeLaw,
    InverseGaussianLaw,
    LogisticLaw,
    LogUniformLaw,
    Prior,
    RadialLaw,
    rayleigh,
    wald,
)
from leanbayes.storage import about, load, save
from leanbayes.subspace import (
    Rewire,
    Subspace,
    densify,
    everything,
    layers,
    make_sparse,
    not_norm,
    random_k,
    sensitivity,
    sparse,
    top_k,
)
from leanbayes.train import Epoch, History, fit, fix_statistics

__version__ = "0.1.0"

__all__ = [
    "Bayesian",
    "Bernoulli",
    "Categorical",
    "CentredPrior",
    "Elbo",
    "Ensemble",
    "Epoch",
    "Erlang",
    "ErrorLaw",
    "Estimate",
    "Evaluation",
    "Exact",
    "Exponential",
    "FileError",
    "FittedPrior",
    "FixedPrior",
    "ForeignFile",
    "Gamma",
    "Gaussian",
    "GaussianRho",
    "GeneralisedError",
    "History",
    "Horseshoe",
    "HorseshoeLaw",
    "InputError",
    "InverseGamma",
    "InverseGaussianLaw",
    "Laplace",
    "LaplaceApproximation",
    "LeanBayesError",
    "Likelihood",
    "LogGamma",
    "LogNormal",
    "LogUniformLaw",
    "Logistic",
    "LogisticLaw",
    "MCDropout",
    "MeanCrossEntropy",
    "MissingRule",
    "MomentLikelihood",
    "MonteCarlo",
    "NewerFile",
    "NoClosedForm",
    "NonFinite",
    "Normal",
    "Prediction",
    "Predictor",
    "Prior",
    "Radial",
    "RadialLaw",
    "Rayleigh",
    "RelativeScale",
    "Rewire",
    "SelectionError",
    "ShapeMismatch",
    "Subspace",
    "Swag",
    "Temperature",
    "TruncatedFile",
    "UnknownName",
    "Wald",
    "Weibull",
    "WrongModel",
    "about",
    "anneal",
    "constant",
    "covariance",
    "densify",
    "elbo",
    "evaluate",
    "everything",
    "fit",
    "fix_statistics",
    "layers",
    "load",
    "make_sparse",
    "moments",
    "not_norm",
    "predict",
    "random_k",
    "rayleigh",
    "save",
    "sensitivity",
    "sparse",
    "top_k",
    "wald",
    "warm_up",
]
