"""The evidence lower bound (ELBO) and the schedules of its KL weight. A KL is scaled here and nowhere else."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from leanbayes._calls import Inputs, batch_size, call, prediction_tensor, require_function, require_generator
from leanbayes._wrappers import computed_inside, refuse_bare, unwrap
from leanbayes.bayesian import Bayesian, refuse_random_parts
from leanbayes.errors import InputError, NonFinite, UnknownName
from leanbayes.likelihood import Likelihood
from leanbayes.likelihood.base import require_likelihood
from leanbayes.propagate import PropagationLike, as_propagation

__all__ = ["Anneal", "Constant", "Elbo", "Schedule", "Terms", "WarmUp", "anneal", "constant", "elbo", "warm_up"]


Schedule = Callable[[float], float]
"""A KL weight as a function of the share of training that is done, from 0 to 1."""


@dataclass(frozen=True)
class Terms:
    """How the two terms of the evidence lower bound, the likelihood and the KL, are estimated and weighed.

    `elbo` and `fit` take this record where they take a KL weight: ``kl_weight=0.1`` is a shorthand for
    ``kl_weight=Terms(0.1)``.

    Args:
        kl_weight: the weight of the KL, which the papers call β. 1 is the true evidence lower bound. `fit` also takes a
            function of the share of training that is done, or the name of one: "constant", "anneal" or "warm_up".
        samples: how many draws of the weights each loss averages.
        last_layer_samples: how many draws of the last layer each of these averages, given the input of that layer. They
            make the loss less noisy, at little cost (Nazarovs et al. 2021, section 4.2).
        temperature: T of a tempered posterior, (likelihood · prior)^(1/T): the entropy of q counts T times.
        kl_per: "data" divides the KL by the number of examples, as the evidence lower bound does. "parameter" divides
            it by the number of random coordinates instead. This is not an ELBO; the public code of Abboud et al. 2024
            does it, so it serves to reproduce their results.

    >>> Terms(0.1, samples=2).kl_weight
    0.1
    >>> Terms(temperature=-1.0)
    Traceback (most recent call last):
        ...
    leanbayes.errors.InputError: temperature must be finite and at least 0, got -1.0
    """

    kl_weight: float | str | Schedule = 1.0
    samples: int = 1
    last_layer_samples: int = 1
    temperature: float = 1.0
    kl_per: Literal["data", "parameter"] = "data"

    def __post_init__(self) -> None:
        if not (isinstance(self.kl_weight, str) or callable(self.kl_weight)):
            try:
                number = float(self.kl_weight)
            except (TypeError, ValueError):
                raise InputError(
                    "kl_weight must be a number, a function of the progress of training or the name of one, got "
                    f"{self.kl_weight!r}"
                ) from None
            object.__setattr__(self, "kl_weight", _weight("kl_weight", number))
        for name in ("samples", "last_layer_samples"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")
        _weight("temperature", self.temperature)
        if self.kl_per not in ("data", "parameter"):
            raise UnknownName.of("kl_per", self.kl_per, ["data", "parameter"])

    @classmethod
    def of(cls, kl_weight: "float | str | Schedule | Terms", **others: Any) -> "Terms":
        """Return the record that the arguments of `elbo` or `fit` describe.

        Args:
            kl_weight: a weight of the KL, or a whole record. A record holds the other settings itself.
            others: the other settings by name.

        >>> Terms.of(0.1, samples=2) == Terms(0.1, samples=2)
        True
        """
        if not isinstance(kl_weight, Terms):
            return cls(kl_weight, **others)
        defaults = {field.name: field.default for field in fields(cls)}
        twice = [name for name, value in others.items() if value != defaults[name]]
        if twice:
            name = twice[0]
            raise InputError(
                f"{name}={others[name]!r} stands beside kl_weight=Terms(...), which has {name}="
                f"{getattr(kl_weight, name)!r}; set {name} in the Terms alone"
            )
        return kl_weight

    def at(self, progress: float) -> "Terms":
        """Return these terms with the number that the KL weight is when a share ``progress`` of training is done.

        >>> Terms(WarmUp(0.5)).at(0.25).kl_weight
        0.5
        """
        weight = self.kl_weight
        if isinstance(weight, str):
            raise InputError(
                f"only fit resolves the name {weight!r} of a schedule; give its function, such as warm_up()"
            )
        return replace(self, kl_weight=weight(progress)) if callable(weight) else self


@dataclass(frozen=True)
class Elbo:
    """The loss that training minimises, and its parts in nats.

    ``nll`` is the mean negative log-likelihood of one example, and ``kl`` is the divergence of the whole model.
    """

    loss: Tensor
    nll: Tensor
    kl: Tensor


def elbo(
    bnn: nn.Module,
    x: Inputs,
    y: Tensor,
    likelihood: Likelihood,
    *,
    n_data: int,
    samples: int = 1,
    last_layer_samples: int = 1,
    kl_weight: float | Terms = 1.0,
    temperature: float = 1.0,
    kl_per: Literal["data", "parameter"] = "data",
    with_kl: bool = True,
    propagate: PropagationLike | None = None,
    generator: torch.Generator | None = None,
    output: Callable[[Any], Any] = prediction_tensor,
    check: bool = True,
) -> Elbo:
    """Compute −ELBO / n_data = mean nll + kl_weight · KL / n_data, the loss of variational training.

    With ``kl_weight=1`` this is the true evidence lower bound (Abboud et al. 2024, eq. 1). Dividing all of it by
    ``n_data`` changes nothing for the optimizer, and keeps the learning rates of the plain model right.

    Args:
        bnn: a `Bayesian`; a plain module has a KL of 0. It may be inside DistributedDataParallel, which averages the
            gradients over processes, or another usual wrapper. The bare module of a living DistributedDataParallel over
            several processes is an error, because its copies would train apart.
        x: a batch of inputs.
        y: their targets.
        likelihood: scores the targets.
        n_data: the number of examples in the whole training set.
        samples: how many draws are averaged. Propagations of one pass, such as moments, draw the outputs alone.
        last_layer_samples: see `Terms`, as for the next three.
        kl_weight: the weight of the KL, or a `Terms` that holds this weight and the four other settings.
        temperature: T of a tempered posterior.
        kl_per: whether the KL is divided by the number of examples ("data") or of random coordinates ("parameter").
        with_kl: ``False`` leaves the KL out of the loss and does not compute it. Optimizers that own the scales
            (`leanbayes.optim`) need the likelihood alone, because they know the gradient of the KL in closed form.
        propagate: a propagation to use instead of ``bnn.propagate``.
        generator: the source of all random numbers.
        output: picks the tensor that is scored from what the model returns.
        check: whether to raise `leanbayes.errors.NonFinite` if the loss is NaN or infinite. On a GPU the program waits
            for the loss to read it. With ``False`` it does not wait, and the caller looks at the loss later, as `fit`
            does.

    Returns:
        The loss and its two parts.

    >>> bnn = Bayesian(nn.Linear(2, 3))
    >>> from leanbayes.likelihood import Categorical
    >>> parts = elbo(bnn, torch.zeros(4, 2), torch.zeros(4, dtype=torch.long), Categorical(), n_data=100)
    >>> bool(torch.isclose(parts.loss, parts.nll + parts.kl / 100))
    True
    """
    if not isinstance(n_data, int | float) or not n_data >= 1:
        raise InputError(f"n_data must be a number of at least 1, got {n_data!r}")
    require_likelihood(likelihood)
    require_generator(generator)
    require_function("output", output)
    terms = Terms.of(
        kl_weight, samples=samples, last_layer_samples=last_layer_samples, temperature=temperature, kl_per=kl_per
    )
    weight = terms.kl_weight
    if not isinstance(weight, float):
        raise InputError(
            f"elbo does not know how far training is, so it cannot follow the KL weight {weight!r}; give it the terms "
            "of one moment, such as terms.at(0.5)"
        )
    core = unwrap(bnn)
    refuse_random_parts(core)
    refuse_bare(bnn, likelihood.parameters())
    by = None if propagate is None else as_propagation(propagate)
    size = batch_size(x)
    if not isinstance(core, Bayesian):
        nll = likelihood.nll(output(call(bnn, x)), y) / size
        plain = Elbo(nll, nll, torch.zeros_like(nll))
        return _finite(plain, likelihood, y) if check else plain

    def parts(core: Bayesian, x: Inputs, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weights = core.weights()
        total = (by or core.propagate).expected_nll(
            *(core, weights, x, y, likelihood),
            samples=terms.samples,
            last_layer_samples=terms.last_layer_samples,
            generator=generator,
            output=output,
        )
        nll = total / size
        if not with_kl:
            return nll, nll, torch.zeros_like(nll)
        kl = core.kl(weights, generator=generator).to(nll.device)
        heat = terms.temperature - 1
        cost = kl if heat == 0 else kl - heat * core.entropy(weights).to(nll.device)
        divisor = n_data if terms.kl_per == "data" else core.summary().random
        return nll + weight * cost / divisor, nll, kl

    whole = Elbo(*computed_inside(bnn, parts, x, y))
    return _finite(whole, likelihood, y) if check else whole


@dataclass(frozen=True)
class Constant:
    """The same weight throughout. 1 is the true ELBO; Abboud et al. 2024 use 0.01 for classification."""

    value: float = 1.0

    def __call__(self, progress: float) -> float:  # noqa: ARG002
        """Return the KL weight when a share ``progress`` of training, from 0 to 1, is done."""
        return self.value


@dataclass(frozen=True)
class Anneal:
    """A weight that runs linearly from ``initial`` to ``target``.

    Abboud et al. 2024 go from 0.2 to 0.01. Their printed formula runs backwards, which contradicts their text.
    """

    initial: float = 0.2
    target: float = 0.01

    def __call__(self, progress: float) -> float:
        """Return β = β_init + (β_target − β_init) · progress."""
        return self.initial + (self.target - self.initial) * progress


@dataclass(frozen=True)
class WarmUp:
    """A weight that grows linearly from 0 to ``target`` over the first ``fraction`` of training (SSVI, section 5)."""

    fraction: float = 0.5
    target: float = 1.0

    def __call__(self, progress: float) -> float:
        """Return β = target · min(1, progress / fraction)."""
        return self.target * min(1.0, progress / self.fraction)


def constant(value: float = 1.0) -> Schedule:
    """Make a schedule whose KL weight stays the same.

    >>> constant(0.01)(0.7)
    0.01
    """
    return Constant(_weight("value", value))


def anneal(initial: float = 0.2, target: float = 0.01) -> Schedule:
    """Make a schedule whose KL weight runs linearly from ``initial`` to ``target``.

    >>> [round(anneal(0.2, 0.01)(progress), 3) for progress in (0.0, 0.5, 1.0)]
    [0.2, 0.105, 0.01]
    """
    return Anneal(_weight("initial", initial), _weight("target", target))


def warm_up(fraction: float = 0.5, target: float = 1.0) -> Schedule:
    """Make a schedule whose KL weight grows from 0 to ``target`` during the first ``fraction`` of training.

    >>> [warm_up(0.5)(progress) for progress in (0.0, 0.25, 0.5, 1.0)]
    [0.0, 0.5, 1.0, 1.0]
    """
    if not 0 < fraction <= 1:
        raise InputError(f"fraction must be above 0 and at most 1, got {fraction}")
    return WarmUp(fraction, _weight("target", target))


def _weight(name: str, value: float) -> float:
    if not 0 <= value < float("inf"):
        raise InputError(f"{name} must be finite and at least 0, got {value}")
    return value


def _finite(parts: Elbo, likelihood: Likelihood, y: Any) -> Elbo:
    if not torch.isfinite(parts.loss):
        known = isinstance(y, Tensor) and y.numel() > 0 and not y.is_complex()
        targets = f"; the targets lie between {y.min().item():g} and {y.max().item():g}" if known else ""
        raise NonFinite(
            f"the loss is {parts.loss.item()}: nll {parts.nll.item()} ({type(likelihood).__name__}), "
            f"KL {parts.kl.item()}{targets}; "
            "check the inputs and targets for NaN, lower the learning rate, or start from smaller scales"
        )
    return parts
