"""The linearised Laplace approximation (Immer et al. 2021; Daxberger et al. 2021), fitted with laplace-torch."""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, Literal, Self

import torch
from torch import Tensor, nn
from torch.func import jacrev, vmap

from leanbayes._calls import Inputs, call, call_with, prediction_tensor, take
from leanbayes.baselines.laplace_torch import TrainingData, curvature_of, inverse_root, most_evident, output_of
from leanbayes.baselines.seeds import draw_seeds
from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError, UnknownName
from leanbayes.likelihood import Likelihood
from leanbayes.likelihood.base import require_likelihood
from leanbayes.posteriors._noise import standard_normal
from leanbayes.prediction import Predictor, in_eval
from leanbayes.subspace.select import Selection, Subspace

__all__ = ["LaplaceApproximation"]

_MOST = 20_000  # coordinates: their covariance is 1.6 GB in float32
_BYTES = 2**28  # of Jacobians at a time


class LaplaceApproximation(Predictor):
    """A network that is linearised in chosen weights, whose covariance is Σ: f(x) ~ N(f*(x), J Σ Jᵀ).

    The precision Σ⁻¹ = Σₙ Jₙᵀ Hₙ Jₙ + τ is the generalised Gauss-Newton matrix of the training data, from
    laplace-torch, plus the precision τ of the prior N(0, 1/τ). `fit` builds one. The outputs must have
    the shape (N, features).

    Args:
        model: a trained plain module.
        coordinates: how many entries of each tensor are random, by its name. The buffer ``positions`` says which.
    """

    positions: Tensor
    scale: Tensor
    prior_precision: Tensor

    draws_differ_within_batch: ClassVar[bool] = True

    def __init__(self, model: nn.Module, coordinates: Mapping[str, int]) -> None:
        super().__init__()
        _refuse(model)
        parameters = dict(model.named_parameters())
        if not coordinates or any(name not in parameters for name in coordinates):
            raise InputError(f"the model has the parameters {list(parameters)[:3]}, …, not {list(coordinates)[:3]}")
        self.model = model
        self.coordinates = dict(coordinates)
        first, size = parameters[next(iter(coordinates))].detach(), sum(coordinates.values())
        like = first.to(torch.promote_types(first.dtype, torch.float32))
        self.register_buffer("positions", torch.zeros(size, dtype=torch.int64, device=like.device))
        self.register_buffer("scale", like.new_zeros(size, size))  # Σ = scale scaleᵀ
        self.register_buffer("prior_precision", like.new_zeros(()))

    @classmethod
    def fit(
        cls,
        model: nn.Module,
        batches: Iterable[Any],
        likelihood: Likelihood,
        subset: Literal["last_layer", "subnetwork"] = "last_layer",
        indices: Subspace | Selection | None = None,
        prior_precision: float | None = None,
    ) -> Self:
        """Fit the posterior around the present weights of a model, which is left as it was.

        Args:
            model: a trained module with outputs (N, features).
            batches: the training data as pairs (inputs, targets), which is read more than once.
            likelihood: `Categorical`, or `Gaussian` with one known or learned noise.
            subset: "last_layer" makes the last linear layer random, "subnetwork" the coordinates in ``indices``.
            indices: a subspace such as ``top_k(scores, k=500)``, or a selection that a subspace made.
            prior_precision: τ; by default the value with the highest marginal likelihood.

        Returns:
            The predictor.
        """
        _refuse(model)
        if subset not in ("last_layer", "subnetwork"):
            raise UnknownName.of("subset", subset, ["last_layer", "subnetwork"])
        if (indices is None) != (subset == "last_layer"):
            raise InputError('indices are for subset="subnetwork", and needed there: such as top_k(scores, k=500)')
        if prior_precision is not None and not 0 < prior_precision < math.inf:
            raise InputError(f"prior_precision must be positive and finite, got {prior_precision}")
        if iter(batches) is batches:
            raise InputError("batches are read more than once: give a list or a DataLoader, not an iterator")
        (kind, noise), data = _settings(likelihood), TrainingData(batches)
        with in_eval(model), torch.no_grad():
            layer, outputs = data.check(model, likelihood)
        if isinstance(indices, Subspace):
            indices = indices.select(model)
        parameters = dict(model.named_parameters())
        selection = _last_layer(model, layer) if indices is None else indices
        if unknown := [name for name in selection if name not in parameters]:
            raise InputError(f"the model has no {unknown[:3]}; its parameters are {list(parameters)[:3]}, …")
        flat = {name: _flat(parameters[name], index) for name, index in selection.items()}
        size = sum(len(index) for index in flat.values())
        if size > _MOST:
            raise InputError(f"{size} random coordinates have {size}² covariances; choose at most {_MOST}")
        if indices is not None:
            data.rows = _rows(outputs, [parameters[name] for name in flat], most=8)
        curvature = curvature_of(model, data, kind, noise, layer, flat if indices is not None else None)
        mode = torch.cat([parameters[name].detach().flatten()[index].double() for name, index in flat.items()])
        tau = prior_precision or most_evident(curvature, mode)
        predictor = cls(model, {name: len(index) for name, index in flat.items()})
        predictor.positions.copy_(torch.cat(list(flat.values())))
        predictor.scale.copy_(inverse_root(curvature, tau))
        predictor.prior_precision.fill_(tau)
        return predictor

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model at its mode."""
        return self.model(*args, **kwargs)

    def outputs(self, x: Inputs, draws: int, generator: torch.Generator | None) -> Iterator[Tensor]:
        """Yield draws f*(x) + (J Σ Jᵀ)^½ z, with a new z for each input."""
        mean, covariance = self.functional_variance(x)
        values, vectors = torch.linalg.eigh(covariance)  # may be singular: no Cholesky factor
        root = vectors * values.clamp_min(0).sqrt().unsqueeze(-2)
        for _ in range(draws):
            noise = standard_normal(mean.shape, mean, generator)
            yield mean + torch.einsum("nij,nj->ni", root, noise)

    @torch.no_grad()
    def functional_variance(self, x: Inputs) -> tuple[Tensor, Tensor]:
        """Return the outputs f*(x), (N, C), and their covariance J Σ Jᵀ, (N, C, C), in float32 at least."""
        parameters = dict(self.model.named_parameters())
        touched = {name: parameters[name].detach() for name in self.coordinates}
        positions = dict(zip(touched, self.positions.split(list(self.coordinates.values())), strict=True))
        now = torch.cat([touched[name].flatten()[positions[name]].to(self.scale) for name in touched])

        def network(chosen: Tensor, inputs: Inputs) -> Tensor:
            pieces = dict(zip(touched, chosen.split(list(self.coordinates.values())), strict=True))
            tensors = {
                name: whole.flatten().index_copy(0, positions[name], pieces[name].to(whole)).view_as(whole)
                for name, whole in touched.items()
            }
            return output_of(call(lambda *args, **kwargs: call_with(self.model, tensors, args, kwargs), inputs))

        with in_eval(self.model):
            mean = network(now, x)
            step = _rows(mean.shape[1], list(touched.values()))
            parts = []
            for start in range(0, len(mean), step):
                rows = torch.arange(start, min(start + step, len(mean)), device=mean.device)
                spread = _jacobians(network, now, x, rows) @ self.scale
                parts.append(spread @ spread.mT)
        covariance = torch.cat(parts)
        return mean.to(covariance), covariance

    def random_tensors(self) -> Iterator[tuple[nn.Parameter, Tensor, Tensor]]:
        """Yield each parameter that has random coordinates, with its mean and variance."""
        parameters, sizes = dict(self.model.named_parameters()), list(self.coordinates.values())
        variances = self.scale.square().sum(1).split(sizes)
        for name, positions, variance in zip(self.coordinates, self.positions.split(sizes), variances, strict=True):
            parameter = parameters[name]
            flat = variance.new_zeros(parameter.numel()).index_copy(0, positions, variance)
            yield parameter, parameter, flat.view(parameter.shape)

    def make_certain(self, kept: Mapping[nn.Parameter, Tensor]) -> None:
        """Set the rows of pruned coordinates in the root of the covariance to zero."""
        parameters, sizes = dict(self.model.named_parameters()), list(self.coordinates.values())
        rows_of = zip(self.coordinates, self.positions.split(sizes), self.scale.split(sizes), strict=True)
        for name, positions, rows in rows_of:
            if parameters[name] in kept:
                rows.masked_fill_(~kept[parameters[name]].flatten()[positions].unsqueeze(1), 0)

    def networks(self, draws: int, source: torch.Generator) -> list[Callable[[Tensor], Any]]:
        """Return f*(x) + J(x) A z as differentiable functions, each with one z for all inputs.

        For each input alone, this is the distribution that `outputs` draws from.
        """
        parameters, sizes = dict(self.model.named_parameters()), list(self.coordinates.values())

        def network(x: Inputs, seed: int) -> Tensor:
            source = torch.Generator().manual_seed(seed)
            noise = torch.randn(self.scale.shape[1], generator=source, dtype=torch.float64)
            steps = (self.scale @ noise.to(self.scale)).split(sizes)
            means, changes = {}, []
            for name, positions, step in zip(self.coordinates, self.positions.split(sizes), steps, strict=True):
                parameter = parameters[name]
                means[name] = parameter.detach().requires_grad_()
                flat = torch.zeros_like(parameter).flatten().index_copy(0, positions, step.to(parameter))
                changes.append(flat.view(parameter.shape))
            with torch.enable_grad():
                out: Tensor = prediction_tensor(call(lambda *a, **k: call_with(self.model, means, a, k), x))
                u = torch.zeros_like(out, requires_grad=True)  # Jᵀu is linear in u, and its own transpose is J
                pulled = torch.autograd.grad(out, list(means.values()), u, create_graph=True)
                change = torch.autograd.grad(pulled, u, changes, create_graph=True)[0]
            return out + change if torch.is_grad_enabled() else (out + change).detach()

        return [partial(network, seed=seed) for seed in draw_seeds(draws, source)]

    def parts(self) -> dict[str, nn.Module]:
        """Return the model."""
        return {"model": self.model}

    def config(self) -> dict[str, Any]:
        """Return how many entries of which tensors are random."""
        return {"coordinates": dict(self.coordinates)}

    def extra_repr(self) -> str:
        """Describe what is random."""
        return f"coordinates={self.coordinates}, prior_precision={self.prior_precision.item():.4g}"


def _rows(outputs: int, touched: list[Tensor], most: int = 2**31) -> int:
    """Return how many inputs to take at a time, so that their Jacobians fit in memory."""
    bytes_per_row = outputs * sum(tensor.numel() * tensor.element_size() for tensor in touched)
    return min(most, max(1, _BYTES // bytes_per_row))


def _jacobians(network: Callable[[Tensor, Inputs], Tensor], now: Tensor, x: Inputs, rows: Tensor) -> Tensor:
    """Return ∂f/∂chosen of each row, (rows, outputs, chosen): vmapped, or one row after the other if need be."""

    def one(row: Tensor) -> Tensor:
        jacobian: Tensor = jacrev(lambda chosen: network(chosen, take(x, row.view(1))).squeeze(0))(now)
        return jacobian

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # torch warns where it has no batching rule
            all_rows: Tensor = vmap(one)(rows)
    except (RuntimeError, ValueError, Warning):
        all_rows = torch.stack([
            jacrev(lambda chosen, i=i: network(chosen, take(x, slice(i, i + 1))).squeeze(0), chunk_size=1)(now)
            for i in rows.tolist()
        ])  # fmt: skip
    return all_rows


def _last_layer(model: nn.Module, layer: str | None) -> Selection:
    if layer is None:
        raise InputError('the output is not that of a linear layer; use subset="subnetwork" with indices')
    prefix = f"{layer}." if layer else ""
    names = [name for name, _ in model.named_parameters()]
    return {name: None for name in (f"{prefix}weight", f"{prefix}bias") if name in names}


def _settings(likelihood: Likelihood) -> tuple[str, float]:
    settings = require_likelihood(likelihood).laplace_settings()
    if settings is not None:
        return settings
    raise InputError(
        "laplace-torch knows Categorical() without class weights and Gaussian(noise) with one noise for all, "
        f"got {type(likelihood).__name__}; choose another method"
    )


def _flat(parameter: Tensor, index: Tensor | None) -> Tensor:
    if index is None:
        return torch.arange(parameter.numel(), device=parameter.device)
    return index.to(parameter.device, torch.int64)


def _refuse(model: nn.Module) -> None:
    if any(isinstance(module, Bayesian | Predictor) for module in model.modules()):
        raise InputError(f"Laplace needs a plain module, got a {type(model).__name__} with draws of its own")
