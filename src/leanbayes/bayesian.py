"""`Bayesian` joins a model with its subspace, posterior, prior, propagations and KL."""

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.distributions import Normal as TorchNormal
from torch.nn.modules.conv import _ConvTransposeNd

from leanbayes._calls import Inputs, call, call_with, require_generator
from leanbayes._wrappers import Pass, unwrap
from leanbayes.errors import InputError
from leanbayes.kl import Estimate, Estimator, Exact, MonteCarlo
from leanbayes.posteriors import Family, Normal, RandomWeight
from leanbayes.priors import Prior, PriorLike, resolve_priors
from leanbayes.propagate import Propagation, PropagationLike, as_propagation
from leanbayes.propagate.propagation import Weights
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


class Coordinates(nn.Module):
    """What randomness adds to one tensor of the model.

    Args:
        rho: the k raw scales, which training changes.
        index: the k positions in the flattened tensor; None if all coordinates are random.
        memory: what the prior remembers of the tensor's first values; None for most priors.
    """

    index: Tensor | None
    memory: Tensor | None

    def __init__(self, rho: Tensor, index: Tensor | None, memory: Tensor | None) -> None:
        super().__init__()
        self.rho = nn.Parameter(rho)
        self.register_buffer("index", index)
        self.register_buffer("memory", memory)

    def without(self, gone: Tensor, shape: torch.Size) -> "Coordinates | None":
        """Return what the flat mask ``gone`` over a tensor of ``shape`` leaves of the coordinates; None if nothing."""
        stays = ~gone if self.index is None else ~gone[self.index.long()]
        if stays.all():
            return self
        if not stays.any():
            return None
        if self.index is None:
            index = stays.nonzero().squeeze(1).to(torch.int32 if stays.numel() < 2**31 else torch.int64)
        else:
            shape, index = self.index.shape, self.index[stays]
        memory = None if self.memory is None else self.memory.expand(shape).flatten()[stays]
        fewer = Coordinates(self.rho.detach().expand(shape).flatten()[stays], index, memory)
        fewer.rho.requires_grad_(self.rho.requires_grad)
        return fewer.train(self.training)


class Bayesian(nn.Module):
    """A model with random weights. The model itself stays as it is.

    The parameters of the model are the means of the random weights. For k random coordinates this class adds k scales
    and k positions, and nothing else. Every forward pass is random; `at_mean` and `frozen` are the two exceptions.
    ``train()`` and ``eval()`` mean what they mean in torch.

    Args:
        model: any module. Frozen parameters, buffers, ties, dtypes and devices are respected.
        subspace: which coordinates are random; by default all.
        posterior: how the random coordinates are distributed; by default `leanbayes.posteriors.Normal`.
        prior: a torch distribution, a `leanbayes.priors.Prior`, or a mapping of globs to them; by default N(0, 1).
        propagate: how randomness passes through the network in training and in ``bnn(x)``: a value of
            `leanbayes.propagate`, or its name ("sample", "mirrored", "local", "flipout", "moments", "covariance").
        predict_by: how it passes in `leanbayes.predict`. By default the same as ``propagate``, except that "mirrored"
            is followed by "sample", because mirrored draws couple the examples of a batch.
        kl: how the divergence from posterior to prior is computed; by default in closed form.
        generator: draws the initial scales of posteriors whose initial scales are random.

    >>> bnn = Bayesian(nn.Linear(3, 2), propagate="mirrored")
    >>> bnn(torch.ones(4, 3)).shape, bnn.kl().item() > 0, bnn.predict_by
    (torch.Size([4, 2]), True, Sample())
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        subspace: Subspace | None = None,
        posterior: Family | None = None,
        prior: PriorLike | None = None,
        propagate: PropagationLike = "sample",
        predict_by: PropagationLike | None = None,
        kl: Estimator | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _check_arguments(model, subspace, posterior, kl)
        require_generator(generator)
        if any(isinstance(module, Bayesian) for module in model.modules()):
            raise InputError("the model, or a part of it, is Bayesian already; convert the plain model instead")
        self.model = model
        self.posterior: Family = posterior or Normal()
        self._propagate = as_propagation(propagate)
        self._predict_by = None if predict_by is None else as_propagation(predict_by)
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

    @property
    def propagate(self) -> Propagation:
        """How randomness passes through the network in training; a name may be assigned, too."""
        return self._propagate

    @propagate.setter
    def propagate(self, value: PropagationLike) -> None:
        self._propagate = as_propagation(value)

    @property
    def predict_by(self) -> Propagation:
        """How randomness passes through the network in predictions; a name may be assigned, and None for the default.

        The default follows ``propagate``; see `leanbayes.propagate.Propagation.for_prediction`.
        """
        return self._propagate.for_prediction if self._predict_by is None else self._predict_by

    @predict_by.setter
    def predict_by(self, value: PropagationLike | None) -> None:
        self._predict_by = None if value is None else as_propagation(value)

    @property
    def held(self) -> bool:
        """Whether every pass uses the same weights at present: inside `at_mean` and `frozen`."""
        return self._held is not None

    def forward(self, *args: Any, generator: torch.Generator | None = None, **kwargs: Any) -> Any:
        """Run one random pass. The arguments are those of the model, and so is the type of what comes back.

        ``generator`` makes the draw reproducible. A model whose own forward has an argument ``generator`` gets it.
        """
        if args and isinstance(args[0], Pass):  # a loss that is computed inside a wrapper's forward
            return args[0](self, *args[1:])
        if self._own_generator and generator is not None:
            kwargs, generator = {**kwargs, "generator": generator}, None
        return self.call(self.weights(), args, kwargs, generator=generator)

    def call(
        self,
        weights: Weights,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        *,
        propagate: PropagationLike | None = None,
        generator: torch.Generator | None = None,
    ) -> Any:
        """Run one random pass with the given weights (see `weights`), so that several passes and the KL share them."""
        by = self.propagate if propagate is None else as_propagation(propagate)
        return by.drawn(self._run(weights, args, kwargs, by, generator), generator)

    def run(
        self,
        weights: Weights | None,
        x: Inputs,
        by: Propagation,
        generator: torch.Generator | None = None,
    ) -> Any:
        """Run one pass under a propagation and return what the model itself returns.

        Tensors that depend on random weights are then of the propagation's own kind: under moments, for example, they
        are known by mean and variance. `Propagation.drawn` turns them into plain tensors.

        Args:
            weights: the random weights (see `weights`); None for those of now.
            x: a batch: a tensor, a tuple of positional arguments or a mapping of keyword arguments.
            by: the propagation.
            generator: the source of all random numbers of this pass.
        """
        chosen = self.weights() if weights is None else weights
        return call(lambda *args, **kwargs: self._run(chosen, args, kwargs, by, generator), x)

    def tensors(self, weights: Weights, by: Propagation, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Make the tensors that take the place of the random weights in one pass.

        Inside `at_mean` and `frozen` they are plain weights, the same in every pass; otherwise the propagation makes
        them.
        """
        if self._held is not None:
            return {name: weights[name].sample(noise) for name, noise in self._held.items()}
        return by.stand_ins(weights, self.model, generator)

    def _run(
        self,
        weights: Weights,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        by: Propagation,
        generator: torch.Generator | None,
    ) -> Any:
        if torch.is_grad_enabled() and any(getattr(m, "gradient_checkpointing", False) for m in self.model.modules()):
            raise InputError(
                "the model checkpoints its activations: the backward pass would compute them again at the means, not "
                "at this draw; turn gradient checkpointing off"
            )
        tensors = self.tensors(weights, by, generator)
        return call_with(self.model, tensors, by.prepare(args), by.prepare(kwargs))

    def weights(self) -> dict[str, RandomWeight]:
        """Return the random weights as they are now, by name. Their scales are computed once, when first needed."""
        parameters = dict(self.model.named_parameters())
        return {
            name: RandomWeight(name, parameters[name], parts.index, None, self.posterior, parts.rho)
            for name, parts in self.parts()
        }

    def parts(self) -> Iterator[tuple[str, Coordinates]]:
        """Yield the name of each random tensor, and what randomness adds to it."""
        for key, parts in self.coordinates.items():
            assert isinstance(parts, Coordinates)
            yield _name(key), parts

    def draw(self, samples: int | None = None, *, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Draw weights by name, for `torch.func.functional_call`; with ``samples``, stacked for `torch.func.vmap`."""
        return {name: weight.sample(weight.noise(generator, samples)) for name, weight in self.weights().items()}

    def kl(self, weights: Weights | None = None, *, generator: torch.Generator | None = None) -> Tensor:
        """Compute KL(q‖p) in nats, summed over all random coordinates; a Monte Carlo estimator uses ``generator``."""
        weights = self.weights() if weights is None else weights
        parts = [self.kl_estimator(weight, law, generator) for weight, law in self._with_priors(weights)]
        return torch.stack([part.to(parts[0].device) for part in parts]).sum()

    def kl_estimate(self, *, generator: torch.Generator | None = None) -> Estimate:
        """Compute KL(q‖p) with its standard error, without gradients. The model must have a Monte Carlo estimator."""
        if not isinstance(self.kl_estimator, MonteCarlo):
            raise InputError("the KL of this model is exact and has no standard error; take kl(), or kl=MonteCarlo(M)")
        estimates = [self.kl_estimator.estimate(*pair, generator) for pair in self._with_priors(self.weights())]
        methods, statistics = ({getattr(e, name) for e in estimates} for name in ("method", "statistics"))
        return Estimate(
            sum(estimate.value for estimate in estimates),
            math.sqrt(sum(estimate.standard_error**2 for estimate in estimates)),
            self.kl_estimator.samples,
            methods.pop() if len(methods) == 1 else "direct",
            ", ".join(sorted(statistics)),
        )

    def entropy(self, weights: Weights | None = None) -> Tensor:
        """Compute the entropy H(q) in nats, summed over all random coordinates."""
        weights = self.weights() if weights is None else weights
        parts = [weight.widened().distribution().entropy().sum() for weight in weights.values()]
        return torch.stack([part.to(parts[0].device) for part in parts]).sum()

    @contextmanager
    def at_mean(self) -> Iterator[None]:
        """Inside this context, every pass is the plain model at the means."""
        yield from self._hold({})

    @contextmanager
    def frozen(self, generator: torch.Generator | None = None) -> Iterator[None]:
        """Inside this context, every pass uses the same weight draw. Gradients still reach means and scales."""
        with torch.no_grad():
            noise = {name: weight.noise(generator) for name, weight in self.weights().items()}
        yield from self._hold(noise)

    def parameter_groups(
        self, *, lr: float | None = None, scale_lr: float | None = None, weight_decay: float | None = None
    ) -> list[dict[str, Any]]:
        """Return the means and the scales as two groups for an optimizer; weight decay applies to the means only.

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
        """Count how many coordinates of each tensor are random.

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

    def random_tensors(self) -> Iterator[tuple[nn.Parameter, Tensor, Tensor]]:
        """Yield each parameter that has random entries, with its mean and variance."""
        parameters = dict(self.model.named_parameters())
        for name, weight in self.weights().items():
            yield parameters[name], weight.mean, weight.widened().variance()

    def make_certain(self, kept: Mapping[nn.Parameter, Tensor]) -> None:
        """Take away, in place, the randomness of pruned weights: scales and positions of the others remain.

        Args:
            kept: for parameters that were pruned, which of their entries stay.
        """
        parameters = dict(self.model.named_parameters())
        if (
            isinstance(self.posterior, Normal) and self.posterior.per == "filter"
        ):  # a filter with holes has no one scale
            for name, random in self.parts():
                rho = random.rho.detach().expand(parameters[name].shape).clone()
                random.rho = nn.Parameter(rho, random.rho.requires_grad)
            self.posterior = replace(self.posterior, per="weight")
        for key, (name, random) in zip(list(self.coordinates), list(self.parts()), strict=True):
            if parameters[name] in kept:
                fewer = random.without(~kept[parameters[name]].flatten(), parameters[name].shape)
                if fewer is None:
                    del self.coordinates[key]
                else:
                    self.coordinates[key] = fewer
        if isinstance(self.prior, Mapping):  # a pattern that matches nothing is an error when the model is built again
            names = [name for name, _ in self.parts()]
            self.prior = {glob: law for glob, law in self.prior.items() if any(fnmatchcase(n, glob) for n in names)}

    def networks(self, draws: int, source: torch.Generator) -> list[Callable[[Tensor], Any]]:
        """Return weight draws as differentiable functions of a batch, each with seeds of its own from ``source``."""
        if self._held is not None:
            return [self]
        device = next(self.model.parameters()).device

        def network(x: Tensor, seed: int) -> Any:
            with torch.no_grad():
                tensors = self.draw(generator=torch.Generator(device=device).manual_seed(seed))
            return call_with(self.model, tensors, (x,), {})

        seeds = [int(torch.randint(2**63 - 1, (), generator=source)) for _ in range(draws)]
        return [partial(network, seed=seed) for seed in seeds]

    def densify(self) -> nn.Module:
        """Return a plain copy of the model at the means; weights that are stored sparse are dense in it."""
        return densify(self.model)

    def sparse_state(self) -> dict[str, Tensor]:
        """Return the state of the model with sparse weights as ``torch.sparse_coo`` tensors of the stored entries."""
        return sparse_state(self.model)

    def extra_repr(self) -> str:
        """Describe what is random, and how."""
        summary = self.summary()
        return (
            f"random={summary.random} of {summary.size}, posterior={self.posterior}, propagate={self.propagate}, "
            f"predict_by={self.predict_by}"
        )

    def _with_priors(self, weights: Weights) -> Iterator[tuple[RandomWeight, Distribution]]:
        for name, parts in self.parts():
            weight = weights[name]
            yield weight, self._priors[name].distribution(weight, parts.memory)

    def _check_kl(self) -> None:
        """Raise now, and not after the first epoch, if the divergence is unknown or infinite."""
        probe = self.kl_estimator
        if isinstance(probe, MonteCarlo):
            probe = replace(probe, samples=1)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            for weight, law in self._with_priors(self.weights()):
                divergence = probe(weight, law, None)
                if weight.mean.device.type != "meta" and not torch.isfinite(divergence):
                    raise InputError(
                        f"KL(q‖p) of {weight.name!r} is {divergence.item()} for the prior {law}: the prior must give "
                        "density to every value that the posterior can take, and the model's weights must be finite"
                    )

    def _hold(self, noise: dict[str, Tensor]) -> Iterator[None]:
        before, self._held = self._held, noise
        try:
            yield
        finally:
            self._held = before


def _check_arguments(model: Any, subspace: Any, posterior: Any, kl: Any) -> None:
    """Raise if an argument is a name, a class or a function where a value is needed."""
    inner = unwrap(model)
    if inner is not model:
        name = "torch.compile" if hasattr(model, "_orig_mod") else type(model).__name__
        raise InputError(
            f"the model is inside a {type(model).__name__}; convert the module inside and wrap the result: "
            f"{name}(Bayesian(model))"
        )
    if any(isinstance(module, torch.jit.ScriptModule) for module in inner.modules()):
        raise InputError(
            "the model, or a part of it, is traced or scripted by torch.jit, which fixes its weights in compiled code; "
            "convert the module that it was made of"
        )
    kinds: tuple[tuple[str, Any, Any, str], ...] = (
        ("subspace", subspace, Subspace, "leanbayes.top_k(scores, rate=0.01) or leanbayes.everything()"),
        ("posterior", posterior, Family, "leanbayes.posteriors.Normal()"),
        ("kl", kl, Callable, "leanbayes.Exact() or leanbayes.MonteCarlo(1000)"),
    )
    for name, value, kind, example in kinds:
        if value is not None and (isinstance(value, type) or not isinstance(value, kind)):
            raise InputError(f"{name} must be a value such as {example}, got {value!r}")


def refuse_random_parts(model: nn.Module) -> None:
    """Raise if a plain module has a Bayesian part: it has neither one KL nor one draw, and must be converted whole."""
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
    """The scales at the start. The filters of a transposed convolution lie along its second axis."""
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
