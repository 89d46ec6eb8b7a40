"""How a file describes families, priors, propagations and estimators: by their names and fields, as JSON.

A description never names a module. `restore` and its like look the name up in the catalogues of this program, so a file
cannot make a program import or run anything.
"""

from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from leanbayes.bayesian import Bayesian
from leanbayes.errors import ForeignFile, InputError
from leanbayes.kl import Exact, MonteCarlo
from leanbayes.posteriors import FAMILIES, GaussianRho, RelativeScale
from leanbayes.priors import LAWS, CentredPrior, FittedPrior, FixedPrior, Prior, PriorLike
from leanbayes.propagate import PROPAGATIONS, Moments, Propagation

__all__ = [
    "describe",
    "describe_prediction",
    "describe_prior",
    "describe_propagation",
    "restore",
    "restore_prior",
    "restore_propagations",
]

_PARTS: dict[str, type[Any]] = {
    cls.__name__: cls for cls in (Exact, MonteCarlo, GaussianRho, RelativeScale, FittedPrior, CentredPrior)
}


def describe(part: Any) -> dict[str, Any]:
    """Describe a frozen dataclass by its name and fields, and its fields likewise."""
    name = type(part).__name__
    if _part_class(name) is not type(part):
        raise InputError(
            f"{part!r} is in no catalogue of LeanBayes, so a file could not bring it back; a file can hold "
            f"{[*_PARTS, *FAMILIES]}, and a family of your own once it is registered: "
            "leanbayes.posteriors.FAMILIES.register"
        )
    values = {field.name: getattr(part, field.name) for field in fields(part)}
    return {"type": name, "fields": {key: describe(v) if is_dataclass(v) else v for key, v in values.items()}}


def restore(data: dict[str, Any]) -> Any:
    """Return the object that `describe` described."""
    values = {key: restore(v) if isinstance(v, dict) else v for key, v in data["fields"].items()}
    part = _part_class(data["type"])
    if part is None:
        raise ForeignFile(
            f"the file names {data['type']!r}, which is unknown here; install the package that adds it to LeanBayes"
        )
    return part(**values)


def _part_class(name: str) -> type[Any] | None:
    """Return the class of this name that a file may hold, also of a family that another package adds."""
    return _PARTS.get(name) or FAMILIES.get(name)


def describe_propagation(value: Propagation) -> dict[str, Any]:
    """Describe a propagation by its name and fields."""
    if PROPAGATIONS.get(value.name) is not type(value):
        raise InputError(
            f"{value!r} is not registered, so a file could not bring it back; decorate its class with "
            "@leanbayes.propagate.PROPAGATIONS.register"
        )
    names: list[str] = [field.name for field in fields(value)] if is_dataclass(value) else []
    return {"name": value.name, "fields": {name: getattr(value, name) for name in names}}


def describe_prediction(bnn: Bayesian) -> dict[str, Any] | None:
    """Describe the propagation of predictions. Return None where it follows from that of training."""
    follows = bnn.predict_by == bnn.propagate.for_prediction
    return None if follows else describe_propagation(bnn.predict_by)


def restore_propagations(data: dict[str, Any]) -> tuple[Propagation, Propagation | None]:
    """Return the propagations of training and prediction.

    Files of version 0.1 hold one name. By "moments" that version meant these two settings.
    """
    if data["propagate"] == Moments.name:
        return Moments(rank=0, kernels="exact"), Moments()
    if isinstance(data["propagate"], str):
        return PROPAGATIONS.named(data["propagate"])(), None
    predict_by = None if data["predict_by"] is None else _restore_propagation(data["predict_by"])
    return _restore_propagation(data["propagate"]), predict_by


def _restore_propagation(data: dict[str, Any]) -> Propagation:
    return PROPAGATIONS.named(data["name"])(**data["fields"])


def describe_prior(prior: PriorLike) -> Any:
    """Describe a prior as JSON. Return None for a prior that a file cannot hold."""
    if isinstance(prior, FixedPrior):
        prior = prior.law
    if isinstance(prior, Distribution):
        return _describe_law(prior)
    if isinstance(prior, Prior):
        return describe(prior) if _PARTS.get(type(prior).__name__) is type(prior) else None
    parts = {pattern: describe_prior(law) for pattern, law in prior.items()}
    return None if None in parts.values() else {"globs": parts}


def _describe_law(law: Distribution) -> Any:
    """Describe a distribution by its arguments. Return None unless these are scalars that make it again."""
    name = type(law).__name__
    if _law(name) is not type(law):
        return None
    arguments = {key: law.__dict__.get(key) for key in law.arg_constraints}
    values = {key: value for key, value in arguments.items() if isinstance(value, Tensor)}
    if not values or any(value.dim() for value in values.values()):
        return None
    scalars = {key: [value.item(), str(value.dtype).removeprefix("torch.")] for key, value in values.items()}
    data = {"distribution": name, "fields": scalars}
    try:
        restore_prior(data)
    except (TypeError, ValueError):
        return None
    return data


def restore_prior(data: dict[str, Any]) -> Any:
    """Return the prior that `describe_prior` described."""
    if "globs" in data:
        return {pattern: restore_prior(law) for pattern, law in data["globs"].items()}
    if "distribution" not in data:
        return restore(data)
    law: Any = _law(data["distribution"])
    if not (isinstance(law, type) and issubclass(law, Distribution)):
        raise ForeignFile(f"the prior {data['distribution']!r} is no distribution of torch, LeanBayes or a plug-in")
    arguments: Any = {key: torch.tensor(v, dtype=getattr(torch, kind)) for key, (v, kind) in data["fields"].items()}
    return law(**arguments)


def _law(name: str) -> Any:
    return LAWS.get(name) or getattr(torch.distributions, name, None)
