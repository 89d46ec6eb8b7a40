"""A Gaussian after the training: laplace-torch, and beside it a random last layer in LeanBayes.

laplace-torch trains the plain network, so its rows have no training step, but the fit of the posterior: its time for
each batch is counted in plain training steps. The last layer has Kronecker factors and predicts by its probit
approximation, in one pass and Jacobians. All weights have a diagonal from the empirical Fisher matrix (the backend
asdl) and predict by draws: Jacobians of all weights do not fit into memory for a ResNet-18. The default backend takes
half a minute for the diagonal of one batch of the small network, and the Gauss-Newton diagonal by asdl took over three
minutes for one batch of the ResNet.
"""

import copy
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from contestants.base import DRAWS, N_DATA, Contestant, Task, product_layers, require, sgd, stepper

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # deprecations in what it imports
    from laplace import Laplace
    from laplace.curvature import AsdlEF

BATCHES = 2


def laplace(task: Task, name: str, options: dict[str, Any], predict_by: dict[str, Any], passes: str) -> Contestant:
    """Build a contestant of laplace-torch."""
    model = copy.deepcopy(task.plain).eval()
    data = DataLoader(TensorDataset(*(t.repeat(BATCHES, *[1] * (t.dim() - 1)) for t in (task.x, task.y))), len(task.x))
    fitted: dict[str, Any] = {}

    def fit() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fitted["model"] = Laplace(model, "classification", **options)
            fitted["model"].fit(data)

    fit()

    @torch.no_grad()
    def predict(x: Tensor) -> Tensor:
        probabilities: Tensor = fitted["model"](x, **predict_by)
        return probabilities

    def audit() -> dict[str, Any]:
        last = dict(product_layers(task.plain))[list(dict(product_layers(task.plain)))[-1]]
        wanted = model if options["subset_of_weights"] == "all" else last
        numbers = sum(p.numel() for p in wanted.parameters())
        require(fitted["model"].n_params == numbers, name, f"{fitted['model'].n_params} of {numbers} are random")
        with torch.no_grad():
            mode = model(task.x).softmax(-1)
        require(not torch.allclose(predict(task.x), mode, atol=1e-6), name, "the posterior changes no prediction")
        return {"random_coordinates": numbers}

    return Contestant(name, "laplace-torch", model, predict, passes, audit, fit=(fit, BATCHES))


def last_layer(task: Task) -> Contestant:
    """Build LeanBayes with a random last layer, trained by gradients: draws share what comes before it."""
    name, last = "LeanBayes sample, last layer", [name for name, _ in product_layers(task.plain)][-1]
    bnn = lb.Bayesian(copy.deepcopy(task.plain), subspace=lb.layers(last), propagate="sample")
    optimizer = sgd(bnn)
    step = stepper(optimizer, lambda x, y: lb.elbo(bnn, x, y, lb.Categorical(), n_data=N_DATA).loss)

    def predict(x: Tensor) -> Tensor:
        return lb.predict(bnn, x, samples=DRAWS).mean

    def audit() -> dict[str, Any]:
        random = {part for part, _ in bnn.parts()}
        require(all(part.startswith(last) for part in random), name, f"{random} are random")
        require(not torch.equal(predict(task.x), predict(task.x)), name, "two predictions are the same")
        return {"random_coordinates": sum(part.rho.numel() for _, part in bnn.parts())}

    return Contestant(
        name, "leanbayes", bnn, predict, f"{DRAWS} draws", audit, step, optimizer=optimizer, networks=[bnn.model],
        predict_as=lambda x: lb.predict(bnn, x, samples=1),
    )  # fmt: skip


ROWS: dict[str, Callable[[Task], Contestant]] = {
    "laplace-torch, last layer": partial(
        laplace,
        name="laplace-torch, last layer",
        options={"subset_of_weights": "last_layer", "hessian_structure": "kron"},
        predict_by={"link_approx": "probit"},
        passes="1 pass",
    ),
    "laplace-torch, diagonal": partial(
        laplace,
        name="laplace-torch, diagonal",
        options={"subset_of_weights": "all", "hessian_structure": "diag", "backend": AsdlEF},
        predict_by={"pred_type": "nn", "link_approx": "mc", "n_samples": DRAWS},
        passes=f"{DRAWS} draws",
    ),
    "LeanBayes sample, last layer": last_layer,
}
