"""Measure what `lean` costs beside the plain network: the time and the memory of a training step, and a prediction.

    python benchmarks/lean_cost.py [--rounds 20] [--networks lenet5 unet vit fit] [--columns step memory predict]

A step is a whole one: forward pass, backward pass and update, with Adam for the plain network, and for lean with
mirrored draws, natural gradients and averages, as the recipe trains. A prediction is `lb.predict` in one pass of
moments, without and with correlations, and with its probabilities and uncertainties, against a bare forward pass of the
plain network. Validation decides which pass lean takes. The work is done in
turns in one thread, and the best of several rounds counts, in processor time, which other programs change little.
Memory is by how much a step raises the memory of tensors, together with the parameters and the state of the optimizer.
The row "fit" is a whole training of LeNet-5 by `lb.fit`: 15 epochs of 1,000 examples with 200 for validation, on which
the plain network is judged after each epoch, and lean is calibrated at the end. These are the proportions of 10,000 and
2,000 images. Rows and columns that are not measured keep what the record has for them, and each row is written as soon
as it is measured, so one call need not measure all. Writes docs/results/lean_cost.json.
"""

import argparse
import json
import time
from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from harness import RESULTS, race, timing, write
from leanbayes.evaluation.cost import peak_memory
from leanbayes.lab.models import lenet5, mlp, resnet18, small_resnet, unet, vit
from leanbayes.lab.recipes import parse
from leanbayes.lab.recipes.lean import Lean
from leanbayes.lab.recipes.lean_calibration import calibrate_one_pass
from leanbayes.likelihood import Likelihood
from leanbayes.optim import Problem
from leanbayes.propagate import Moments
from promise_networks import trial_cnn

STEPS = 1000
COLUMNS = ("step", "memory", "predict")
N_DATA = 10_000


@dataclass(frozen=True)
class Network:
    """One row of the table: a network and a batch of the size that its users have."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int | None
    pixels: bool = False

    def batch(self) -> tuple[Tensor, Tensor]:
        """Make inputs and targets; what they are changes no time."""
        x = torch.randn(self.shape)
        if self.classes is None:
            return x, torch.randn(len(x), 1)
        return x, torch.randint(self.classes, (len(x), *(self.shape[2:] if self.pixels else ())))

    @property
    def likelihood(self) -> Likelihood:
        """Say what the outputs mean."""
        return lb.Gaussian(noise="input") if self.classes is None else lb.Categorical()


NETWORKS = {
    "table, batch 50": Network(lambda: mlp(8, 2, width=(64, 64)), (50, 8), None),
    "lenet5, batch 100": Network(lambda: lenet5(1, 10), (100, 1, 28, 28), 10),
    "cnn with batch norm, batch 100": Network(trial_cnn, (100, 1, 28, 28), 10),
    "small_resnet, batch 64": Network(lambda: small_resnet(3, 10), (64, 3, 32, 32), 10),
    "resnet18, batch 32": Network(lambda: resnet18(), (32, 3, 32, 32), 10),
    "unet, batch 8 of 64x64": Network(lambda: unet(3, 2), (8, 3, 64, 64), 2, pixels=True),
    "vit, batch 32": Network(lambda: vit(3, 10), (32, 3, 32, 32), 10),
}


def stepper(model: nn.Module, optimizer: torch.optim.Optimizer, network: Network) -> Callable[[], None]:
    """Return a function that makes one training step."""
    x, y = network.batch()
    likelihood = network.likelihood
    bayesian = isinstance(model, lb.Bayesian)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        if bayesian:
            loss = lb.elbo(model, x, y, likelihood, n_data=N_DATA, with_kl=False).loss
        else:
            loss = likelihood(model(x), y)
        loss.backward()
        optimizer.step()

    return step


def state_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Count the bytes of parameters, buffers and the optimizer's state."""
    tensors = [*model.parameters(), *model.buffers()]
    tensors += [value for entry in optimizer.state.values() for value in entry.values() if isinstance(value, Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def measure(network: Network, rounds: int, columns: Container[str] = COLUMNS) -> dict[str, float]:
    """Measure one network."""
    torch.manual_seed(0)
    plain, likelihood = network.make(), network.likelihood
    recipe = parse("lean")
    assert isinstance(recipe, Lean)
    bnn = lb.Bayesian(network.make(), propagate="mirrored", predict_by="moments")
    how = recipe.optimization(STEPS, 1e-3, likelihood)
    problem = Problem(
        model=bnn, lr=how["lr"], n_data=N_DATA, steps=STEPS, weight_decay=how["weight_decay"], kl_weight=1.0, groups=[]
    )
    adam, ivon = torch.optim.Adam(plain.parameters(), 1e-3), how["optimizer"].build(problem)
    for group in ivon.param_groups:
        group["average_from"] = 0  # half of the steps of a training average; here all do, which is the dearer half
        group["taken"] = STEPS // 2  # as in that half; small networks have a kernel for their updates by then
    steps: dict[str, Callable[[], object]] = {
        "plain": stepper(plain, adam, network),
        "lean": stepper(bnn, ivon, network),
    }
    figures: dict[str, float] = {}
    if "step" in columns:
        times = race(steps, rounds, clock=time.process_time)
        figures |= timing("step", times["lean"], times["plain"]) | {"plain_step_seconds": min(times["plain"])}
    if "memory" in columns:
        for step in steps.values():
            step()  # the optimizers make their state, and kernels are compiled
        figures["plain_step_bytes"] = peak_memory(steps["plain"]) + state_bytes(plain, adam)
        figures["step_bytes"] = peak_memory(steps["lean"]) + state_bytes(bnn, ivon)
        figures["step_memory_ratio"] = figures["step_bytes"] / figures["plain_step_bytes"]
    if "predict" in columns:
        figures |= measure_predictions(plain, bnn, network, rounds)
    return figures


def measure_predictions(plain: nn.Module, bnn: lb.Bayesian, network: Network, rounds: int) -> dict[str, float]:
    """Measure predictions without and with correlations against a forward pass of the plain network."""
    figures: dict[str, float] = {}
    x, _ = network.batch()
    plain.eval(), bnn.eval()

    def forward() -> None:
        with torch.no_grad():
            plain(x)

    def predict() -> None:
        lb.predict(bnn, x, likelihood=network.likelihood)

    for name, one_pass in (("predict", Moments(rank=0)), ("predict_with_correlations", Moments())):
        bnn.predict_by = one_pass
        times = race({"plain": forward, "lean": predict}, 3 * rounds, clock=time.process_time)
        figures |= timing(name, times["lean"], times["plain"]) | {"plain_forward_seconds": min(times["plain"])}
    return figures


def measure_fit(rounds: int) -> dict[str, float]:
    """Measure a whole training of LeNet-5, the calibration of lean included."""
    torch.manual_seed(0)
    network, epochs, likelihood = NETWORKS["lenet5, batch 100"], 15, lb.Categorical()
    x, y = torch.randn(1200, *network.shape[1:]), torch.randint(10, (1200,))
    train, validation = TensorDataset(x[:1000], y[:1000]), TensorDataset(x[1000:], y[1000:])
    recipe = parse("lean")
    assert isinstance(recipe, Lean)

    def plain() -> None:
        batches = DataLoader(train, 100, shuffle=True)
        how = lb.Optimization("adam", lr=1e-3)
        validate = DataLoader(validation, 100)
        lb.fit(network.make(), batches, likelihood=likelihood, epochs=epochs, optimizer=how, validate=validate)

    def lean() -> None:
        batches = DataLoader(train, 100, shuffle=True)
        bnn = lb.Bayesian(network.make(), propagate="mirrored", predict_by="moments")
        how = lb.Optimization(**recipe.optimization(epochs * len(batches), 1e-3, likelihood))
        lb.fit(bnn, batches, likelihood=likelihood, epochs=epochs, optimizer=how)
        calibrate_one_pass(bnn, list(DataLoader(validation, 100)), likelihood)

    times = race({"plain": plain, "lean": lean}, rounds, clock=time.process_time)
    return timing("fit", times["lean"], times["plain"]) | {"plain_fit_seconds": min(times["plain"])}


def main() -> None:
    """Measure all networks, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--networks", nargs="+", default=[*(name.split(",")[0] for name in NETWORKS), "fit"])
    parser.add_argument("--columns", nargs="+", choices=COLUMNS, default=COLUMNS)
    parser.add_argument("--out", type=Path, default=RESULTS / "lean_cost.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results = json.loads(options.out.read_text())["results"] if options.out.exists() else {}
    if "fit" in options.networks:
        results["fit of lenet5, batch 100"] = measure_fit(min(options.rounds, 3))
        print(f"fit {results['fit of lenet5, batch 100']['fit_ratio']:.3f}", flush=True)
    for name, network in NETWORKS.items():
        if name.split(",")[0] in options.networks:
            results[name] = results.get(name, {}) | measure(network, options.rounds, options.columns)
            row = {key: round(value, 3) for key, value in results[name].items() if key.endswith("ratio")}
            print(f"{name:32} {row}", flush=True)
            write(options.out, results, {"rounds": options.rounds, "threads": 1})


if __name__ == "__main__":
    main()
