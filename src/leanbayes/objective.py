"""The evidence lower bound (ELBO) and the schedules of its KL weight. A KL is scaled here and nowhere else."""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from leanbayes._calls import Inputs, batch_size, call, prediction_tensor, require_function, require_generator
from leanbayes._tracing import eager, opaque, settings_of
from leanbayes._wrappers import Pass, computed_inside, refuse_bare, refuse_pieces, unwrap
from leanbayes.bayesian import Bayesian, refuse_random_parts, weights_are_held
from leanbayes.dice import DiceTerm, LikelihoodWithDice
from leanbayes.errors import InputError, NonFinite, UnknownName
from leanbayes.likelihood import Likelihood
from leanbayes.likelihood.base import require_likelihood
from leanbayes.propagate import Propagation, PropagationLike, as_propagation

__all__ = [
    "Anneal",
    "Constant",
    "Elbo",
    "Objective",
    "Schedule",
    "Terms",
    "WarmUp",
    "anneal",
    "constant",
    "elbo",
    "warm_up",
]


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
        dice: a Dice loss beside the likelihood, for segmentations: a `leanbayes.dice.DiceTerm`, or its weight. The
            Dice loss is no likelihood, so the loss is then no bound on the evidence any more (see `leanbayes.dice`).

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
    dice: DiceTerm | float | None = None

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
        if self.dice is not None and not isinstance(self.dice, DiceTerm):
            if isinstance(self.dice, bool) or not isinstance(self.dice, int | float):
                raise InputError(f"dice must be a weight or a DiceTerm, got {self.dice!r}")
            object.__setattr__(self, "dice", DiceTerm(self.dice) if self.dice else None)

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


class Elbo(NamedTuple):
    """The loss that training minimises, and its parts in nats.

    ``nll`` is the mean negative log-likelihood of one example, without a Dice term, and ``kl`` is the divergence of the
    whole model. It is a named tuple, because wrappers such as DistributedDataParallel look for tensors inside tuples.
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
        kl_weight: the weight of the KL, or a `Terms` that holds this weight, the four other settings, and a Dice loss.
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
    _check_settings(n_data, likelihood, output)
    require_generator(generator)
    terms = Terms.of(
        kl_weight, samples=samples, last_layer_samples=last_layer_samples, temperature=temperature, kl_per=kl_per
    )
    weight = _weight_now(terms)
    core = unwrap(bnn)
    refuse_random_parts(core)
    if not torch.compiler.is_compiling():
        refuse_bare(bnn, likelihood.parameters())
        refuse_pieces(core)
    by = None if propagate is None else as_propagation(propagate)
    if not isinstance(core, Bayesian):
        nll, extra = _plain_nll(bnn, x, y, likelihood, terms, output)
        plain = Elbo(nll + extra, nll, torch.zeros_like(nll))
        return _finite(plain, likelihood, y) if check and not torch.compiler.is_compiling() else plain

    def parts(core: Bayesian, x: Inputs, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        nll, extra, cost, kl = _all_terms(core, x, y, likelihood, terms, by, generator, output, with_kl=with_kl)
        if not with_kl:
            return nll + extra, nll, kl
        per = n_data if terms.kl_per == "data" else core.summary().random
        return nll + extra + weight * cost / per, nll, kl

    whole = Elbo(*computed_inside(bnn, parts, x, y))
    return _finite(whole, likelihood, y) if check and not torch.compiler.is_compiling() else whole


def _plain_nll(
    model: nn.Module, x: Inputs, y: Tensor, likelihood: Likelihood, terms: Terms, output: Callable[[Any], Any]
) -> tuple[Tensor, Tensor]:
    """Return the mean NLL of a network without random weights, and its Dice term."""
    scored, count = _scored_by(likelihood, terms), batch_size(x)
    return _without_dice(scored, scored.nll(output(call(model, x)), y) / count)


def _scored_by(likelihood: Likelihood, terms: Terms) -> Likelihood | LikelihoodWithDice:
    assert not isinstance(terms.dice, int | float)
    return likelihood if terms.dice is None else LikelihoodWithDice(likelihood, terms.dice)


def _without_dice(scored: Likelihood | LikelihoodWithDice, mean: Tensor) -> tuple[Tensor, Tensor]:
    """Divide the mean score of an example into the NLL and the Dice term."""
    if not isinstance(scored, LikelihoodWithDice):
        return mean, torch.zeros_like(mean)
    extra = scored.penalty()
    return mean - extra, extra


def _all_terms(
    core: Bayesian,
    x: Inputs,
    y: Tensor,
    likelihood: Likelihood,
    terms: Terms,
    by: Propagation | None,
    generator: torch.Generator | None,
    output: Callable[[Any], Any],
    *,
    with_kl: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the mean NLL, the Dice term, the tempered KL before it is weighed, and the KL; zeros without the KL."""
    weights = core.weights()
    scored = _scored_by(likelihood, terms)
    total = (by or core.propagate).expected_nll(
        *(core, weights, x, y, scored),
        samples=terms.samples,
        last_layer_samples=terms.last_layer_samples,
        generator=generator,
        output=output,
    )
    nll, extra = _without_dice(scored, total / batch_size(x))
    if not with_kl:
        return nll, extra, torch.zeros_like(nll), torch.zeros_like(nll)
    kl = core.kl(weights, generator=generator).to(nll.device)
    heat = terms.temperature - 1
    return nll, extra, kl if heat == 0 else kl - heat * core.entropy(weights).to(nll.device), kl


class Objective(nn.Module):
    """The evidence lower bound as a module: ``objective(x, y)`` returns what `elbo` returns.

    Wrap this module, and not the network alone, in DistributedDataParallel, ``fully_shard`` or ``torch.compile``. Their
    work happens around the forward pass of what they wrap, and the loss, with the KL and with what the likelihood
    learns, is computed inside this one.

    Args:
        bnn: a `Bayesian`, or a plain module, which has a KL of 0. It is not in a wrapper itself.
        likelihood: scores the targets. What it learns becomes a part of the module.
        n_data: the number of examples in the whole training set.
        kl_weight: the weight of the KL, or a `Terms` with all settings of the two terms.
        with_kl: whether the loss contains the KL; optimizers that own the scales need the likelihood alone.
        propagate: a propagation to use instead of ``bnn.propagate``.
        output: picks the tensor that is scored from what the model returns.
        check: whether to raise `leanbayes.errors.NonFinite` if the loss is NaN or infinite, which waits for a GPU.
            Compiled code never does.

    >>> bnn = Bayesian(nn.Linear(2, 3))
    >>> from leanbayes.likelihood import Categorical
    >>> objective = Objective(bnn, Categorical(), n_data=100)
    >>> optimizer = torch.optim.Adam(objective.parameters())
    >>> objective(torch.zeros(4, 2), torch.zeros(4, dtype=torch.long)).loss.backward()
    """

    def __init__(
        self,
        bnn: nn.Module,
        likelihood: Likelihood,
        *,
        n_data: int,
        kl_weight: float | Terms = 1.0,
        with_kl: bool = True,
        propagate: PropagationLike | None = None,
        output: Callable[[Any], Any] = prediction_tensor,
        check: bool = True,
    ) -> None:
        super().__init__()
        _check_settings(n_data, likelihood, output)
        core = unwrap(bnn)
        if core is not bnn:
            raise InputError(
                f"the model is in a {type(bnn).__name__}, which the loss would go around; give the module inside, and "
                "wrap the objective: DistributedDataParallel(Objective(bnn, ...)) or torch.compile(Objective(bnn, ...))"
            )
        refuse_random_parts(bnn)
        self.terms = Terms.of(kl_weight)
        self.model, self.likelihood = bnn, likelihood
        self.n_data, self.with_kl, self.output, self.check = n_data, with_kl, output, check
        self.propagate = None if propagate is None else as_propagation(propagate)

    def forward(
        self,
        x: Inputs,
        y: Tensor,
        *,
        kl_weight: float | Terms | None = None,
        generator: torch.Generator | None = None,
    ) -> Elbo:
        """Return the loss of a batch and its parts.

        Args:
            x: a batch of inputs.
            y: their targets.
            kl_weight: the weight of the KL in this step, or all terms of this step; by default those of the module.
            generator: the source of all random numbers. Compiled code uses torch's own generator, which
                ``torch.manual_seed`` sets.
        """
        if isinstance(x, Pass):  # another computation that needs the weights that torch gathers for this module
            computed: Elbo = x(self, y)
            return computed
        if torch.compiler.is_dynamo_compiling():
            if isinstance(kl_weight, Terms):
                raise InputError("compiled code takes a number as kl_weight; give the Terms to the Objective")
            by = self.propagate
            if isinstance(self.model, Bayesian):
                by = by or self.model.propagate
                _get_ready_to_compile(by, self.model.posterior, self.model.kl_estimator, self.terms)
            else:
                _get_ready_to_compile(self.terms)
            if weights_are_held() or generator is not None:
                whole: Elbo = _eager_loss(self, x, y, kl_weight, generator)
                return whole
            nll, extra, cost, kl = _opaque_terms(self, x, y, settings_of(self))
            if not (self.with_kl and isinstance(self.model, Bayesian)):
                return Elbo(nll + extra, nll, kl)
            weight = _weight_now(self.terms) if kl_weight is None else kl_weight
            # The weight stays outside of the opaque call, so that another weight in each step compiles nothing anew.
            per = self.n_data if self.terms.kl_per == "data" else 1
            return Elbo(nll + extra + weight * cost / per, nll, kl)
        return _plain_loss(self, x, y, kl_weight, generator)


def _plain_loss(
    objective: Objective, x: Inputs, y: Tensor, kl_weight: float | Terms | None, generator: torch.Generator | None
) -> Elbo:
    """Return the loss, computed by `elbo`."""
    terms = objective.terms
    if kl_weight is not None:
        terms = kl_weight if isinstance(kl_weight, Terms) else replace(terms, kl_weight=kl_weight)
    return elbo(
        objective.model,
        x,
        y,
        objective.likelihood,
        n_data=objective.n_data,
        kl_weight=terms,
        with_kl=objective.with_kl,
        propagate=objective.propagate,
        generator=generator,
        output=objective.output,
        check=objective.check,
    )


def _plain_terms(
    objective: Objective,
    x: Inputs,
    y: Tensor,
    settings: list[Any],  # noqa: ARG001 - for the guards of dynamo
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return what `_all_terms` does. A KL per parameter is divided here already."""
    core, terms = objective.model, objective.terms
    if not isinstance(core, Bayesian):
        nll, extra = _plain_nll(core, x, y, objective.likelihood, terms, objective.output)
        return nll, extra, torch.zeros_like(nll), torch.zeros_like(nll)
    nll, extra, cost, kl = _all_terms(
        *(core, x, y, objective.likelihood, terms, objective.propagate, None, objective.output),
        with_kl=objective.with_kl,
    )
    return nll, extra, cost if terms.kl_per == "data" else cost / core.summary().random, kl


_opaque_terms, _eager_loss = _plain_terms, _plain_loss


def _get_ready_to_compile(*settings: Any) -> bool:  # noqa: ARG001
    """Make the two terms one opaque call for dynamo, which runs this function while it traces (`_tracing`).

    Args:
        settings: objects whose identity dynamo notes, so that it compiles anew if others take their place.
    """
    global _opaque_terms, _eager_loss
    if _opaque_terms is _plain_terms:
        _opaque_terms, _eager_loss = opaque(_plain_terms), eager(_plain_loss)
    return True


_get_ready_to_compile._dynamo_marked_constant = True  # type: ignore[attr-defined]


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


def _check_settings(n_data: int, likelihood: Likelihood, output: Any) -> None:
    if not isinstance(n_data, int | float) or not n_data >= 1:
        raise InputError(f"n_data must be a number of at least 1, got {n_data!r}")
    require_likelihood(likelihood)
    require_function("output", output)


def _weight_now(terms: Terms) -> float:
    weight = terms.kl_weight
    if isinstance(weight, float):
        return weight
    raise InputError(
        f"elbo does not know how far training is, so it cannot follow the KL weight {weight!r}; give it the terms of "
        "one moment, such as terms.at(0.5)"
    )


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
