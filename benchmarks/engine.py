"""What randomness costs: a ResNet-18 on 32x32 images, against the plain net in the same run.

- step: elbo, backward, SGD with momentum; every weight random, and 1 % of them.
- predict: 32 draws against 32 plain passes; with a random last layer only, against one plain pass.
- bytes: parameters and buffers at 1 %.

    python benchmarks/engine.py [--batch 64] [--rounds 8]
"""

import argparse
import copy
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from harness import RESULTS, race, timing, write
from leanbayes.models import resnet18

N_DATA = 50_000
DRAWS = 32
SUBSPACES = {"1 % random": lb.random_k(0.01), "all random": lb.everything(), "last layer random": lb.layers("fc")}


def stepper(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    """One training step of ``model``."""
    groups: Any = model.parameter_groups() if isinstance(model, lb.Bayesian) else model.parameters()
    optimizer, likelihood = torch.optim.SGD(groups, lr=1e-3, momentum=0.9), lb.Categorical()

    def step() -> None:
        optimizer.zero_grad()
        lb.elbo(model, x, y, likelihood, n_data=N_DATA).loss.backward()
        optimizer.step()

    return step


def passes(model: nn.Module, x: Tensor, count: int) -> Callable[[], None]:
    """So many plain passes in eval mode."""
    model.eval()

    @torch.no_grad()
    def run() -> None:
        for _ in range(count):
            model(x)

    return run


def nbytes(tensors: Iterable[Tensor]) -> int:
    """Bytes in all."""
    return sum(tensor.nbytes for tensor in tensors)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--predict-rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=RESULTS / "engine.json")
    options = parser.parse_args()
    torch.manual_seed(0)
    plain = resnet18()
    x, y = torch.randn(options.batch, 3, 32, 32), torch.randint(0, 10, (options.batch,))
    models = {name: lb.Bayesian(copy.deepcopy(plain), subspace=subspace) for name, subspace in SUBSPACES.items()}

    steps = race(
        {"plain": stepper(copy.deepcopy(plain), x, y)} | {n: stepper(m, x, y) for n, m in models.items()},
        options.rounds,
    )
    works: dict[str, Callable[[], object]] = {"plain": passes(plain, x, 1), f"plain x {DRAWS}": passes(plain, x, DRAWS)}
    for name, model in models.items():
        works[name] = lambda model=model: lb.predict(model, x, samples=DRAWS)  # type: ignore[misc]
    predictions = race(works, options.predict_rounds)

    rows = []
    own = nbytes([*plain.parameters(), *plain.buffers()])
    for name, model in models.items():
        base = "plain" if name == "last layer random" else f"plain x {DRAWS}"
        rows.append(
            {"name": name, "random": model.summary().random}
            | timing("step", steps[name], steps["plain"])
            | timing("predict", predictions[name], predictions[base])
            | {"predict_base": base, "bytes_ratio": nbytes([*model.parameters(), *model.buffers()]) / own}
        )
        row = rows[-1]
        print(
            f"{name:18} step {row['step_ratio']:.3f}x, {DRAWS} draws {row['predict_ratio']:.3f} of {base}, "
            f"bytes {row['bytes_ratio']:.4f}x"
        )
    settings = {"model": "resnet18, small stem", "batch": options.batch, "rounds": options.rounds, "draws": DRAWS}
    seconds = {"plain_step_seconds": min(steps["plain"]), "plain_pass_seconds": min(predictions["plain"])}
    write(options.out, {"rows": rows, **seconds}, settings | {"predict_rounds": options.predict_rounds})


if __name__ == "__main__":
    main()
