"""Save and load: one safetensors file with a JSON header. Nothing in it is ever executed."""

import json
import os
import tempfile
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributions import Distribution

from leanbayes.bayesian import Bayesian
from leanbayes.errors import FileError, ForeignFile, InputError, NewerFile, TruncatedFile, WrongModel
from leanbayes.kl import Estimator, Exact, MonteCarlo
from leanbayes.posterior import FAMILIES, Family, GaussianRho, RelativeScale
from leanbayes.prior import CentredPrior, FittedPrior, FixedPrior, Prior, PriorLike
from leanbayes.subspace.select import Selection, Slot, Subspace, anything

__all__ = ["FORMAT", "load", "save"]

FORMAT = 1
_KEY = "leanbayes"
_ESTIMATORS: dict[str, type[Estimator]] = {"Exact": Exact, "MonteCarlo": MonteCarlo}
_STARTS: dict[str, type[GaussianRho | RelativeScale]] = {"GaussianRho": GaussianRho, "RelativeScale": RelativeScale}
_PRIORS: dict[str, type[Prior]] = {"FittedPrior": FittedPrior, "CentredPrior": CentredPrior}


def save(bnn: Bayesian, path: str | os.PathLike[str]) -> None:
    """Write a Bayesian model: its weights, buffers, scales and positions, and how it was put together.

    The file appears whole or not at all: it is written beside ``path`` and then renamed.
    """
    if not isinstance(bnn, Bayesian):
        raise InputError(
            f"save takes a Bayesian, got a {type(bnn).__name__}; for a plain module use safetensors itself"
        )
    target = Path(path)
    if not target.parent.is_dir():
        raise FileError(f"cannot save to {target}: the folder {target.parent} does not exist; make it first")
    tensors, ties = _tensors(bnn)
    header = {
        "format": FORMAT,
        "posterior": _describe(bnn.posterior),
        "prior": _describe_prior(bnn.prior),
        "propagate": bnn.propagate,
        "kl": _describe(bnn.kl_estimator),
        "random": {name: parts.index is None for name, parts in bnn.parts()},
        "ties": ties,
    }
    temporary = ""
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        os.close(handle)
        save_file(tensors, temporary, metadata={_KEY: json.dumps(header)})
        with Path(temporary).open("rb") as written:
            os.fsync(written.fileno())
        Path(temporary).replace(target)
    except (OSError, SafetensorError) as error:
        Path(temporary).unlink(missing_ok=True)
        raise FileError(f"cannot save to {target}: {error}; what was there before is untouched") from error


def load(path: str | os.PathLike[str], model: nn.Module, *, prior: PriorLike | None = None) -> Bayesian:
    """Read what `save` wrote into ``model``, an instance of the same architecture, on the devices that it is on.

    Everything is checked before the model is changed. ``prior`` is needed only if the saved one was a distribution
    that is not one of torch's own.
    """
    source = Path(path)
    header, tensors = _read(source)
    _check_model(source, header, tensors, model)
    if header["prior"] is None and prior is None:
        raise InputError(
            f"the prior in {source} was a custom object that a file cannot hold; pass it: load(..., prior=...)"
        )
    state = {name: tensors["model." + header["ties"].get(name, name)] for name in model.state_dict()}
    model.load_state_dict(state)
    bnn = Bayesian(
        model,
        subspace=_Stored(
            {name: None if whole else tensors[f"index.{name}"] for name, whole in header["random"].items()}
        ),
        posterior=_restore_family(header["posterior"]),
        prior=_restore_prior(header["prior"]) if prior is None else prior,
        propagate=header["propagate"],
        kl=_ESTIMATORS[header["kl"]["type"]](**header["kl"]["fields"]),
    )
    with torch.no_grad():
        for name, parts in bnn.parts():
            parts.rho.copy_(tensors[f"rho.{name}"])
            if parts.memory is not None:
                parts.memory.copy_(tensors[f"memory.{name}"])
    return bnn


class _Stored(Subspace):
    """The coordinates that a file names."""

    eligible = staticmethod(anything)

    def __init__(self, selection: Selection) -> None:
        self.selection = selection

    def select(self, model: nn.Module) -> Selection:
        """As saved, on the parameters' devices; a parameter frozen since then is still random."""
        parameters = dict(model.named_parameters())
        return {
            name: None if index is None else index.to(parameters[name].device) for name, index in self.selection.items()
        }

    def choose(self, pool: list[Slot]) -> Selection:
        """Nothing to choose."""
        raise NotImplementedError(f"a stored selection does not choose among {len(pool)} slots")


def _tensors(bnn: Bayesian) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Every tensor once, and for tied ones which name holds the values."""
    tensors: dict[str, Tensor] = {}
    ties: dict[str, str] = {}
    first_name: dict[tuple[Any, ...], str] = {}
    for name, value in bnn.model.state_dict().items():
        if not isinstance(value, Tensor):
            raise InputError(
                f"the model's extra state {name!r} is a {type(value).__name__}: a file can hold only tensors"
            )
        place = (value.device, value.data_ptr(), value.shape, value.stride())
        if value.numel() and place in first_name:
            ties[name] = first_name[place]
            continue
        first_name[place] = name
        tensors["model." + name] = value.detach().contiguous().clone()
    for name, parts in bnn.parts():
        for kind in ("rho", "index", "memory"):
            part = getattr(parts, kind)
            if part is not None:
                tensors[f"{kind}.{name}"] = part.detach().contiguous()
    return tensors, ties


def _read(source: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if not source.is_file():
        raise FileError(f"there is no file {source}")
    try:
        with safetensors.safe_open(source, framework="pt") as file:
            text = (file.metadata() or {}).get(_KEY)
            if text is None:
                raise ForeignFile(f"{source} is a safetensors file, but leanbayes.save did not write it")
            header = json.loads(text)
            found = header.get("format") if isinstance(header, dict) else None
            if not isinstance(found, int):
                raise ForeignFile(f"{source} has a header without a format number: leanbayes.save did not write it")
            if found > FORMAT:
                raise NewerFile(f"{source} is of format {found}, this version reads up to {FORMAT}; upgrade leanbayes")
            return header, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except SafetensorError as error:
        kind, hint = _damage(source)
        raise kind(f"{source} cannot be read: {hint} ({error})") from error
    except json.JSONDecodeError as error:
        raise ForeignFile(f"{source} has a header that is no JSON: leanbayes.save did not write it") from error


def _damage(source: Path) -> tuple[type[FileError], str]:
    """A safetensors file begins with the length of its JSON header: so a cut file is told from a foreign one."""
    with source.open("rb") as file:
        start = file.read(9)
    length = int.from_bytes(start[:8], "little")
    if (len(start) == 9 and start[8:] == b"{" and length < 2**32) or not start:
        return TruncatedFile, "it is cut short or damaged; copy it again"
    return ForeignFile, "it is no safetensors file; leanbayes.save did not write it"


def _check_model(source: Path, header: dict[str, Any], tensors: dict[str, Tensor], model: nn.Module) -> None:
    saved = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    for alias, first in header["ties"].items():
        saved[alias] = saved[first]
    own = model.state_dict()
    missing, extra = sorted(own.keys() - saved.keys()), sorted(saved.keys() - own.keys())
    if missing or extra:
        raise WrongModel(
            f"{source} holds another architecture: the model has {len(missing)} tensors that the file lacks (first "
            f"{missing[:3]}), the file {len(extra)} that the model lacks (first {extra[:3]})"
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
    """A frozen dataclass as its name and fields; a field that is itself one, likewise."""
    assert is_dataclass(part)
    assert not isinstance(part, type)
    fields = {
        name: _describe(value) if is_dataclass(value) else value
        for name, value in ((name, getattr(part, name)) for name in asdict(part))
    }
    return {"type": type(part).__name__, "fields": fields}


def _restore_family(data: dict[str, Any]) -> Family:
    fields = {
        name: _STARTS[value["type"]](**value["fields"]) if isinstance(value, dict) else value
        for name, value in data["fields"].items()
    }
    return FAMILIES[data["type"]](**fields)


def _describe_prior(prior: PriorLike) -> Any:
    """JSON for a prior, or None where a file cannot hold it."""
    if isinstance(prior, FixedPrior):
        prior = prior.law
    if isinstance(prior, Distribution):
        name = type(prior).__name__
        if getattr(torch.distributions, name, None) is not type(prior):
            return None
        fields = {key: float(getattr(prior, key)) for key in prior.arg_constraints if key in prior.__dict__}
        return {"distribution": name, "fields": fields}
    if isinstance(prior, Prior):
        return _describe(prior) if type(prior).__name__ in _PRIORS else None
    parts = {pattern: _describe_prior(law) for pattern, law in prior.items()}
    return None if None in parts.values() else {"globs": parts}


def _restore_prior(data: dict[str, Any]) -> PriorLike:
    if "globs" in data:
        return {pattern: _restore_prior(law) for pattern, law in data["globs"].items()}  # type: ignore[misc]
    if "distribution" in data:
        law = getattr(torch.distributions, data["distribution"], None)
        if not (isinstance(law, type) and issubclass(law, Distribution)):
            raise ForeignFile(f"{data['distribution']!r} is no distribution of torch")
        found: Distribution = law(**data["fields"])
        return found
    return _PRIORS[data["type"]](**data["fields"])
