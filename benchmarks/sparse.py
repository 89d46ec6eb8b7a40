"""Compare training steps of sparse Bayesian networks and of dense ones: ResNet-18 on 32x32 images, SSVI.

A step is the ELBO, its gradients and Adam, with 95 % and 99 % zeros, by local reparameterization (``sparse``), by
mirrored draws (``mirrored``) and by mirrored draws with natural gradients (``ivon``). These take turns with them:

- ``plain``: the dense deterministic network;
- ``local``: our dense network with local reparameterization, in which the
  weights of all linear maps and convolutions are random;
- ``masked``: the same with masks over dense tensors, as in the public code of Li et al. 2024.

The record also holds the memory of parameters, gradients and optimizer, the largest memory of a step, the kernel that
each layer has chosen, the time of `lb.predict` with one weight draw against a plain pass, and where the time of a
sparse step goes. The time that is not spent on products does not depend on the number of zeros, and so limits the
speed.

    python benchmarks/sparse.py
"""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.profiler import ProfilerActivity, profile

import leanbayes as lb
from harness import RESULTS, race, timing, write
from leanbayes._ops.sparse import kernels_for
from leanbayes._ops.sparse_tensor import SPARSE_OPS, SparseTensor
from leanbayes.evaluation.cost.resources import peak_memory
from leanbayes.lab.models import resnet18
from leanbayes.propagate.stand_in import StandIn
from leanbayes.subspace import scatters

N_DATA = 50_000
SPARSE = {"sparse": "local", "mirrored": "mirrored", "ivon": "mirrored"}
PARTS = {  # the parts of a step, and the names that the profiler of torch gives to their operations
    "products over stored weights": ("SparseProduct", "HalvesProduct"),
    "noise and its gradient": ("_Spread", "_SpreadBackward"),
    "batch norms": ("native_batch_norm", "batch_norm_backward", "NativeBatchNorm", "_NormOfRows"),
    "rectifiers": ("clamp_min", "threshold", "relu", "Relu"),
    "first layer, dense": ("convolution", "mkldnn"),
    "optimizer and KL": ("Optimizer", "_foreach", "softplus", "_NormalKL"),
}


class Masked(nn.Module):
    """A layer with dense means and raw scales under a mask, and two dense products (code and eq. 4 of SSVI)."""

    def __init__(self, layer: Any, density: float) -> None:
        super().__init__()
        self.layer = layer
        self.rho = nn.Parameter(torch.full_like(layer.weight, -4.6))
        self.register_buffer("mask", (torch.rand_like(layer.weight) < density).to(layer.weight.dtype))

    def forward(self, x: Tensor) -> Tensor:
        """Return one draw of the outputs."""
        mean, scale = self.layer.weight * self.mask, F.softplus(self.rho) * self.mask
        if isinstance(self.layer, nn.Linear):
            first, second = F.linear(x, mean, self.layer.bias), F.linear(x.square(), scale.square())
        else:
            how = (self.layer.stride, self.layer.padding, self.layer.dilation, self.layer.groups)
            first, second = F.conv2d(x, mean, self.layer.bias, *how), F.conv2d(x.square(), scale.square(), None, *how)
        return first + (second + 1e-16).sqrt() * torch.randn_like(first)

    def kl(self) -> Tensor:
        """Return the KL to a standard Normal."""
        scale = F.softplus(self.rho)
        return (self.mask * (-scale.log() + (scale.square() + self.layer.weight.square()) / 2 - 0.5)).sum()


def masked_network(density: float) -> nn.Module:
    """Build a ResNet-18 in which all layers except the first are masked."""
    model = resnet18()
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Conv2d | nn.Linear) and name != "conv1":
            parent, _, attribute = name.rpartition(".")
            setattr(model.get_submodule(parent), attribute, Masked(module, density))
    return model


def step_of(
    model: nn.Module, x: Tensor, y: Tensor, *, natural: bool
) -> tuple[Callable[[], None], torch.optim.Optimizer]:
    """Return a function that does one training step, and its optimizer. Batch norms use the statistics of the batch."""
    model.train()
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    if natural:
        assert isinstance(model, lb.Bayesian)
        optimizer = lb.optim.IVON(model, lr=1e-4, n_data=N_DATA, steps=10_000)
    masked = [module for module in model.modules() if isinstance(module, Masked)]

    def step() -> None:
        optimizer.zero_grad()
        if isinstance(model, lb.Bayesian):
            loss = lb.elbo(model, x, y, lb.Categorical(), n_data=N_DATA, with_kl=not natural).loss
        else:
            loss = F.cross_entropy(model(x), y)
            if masked:
                loss = loss + torch.stack([module.kl() for module in masked]).sum() / N_DATA
        loss.backward()
        optimizer.step()

    return step, optimizer


def kept_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Return the bytes that are in use between two steps, apart from activations."""
    parameters = list(model.parameters())
    states = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    parts = {
        "parameters": parameters,
        "gradients": [p.grad for p in parameters if p.grad is not None],
        "optimizer": states,
        "positions": [scatter.index for scatter in scatters(model).values()],
        "masks": [module.mask for module in model.modules() if isinstance(module, Masked)],
    }
    sizes = {name: sum(t.numel() * t.element_size() for t in tensors) for name, tensors in parts.items()}
    return sizes | {"all": sum(sizes.values())}


class ChosenKernels(TorchFunctionMode):
    """Records which kernel each sparse layer chooses."""

    def __init__(self, names: dict[int, str]) -> None:
        super().__init__()
        self.names, self.rows = names, []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        weight = args[1].weight.mean if func in SPARSE_OPS and isinstance(args[1], StandIn) else None
        if isinstance(weight, SparseTensor):
            x, options = args[0], args[3:7] if len(args) > 3 else ()
            chosen = kernels_for(x, weight.positions, tuple(weight.shape), *options, moments=True)
            self.rows.append(
                {
                    "layer": self.names[id(weight.positions)],
                    "weight": list(weight.shape),
                    "input": list(x.shape),
                    "stored": len(weight.positions),
                    "kernel": str(chosen),
                }
            )
        return func(*args, **(kwargs or {}))


def layers(bnn: lb.Bayesian, x: Tensor) -> list[dict[str, Any]]:
    """Describe each sparse layer and its kernel."""
    names = {id(scatter.index): name.partition(".parametrizations")[0] for name, scatter in scatters(bnn.model).items()}
    with ChosenKernels(names) as kernels:
        bnn(x)
    return kernels.rows


def one_pass(model: nn.Module, x: Tensor) -> Callable[[], None]:
    """Return a function that predicts a batch from one pass, at one weight draw if the network is random."""

    def run() -> None:
        model.eval()
        if isinstance(model, lb.Bayesian):
            model.predict_by = lb.propagate.Sample()
            lb.predict(model, x, samples=1)
        else:
            with torch.no_grad():
                model(x)

    return run


def parts(step: Callable[[], None]) -> dict[str, float]:
    """Return each part's share of the time of one step. Sums and products of activations belong to the others."""
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        step()
    spent = dict.fromkeys([*PARTS, "others"], 0.0)
    for row in recorded.key_averages():
        operation = row.key.rpartition("::")[2] if row.key.startswith("aten::") else row.key
        part = next((name for name, keys in PARTS.items() if any(key in operation for key in keys)), "others")
        spent[part] += row.self_cpu_time_total
    return {name: time / sum(spent.values()) for name, time in spent.items()}


def main() -> None:
    """Measure times and memory, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--densities", type=float, nargs="+", default=[0.05, 0.01])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--out", type=Path, default=RESULTS / "sparse.json")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    for batch in options.batches:
        torch.manual_seed(0)
        x, y = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
        random = lb.everything(eligible=lambda slot: slot.parameter.dim() > 1)
        models: dict[str, nn.Module] = {
            "plain": resnet18(),
            "local": lb.Bayesian(resnet18(), subspace=random, propagate="local"),
        }
        for density in options.densities:
            inside = lb.everything(
                eligible=lambda slot: slot.name.endswith(("original", "weight")) and lb.not_norm(slot)
            )
            sparse = lb.sparse(density, inside=inside)
            for name, propagate in SPARSE.items():
                models[f"{name} {density:g}"] = lb.Bayesian(resnet18(), subspace=sparse, propagate=propagate)
        models["masked"] = masked_network(options.densities[0])
        steps = {name: step_of(model, x, y, natural=name.startswith("ivon")) for name, model in models.items()}
        times = race({name: step for name, (step, _) in steps.items()}, options.rounds)
        row: dict[str, Any] = {}
        for name, model in models.items():
            row[name] = timing("step", times[name], times["plain"]) | {"bytes": kept_bytes(model, steps[name][1])}
            row[name]["times_faster_than_local"] = min(times["local"]) / min(times[name])
            row[name]["times_faster_than_masked"] = min(times["masked"]) / min(times[name])
            row[name]["step_bytes"] = peak_memory(steps[name][0]) + row[name]["bytes"]["all"]
        for name in row:
            row[name]["bytes_of_local"] = row[name]["bytes"]["all"] / row["local"]["bytes"]["all"]
            row[name]["step_bytes_of_plain"] = row[name]["step_bytes"] / row["plain"]["step_bytes"]
            print(batch, name, {key: round(value, 3) for key, value in row[name].items() if key != "bytes"}, flush=True)
        passes = race({name: one_pass(model, x) for name, model in models.items()}, options.rounds)
        for name in row:
            row[name] |= timing("pass", passes[name], passes["plain"])
            print(batch, name, "one pass", round(row[name]["pass_ratio"], 3), flush=True)
        for name in [f"{kind} {density:g}" for density in options.densities for kind in SPARSE]:
            model = models[name]
            assert isinstance(model, lb.Bayesian)
            sparse_row = row[name]
            model.train()
            sparse_row["parts"] = parts(steps[name][0])
            sparse_row["ratio_if_products_took_no_time"] = sparse_row["step_ratio"] * (
                1 - sparse_row["parts"][next(iter(PARTS))]
            )
            print({name: round(share, 3) for name, share in sparse_row["parts"].items()}, flush=True)
            sparse_row["layers"] = layers(model, x)
        results[f"batch {batch}"] = row
    write(options.out, results, {"network": "ResNet-18, 32x32", "rounds": options.rounds, "dense": "the first layer"})


if __name__ == "__main__":
    main()
