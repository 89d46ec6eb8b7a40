"""Measure the same work in LeanBayes and three other libraries: what a Bayesian ResNet-18 costs beside the plain one.

Every contestant starts from one ResNet-18 for 32x32 images. The weights of all convolutions, and the weights and bias
of the linear layer, are Gaussian around those of the network, with one scale. Norms stay plain. The prior is N(0, 1).

- step: zero_grad, one stochastic pass, cross-entropy + KL/n, backward, and SGD with momentum.
- predict: the mean softmax of several draws in evaluation mode without gradients, with one pass for each draw.

All ratios are to the plain network, whose step and equally many passes are measured in the same run. All contestants
take turns, each round begins with another one, and the best round of each counts.

An audit of each contestant comes before the measurement. The right tensors must be random, and two passes must differ.
The likelihood and the KL must both have a gradient for every scale tensor. At the start, the KL must have the right
value in the library's own reduction: bayesian-torch takes the mean over each tensor, and the others sum.

The benchmark does not change what the other libraries do by themselves. blitz estimates its KL from the draw of each
pass, even in prediction. Flipout in bayesian-torch draws a sign for every pixel, and LeanBayes draws one for each
example and channel.

    make bench-peers            # in a separate environment, see benchmarks/peers.txt
    python benchmarks/peers.py --rounds 1 --batch 8 --out out/peers.json        # a quick look
"""

import argparse
import math
from collections.abc import Iterable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from contestants import N_DATA, SCALE, Contestant, contestants, random_layers
from harness import RESULTS, race, timing, write
from leanbayes.lab.models import resnet18


def audit(contestant: Contestant, plain: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    """Check that the right weights are random and that the KL is right, and return their number and its value."""
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
    if not math.isclose(kl.item(), expected, rel_tol=1e-2):  # blitz estimates it
        raise SystemExit(f"{name}: the KL is {kl.item()}, and should be {expected}")
    return {
        "random_coordinates": sum(scale.numel() for scale in scales),
        "kl": kl.item(),
        "kl_reduction": contestant.kl_reduction,
    }


def reference_kl(weights: Iterable[Tensor], reduction: str) -> float:
    """Return KL(N(w, σ²)‖N(0, 1)) = ½(σ² + w² − 1) − log σ for one scale σ, in float64."""
    total = 0.0
    for weight in weights:
        kl = 0.5 * (SCALE**2 + weight.double().square() - 1) - math.log(SCALE)
        total += (kl.sum() if reduction == "sum" else kl.mean()).item()
    return total


def nbytes(tensors: Iterable[Tensor]) -> int:
    """Return the bytes of all storages, each counted once, because blitz registers every parameter twice."""
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())


def measure(batch: int, rounds: int, draws: int) -> list[dict[str, Any]]:
    """Measure all contestants, and return one row of results for each."""
    torch.manual_seed(0)
    plain = resnet18()
    x, y = torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))
    runners = contestants(plain)
    audits = [audit(runner, plain, x, y) for runner in runners]
    if len({audited["random_coordinates"] for audited in audits[1:]}) != 1:
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
        | audited
        for runner, audited in zip(runners, audits, strict=True)
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
    """Measure, print, and write the results."""
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
