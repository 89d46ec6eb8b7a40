"""The same work in LeanBayes and three peers: what a Bayesian ResNet-18 costs against the plain one.

Every contestant starts from one ResNet-18 for 32x32 images. The weights of all its convolutions, its linear layer and
that layer's bias are Gaussian around those of the net, with one scale; normalisation stays plain; the prior is N(0, 1).

- step: zero_grad, one stochastic pass, cross-entropy + KL/n, backward, SGD with momentum.
- predict: the mean softmax of some draws in eval mode without gradients, one pass a draw.

The plain net's step and its equally many passes are the base of all ratios, measured in the same run: all contestants
take turns, each round begins with another one, and each one's best round counts.

Before anything is timed each contestant is audited: the right tensors are random; two passes differ; the likelihood and
the KL both have a gradient for every scale tensor; and the KL is the number that it should be at the start, in the
library's own reduction (bayesian-torch takes the mean over each tensor, the others sum).

What the peers do by themselves was left as it is: blitz estimates its KL from each pass's draw, also in prediction;
bayesian-torch's flipout draws a sign for every pixel, where LeanBayes draws one for each example and channel.

    make bench-peers            # in an environment of their own, see benchmarks/peers.txt
    python benchmarks/peers.py --rounds 1 --batch 8 --out out/peers.json        # a quick look
"""

import argparse
import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import torchbnn
from bayesian_torch.models.dnn_to_bnn import dnn_to_bnn, get_kl_loss
from blitz.losses import kl_divergence_from_nn
from blitz.modules import BayesianConv2d, BayesianLinear
from torch import Tensor, nn

import leanbayes as lb
from harness import RESULTS, race, timing, write
from leanbayes.lab.models import resnet18

N_DATA = 50_000
RHO = -3.0
SCALE = math.log1p(math.exp(RHO))


@dataclass
class Contestant:
    """A network to be timed: how it is called, its KL, and its scale parameters by the name of what they scale."""

    name: str
    package: str
    model: nn.Module
    kl: Callable[[], Tensor] | None = None
    scales: dict[str, nn.Parameter] | None = None
    kl_reduction: str = "sum"

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Cross-entropy of one stochastic pass + KL/n, as the library's users write it."""
        if isinstance(self.model, lb.Bayesian):
            return lb.elbo(self.model, x, y, lb.Categorical(), n_data=N_DATA).loss
        loss = F.cross_entropy(self.model(x), y)
        return loss if self.kl is None else loss + self.kl().sum() / N_DATA  # torchbnn's has one axis of length 1

    def step(self, x: Tensor, y: Tensor) -> float:
        """One sampled training step."""
        self.optimizer.zero_grad()
        loss = self.loss(x, y)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def predict(self, x: Tensor, draws: int) -> Tensor:
        """Class probabilities: the mean over passes."""
        if isinstance(self.model, lb.Bayesian):
            return lb.predict(self.model, x, samples=draws).mean
        self.model.eval()
        total = self.model(x).softmax(-1)
        for _ in range(draws - 1):
            total += self.model(x).softmax(-1)
        self.model.train()
        return total / draws


def contestants(plain: nn.Module) -> list[Contestant]:
    """All of them, from copies of one net."""
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
    """LeanBayes: the model as it is, all but its normalisation layers random."""
    subspace = lb.everything(eligible=lb.not_norm)
    bnn = lb.Bayesian(model, subspace=subspace, posterior=lb.posteriors.Normal(init_scale=SCALE), propagate=propagate)
    return Contestant(f"LeanBayes {propagate}", "leanbayes", bnn, bnn.kl, {n: part.rho for n, part in bnn.parts()})


def bayesian_torch(plain: nn.Module, kind: str) -> Contestant:
    """bayesian-torch, by its own conversion."""
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
    """blitz, its layers put in place of torch's. A prior given as a distribution is its cheapest kind."""
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
    """torchbnn, its layers put in place of torch's. Its scales are exp(ρ), where the others' are softplus(ρ)."""

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
    """Put ``convert(layer)`` in the place of every layer for which it is not None."""
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
    """Give a peer's layers, whose (mean, scale) attributes are named, the plain weights as means and one raw scale."""
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
    """Every convolution and linear layer by name."""
    return ((name, layer) for name, layer in plain.named_modules() if isinstance(layer, nn.Conv2d | nn.Linear))


def audit(contestant: Contestant, plain: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    """Make sure that all of the right weights are drawn and that the right KL is taken; say how many and what it is."""
    if contestant.kl is None or contestant.scales is None:
        return {"random_coordinates": 0, "kl": None, "kl_reduction": None}
    weights = {
        f"{n}.{k}": p.detach() for n, layer in random_layers(plain) for k, p in layer.named_parameters(recurse=False)
    }
    name, scales = contestant.name, list(contestant.scales.values())
    if {key: scale.shape for key, scale in contestant.scales.items()} != {k: w.shape for k, w in weights.items()}:
        raise SystemExit(f"{name}: other weights are random than every convolution's and linear layer's")
    logits = contestant.model(x)
    if torch.equal(logits, contestant.model(x)):
        raise SystemExit(f"{name}: two passes gave the same logits")
    logits = contestant.model(x)
    likelihood = torch.autograd.grad(F.cross_entropy(logits, y), scales, retain_graph=True)
    kl = contestant.kl().sum()
    divergence = torch.autograd.grad(kl, scales)
    for key, of_likelihood, of_kl in zip(contestant.scales, likelihood, divergence, strict=True):
        if not (of_likelihood.any() and of_kl.any()):
            raise SystemExit(f"{name}: the scale of {key} has no gradient, so it was not drawn or is not in the KL")
    expected = reference_kl(weights.values(), contestant.kl_reduction)
    if not math.isclose(kl.item(), expected, rel_tol=1e-2):  # blitz's is an estimate
        raise SystemExit(f"{name}: the KL is {kl.item()}, and should be {expected}")
    return {
        "random_coordinates": sum(scale.numel() for scale in scales),
        "kl": kl.item(),
        "kl_reduction": contestant.kl_reduction,
    }


def reference_kl(weights: Iterable[Tensor], reduction: str) -> float:
    """KL(N(w, σ²)‖N(0, 1)) = ½(σ² + w² − 1) − log σ for one scale σ, in float64."""
    total = 0.0
    for weight in weights:
        kl = 0.5 * (SCALE**2 + weight.double().square() - 1) - math.log(SCALE)
        total += (kl.sum() if reduction == "sum" else kl.mean()).item()
    return total


def nbytes(tensors: Iterable[Tensor]) -> int:
    """Bytes of the storages, each once (blitz registers every parameter twice)."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def measure(batch: int, rounds: int, draws: int) -> list[dict[str, Any]]:
    """One row a contestant."""
    torch.manual_seed(0)
    plain = resnet18()
    x, y = torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))
    runners = contestants(plain)
    audits = [audit(runner, plain, x, y) for runner in runners]
    if len({found["random_coordinates"] for found in audits[1:]}) != 1:
        raise SystemExit("the contestants differ in how many coordinates are random")
    steps = race({runner.name: partial(runner.step, x, y) for runner in runners}, rounds)
    predictions = race({runner.name: partial(runner.predict, x, draws) for runner in runners}, rounds)
    for runner in runners:
        if not math.isfinite(runner.step(x, y)):
            raise SystemExit(f"{runner.name}: the loss is not finite")
    base = runners[0].name
    return [
        {"name": runner.name, "package": runner.package, "version": version(runner.package)}
        | timing("step", steps[runner.name], steps[base])
        | timing("predict", predictions[runner.name], predictions[base])
        | {"parameter_bytes": nbytes(runner.model.parameters()), "buffer_bytes": nbytes(runner.model.buffers())}
        | found
        for runner, found in zip(runners, audits, strict=True)
    ]


def show(rows: list[dict[str, Any]], draws: int) -> None:
    """Print a small table."""
    print(f"{'':34}{'step':>9}{'ratio':>7}{f'{draws} draws':>11}{'ratio':>7}{'parameters':>13}{'buffers':>9}")
    for row in rows:
        print(
            f"{row['name']:34}{row['step_seconds']:8.3f}s{row['step_ratio']:7.2f}"
            f"{row['predict_seconds']:10.3f}s{row['predict_ratio']:7.2f}"
            f"{row['parameter_bytes'] / 1e6:10.1f} MB{row['buffer_bytes'] / 1e6:6.1f} MB"
        )


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--out", type=Path, default=RESULTS / "peers.json")
    options = parser.parse_args()
    settings = {"batch": options.batch, "rounds": options.rounds, "draws": options.draws}
    rows = measure(**settings)
    show(rows, options.draws)
    fixed = {"model": "resnet18, small stem, 32x32 images, 10 classes", "initial_scale": SCALE, "n_data": N_DATA}
    write(options.out, rows, settings | fixed)


if __name__ == "__main__":
    main()
