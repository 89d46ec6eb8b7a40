"""LeanBayes: any PyTorch network says how sure it is, for close to the price of the plain network.

```python
scores = lb.sensitivity(model, batches, loss)                         # which weights matter
bnn = lb.Bayesian(model, subspace=lb.top_k(scores, rate=0.01))        # make the first 1 % of them random
prediction = lb.predict(bnn, x)                                       # mean, total, aleatoric, epistemic
```
"""

from leanbayes.baselines import Ensemble, LaplaceApproximation, MCDropout, Swag, Temperature
from leanbayes.bayesian import Bayesian
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
from leanbayes.kl import Exact, MonteCarlo
from leanbayes.likelihood import Bernoulli, Categorical, Gaussian, Likelihood
from leanbayes.moments import moments
from leanbayes.objective import Elbo, anneal, constant, elbo, warm_up
from leanbayes.posterior import GaussianRho, Normal, RelativeScale
from leanbayes.predict import Prediction, Predictor, predict
from leanbayes.prior import CentredPrior, FittedPrior, FixedPrior, Prior
from leanbayes.storage import about, load, save
from leanbayes.subspace import Subspace, everything, layers, not_norm, random_k, sensitivity, top_k
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
    "Evaluation",
    "Exact",
    "FileError",
    "FittedPrior",
    "FixedPrior",
    "ForeignFile",
    "Gaussian",
    "GaussianRho",
    "History",
    "InputError",
    "LaplaceApproximation",
    "LeanBayesError",
    "Likelihood",
    "MCDropout",
    "MissingRule",
    "MonteCarlo",
    "NewerFile",
    "NoClosedForm",
    "NonFinite",
    "Normal",
    "Prediction",
    "Predictor",
    "Prior",
    "RelativeScale",
    "SelectionError",
    "ShapeMismatch",
    "Subspace",
    "Swag",
    "Temperature",
    "TruncatedFile",
    "UnknownName",
    "WrongModel",
    "about",
    "anneal",
    "constant",
    "elbo",
    "evaluate",
    "everything",
    "fit",
    "fix_statistics",
    "layers",
    "load",
    "moments",
    "not_norm",
    "predict",
    "random_k",
    "save",
    "sensitivity",
    "top_k",
    "warm_up",
]
