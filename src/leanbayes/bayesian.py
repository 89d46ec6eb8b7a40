"""`Bayesian`: the one join point of model, subspace, posterior, prior, propagation and KL."""

import inspect
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.distributions import Normal as TorchNormal
from torch.nn.modules.conv import _ConvTransposeNd

from leanbayes._calls import call_with, map_tensors
from leanbayes.errors import InputError, UnknownName
from leanbayes.kl import Estimate, Estimator, Exact, MonteCarlo
from leanbayes.posteriors import Family, Normal, RandomWeight
from leanbayes.priors import Prior, PriorLike, resolve_priors
from leanbayes.propagate import PROPAGATIONS
from leanbayes.propagate.covariance import draw_covariance
from leanbayes.propagate.moments import draw_moments
from leanbayes.propagate.stand_in import draw_of
from leanbayes.subspace import (
    Subspace,
    Summary,
    TensorSummary,
    dense_name,
    densify,
    everything,
    scatters,
    slots_of,
    sparse_state,
)

__all__ = ["Bayesian"]

Weights = Mapping[str, RandomWeight]


class Coordinates(nn.Module):
    """What randomness adds to one tensor: k raw scales, k positions (none if all are random), its prior's memory."""

    index: Tensor | None
    memory: Tensor | None

    def __init__(self, rho: Tensor, index: Tensor | None, memory: Tensor | None) -> None:
        super().__init__()
        self.rho = nn.Parameter(rho)
        self.register_buffer("index", index)
        self.register_buffer("memory", memory)


class Bayesian(nn.Module):
    """A model some of whose weights are random; the model itself is not edited.

    Its own parameters are the means. Beside them stand only k scales and k positions for k random coordinates:
    (1 + r)θ trainable numbers. Every forward pass draws; `at_mean` and `frozen` are the two explicit exceptions.
    ``train()`` and ``eval()`` mean what they mean in torch, and nothing else.

    Args:
        model: any module. Frozen parameters, buffers, ties, dtypes and devices are respected.
        subspace: which coordinates are random; by default all.
        posterior: how they are distributed.
        prior: a torch distribution, a `leanbayes.Prior`, or a mapping of globs to them.
        propagate: "sample", "mirrored", "local", "flipout", "moments" or "covariance".
        kl: how the divergence is computed.
        generator: for the initial scales, where they are random.

    >>> bnn = Bayesian(nn.Linear(3, 2), subspace=everything())
    >>> bnn(torch.ones(4, 3)).shape, bnn.kl().item() > 0
    (torch.Size([4, 2]), True)
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        subspace: Subspace | None = None,
        posterior: Family | None = None,
        prior: PriorLike | None = None,
        propagate: str = "sample",
        kl: Estimator | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        if any(isinstance(module, Bayesian) for module in model.modules()):
            raise InputError("the model, or a part of it, is Bayesian already; convert the plain model instead")
        if propagate not in PROPAGATIONS:
            raise UnknownName.of("propagation", propagate, PROPAGATIONS)
        self.model = model
        self.posterior: Family = posterior or Normal()
        self.propagate = propagate
        self.kl_estimator: Estimator = kl or Exact()
        self.prior: PriorLike = TorchNormal(0.0, 1.0) if prior is None else prior
        selection = (subspace or everything()).select(model)
        named = resolve_priors(self.prior, [dense_name(name) for name in selection])
        self._priors: dict[str, Prior] = {name: named[dense_name(name)] for name in selection}
        self.coordinates = nn.ModuleDict()
        parameters = dict(model.named_parameters())
        transposed = {module.weight for module in model.modules() if isinstance(module, _ConvTransposeNd)}
        sparse = scatters(model)
        for name, index in selection.items():
            if name in sparse and getattr(self.posterior, "per", "weight") != "weight":
                raise InputError(f'{dense_name(name)!r} is sparse: its filters are not whole; use per="weight"')
            mean = parameters[name].detach()
            start = mean if index is None else mean.flatten().index_select(0, index)
            memory = self._priors[name].remember(start)
            rho = _initial_rho(self.posterior, name, start, index, parameters[name] in transposed, generator)
            self.coordinates[_key(name)] = Coordinates(rho, index, memory)
        self._held: dict[str, Tensor] | None = None
        self._own_generator = "generator" in inspect.signature(model.forward).parameters
        self._check_kl()

    def forward(self, *args: Any, generator: torch.Generator | None = None, **kwargs: Any) -> Any:
        """One stochastic pass: whatever the model takes, and whatever it returns.

        ``generator`` makes the draw reproducible; a model whose own forward has a ``generator`` argument keeps it.
        """
        if self._own_generator and generator is not None:
            kwargs, generator = {**kwargs, "generator": generator}, None
        return self.call(self.weights(), args, kwargs, generator=generator)

    def call(
        self,
        weights: Weights,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        propagate: str | None = None,
        generator: torch.Generator | None = None,
    ) -> Any:
        """One pass with given random weights (see `weights`), so that several passes and the KL share them."""
        if torch.is_grad_enabled() and any(getattr(m, "gradient_checkpointing", False) for m in self.model.modules()):
            raise InputError(
                "the model checkpoints its activations: the backward pass would compute them again at the means, not "
                "at this draw; turn gradient checkpointing off"
            )
        if self._held is not None:
            tensors = {name: weights[name].sample(noise) for name, noise in self._held.items()}
        else:
            chosen = propagate or self.propagate
            if chosen not in PROPAGATIONS:
                raise UnknownName.of("propagation", chosen, PROPAGATIONS)
            stand_in = PROPAGATIONS[chosen]
            tensors = {name: stand_in(weight, generator) for name, weight in weights.items()}
        returned = call_with(self.model, tensors, args, kwargs)
        return map_tensors(lambda value: draw_covariance(draw_moments(draw_of(value), generator), generator), returned)

    def weights(self) -> dict[str, RandomWeight]:
        """The random weights as they are now, by name: their scales are computed once, when first needed."""
        parameters = dict(self.model.named_parameters())
        return {
            name: RandomWeight(name, parameters[name], parts.index, None, self.posterior, parts.rho)
            for name, parts in self.parts()
        }

    def parts(self) -> Iterator[tuple[str, Coordinates]]:
        """Each random tensor's name, and what randomness adds to it."""
        for key, parts in self.coordinates.items():
            assert isinstance(parts, Coordinates)
            yield _name(key), parts

    def draw(self, samples: int | None = None, *, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Weight samples by name, for `torch.func.functional_call`; with ``samples``, stacked for `torch.func.vmap`."""
        return {name: weight.sample(weight.noise(generator, samples)) for name, weight in self.weights().items()}

    def kl(self, weights: Weights | None = None, *, generator: torch.Generator | None = None) -> Tensor:
        """KL(q‖p) in nats, summed over every random coordinate. A Monte Carlo estimator draws from ``generator``."""
        weights = self.weights() if weights is None else weights
        parts = [self.kl_estimator(weight, law, generator) for weight, law in self._with_priors(weights)]
        return torch.stack([part.to(parts[0].device) for part in parts]).sum()

    def kl_estimate(self, *, generator: torch.Generator | None = None) -> Estimate:
        """KL(q‖p) with its standard error, and how many draws it took; no gradient. For a Monte Carlo estimator."""
        if not isinstance(self.kl_estimator, MonteCarlo):
            raise InputError("the KL of this model is exact and has no standard error; take kl(), or kl=MonteCarlo(M)")
        found = [self.kl_estimator.estimate(*pair, generator) for pair in self._with_priors(self.weights())]
        methods, ways = ({getattr(one, name) for one in found} for name in ("method", "statistics"))
        return Estimate(
            sum(one.value for one in found),
            math.sqrt(sum(one.standard_error**2 for one in found)),
            self.kl_estimator.samples,
            methods.pop() if len(methods) == 1 else "direct",
            ", ".join(sorted(ways)),
        )

    def entropy(self, weights: Weights | None = None) -> Tensor:
        """H(q) in nats, summed over every random coordinate."""
        weights = self.weights() if weights is None else weights
        parts = [weight.widened().distribution().entropy().sum() for weight in weights.values()]
        return torch.stack([part.to(parts[0].device) for part in parts]).sum()

    @contextmanager
    def at_mean(self) -> Iterator[None]:
        """Inside, every pass is the plain model at the means."""
        yield from self._hold({})

    @contextmanager
    def frozen(self, generator: torch.Generator | None = None) -> Iterator[None]:
        """Inside, every pass uses the same draw: one network. Its noise is held, so gradients still flow."""
        with torch.no_grad():
            noise = {name: weight.noise(generator) for name, weight in self.weights().items()}
        yield from self._hold(noise)

    def parameter_groups(
        self, *, lr: float | None = None, scale_lr: float | None = None, weight_decay: float | None = None
    ) -> list[dict[str, Any]]:
        """Means and scales apart, for an optimizer: weight decay is for the means only.

        >>> groups = Bayesian(nn.Linear(2, 1)).parameter_groups(lr=0.1, scale_lr=0.5, weight_decay=1e-4)
        >>> [(group["lr"], group["weight_decay"]) for group in groups]
        [(0.1, 0.0001), (0.5, 0.0)]
        """
        means = [p for p in self.model.parameters() if p.requires_grad]
        scales = [parts.rho for _, parts in self.parts() if parts.rho.requires_grad]
        groups: list[dict[str, Any]] = [{"params": means}, {"params": scales, "weight_decay": 0.0}]
        if weight_decay is not None:
            groups[0]["weight_decay"] = weight_decay
        for group, rate in zip(groups, (lr, lr if scale_lr is None else scale_lr), strict=True):
            if rate is not None:
                group["lr"] = rate
        return [group for group in groups if group["params"]]

    def summary(self) -> Summary:
        """How many coordinates of each tensor are random.

        >>> Bayesian(nn.Linear(2, 1)).summary().random
        3
        """
        random, sparse = {name: weight.count for name, weight in self.weights().items()}, scatters(self.model)
        rows = []
        for slot in slots_of(self.model):
            shape, stored = tuple(slot.parameter.shape), None
            if slot.name in sparse:
                shape, stored = sparse[slot.name].shape, slot.parameter.numel()
            rows.append(TensorSummary(dense_name(slot.name), shape, math.prod(shape), random.get(slot.name, 0), stored))
        return Summary(tuple(rows))

    def densify(self) -> nn.Module:
        """A plain copy of the model at the means; weights that are stored sparse are dense in it."""
        return densify(self.model)

    def sparse_state(self) -> dict[str, Tensor]:
        """The state of that copy, sparse weights as ``torch.sparse_coo`` tensors of what is stored."""
        return sparse_state(self.model)

    def extra_repr(self) -> str:
        """What is random, and how."""
        summary = self.summary()
        return f"random={summary.random} of {summary.size}, posterior={self.posterior}, propagate={self.propagate!r}"

    def _with_priors(self, weights: Weights) -> Iterator[tuple[RandomWeight, Distribution]]:
        for name, parts in self.parts():
            weight = weights[name]
            yield weight, self._priors[name].distribution(weight, parts.memory)

    def _check_kl(self) -> None:
        """Fail at once, not after the first epoch, where the divergence is unknown or infinite."""
        probe = self.kl_estimator
        if isinstance(probe, MonteCarlo):
            probe = replace(probe, samples=1)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for weight, law in self._with_priors(self.weights()):
                one = probe(weight, law, None)
                if weight.mean.device.type != "meta" and not torch.isfinite(one):
                    raise InputError(
                        f"KL(q‖p) of {weight.name!r} is {one.item()} for the prior {law}: the prior must give density "
                        "to every value that the posterior can take, and the model's weights must be finite"
                    )

    def _hold(self, noise: dict[str, Tensor]) -> Iterator[None]:
        before, self._held = self._held, noise
        try:
            yield
        finally:
            self._held = before


def refuse_random_parts(model: nn.Module) -> None:
    """A plain module with a Bayesian part has neither one KL nor one draw: it must be converted as a whole."""
    if not isinstance(model, Bayesian) and any(isinstance(module, Bayesian) for module in model.modules()):
        raise InputError(
            "a part of the model is Bayesian, the whole is not; convert the plain whole: Bayesian(model, subspace=...)"
        )


def _initial_rho(
    posterior: Family,
    name: str,
    weights: Tensor,
    index: Tensor | None,
    transposed: bool,
    generator: torch.Generator | None,
) -> Tensor:
    """Where the scales start; those of a transposed convolution's filters lie along its second axis."""
    if not (isinstance(posterior, Normal) and posterior.per == "filter"):
        return posterior.initial(weights, generator)
    if index is not None:
        raise InputError(
            f'per="filter" shares one scale among the weights of a filter, but only {index.numel()} of {name!r} are '
            'random; use per="weight", or choose whole layers: leanbayes.layers(...)'
        )
    if not transposed:
        return posterior.initial(weights, generator)
    return posterior.initial(weights.transpose(0, 1), generator).transpose(0, 1).contiguous()


def _key(name: str) -> str:
    """A child's name may hold no dot and shadow no attribute: "fc.weight" becomes "/fc/weight", a JSON pointer."""
    return "/" + name.replace("~", "~0").replace("/", "~1").replace(".", "/")


def _name(key: str) -> str:
    return key[1:].replace("/", ".").replace("~1", "/").replace("~0", "~")
