"""`Bayesian` joins a model with its subspace, posterior, prior, propagations and KL."""

import inspect
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution
from torch.distributions import Normal as TorchNormal
from torch.nn.modules.conv import _ConvTransposeNd
from torch.nn.modules.module import register_module_forward_pre_hook

from leanbayes._calls import Inputs, call, call_with, require_generator
from leanbayes._passes import exclusive, inside_pass
from leanbayes._sharded_passes import run_sharded
from leanbayes._sharding import is_piece, piece_of, refuse_sharded
from leanbayes._tracing import eager, inside_law, opaque, settings_of
from leanbayes._wrappers import Pass, unwrap
from leanbayes.errors import InputError
from leanbayes.kl import Estimate, Estimator, Exact, MonteCarlo
from leanbayes.kl.pieces import sum_of_terms
from leanbayes.posteriors import Family, Normal, RandomWeight
from leanbayes.priors import Prior, PriorLike, resolve_priors
from leanbayes.propagate import OnePass, Propagation, PropagationLike, as_propagation
from leanbayes.propagate.propagation import Weights
from leanbayes.propagate.uses import Reuse, consistently
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

    def forward(self) -> Tensor:
        """Return the raw scales. The call lets torch gather them, where they are sharded together with their weight."""
        return self.rho

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


@dataclass(frozen=True)
class _Held:
    """The weights that every pass uses inside `Bayesian.at_mean`, `frozen` and `drawn`.

    Args:
        model: the plain model.
        noise: the noise of the held draw by name; the weights without noise are what the parameters hold.
        written: whether the draw is written into the parameters.
    """

    model: nn.Module
    noise: Mapping[str, Tensor]
    written: bool = False


# What is held belongs to the thread (or the task of asyncio) that holds it: {id of the Bayesian: what it holds}.
_HELD: ContextVar[Mapping[int, _Held]] = ContextVar("held weights", default={})  # noqa: B039


# While `leanbayes.load` puts a Bayesian together, the means are still in the file: what reads one of them, by the name
# and the parameter to which it belongs.
_MEANS: ContextVar[Callable[[str, Tensor], Tensor] | None] = ContextVar("means that are elsewhere", default=None)


@contextmanager
def means_from(read: Callable[[str, Tensor], Tensor]) -> Iterator[None]:
    """Inside this context, a `Bayesian` that is built takes its means from ``read`` and not from the parameters."""
    token = _MEANS.set(read)
    try:
        yield
    finally:
        _MEANS.reset(token)


class _Holders:
    """How many contexts hold weights, in all threads."""

    count = 0
    lock = threading.Lock()


_holders = _Holders()


class Bayesian(nn.Module):
    """A model with random weights. The model itself stays as it is.

    The parameters of the model are the means of the random weights. For k random coordinates this class adds k scales
    and k positions, and nothing else. Every forward pass is random; `at_mean`, `frozen` and `drawn` are the
    exceptions. ``train()`` and ``eval()`` mean what they mean in torch.

    Several threads may use one `Bayesian`. A pass replaces parameters of modules that they share, so the passes wait
    for each other, and what a thread holds (`at_mean`, `frozen`) is held in that thread alone. A weight that a pass
    uses more than once, such as a tied embedding, has one draw in that pass, whatever the propagation; "moments" and
    "covariance" refuse it. Activation checkpointing works with every propagation that draws weights.

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
        _refuse_compiled_code(model, selection)
        _refuse_shared_memory(model, selection)
        named = resolve_priors(self.prior, [dense_name(name) for name in selection])
        self._priors: dict[str, Prior] = {name: named[dense_name(name)] for name in selection}
        self.coordinates = nn.ModuleDict()
        parameters = dict(model.named_parameters())
        transposed = {module.weight for module in model.modules() if isinstance(module, _ConvTransposeNd)}
        sparse = scatters(model)
        for name, index in selection.items():
            if name in sparse and getattr(self.posterior, "per", "weight") != "weight":
                raise InputError(f'{dense_name(name)!r} is sparse: its filters are not whole; use per="weight"')
            read = _MEANS.get()
            mean = parameters[name].detach() if read is None else read(name, parameters[name])
            start = mean if index is None else mean.flatten().index_select(0, index)
            memory = self._priors[name].remember(start)
            rho = _initial_rho(self.posterior, name, start, index, parameters[name] in transposed, generator)
            parts = Coordinates(rho, index, memory)
            self._check_kl(RandomWeight(name, mean, index, None, self.posterior, parts.rho), memory)
            self.coordinates[_key(name)] = parts
        self.reuse = Reuse()
        self._own_generator = "generator" in inspect.signature(model.forward).parameters

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
        """Whether every pass of this thread uses the same weights at present: inside `at_mean`, `frozen`, `drawn`."""
        return self._held is not None

    @property
    def _held(self) -> _Held | None:
        if (
            torch.compiler.is_compiling() and not _holders.count
        ):  # compiled code can ask for a number, not for a context
            return None
        return _HELD.get().get(id(self))

    def forward(self, *args: Any, generator: torch.Generator | None = None, **kwargs: Any) -> Any:
        """Run one random pass. The arguments are those of the model, and so is the type of what comes back.

        ``generator`` makes the draw reproducible. A model whose own forward has an argument ``generator`` gets it.
        """
        if args and isinstance(args[0], Pass):  # a loss that is computed inside a wrapper's forward
            return args[0](self, *args[1:])
        if torch.compiler.is_dynamo_compiling() and not self._propagate.plain_draws:
            _get_ready_to_compile(self._propagate, self.posterior)
            if _holders.count or generator is not None:
                return _eager_forward(self, args, kwargs, [], generator)
            return _opaque_forward(self, args, kwargs, settings_of(self))
        return self._forward(args, kwargs, generator)

    def _forward(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], generator: torch.Generator | None) -> Any:
        if self._own_generator and generator is not None:
            kwargs, generator = {**kwargs, "generator": generator}, None
        return self.call(self._weights_or_none(), args, kwargs, generator=generator)

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
        chosen = self._weights_or_none() if weights is None else weights
        return call(lambda *args, **kwargs: self._run(chosen, args, kwargs, by, generator), x)

    def tensors(self, weights: Weights, by: Propagation, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Make the tensors that take the place of the random weights in one pass.

        Inside `at_mean`, `frozen` and `drawn` they are plain weights, the same in every pass; otherwise the propagation
        makes them.
        """
        held = self._held
        if held is not None:
            return {name: weights[name].sample(noise) for name, noise in held.noise.items()}
        return by.stand_ins(weights, self.model, generator)

    def _run(
        self,
        weights: Weights,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        by: Propagation,
        generator: torch.Generator | None,
    ) -> Any:
        args, kwargs = by.prepare(args), by.prepare(kwargs)

        def attempt() -> Any:
            if not self.held and any(is_piece(weight.mean) for weight in weights.values()):
                return run_sharded(self.model, weights, dict(self.parts()), (args, kwargs), by, generator)
            return call_with(self.model, self.tensors(weights, by, generator), args, kwargs)

        if by.plain_draws or isinstance(by, OnePass) or self.held:
            return attempt()
        with exclusive(self.model):
            return consistently(attempt, self.reuse, self.model, (args, kwargs), generator)

    def shard_scales(self) -> None:
        """Cut the scales as their weights are cut, after ``parallelize_module`` has cut the weights of the model.

        Build the optimizer afterwards, because the scales are new parameters. ``fully_shard`` needs no such call.
        """
        parameters = dict(self.model.named_parameters())
        for name, parts in self.parts():
            mean = parameters[name]
            if is_piece(mean) and parts.index is None and not is_piece(parts.rho):
                if parts.rho.shape != mean.shape:
                    raise InputError(
                        f'the weights of a filter share one scale in {name!r}, which is cut; use per="weight"'
                    )
                rho = piece_of(parts.rho.detach(), mean)
                parts.rho = nn.Parameter(rho, requires_grad=parts.rho.requires_grad)

    def scales_of(self, part: nn.Module) -> list[nn.Module]:
        """Return the modules that hold the scales of the random weights in a part of the model.

        ``fully_shard([part, *bnn.scales_of(part)])`` shards, gathers and frees the scales together with their weights.

        >>> bnn = Bayesian(nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1)))
        >>> len(bnn.scales_of(bnn.model[0]))
        2
        """
        inside = {id(parameter) for parameter in part.parameters()}
        parameters = dict(self.model.named_parameters())
        return [coordinates for name, coordinates in self.parts() if id(parameters[name]) in inside]

    def _weights_or_none(self) -> dict[str, RandomWeight]:
        """The random weights; none inside `drawn`, where the parameters hold a draw and not the means."""
        held = self._held
        return {} if held is not None and held.written else self.weights()

    def weights(self) -> dict[str, RandomWeight]:
        """Return the random weights as they are now, by name. Their scales are computed once, when first needed."""
        self._refuse_written("the means cannot be read")
        with self._alone():  # the pass of another thread may have replaced the parameters
            parameters = dict(self.model.named_parameters())
        gone = [name for name, _ in self.parts() if name not in parameters]
        if gone:
            raise InputError(
                f"{gone[0]!r} has random entries and is no parameter of the model any more; tie, prune or parametrize "
                "weights before you convert the model, and convert a changed model anew"
            )
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
        refuse_sharded(self.model, "a draw of all weights")
        return {name: weight.sample(weight.noise(generator, samples)) for name, weight in self.weights().items()}

    def kl(self, weights: Weights | None = None, *, generator: torch.Generator | None = None) -> Tensor:
        """Compute KL(q‖p) in nats, summed over all random coordinates; a Monte Carlo estimator uses ``generator``."""
        weights = self.weights() if weights is None else weights
        return self._sum(weights, lambda weight, law: self.kl_estimator(weight, law, generator))

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
        return self._sum(weights, lambda weight, law: weight.widened().distribution().entropy().sum())  # noqa: ARG005

    @contextmanager
    def at_mean(self) -> Iterator[None]:
        """Inside this context, every pass of this thread is the plain model at the means."""
        self._refuse_written("the means cannot be used")
        with self._holding(_Held(self.model, {})):
            yield

    @contextmanager
    def frozen(self, generator: torch.Generator | None = None) -> Iterator[None]:
        """Inside this context, every pass of this thread uses the same weight draw.

        Gradients still reach means and scales. The draw is used by ``bnn(...)``, `leanbayes.elbo` and
        `leanbayes.predict`. It is not written into the model, so ``bnn.model(...)`` and its other methods, such as
        ``bnn.model.generate(...)``, would not see it: they raise here. Use `drawn` for them. Other threads do not see
        the draw, either.
        """
        self._refuse_written("another draw cannot be held")
        refuse_sharded(self.model, "a draw of all weights")
        with torch.no_grad():
            noise = {name: weight.noise(generator) for name, weight in self.weights().items()}
        hook = register_module_forward_pre_hook(refuse_plain_call)
        try:
            with self._holding(_Held(self.model, noise)):
                yield
        finally:
            hook.remove()

    @contextmanager
    def drawn(self, generator: torch.Generator | None = None) -> Iterator[nn.Module]:
        """Inside this context, the parameters of the model hold one weight draw, and afterwards their means again.

        So everything that the model can do is done by that draw, also what is no call of the model, such as
        ``generate`` of a language model or an export. ``bnn(...)`` and `leanbayes.predict` use the draw, too. Gradients
        that are computed inside are those of the draw; they reach ``.grad`` of the means and no scales. The parameters
        are restored bit for bit, also after an exception. Other threads that use the model wait meanwhile.

        Yields:
            The plain model at the draw.

        >>> bnn = Bayesian(nn.Linear(2, 1))
        >>> mean = bnn.model.weight.clone()
        >>> with bnn.drawn() as network:
        ...     bool((network.weight == mean).any())
        False
        >>> bool((bnn.model.weight == mean).all())
        True
        """
        with exclusive(self.model):
            with torch.no_grad():
                values = self.draw(generator=generator)
            parameters = {name: self.model.get_parameter(name) for name in values}
            means = {name: parameter.data for name, parameter in parameters.items()}
            failed = False
            try:
                for name, parameter in parameters.items():
                    parameter.data = values[name].to(means[name].dtype)
                versions = {name: parameter._version for name, parameter in parameters.items()}
                with self._holding(_Held(self.model, {}, written=True)):
                    yield self.model
            except BaseException:
                failed = True
                raise
            finally:
                changed = [] if failed else [n for n, p in parameters.items() if p._version != versions[n]]
                for name, parameter in parameters.items():
                    parameter.data = means[name]
            if changed:
                raise InputError(
                    f"{changed[0]!r} was changed inside drawn(), where it holds a draw; the change is lost. Train "
                    "outside of drawn()"
                )

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
        if self.held:
            return [self]
        device = next(self.model.parameters()).device

        def network(x: Inputs, seed: int) -> Any:
            with torch.no_grad():
                tensors = self.draw(generator=torch.Generator(device=device).manual_seed(seed))
            return call(lambda *args, **kwargs: call_with(self.model, tensors, args, kwargs), x)

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

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Return the state of means, scales and positions, as a module of torch does."""
        self._refuse_written("the means cannot be read")
        with self._alone():
            return super().state_dict(*args, **kwargs)

    def _sum(self, weights: Weights, term: Callable[[RandomWeight, Distribution], Tensor]) -> Tensor:
        """Return the sum of a term over all random coordinates, also of weights that are cut into pieces."""
        exact, parts = isinstance(self.kl_estimator, Exact), []
        for name, coordinates in self.parts():
            weight, prior, memory = weights[name], self._priors[name], coordinates.memory
            if is_piece(weight.mean):
                parts.append(sum_of_terms(weight, prior, memory, term, exact=exact))
            else:
                parts.append(term(weight, inside_law(prior.distribution(weight, memory))))
        return torch.stack([part.to(parts[0].device) for part in parts]).sum()

    def _with_priors(self, weights: Weights) -> Iterator[tuple[RandomWeight, Distribution]]:
        for name, parts in self.parts():
            weight = weights[name]
            yield weight, inside_law(self._priors[name].distribution(weight, parts.memory))

    def _check_kl(self, weight: RandomWeight, memory: Tensor | None) -> None:
        """Raise now, and not after the first epoch, if the divergence is unknown or infinite."""
        probe = self.kl_estimator
        if isinstance(probe, MonteCarlo):
            probe = replace(probe, samples=1)
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            law = inside_law(self._priors[weight.name].distribution(weight, memory))
            divergence = probe(weight, law, None)
            if weight.mean.device.type != "meta" and not torch.isfinite(divergence):
                raise InputError(
                    f"KL(q‖p) of {weight.name!r} is {divergence.item()} for the prior {law}: the prior must give "
                    "density to every value that the posterior can take, and the model's weights must be finite"
                )

    @contextmanager
    def _holding(self, held: _Held) -> Iterator[None]:
        token = _HELD.set({**_HELD.get(), id(self): held})
        with _holders.lock:
            _holders.count += 1
        try:
            yield
        finally:
            _HELD.reset(token)
            with _holders.lock:
                _holders.count -= 1

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if torch.compiler.is_compiling():  # compiled code has no locks; the caller of compiled code holds them
            yield
            return
        with exclusive(self.model):
            yield

    def _refuse_written(self, what: str) -> None:
        held = self._held
        if held is not None and held.written:
            raise InputError(f"inside drawn() the parameters hold a draw: {what}; do that outside of drawn()")


def weights_are_held() -> bool:
    """Return whether the weights of any model are held, in any thread; compiled code can ask for this."""
    return _holders.count > 0


def _plain_forward(
    bnn: Bayesian,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    settings: list[Any],  # noqa: ARG001 - for the guards of dynamo
    generator: torch.Generator | None = None,
) -> Any:
    return bnn._forward(args, kwargs, generator)


_opaque_forward = _eager_forward = _plain_forward


def _get_ready_to_compile(*settings: Any) -> bool:  # noqa: ARG001
    """Make a pass one opaque call for dynamo, which runs this function while it traces and takes it for a constant.

    Args:
        settings: objects whose identity dynamo notes, so that it compiles anew if others take their place.
    """
    global _opaque_forward, _eager_forward
    if _opaque_forward is _plain_forward:
        _opaque_forward, _eager_forward = opaque(_plain_forward), eager(_plain_forward)
    return True


_get_ready_to_compile._dynamo_marked_constant = True  # type: ignore[attr-defined]


def refuse_plain_call(module: nn.Module, args: Any) -> None:  # noqa: ARG001
    """Raise if a module is called by itself while a draw of the model that it belongs to is held (`Bayesian.frozen`).

    It is a hook on all calls of modules. The draw is not in the parameters, so the call would not use it.
    """
    for held in _HELD.get().values():
        if held.noise and not inside_pass(held.model) and any(module is part for part in held.model.modules()):
            raise InputError(
                f"{type(module).__name__} is called by itself inside frozen(), and would ignore the draw: call the "
                "Bayesian, or use `with bnn.drawn():`, which writes one draw into the parameters"
            )


def _check_arguments(model: Any, subspace: Any, posterior: Any, kl: Any) -> None:
    """Raise if an argument is a name, a class or a function where a value is needed."""
    inner = unwrap(model)
    if inner is not model:
        name = "torch.compile" if hasattr(model, "_orig_mod") else type(model).__name__
        raise InputError(
            f"the model is inside a {type(model).__name__}; convert the module inside and wrap the result: "
            f"{name}(Bayesian(model))"
        )
    if any(is_piece(parameter) for parameter in model.parameters()):
        raise InputError(
            "the model is sharded already; convert the whole model, and shard the result (docs/sharded.md)"
        )
    kinds: tuple[tuple[str, Any, Any, str], ...] = (
        ("subspace", subspace, Subspace, "leanbayes.top_k(scores, rate=0.01) or leanbayes.everything()"),
        ("posterior", posterior, Family, "leanbayes.posteriors.Normal()"),
        ("kl", kl, Callable, "leanbayes.Exact() or leanbayes.MonteCarlo(1000)"),
    )
    for name, value, kind, example in kinds:
        if value is not None and (isinstance(value, type) or not isinstance(value, kind)):
            raise InputError(f"{name} must be a value such as {example}, got {value!r}")


def _refuse_compiled_code(model: nn.Module, selection: Iterable[str]) -> None:
    """Raise if a random weight belongs to a part that torch.jit has compiled; other parts may well be compiled."""
    scripted = [name for name, module in model.named_modules() if isinstance(module, torch.jit.ScriptModule)]
    for name in selection:
        if any(not part or name.startswith(f"{part}.") for part in scripted):
            raise InputError(
                f"{name!r} belongs to a part that is traced or scripted by torch.jit, which fixes its weights in "
                "compiled code; convert the module that it was made of, or leave that part out of the subspace"
            )


def _refuse_shared_memory(model: nn.Module, selection: Iterable[str]) -> None:
    """Raise if two parameters, one of them random, lie in one place of the memory, where one draw belongs to both."""
    random, names = set(selection), dict[tuple[torch.device, int], str]()
    for name, parameter in model.named_parameters():
        if type(parameter) is not nn.Parameter or parameter.layout is not torch.strided or parameter.is_meta:
            continue
        place = parameter.device, parameter.data_ptr()
        if parameter.numel() and place[1] and names.setdefault(place, name) != name and random & {name, names[place]}:
            raise InputError(
                f"{names[place]!r} and {name!r} are two parameters in one place of the memory, so their draws would "
                "differ although their values cannot; to tie weights, give the same Parameter to both modules"
            )


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
