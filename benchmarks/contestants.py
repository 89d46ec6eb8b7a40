"""The contestants of benchmarks/peers.py: a Bayesian ResNet-18 in LeanBayes and in three other libraries."""

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter

import torch
import torch.nn.functional as F
import torchbnn
from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss
from blitz.losses import kl_divergence_from_nn
from blitz.modules import BayesianConv2d, BayesianLinear
from torch import Tensor, nn

import leanbayes as lb

N_DATA = 50_000
RHO = -3.0
SCALE = math.log1p(math.exp(RHO))


@dataclass
class Contestant:
    """A network whose work is measured.

    Args:
        name: the name in tables.
        package: the name of the library's package.
        model: the network.
        kl: returns the KL of the network; None for the plain network.
        scales: the raw scales, by the name of the tensor that they scale.
        kl_reduction: "sum", or "mean over each tensor".
    """

    name: str
    package: str
    model: nn.Module
    kl: Callable[[], Tensor] | None = None
    scales: dict[str, nn.Parameter] | None = None
    kl_reduction: str = "sum"

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the cross-entropy of one stochastic pass + KL/n, as users of the library write it."""
        if isinstance(self.model, lb.Bayesian):
            return lb.elbo(self.model, x, y, lb.Categorical(), n_data=N_DATA).loss
        loss = F.cross_entropy(self.model(x), y)
        return (
            loss if self.kl is None else loss + self.kl().sum() / N_DATA
        )  # the KL of torchbnn has one axis of length 1

    def step(self, x: Tensor, y: Tensor) -> float:
        """Do one training step with one draw, and return the loss."""
        self.optimizer.zero_grad()
        loss = self.loss(x, y)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def predict(self, x: Tensor, draws: int) -> Tensor:
        """Return class probabilities, which are the mean over passes."""
        if isinstance(self.model, lb.Bayesian):
            return lb.predict(self.model, x, samples=draws).mean
        self.model.eval()
        total = self.model(x).softmax(-1)
        for _ in range(draws - 1):
            total += self.model(x).softmax(-1)
        self.model.train()
        return total / draws


def contestants(plain: nn.Module) -> list[Contestant]:
    """Build all contestants from copies of one network."""
    return [
        Contestant("deterministic", "torch", copy.deepcopy(plain)),
        lean_bayes(copy.deepcopy(plain), "sample"),
        bayesian_torch(plain, "Reparameterization"),
        blitz(plain),
        torch_bnn(plain),
        lean_bayes(copy.deepcopy(plain), "flipout"),
        bayesian_torch(plain, "Flipout"),
    ]


def lean_bayes(model: nn.Module, propagate: str) -> Contestant:
    """Build the contestant of LeanBayes, in which all weights except those of norms are random."""
    subspace = lb.everything(eligible=lb.not_norm)
    bnn = lb.Bayesian(model, subspace=subspace, posterior=lb.posteriors.Normal(init_scale=SCALE), propagate=propagate)
    return Contestant(f"LeanBayes {propagate}", "leanbayes", bnn, bnn.kl, {n: part.rho for n, part in bnn.parts()})


def bayesian_torch(plain: nn.Module, kind: str) -> Contestant:
    """Build the contestant of bayesian-torch by its own conversion."""
    model = copy.deepcopy(plain)
    prior = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": RHO}
    dnn_to_bnn(model, {**prior, "type": kind, "moped_enable": False})
    scales = start(
        model,
        plain,
        RHO,
        conv=("mu_kernel", "rho_kernel"),
        linear=("mu_weight", "rho_weight"),
        bias=("mu_bias", "rho_bias"),
    )
    name = f"bayesian-torch {kind}"
    return Contestant(name, "bayesian-torch", model, lambda: get_kl_loss(model), scales, "mean over each tensor")


def blitz(plain: nn.Module) -> Contestant:
    """Build the contestant of blitz, whose layers replace those of torch.

    The prior is a distribution, which is the cheapest kind of prior in blitz.
    """
    prior = torch.distributions.Normal(0.0, 1.0)

    def convert(layer: nn.Module) -> nn.Module | None:
        if isinstance(layer, nn.Conv2d):
            shape = (layer.in_channels, layer.out_channels, layer.kernel_size)
            where = {"stride": layer.stride, "padding": layer.padding, "dilation": layer.dilation}
            bias = layer.bias is not None
            return BayesianConv2d(*shape, groups=layer.groups, bias=bias, prior_dist=prior, **where)
        if isinstance(layer, nn.Linear):
            return BayesianLinear(layer.in_features, layer.out_features, layer.bias is not None, prior_dist=prior)
        return None

    model = replace(copy.deepcopy(plain), convert)
    weight, bias = ("weight_sampler.mu", "weight_sampler.rho"), ("bias_sampler.mu", "bias_sampler.rho")
    scales = start(model, plain, RHO, conv=weight, linear=weight, bias=bias)
    return Contestant("blitz", "blitz-bayesian-pytorch", model, lambda: kl_divergence_from_nn(model), scales)


def torch_bnn(plain: nn.Module) -> Contestant:
    """Build the contestant of torchbnn, whose layers replace those of torch.

    Its scales are exp(ρ), and those of the others are softplus(ρ).
    """

    def convert(layer: nn.Module) -> nn.Module | None:
        if isinstance(layer, nn.Conv2d):
            where = {"stride": layer.stride, "padding": layer.padding, "dilation": layer.dilation}
            shape = (layer.in_channels, layer.out_channels, layer.kernel_size)
            return torchbnn.BayesConv2d(0.0, 1.0, *shape, groups=layer.groups, bias=layer.bias is not None, **where)
        if isinstance(layer, nn.Linear):
            return torchbnn.BayesLinear(0.0, 1.0, layer.in_features, layer.out_features, layer.bias is not None)
        return None

    model = replace(copy.deepcopy(plain), convert)
    weight, bias = ("weight_mu", "weight_log_sigma"), ("bias_mu", "bias_log_sigma")
    scales = start(model, plain, math.log(SCALE), conv=weight, linear=weight, bias=bias)
    kl = torchbnn.BKLLoss(reduction="sum")
    return Contestant("torchbnn", "torchbnn", model, lambda: kl(model), scales)


def replace(module: nn.Module, convert: Callable[[nn.Module], nn.Module | None]) -> nn.Module:
    """Replace every layer by ``convert(layer)``, unless that is None."""
    for name, child in module.named_children():
        converted = convert(child)
        if converted is None:
            replace(child, convert)
        else:
            setattr(module, name, converted)
    return module


def start(
    model: nn.Module,
    plain: nn.Module,
    rho: float,
    *,
    conv: tuple[str, str],
    linear: tuple[str, str],
    bias: tuple[str, str],
) -> dict[str, nn.Parameter]:
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
    for name, layer in random_layers(plain):
        attributes = {"weight": conv if isinstance(layer, nn.Conv2d) else linear, "bias": bias}
        for kind, value in layer.named_parameters(recurse=False):
            mean, scale = (attrgetter(path)(model.get_submodule(name)) for path in attributes[kind])
            with torch.no_grad():
                mean.copy_(value)
                scale.fill_(rho)
            scales[f"{name}.{kind}"] = scale
    return scales


def random_layers(plain: nn.Module) -> Iterable[tuple[str, nn.Module]]:
    """Return every convolution and linear layer with its name."""
    return ((name, layer) for name, layer in plain.named_modules() if isinstance(layer, nn.Conv2d | nn.Linear))
