"""LeanBayes makes any PyTorch network say how sure it is, for close to the price of the plain network.

```python
scores = lb.sensitivity(model, batches, loss)                         # how much each weight matters
bnn = lb.Bayesian(model, subspace=lb.top_k(scores, rate=0.01))        # the first 1 % of them become random
prediction = lb.predict(bnn, x)                                       # mean, total, aleatoric, epistemic
```

The names at this level are what most programs need. Everything else lives in a namespace that says what it is:
`posteriors`, `priors`, `propagate`, `optim`, `train`, `likelihood`, `baselines`, `metrics`, `evaluation`,
`errors`, `conformal`, `export` and `integrations`.
"""

from leanbayes import (
    baselines,
    conformal,
    errors,
    evaluation,
    export,
    integrations,
    likelihood,
    metrics,
    optim,
    posteriors,
    priors,
    propagate,
    train,
)
from leanbayes.bayesian import Bayesian
from leanbayes.evaluation import evaluate
from leanbayes.kl import Exact, MonteCarlo
from leanbayes.likelihood import Bernoulli, Categorical, Gaussian, Likelihood
from leanbayes.objective import Objective, Terms, anneal, constant, elbo, warm_up
from leanbayes.prediction import Prediction, Predictor, predict
from leanbayes.propagate.by_covariance import covariance
from leanbayes.propagate.by_moments import moments
from leanbayes.storage import about, load, save
from leanbayes.subspace import (
    Rewire,
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
from leanbayes.train import Checkpointing, Optimization, fit, fix_statistics

__version__ = "0.2.0.dev0"

__all__ = [
    "Bayesian",
    "Bernoulli",
    "Categorical",
    "Checkpointing",
    "Exact",
    "Gaussian",
    "Likelihood",
    "MonteCarlo",
    "Objective",
    "Optimization",
    "Prediction",
    "Predictor",
    "Rewire",
    "Terms",
    "about",
    "anneal",
    "baselines",
    "conformal",
    "constant",
    "covariance",
    "densify",
    "elbo",
    "errors",
    "evaluate",
    "evaluation",
    "everything",
    "export",
    "fit",
    "fix_statistics",
    "integrations",
    "layers",
    "likelihood",
    "load",
    "make_sparse",
    "metrics",
    "moments",
    "not_norm",
    "optim",
    "posteriors",
    "predict",
    "priors",
    "propagate",
    "random_k",
    "save",
    "sensitivity",
    "sparse",
    "top_k",
    "train",
    "warm_up",
]
