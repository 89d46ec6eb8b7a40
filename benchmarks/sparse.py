"""Compare training steps of sparse Bayesian networks and of dense ones: ResNet-18 on 32x32 images, SSVI.

A step is the ELBO, its gradients and Adam, with 95 % and 99 % zeros, by local reparameterization (``sparse``), by
mirrored draws (``mirrored``) and by mirrored draws with natural gradients (``ivon``). Each of them stores single
weights, and whole blocks of 16 output channels (``block 16``). They are compared with these:

- ``plain``: the dense deterministic network;
- ``local``: our dense network with local reparameterization, in which the
  weights of all linear maps and convolutions are random;
- ``masked``: the same with masks over dense tensors, as in the public code of Li et al. 2024.

Each row of the record takes turns with the plain network, so its ratios are to a plain network that was measured at
the same time. The record also holds the memory of parameters, gradients and optimizer, the largest memory of a step,
the kernel that each layer has chosen, and where the time of a sparse step goes. The time that is not spent on products
does not depend on the number of zeros, and so limits the speed. Predictions are measured as well: `lb.predict` with one
weight draw, with one pass of moments and with one without factors and boxes (``exact_moments``), and the plain network
as a dense graph of onnxruntime, against a plain pass.

The script stops after ``--seconds`` and goes on with the next row when it is called again.

    python benchmarks/sparse.py                       # until the record is complete
    python benchmarks/sparse.py --batches 64 --kinds mirrored --out some.json
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
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
from leanbayes._provenance import git
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


@dataclass(frozen=True)
class Method:
    """A row of the record: how a network is built, and by which noise it is trained."""

    kind: str
    density: float = 1.0
    block: int = 1

    @property
    def name(self) -> str:
        """The name of the row."""
        parts = [self.kind]
        if self.kind in SPARSE:
            parts += [f"{self.density:g}", *([f"block {self.block}"] if self.block > 1 else [])]
        return " ".join(parts)

    def model(self) -> nn.Module:
        """Build the network."""
        if self.kind == "plain":
            return resnet18()
        if self.kind == "masked":
            return masked_network(self.density)
        if self.kind == "local":
            random = lb.everything(eligible=lambda slot: slot.parameter.dim() > 1)
            return lb.Bayesian(resnet18(), subspace=random, propagate="local")
        inside = lb.everything(eligible=lambda slot: slot.name.endswith(("original", "weight")) and lb.not_norm(slot))
        subspace = lb.sparse(self.density, inside=inside, block=self.block)
        return lb.Bayesian(resnet18(), subspace=subspace, propagate=SPARSE[self.kind])


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


def one_pass(model: nn.Module, x: Tensor, by: lb.propagate.Propagation) -> Callable[[], None]:
    """Return a function that predicts a batch by one pass, if the network is random by one draw or by moments."""

    def run() -> None:
        model.eval()
        if isinstance(model, lb.Bayesian):
            model.predict_by = by
            lb.predict(model, x, samples=1)
        else:
            with torch.no_grad():
                model(x)

    return run


def in_onnxruntime(model: nn.Module, x: Tensor) -> Callable[[], None]:
    """Return a function that runs the network as a dense graph of onnxruntime, in as many threads as torch has."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "plain.onnx")
        torch.onnx.export(model.eval(), (x,), path, dynamo=True, verbose=False, external_data=False)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: x.numpy()}

    def run() -> None:
        session.run(None, feed)

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


def measure(method: Method, plain: nn.Module, x: Tensor, y: Tensor, rounds: int) -> dict[str, Any]:
    """Measure one row in turns with the plain network."""
    model = plain if method.kind == "plain" else method.model()
    step, optimizer = step_of(model, x, y, natural=method.kind == "ivon")
    base, _ = step_of(plain, x, y, natural=False)
    times = race({"plain": base, method.name: step}, rounds)
    row: dict[str, Any] = timing("step", times[method.name], times["plain"])
    row["bytes"] = kept_bytes(model, optimizer)
    row["step_bytes"] = peak_memory(step) + row["bytes"]["all"]
    if method.kind in SPARSE:
        assert isinstance(model, lb.Bayesian)
        row["parts"] = parts(step)
        row["ratio_if_products_took_no_time"] = row["step_ratio"] * (1 - row["parts"][next(iter(PARTS))])
        row["layers"] = layers(model, x)
    draw = lb.propagate.Sample()
    passes = {"plain": one_pass(plain, x, draw), "pass": one_pass(model, x, draw)}
    if isinstance(model, lb.Bayesian) and method.kind in ("local", "mirrored"):
        passes["moments"] = one_pass(model, x, lb.propagate.Moments())
        passes["exact_moments"] = one_pass(model, x, lb.propagate.Moments(rank=0, kernels="exact"))
    if method.kind == "plain":
        passes = {"pass": passes["plain"], "onnxruntime": in_onnxruntime(plain, x), "plain": passes["plain"]}
    spent = race(passes, rounds)
    for name in passes:
        if name != "plain":
            row |= timing(name, spent[name], spent["plain"])
    return row | {"commit": git("rev-parse", "HEAD")}


def compare(rows: dict[str, Any]) -> None:
    """Add what compares a row with others, as far as these have been measured."""
    for row in rows.values():
        for name in ("local", "masked"):
            if name in rows:
                row[f"times_faster_than_{name}"] = rows[name]["step_ratio"] / row["step_ratio"]
        if "local" in rows:
            row["bytes_of_local"] = row["bytes"]["all"] / rows["local"]["bytes"]["all"]
        row["step_bytes_of_plain"] = row["step_bytes"] / rows["plain"]["step_bytes"]


def main() -> None:
    """Measure the rows that the record does not have yet, until the time is over."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 128])
    parser.add_argument("--densities", type=float, nargs="+", default=[0.05, 0.01])
    parser.add_argument("--blocks", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--kinds", nargs="+", default=["local", "masked", *SPARSE], help="plain is always measured")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=120.0, help="no row is begun after so many seconds")
    parser.add_argument("--out", type=Path, default=RESULTS / "sparse.json")
    options = parser.parse_args()
    begin, settings = time.perf_counter(), {"network": "ResNet-18, 32x32", "rounds": options.rounds, "rows": 3}
    known = json.loads(options.out.read_text()) if options.out.exists() else {}
    # Records of another form, or of other settings, are not continued.
    results: dict[str, Any] = known["results"] if known.get("settings") == settings else {}
    methods = [Method("plain"), Method("local"), Method("masked", options.densities[0])]
    methods += [Method(k, d, b) for d in options.densities for b in options.blocks for k in reversed(SPARSE)]
    methods = [method for method in methods if method.kind in ("plain", *options.kinds)]
    for batch in options.batches:
        torch.manual_seed(0)
        x, y = torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,))
        plain, rows = resnet18(), results.setdefault(f"batch {batch}", {})
        for method in methods:
            if method.name in rows:
                continue
            if time.perf_counter() - begin > options.seconds:
                print("stopped; call the script again for the rows that are missing")
                return
            rows[method.name] = measure(method, plain, x, y, options.rounds)
            compare(rows)
            numbers = {key: round(v, 3) for key, v in rows[method.name].items() if isinstance(v, float)}
            print(batch, method.name, numbers, flush=True)
            write(options.out, results, settings)


if __name__ == "__main__":
    main()
