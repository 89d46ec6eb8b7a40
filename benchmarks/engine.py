"""Measure what random weights cost: a ResNet-18 on 32x32 images, in the same run as the plain network.

- step: elbo, backward and SGD with momentum, with every weight random and with 1 % of them. Weights are drawn once for
  the batch, or mirrored. Recipes use mirrored draws for networks with batch norm, such as this one.
- predict: 32 draws compared with 32 plain passes, where each draw is followed by a pass. With a random last layer only,
  32 draws compared with one plain pass.
- bytes: the parameters and buffers with 1 % of the weights random.

    python benchmarks/engine.py [--batch 64] [--rounds 8]
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from harness import RESULTS, race, timing, write
from leanbayes.lab.models import resnet18

N_DATA = 50_000
DRAWS = 32
SUBSPACES = {"1 % random": lb.random_k(0.01), "all random": lb.everything(), "last layer random": lb.layers("fc")}
MIRRORED = "{}, mirrored"


def stepper(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], None]:
    """Return a function that does one training step of ``model``."""
    groups: Any = model.parameter_groups() if isinstance(model, lb.Bayesian) else model.parameters()
    optimizer, likelihood = torch.optim.SGD(groups, lr=1e-3, momentum=0.9), lb.Categorical()

    def step() -> None:
        optimizer.zero_grad()
        lb.elbo(model, x, y, likelihood, n_data=N_DATA).loss.backward()
        optimizer.step()

    return step


def passes(model: nn.Module, x: Tensor, count: int) -> Callable[[], None]:
    """Return a function that does ``count`` plain passes in evaluation mode."""
    model.eval()

    @torch.no_grad()
    def run() -> None:
        for _ in range(count):
            model(x)

    return run


def draw_by_draw(model: lb.Bayesian, plain: nn.Module, x: Tensor, rounds: int) -> dict[str, list[list[float]]]:
    """Measure each of 32 draws and as many plain passes, with a pass after each draw.

    A block of 32 passes would take so long that another process could slow one block and not the other. ``predict``
    calls ``output`` once for each draw. The function measures the plain pass there, and stops the clock of the draws.
    """
    times: dict[str, list[list[float]]] = {"draws": [], "passes": []}
    plain_pass = passes(plain, x, 1)
    for _ in range(rounds + 1):
        draws: list[float] = []
        plains: list[float] = []
        clock = [time.perf_counter()]

        def take_turns(out: Tensor, clock: list[float] = clock, draws: Any = draws, plains: Any = plains) -> Tensor:
            ended = time.perf_counter()
            draws.append(ended - clock[0])
            if len(draws) > 1:  # torch records the operations of the first draw, which is slower
                plain_pass()
                plains.append(time.perf_counter() - ended)
            clock[0] = time.perf_counter()
            return out

        lb.predict(model, x, samples=DRAWS, output=take_turns)
        draws[-1] += time.perf_counter() - clock[0]  # the work after the last draw
        begin = time.perf_counter()
        plain_pass()
        times["draws"].append(draws)
        times["passes"].append([*plains, time.perf_counter() - begin])
    return {name: seconds[1:] for name, seconds in times.items()}


def best(times: list[list[float]]) -> float:
    """Return the sum over passes of the shortest time in all rounds."""
    return sum(min(column) for column in zip(*times, strict=True))


def nbytes(tensors: Iterable[Tensor]) -> int:
    """Return how many bytes the tensors have together."""
    return sum(tensor.nbytes for tensor in tensors)


def main() -> None:
    """Measure, print, and write the results."""
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
    mirrored = {
        MIRRORED.format(name): lb.Bayesian(copy.deepcopy(plain), subspace=subspace, propagate="mirrored")
        for name, subspace in SUBSPACES.items()
    }

    steppers = {name: stepper(model, x, y) for name, model in (models | mirrored).items()}
    steps = race({"plain": stepper(copy.deepcopy(plain), x, y)} | steppers, options.rounds)
    last = models["last layer random"]
    last_layer = race(
        {"plain": passes(plain, x, 1), "last": lambda: lb.predict(last, x, samples=DRAWS)}, 4 * options.rounds
    )
    turns = {n: draw_by_draw(m, plain, x, options.predict_rounds) for n, m in models.items() if m is not last}

    rows = []
    plain_bytes = nbytes([*plain.parameters(), *plain.buffers()])
    for name, model in models.items():
        row: dict[str, Any] = {"name": name, "random": model.summary().random}
        row |= timing("step", steps[name], steps["plain"])
        row |= timing("mirrored_step", steps[MIRRORED.format(name)], steps["plain"])
        if model is last:
            row |= timing("predict", last_layer["last"], last_layer["plain"]) | {"predict_base": "plain"}
        else:
            draws, plains = turns[name]["draws"], turns[name]["passes"]
            by_round = [sum(random) / sum(base) for random, base in zip(draws, plains, strict=True)]
            row |= {
                "predict_seconds": best(draws),
                "predict_ratio": best(draws) / best(plains),
                "predict_ratio_median_of_rounds": statistics.median(by_round),
                "predict_base": f"plain x {DRAWS}",
            }
        row["bytes_ratio"] = nbytes([*model.parameters(), *model.buffers()]) / plain_bytes
        rows.append(row)
        print(
            f"{name:18} step {row['step_ratio']:.3f}x, mirrored {row['mirrored_step_ratio']:.3f}x, "
            f"{DRAWS} draws {row['predict_ratio']:.3f} of {row['predict_base']}, bytes {row['bytes_ratio']:.4f}x"
        )
    settings = {"model": "resnet18, small stem", "batch": options.batch, "rounds": options.rounds, "draws": DRAWS}
    seconds = {"plain_step_seconds": min(steps["plain"]), "plain_pass_seconds": min(last_layer["plain"])}
    write(options.out, {"rows": rows, **seconds}, settings | {"predict_rounds": options.predict_rounds})


if __name__ == "__main__":
    main()
