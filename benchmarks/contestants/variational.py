"""Every convolution's and linear layer's weight is random and trained by gradients: LeanBayes and three peers.

The weights are Gaussian around those of the plain network, with one scale. Norms stay plain. The prior is N(0, 1).
Nothing is changed in what the other libraries do by themselves. blitz estimates its KL from the draw of each pass,
even in prediction. Flipout in bayesian-torch draws a sign for every pixel, and LeanBayes draws one for each example
and channel.
"""

import copy
import math
from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter
from typing import Any

import torch
import torch.nn.functional as F
import torchbnn
from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss
from blitz.losses import kl_divergence_from_nn
from blitz.modules import BayesianConv2d, BayesianLinear
from torch import Tensor, nn

import leanbayes as lb
from contestants.base import (
    DRAWS,
    N_DATA,
    Contestant,
    Task,
    mean_of_passes,
    product_layers,
    replace,
    require,
    sgd,
    stepper,
)  # fmt: skip

RHO = -3.0
SCALE = math.log1p(math.exp(RHO))

WHOLE, MEANS = "sum", "mean over each tensor"
Scales = dict[str, nn.Parameter]


def lean_bayes(task: Task, propagate: str) -> Contestant:
    """Build the contestant of LeanBayes, in which all weights except those of norms are random."""
    subspace = lb.everything(eligible=lb.not_norm)
    posterior = lb.posteriors.Normal(init_scale=SCALE)
    bnn = lb.Bayesian(copy.deepcopy(task.plain), subspace=subspace, posterior=posterior, propagate=propagate)
    optimizer = sgd(bnn)
    step = stepper(optimizer, lambda x, y: lb.elbo(bnn, x, y, lb.Categorical(), n_data=N_DATA).loss)
    scales = {name: part.rho for name, part in bnn.parts()}
    name = f"LeanBayes {propagate}"
    audit = partial(audit_of, name, task, bnn, bnn.kl, scales, WHOLE)
    return Contestant(
        name, "leanbayes", bnn, lambda x: lb.predict(bnn, x, samples=DRAWS).mean, f"{DRAWS} draws", audit, step,
        optimizer=optimizer, networks=[bnn.model],
    )  # fmt: skip


def peer(
    task: Task, name: str, package: str, model: nn.Module, kl: Callable[[], Tensor], scales: Scales, reduction: str
) -> Contestant:
    """Build the contestant of a library whose layers draw weights in every pass."""
    optimizer = sgd(model)
    # The KL of torchbnn has one axis of length 1.
    step = stepper(optimizer, lambda x, y: F.cross_entropy(model(x), y) + kl().sum() / N_DATA)
    audit = partial(audit_of, name, task, model, kl, scales, reduction)
    predict = mean_of_passes(model, DRAWS)
    return Contestant(name, package, model, predict, f"{DRAWS} draws", audit, step, optimizer=optimizer)


def bayesian_torch(task: Task, kind: str) -> Contestant:
    """Build the contestant of bayesian-torch by its own conversion."""
    model = copy.deepcopy(task.plain)
    prior = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": RHO}
    dnn_to_bnn(model, {**prior, "type": kind, "moped_enable": False})
    conv, linear = ("mu_kernel", "rho_kernel"), ("mu_weight", "rho_weight")
    scales = start(model, task.plain, RHO, conv=conv, linear=linear, bias=("mu_bias", "rho_bias"))
    name = f"bayesian-torch {kind}"
    return peer(task, name, "bayesian-torch", model, lambda: get_kl_loss(model), scales, MEANS)


def blitz(task: Task) -> Contestant:
    """Build the contestant of blitz, whose layers replace those of torch.

    The prior is a distribution, which is the cheapest kind of prior in blitz.
    """
    prior = torch.distributions.Normal(0.0, 1.0)

    def convert(_: str, layer: nn.Module) -> nn.Module | None:
        if isinstance(layer, nn.Conv2d):
            shape = (layer.in_channels, layer.out_channels, layer.kernel_size)
            where = {"stride": layer.stride, "padding": layer.padding, "dilation": layer.dilation}
            bias = layer.bias is not None
            return BayesianConv2d(*shape, groups=layer.groups, bias=bias, prior_dist=prior, **where)
        if isinstance(layer, nn.Linear):
            return BayesianLinear(layer.in_features, layer.out_features, layer.bias is not None, prior_dist=prior)
        return None

    model = replace(copy.deepcopy(task.plain), convert)
    weight, bias = ("weight_sampler.mu", "weight_sampler.rho"), ("bias_sampler.mu", "bias_sampler.rho")
    scales = start(model, task.plain, RHO, conv=weight, linear=weight, bias=bias)
    return peer(task, "blitz", "blitz-bayesian-pytorch", model, lambda: kl_divergence_from_nn(model), scales, WHOLE)


def torch_bnn(task: Task) -> Contestant:
    """Build the contestant of torchbnn, whose layers replace those of torch.

    Its scales are exp(ρ), and those of the others are softplus(ρ).
    """

    def convert(_: str, layer: nn.Module) -> nn.Module | None:
        if isinstance(layer, nn.Conv2d):
            where = {"stride": layer.stride, "padding": layer.padding, "dilation": layer.dilation}
            shape = (layer.in_channels, layer.out_channels, layer.kernel_size)
            return torchbnn.BayesConv2d(0.0, 1.0, *shape, groups=layer.groups, bias=layer.bias is not None, **where)
        if isinstance(layer, nn.Linear):
            return torchbnn.BayesLinear(0.0, 1.0, layer.in_features, layer.out_features, layer.bias is not None)
        return None

    model = replace(copy.deepcopy(task.plain), convert)
    weight, bias = ("weight_mu", "weight_log_sigma"), ("bias_mu", "bias_log_sigma")
    scales = start(model, task.plain, math.log(SCALE), conv=weight, linear=weight, bias=bias)
    kl = torchbnn.BKLLoss(reduction="sum")
    return peer(task, "torchbnn", "torchbnn", model, lambda: kl(model), scales, WHOLE)


def start(
    model: nn.Module,
    plain: nn.Module,
    rho: float,
    *,
    conv: tuple[str, str],
    linear: tuple[str, str],
    bias: tuple[str, str],
) -> Scales:
    """Give the layers of a library the plain weights as means, and one raw scale.

    Args:
        model: the network of the library.
        plain: the plain network.
        rho: the raw scale.
        conv: the names of the attributes for the mean and the raw scale of a convolution's weight.
        linear: the same for the weight of a linear layer.
        bias: the same for a bias.

    Returns:
        The raw scales, by the name of the tensor that they scale.
    """
    scales = {}
    for name, layer in product_layers(plain):
        attributes = {"weight": conv if isinstance(layer, nn.Conv2d) else linear, "bias": bias}
        for kind, value in layer.named_parameters(recurse=False):
            mean, scale = (attrgetter(path)(model.get_submodule(name)) for path in attributes[kind])
            with torch.no_grad():
                mean.copy_(value)
                scale.fill_(rho)
            scales[f"{name}.{kind}"] = scale
    return scales


def audit_of(
    name: str, task: Task, model: nn.Module, kl: Callable[[], Tensor], scales: Scales, reduction: str
) -> dict[str, Any]:
    """Check that the right weights are random and that the KL is right, and return their number and its value.

    The likelihood and the KL must both have a gradient for every scale. bayesian-torch takes the mean of the KL over
    each tensor, and the others sum.
    """
    plain, x, y = task.plain, task.x, task.y
    weights = {
        f"{n}.{k}": p.detach() for n, layer in product_layers(plain) for k, p in layer.named_parameters(recurse=False)
    }
    same = {key: scale.shape for key, scale in scales.items()} == {k: w.shape for k, w in weights.items()}
    require(same, name, "other weights are random than every convolution's and linear layer's")
    require(not torch.equal(model(x), model(x)), name, "two passes gave the same logits")
    likelihood = torch.autograd.grad(F.cross_entropy(model(x), y), list(scales.values()))
    model(x)  # blitz estimates the KL from the draw of the latest pass, whose graph must be there
    divergence = kl().sum()
    gradients = torch.autograd.grad(divergence, list(scales.values()))
    for key, of_likelihood, of_kl in zip(scales, likelihood, gradients, strict=True):
        problem = f"the scale of {key} has no gradient, so it was not drawn or is not in the KL"
        require(bool(of_likelihood.any() and of_kl.any()), name, problem)
    expected = reference_kl(weights.values(), reduction)
    close = math.isclose(divergence.item(), expected, rel_tol=1e-2)  # blitz estimates it
    require(close, name, f"the KL is {divergence.item()}, and should be {expected}")
    random = sum(scale.numel() for scale in scales.values())
    return {"random_coordinates": random, "kl": divergence.item(), "kl_reduction": reduction}


def reference_kl(weights: Iterable[Tensor], reduction: str) -> float:
    """Return KL(N(w, σ²)‖N(0, 1)) = ½(σ² + w² − 1) − log σ for one scale σ, in float64."""
    total = 0.0
    for weight in weights:
        kl = 0.5 * (SCALE**2 + weight.double().square() - 1) - math.log(SCALE)
        total += (kl.sum() if reduction == WHOLE else kl.mean()).item()
    return total


ROWS: dict[str, Callable[[Task], Contestant]] = {
    "LeanBayes sample": partial(lean_bayes, propagate="sample"),
    "torchbnn": torch_bnn,
    "bayesian-torch Reparameterization": partial(bayesian_torch, kind="Reparameterization"),
    "blitz": blitz,
    "LeanBayes flipout": partial(lean_bayes, propagate="flipout"),
    "bayesian-torch Flipout": partial(bayesian_torch, kind="Flipout"),
}
