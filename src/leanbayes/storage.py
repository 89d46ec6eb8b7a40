"""Save and load a Bayesian model: one safetensors file with a JSON header."""

import os
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Distribution

from leanbayes.bayesian import Bayesian
from leanbayes.errors import ForeignFile, InputError, LeanBayesError, WrongModel
from leanbayes.files import read_tensors, write_tensors
from leanbayes.kl import Estimator, Exact, MonteCarlo
from leanbayes.posterior import FAMILIES, Family, GaussianRho, RelativeScale
from leanbayes.prior import CentredPrior, FittedPrior, FixedPrior, Prior, PriorLike
from leanbayes.subspace.select import Selection, Slot, Subspace, anything

__all__ = ["FORMAT", "load", "save"]

FORMAT = 1
_PARTS: dict[str, type[Any]] = {
    cls.__name__: cls for cls in (Exact, MonteCarlo, GaussianRho, RelativeScale, FittedPrior, CentredPrior)
} | dict(FAMILIES)


def save(bnn: Bayesian, path: str | os.PathLike[str]) -> None:
    """Write a Bayesian model: its weights, buffers, scales and positions, and how it was put together.

    The file appears whole or not at all: it is written beside ``path`` and then renamed.
    """
    if not isinstance(bnn, Bayesian):
        raise InputError(
            f"save takes a Bayesian, got a {type(bnn).__name__}; for a plain module use safetensors itself"
        )
    tensors, ties = _tensors(bnn)
    header = {
        "kind": "model",
        "format": FORMAT,
        "posterior": _describe(bnn.posterior),
        "prior": _describe_prior(bnn.prior),
        "propagate": bnn.propagate,
        "kl": _describe(bnn.kl_estimator),
        "random": {name: parts.index is None for name, parts in bnn.parts()},
        "ties": ties,
    }
    write_tensors(Path(path), tensors, header)


def load(path: str | os.PathLike[str], model: nn.Module, *, prior: PriorLike | None = None) -> Bayesian:
    """Read what `save` wrote into ``model``, an instance of the same architecture, on the devices that it is on.

    A model that does not fit is left as it was. ``prior`` is needed only if the saved one was a distribution
    that a file cannot hold.
    """
    source = Path(path)
    header, tensors = read_tensors(source, "model", FORMAT)
    before = {name: value.clone() for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    try:
        return _restore(source, header, tensors, model, prior)
    except BaseException as error:
        model.load_state_dict(before, strict=False)
        if isinstance(error, KeyError | TypeError | ValueError | IndexError | RuntimeError | AttributeError):
            if isinstance(error, LeanBayesError):
                raise
            raise ForeignFile(
                f"{source} contradicts itself ({type(error).__name__}: {error}); save it again"
            ) from error
        raise


def _restore(
    source: Path, header: dict[str, Any], tensors: dict[str, Tensor], model: nn.Module, prior: PriorLike | None
) -> Bayesian:
    if header["prior"] is None and prior is None:
        raise InputError(f"the prior in {source} is one that a file cannot hold; pass it again: load(..., prior=...)")
    _check_model(source, header["ties"], tensors, model)
    estimator: Estimator = _restore_part(header["kl"])
    family: Family = _restore_part(header["posterior"])
    model.load_state_dict({name: tensors["model." + header["ties"].get(name, name)] for name in model.state_dict()})
    selection = {name: None if whole else tensors[f"index.{name}"] for name, whole in header["random"].items()}
    bnn = Bayesian(
        model,
        subspace=_Stored(selection),
        posterior=family,
        prior=_restore_prior(header["prior"]) if prior is None else prior,
        propagate=header["propagate"],
        kl=estimator,
    )
    with torch.no_grad():
        for name, parts in bnn.parts():
            for kind, own in (("rho", parts.rho), ("memory", parts.memory)):
                if own is None:
                    continue
                kept = tensors[f"{kind}.{name}"]
                if kept.shape != own.shape:
                    raise ValueError(f"{kind} of {name!r} has shape {tuple(kept.shape)}, not {tuple(own.shape)}")
                own.copy_(kept)
    return bnn


class _Stored(Subspace):
    """The coordinates that a file names; a parameter frozen since then is still random."""

    eligible = staticmethod(anything)

    def __init__(self, selection: Selection) -> None:
        self.selection = selection

    def select(self, model: nn.Module) -> Selection:
        """As saved, under the names and on the devices that the parameters have here."""
        named = dict(model.named_parameters(remove_duplicate=False))
        first_name = {parameter: name for name, parameter in model.named_parameters()}
        selection: Selection = {}
        for name, index in self.selection.items():
            parameter = named[name]
            if index is not None and not 0 <= int(index.min()) <= int(index.max()) < parameter.numel():
                raise ValueError(f"positions outside of {name!r}")
            selection[first_name[parameter]] = None if index is None else index.to(parameter.device)
        return selection

    def choose(self, pool: list[Slot]) -> Selection:
        """Nothing to choose."""
        raise AssertionError(f"a stored selection does not choose among {len(pool)} slots")


def _tensors(bnn: Bayesian) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Every tensor once, and for tied ones which name holds the values."""
    state = bnn.model.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise InputError(f"the model's extra state {name!r} is a {type(value).__name__}: a file holds only tensors")
    groups = _tied(state)
    tensors = {f"model.{names[0]}": state[names[0]].detach().contiguous().clone() for names in groups}
    for name, parts in bnn.parts():
        for kind in ("rho", "index", "memory"):
            part = getattr(parts, kind)
            if part is not None:
                tensors[f"{kind}.{name}"] = part.detach().contiguous()
    return tensors, {alias: names[0] for names in groups for alias in names[1:]}


def _tied(state: dict[str, Tensor]) -> list[list[str]]:
    """Names that stand for the same memory, together."""
    groups: dict[Any, list[str]] = {}
    for name, value in state.items():
        place = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride()) if value.numel() else name
        groups.setdefault(place, []).append(name)
    return list(groups.values())


def _check_model(source: Path, ties: dict[str, str], tensors: dict[str, Tensor], model: nn.Module) -> None:
    saved = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    saved |= {alias: saved[first] for alias, first in ties.items()}
    own = model.state_dict()
    missing, extra = sorted(own.keys() - saved.keys()), sorted(saved.keys() - own.keys())
    if missing or extra:
        raise WrongModel(
            f"{source} holds another architecture: the model has {len(missing)} tensors that the file lacks (first "
            f"{missing[:3]}), the file {len(extra)} that the model lacks (first {extra[:3]})"
        )
    for first, *others in _tied(own):
        if any(not torch.equal(saved[first], saved[other]) for other in others):
            raise WrongModel(
                f"{source} holds another architecture: the model ties {[first, *others]}, the file does not"
            )
    for name, value in own.items():
        if value.shape != saved[name].shape:
            raise WrongModel(
                f"{source} holds another architecture: {name!r} has shape {tuple(saved[name].shape)} in the file and "
                f"{tuple(value.shape)} in the model"
            )
        if value.dtype != saved[name].dtype:
            raise WrongModel(
                f"{name!r} is {saved[name].dtype} in {source} and {value.dtype} in the model; "
                f"convert the model first: model.to({saved[name].dtype})"
            )


def _describe(part: Any) -> dict[str, Any]:
    """A frozen dataclass of ours as its name and fields; a field that is itself one, likewise."""
    name = type(part).__name__
    if _PARTS.get(name) is not type(part):
        raise InputError(
            f"{part!r} is not one of leanbayes' own, so a file could not bring it back; saved are {list(_PARTS)}"
        )
    values = {field.name: getattr(part, field.name) for field in fields(part)}
    return {"type": name, "fields": {key: _describe(v) if is_dataclass(v) else v for key, v in values.items()}}


def _restore_part(data: dict[str, Any]) -> Any:
    values = {key: _restore_part(v) if isinstance(v, dict) else v for key, v in data["fields"].items()}
    return _PARTS[data["type"]](**values)


def _describe_prior(prior: PriorLike) -> Any:
    """JSON for a prior, or None where a file cannot hold it."""
    if isinstance(prior, FixedPrior):
        prior = prior.law
    if isinstance(prior, Distribution):
        return _describe_law(prior)
    if isinstance(prior, Prior):
        return _describe(prior) if _PARTS.get(type(prior).__name__) is type(prior) else None
    parts = {pattern: _describe_prior(law) for pattern, law in prior.items()}
    return None if None in parts.values() else {"globs": parts}


def _describe_law(law: Distribution) -> Any:
    """One of torch's own distributions by its arguments, if these are scalars that make it again."""
    name = type(law).__name__
    if getattr(torch.distributions, name, None) is not type(law):
        return None
    own = {key: law.__dict__.get(key) for key in law.arg_constraints}
    values = {key: value for key, value in own.items() if isinstance(value, Tensor)}
    if not values or any(value.dim() for value in values.values()):
        return None
    scalars = {key: [value.item(), str(value.dtype).removeprefix("torch.")] for key, value in values.items()}
    data = {"distribution": name, "fields": scalars}
    try:
        _restore_prior(data)
    except (TypeError, ValueError):
        return None
    return data


def _restore_prior(data: dict[str, Any]) -> Any:
    if "globs" in data:
        return {pattern: _restore_prior(law) for pattern, law in data["globs"].items()}
    if "distribution" not in data:
        return _restore_part(data)
    law: Any = getattr(torch.distributions, data["distribution"], None)
    if not (isinstance(law, type) and issubclass(law, Distribution)):
        raise ForeignFile(f"{data['distribution']!r} is no distribution of torch")
    arguments: Any = {key: torch.tensor(v, dtype=getattr(torch, kind)) for key, (v, kind) in data["fields"].items()}
    return law(**arguments)
