"""The curvature of the training loss, from laplace-torch, and the Gaussian posterior that follows from it."""

import copy
import math
import warnings
from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from leanbayes._calls import batch_size, call, prediction_tensor, split_batch, take
from leanbayes.errors import InputError, NonFinite
from leanbayes.likelihood import Likelihood

__all__ = ["TrainingData", "curvature_of", "inverse_root", "most_evident", "output_of"]

_LOG_RANGE = 20.0  # the logarithm of the prior precision lies between −20 and 20


class TrainingData:
    """Batches as laplace-torch reads them: with a length, and with inputs other than a tensor in a mapping."""

    def __init__(self, batches: Iterable[Any]) -> None:
        self.batches = batches
        self.rows: int | None = None  # how many rows of a batch are read at a time; None means all
        self.dataset = range(sum(batch_size(split_batch(batch)[0]) for batch in batches))
        if not self.dataset:
            raise InputError("there are no batches; give the training data, which the posterior needs")

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches:
            whole = split_batch(batch)
            size = batch_size(whole[0])
            for start in range(0, size, self.rows or size):
                x, y = take(whole, slice(start, start + (self.rows or size)))
                if isinstance(x, Tensor):
                    yield x, y
                else:
                    first = next(leaf for leaf in tree_leaves(x) if isinstance(leaf, Tensor))
                    yield {"inputs": x, "input_ids": first, "labels": y}

    def check(self, model: nn.Module, likelihood: Likelihood) -> tuple[str | None, int]:
        """Raise unless outputs and targets fit. Return the linear layer of the output, if any, and the width."""
        x, y = split_batch(next(iter(self.batches)))
        outputs: list[tuple[str, Tensor]] = []
        hooks = [
            module.register_forward_hook(lambda _m, _args, out, name=name: outputs.append((name, out)))
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear)
        ]
        try:
            out = output_of(call(model, x))
        finally:
            for hook in hooks:
                hook.remove()
        likelihood.nll(out, y)
        last = outputs[-1][0] if outputs and torch.equal(outputs[-1][1], out) else None
        return last, out.shape[1]


class _Adapter(nn.Module):
    """The model as a module of one argument that returns a tensor."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, data: Any) -> Tensor:
        return output_of(call(self.model, data["inputs"] if isinstance(data, dict) else data))


def curvature_of(
    model: nn.Module, data: TrainingData, kind: str, noise: float, layer: str | None, flat: dict[str, Tensor] | None
) -> Tensor:
    """Return Σₙ Jₙᵀ Hₙ Jₙ in float64, computed by laplace-torch on a copy of the model.

    Args:
        model: the trained module.
        data: the training data.
        kind: "classification" or "regression".
        noise: the standard deviation of the noise of a regression.
        layer: the name of the last layer.
        flat: the flat positions of the random entries of each tensor; None for the whole last layer.
    """
    network = _Adapter(copy.deepcopy(model)).eval()
    options: dict[str, Any] = {"sigma_noise": noise} if kind == "regression" else {}
    if flat is None:
        options |= {"subset_of_weights": "last_layer", "last_layer_name": f"model.{layer}".rstrip(".")}
    else:
        starts, start = {}, 0
        for name, parameter in network.model.named_parameters():
            parameter.requires_grad_(name in flat)  # laplace-torch counts and differentiates only these
            if name in flat:
                starts[name], start = start, start + parameter.numel()
        chosen = torch.cat([starts[name] + index for name, index in flat.items()])
        options |= {"subset_of_weights": "subnetwork", "subnetwork_indices": chosen}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations in what it imports
        try:
            laplace, interfaces = import_module("laplace"), import_module("laplace.curvature")
        except (ImportError, RuntimeError) as error:  # a torchvision built for another torch raises the latter
            raise InputError(
                f"the Laplace approximation needs laplace-torch, which cannot be imported ({error}); "
                "install it: pip install 'leanbayes[laplace]'"
            ) from error
        # This backend forms the matrix from Jacobians. The default one multiplies by each unit vector, in float32.
        backend = interfaces.GGNInterface
        approximation = laplace.Laplace(network, kind, hessian_structure="full", backend=backend, **options)
        approximation.fit(data)
        approximation.prior_precision = 0.0
        matrix: Tensor = approximation.posterior_precision.detach().double()
    if not torch.isfinite(matrix).all():
        raise NonFinite("the curvature has NaN or infinite values; check the weights and the training data")
    return matrix


def most_evident(curvature: Tensor, mode: Tensor) -> float:
    """Return the prior precision τ that maximises the Laplace evidence.

    With eigenvalues λ of the curvature, 2 log p(D | τ) = Σ log τ/(λ+τ) − τ‖θ‖² + …, so that Σ λ/(λ+τ) = τ‖θ‖² at the
    one maximum (MacKay 1992): the left side falls with τ, the right side grows.
    """
    eigenvalues, square = torch.linalg.eigvalsh(curvature).clamp_min(0), float(mode.square().sum())
    low, high = -_LOG_RANGE, _LOG_RANGE
    for _ in range(60):
        middle = (low + high) / 2
        tau = math.exp(middle)
        if float((eigenvalues / (eigenvalues + tau)).sum()) > tau * square:
            low = middle
        else:
            high = middle
    return math.exp((low + high) / 2)


def inverse_root(curvature: Tensor, tau: float) -> Tensor:
    """Return A with A Aᵀ = (curvature + τ)⁻¹."""
    eye = torch.eye(len(curvature), dtype=curvature.dtype, device=curvature.device)
    factor, failed = torch.linalg.cholesky_ex(curvature + tau * eye)
    if failed:
        raise NonFinite(
            f"the posterior precision is not positive definite with the prior precision {tau:.3g}; give a larger one"
        )
    root: Tensor = torch.linalg.solve_triangular(factor.mT, eye, upper=True)
    return root


def output_of(returned: Any) -> Tensor:
    """Return the output of a model as a tensor (N, features), or raise."""
    out = prediction_tensor(returned)
    if not isinstance(out, Tensor) or out.dim() != 2:
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise InputError(f"the Laplace approximation needs outputs of shape (N, features), got {shape}")
    return out
