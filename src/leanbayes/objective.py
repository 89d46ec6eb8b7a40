"""The ELBO and the schedules of its KL weight: the only place where a KL is scaled."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from leanbayes._calls import Inputs, batch_size, call, prediction_tensor
from leanbayes._covariance import covariance, draw_jointly, roots, variances
from leanbayes._last_layer import nll_of_last_layer
from leanbayes._moments import moments
from leanbayes.bayesian import Bayesian, refuse_random_parts
from leanbayes.errors import InputError, NonFinite, UnknownName
from leanbayes.likelihood import Likelihood

__all__ = ["Anneal", "Constant", "Elbo", "Schedule", "WarmUp", "anneal", "constant", "elbo", "warm_up"]


@dataclass(frozen=True)
class Elbo:
    """The loss to minimise, and its parts in nats: ``nll`` for one example, on average, ``kl`` for the whole model."""

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
    kl_weight: float = 1.0,
    temperature: float = 1.0,
    kl_per: Literal["data", "parameter"] = "data",
    with_kl: bool = True,
    propagate: str | None = None,
    generator: torch.Generator | None = None,
    output: Callable[[Any], Any] = prediction_tensor,
) -> Elbo:
    """−ELBO / n_data = mean nll + kl_weight · KL / n_data (000, eq. 1; 001, Algorithm 1).

    ``kl_weight`` 1 is the true evidence lower bound. Dividing all of it by n_data is equal for the optimizer, and keeps
    learning rates what they are for the plain model.

    Args:
        bnn: a `Bayesian`; a plain module has KL 0.
        x: a batch of inputs.
        y: their targets.
        likelihood: scores ``y``.
        n_data: examples in the whole training set.
        samples: draws whose nll is averaged; under "moments" and "covariance" of the outputs alone, after one pass.
        last_layer_samples: draws of the last layer, given its input, for each of these: less noise, cheaply (003, 4.2).
        kl_weight: the papers' β.
        temperature: T of a tempered posterior, (likelihood · prior)^(1/T): the entropy of q counts T times.
        kl_per: "parameter" divides the KL by the number of random coordinates instead of n_data, as the public
            code of 000 and 001 does with a mean; no ELBO any more, offered to reproduce them.
        with_kl: ``False`` leaves the KL out of the loss and does not compute it. Optimizers that own the scales
            (`leanbayes.optim`) need the likelihood alone, because they know the gradient of the KL in closed form.
        propagate: another propagation than the model's own.
        generator: for the draws.
        output: picks the tensor that matters from what the model returns.

    >>> bnn = Bayesian(nn.Linear(2, 3))
    >>> from leanbayes.likelihood import Categorical
    >>> found = elbo(bnn, torch.zeros(4, 2), torch.zeros(4, dtype=torch.long), Categorical(), n_data=100)
    >>> bool(torch.isclose(found.loss, found.nll + found.kl / 100))
    True
    """
    _check(n_data, min(samples, last_layer_samples), kl_weight, temperature, kl_per)
    refuse_random_parts(bnn)
    size = batch_size(x)
    if not isinstance(bnn, Bayesian):
        nll = likelihood.nll(output(call(bnn, x)), y) / size
        return _finite(Elbo(nll, nll, torch.zeros_like(nll)), likelihood)
    weights = bnn.weights()

    def one_pass(*args: Any, **kwargs: Any) -> Any:
        return bnn.call(weights, args, kwargs, propagate=propagate, generator=generator)

    chosen = propagate or bnn.propagate
    if last_layer_samples > 1 and chosen in ("moments", "covariance"):
        raise InputError(f"under propagate={chosen!r} no layer is drawn; leave last_layer_samples 1")
    if chosen == "moments":
        mean, variance = moments(bnn, x, weights=weights, output=output)
        nll = likelihood.expected_nll(mean, variance, y, samples=samples, generator=generator) / size
    elif chosen == "covariance":
        mean, spread = covariance(bnn, x, weights=weights, output=output)
        if type(likelihood).expected_nll is Likelihood.expected_nll:  # no closed form: outputs are drawn together
            factors = roots(spread)
            draws = [likelihood.nll(draw_jointly(mean, factors, generator), y) for _ in range(samples)]
            nll = torch.stack(draws).mean() / size
        else:
            nll = likelihood.expected_nll(mean, variances(mean, spread), y, samples=samples, generator=generator) / size
    elif last_layer_samples > 1:
        options: Any = {"propagate": chosen, "generator": generator, "output": output, "draws": last_layer_samples}
        draws = [nll_of_last_layer(bnn, weights, x, y, likelihood, **options) for _ in range(samples)]
        nll = torch.stack(draws).mean() / size
    else:
        nll = torch.stack([likelihood.nll(output(call(one_pass, x)), y) for _ in range(samples)]).mean() / size
    if not with_kl:
        return _finite(Elbo(nll, nll, torch.zeros_like(nll)), likelihood)
    kl = bnn.kl(weights, generator=generator).to(nll.device)
    cost = kl if temperature == 1 else kl - (temperature - 1) * bnn.entropy(weights).to(nll.device)
    divisor = n_data if kl_per == "data" else bnn.summary().random
    return _finite(Elbo(nll + kl_weight * cost / divisor, nll, kl), likelihood)


@dataclass(frozen=True)
class Constant:
    """The same weight always (000 uses 0.01 for classification; 1 is the true ELBO)."""

    value: float = 1.0

    def __call__(self, progress: float) -> float:  # noqa: ARG002
        """The KL weight at a share of training done, from 0 to 1."""
        return self.value


@dataclass(frozen=True)
class Anneal:
    """Linear from ``initial`` to ``target`` (000 and 001: from 0.2 to 0.01; their printed formula runs backwards)."""

    initial: float = 0.2
    target: float = 0.01

    def __call__(self, progress: float) -> float:
        """β = β_init + (β_target − β_init) · progress."""
        return self.initial + (self.target - self.initial) * progress


@dataclass(frozen=True)
class WarmUp:
    """Linear from 0 to ``target`` over the first ``fraction`` of training, then constant (004, section 5)."""

    fraction: float = 0.5
    target: float = 1.0

    def __call__(self, progress: float) -> float:
        """β = target · min(1, progress / fraction)."""
        return self.target * min(1.0, progress / self.fraction)


Schedule = Callable[[float], float]


def constant(value: float = 1.0) -> Schedule:
    """A KL weight that stays.

    >>> constant(0.01)(0.7)
    0.01
    """
    return Constant(_weight("value", value))


def anneal(initial: float = 0.2, target: float = 0.01) -> Schedule:
    """A KL weight that runs linearly from ``initial`` to ``target``.

    >>> [round(anneal(0.2, 0.01)(progress), 3) for progress in (0.0, 0.5, 1.0)]
    [0.2, 0.105, 0.01]
    """
    return Anneal(_weight("initial", initial), _weight("target", target))


def warm_up(fraction: float = 0.5, target: float = 1.0) -> Schedule:
    """A KL weight that grows from 0 to ``target``.

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


def _check(n_data: int, samples: int, kl_weight: float, temperature: float, kl_per: str) -> None:
    if n_data < 1 or samples < 1:
        raise InputError(f"n_data and samples must be at least 1, got {n_data} and {samples}")
    _weight("kl_weight", kl_weight)
    _weight("temperature", temperature)
    if kl_per not in ("data", "parameter"):
        raise UnknownName.of("kl_per", kl_per, ["data", "parameter"])


def _finite(found: Elbo, likelihood: Likelihood) -> Elbo:
    if not torch.isfinite(found.loss):
        raise NonFinite(
            f"the loss is {found.loss.item()}: nll {found.nll.item()} ({type(likelihood).__name__}), "
            f"KL {found.kl.item()}; "
            "check the inputs and targets for NaN, lower the learning rate, or start from smaller scales"
        )
    return found
