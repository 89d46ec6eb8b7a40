"""`save` and `load` for models and predictors.

A saved model is one safetensors file. Its JSON header describes how the model was put together, and its tensors hold
the numbers. Reading it runs no code: the header names families, laws, propagations and predictors, and `load` looks
these names up in the catalogues of this program.
"""

import copy
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from leanbayes._descriptions import (
    describe,
    describe_prediction,
    describe_prior,
    describe_propagation,
    restore,
    restore_prior,
    restore_propagations,
)
from leanbayes._files import read_header, tensor_checksum, write_tensors
from leanbayes._ops.sparse_block_plan import in_blocks
from leanbayes._passes import exclusive
from leanbayes._sharding import refuse_sharded
from leanbayes._stored_tensors import StoredTensors, fill, home, open_tensors
from leanbayes._wrappers import unwrap
from leanbayes.baselines import PREDICTORS
from leanbayes.bayesian import Bayesian, means_from, refuse_random_parts
from leanbayes.errors import ForeignFile, InputError, LeanBayesError, UnknownName, WrongModel
from leanbayes.kl import Estimator
from leanbayes.posteriors import Family
from leanbayes.prediction import Predictor
from leanbayes.priors import PriorLike
from leanbayes.subspace import Scatter, dense_name, scatters
from leanbayes.subspace.select import Selection, Subspace
from leanbayes.subspace.slots import Slot, anything
from leanbayes.subspace.storage import keep_layout, make_dense, sparsify

__all__ = ["FORMAT", "about", "load", "save"]

FORMAT = 1


def save(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    about: Mapping[str, Any] | None = None,
    only: Literal["random"] | None = None,
) -> None:
    """Write a model to a file: its weights and buffers, and how it was put together.

    The file appears whole or not at all, because `save` writes it beside ``path`` and then renames it.

    With ``only="random"`` the file holds what randomness adds to a model: scales, positions, and how they are put
    together. Another tool saves the weights, for example PEFT an adapter. The file also holds checksums of the weights
    that are random or trained, so that `load` refuses scales that belong to other weights.

    Args:
        model: a `Bayesian`, a `Predictor` such as an ensemble, or a plain module. Of a wrapper, such as
            DistributedDataParallel or `AveragedModel`, the file holds the module inside.
        path: the path of the file.
        about: notes that JSON can hold. The function `about` reads them back.
        only: "random" for a `Bayesian` whose weights are saved elsewhere; None for the whole.
    """
    if only not in (None, "random"):
        raise UnknownName.of("value of only", only, ["random"])
    try:
        json.dumps(about)
        notes = dict(about or {})
    except (TypeError, ValueError) as error:
        raise InputError(f"about must be a mapping of what JSON can hold, got {about!r} ({error})") from error
    tensors: dict[str, Tensor] = {}
    refuse_sharded(unwrap(model), "a saved model")
    with exclusive(unwrap(model)):  # the pass of another thread may have replaced the parameters
        root = _take_apart(model, "", tensors) if only is None else _random_part(model, tensors)
        write_tensors(Path(path), _apart(tensors), {"kind": "model", "format": FORMAT, "root": root, "about": notes})


def about(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the notes that `save` was given with the model.

    Args:
        path: the path of the file.
    """
    notes = read_header(Path(path), "model", FORMAT).get("about")
    if not isinstance(notes, dict):
        raise ForeignFile(f"{path} has no notes, which every saved model has; save it again")
    return notes


def load(path: str | os.PathLike[str], model: nn.Module, *, prior: PriorLike | None = None) -> Any:
    """Read a file that `save` wrote, and return the model or predictor that it holds.

    The weights go from the file into the model tensor by tensor, so no second copy of the model is made. A model that
    lies on the meta device has no memory yet; its tensors get theirs as they are read, on the default device of torch:

        with torch.device("meta"):
            model = Network()
        bnn = lb.load("network.lb", model)

    The file is checked as a whole before the first weight is written. So if it is damaged or does not fit the model,
    the model stays as it was. If the disk fails or the program is interrupted while weights are written, the model
    holds some of the file and some of its own; load it again.

    Args:
        path: the path of the file.
        model: a plain model of the same architecture. It gets the saved weights, on the devices where it lies. An
            ensemble uses ``model`` and copies of it. For a file that holds what is random alone, the model must have
            the weights that it had when the file was saved.
        prior: the prior. It is needed only if the saved prior was a distribution that a file cannot hold.

    Returns:
        What was saved: a `Bayesian` around ``model``, a predictor with such parts, or ``model`` itself.
    """
    source, model = Path(path), unwrap(model)
    with open_tensors(source, "model", FORMAT) as (header, tensors):
        sparse = set(scatters(model))
        restoring = _Restoring(source, tensors, model, prior)
        try:
            restored = restoring.root(header["root"])
        except BaseException as error:
            make_dense(model, restoring.dense, stay=sparse)
            if isinstance(error, KeyError | TypeError | ValueError | IndexError | RuntimeError | AttributeError):
                if isinstance(error, LeanBayesError):
                    raise
                raise ForeignFile(
                    f"{source} contradicts itself ({type(error).__name__}: {error}); save it again"
                ) from error
            raise
        restoring.fill()
    return restored


def _take_apart(module: nn.Module, prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Describe a module and the modules in it for the header, and put their tensors into ``tensors``."""
    module = unwrap(module)
    if isinstance(module, Predictor):
        if PREDICTORS.get(type(module).__name__) is not type(module):
            raise InputError(
                f"{type(module).__name__} is none of {list(PREDICTORS)}, so a file could not bring it back; "
                "register its class: leanbayes.baselines.PREDICTORS.register"
            )
        buffers = dict(module.named_buffers(recurse=False))
        tensors |= {f"{prefix}own.{name}": value.detach().contiguous().clone() for name, value in buffers.items()}
        parts = {name: _take_apart(part, f"{prefix}{name}/", tensors) for name, part in module.parts().items()}
        return {"type": type(module).__name__, "config": module.config(), "own": list(buffers), "parts": parts}
    refuse_random_parts(module)
    if not isinstance(module, Bayesian):
        return {"type": "module", "ties": _keep_state(module, prefix, tensors)} | _sparse_weights(module)
    return _take_random(module, prefix, tensors) | {
        "type": "Bayesian",
        "ties": _keep_state(module.model, prefix, tensors),
        **_sparse_weights(module.model),
    }


def _random_part(model: nn.Module, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Describe what randomness adds to a model, and the weights that it belongs to by their checksums."""
    module = unwrap(model)
    if not isinstance(module, Bayesian):
        raise InputError(
            f'only="random" saves what randomness adds to a Bayesian, and a {type(module).__name__} has no such part; '
            "leave only out"
        )
    if scatters(module.model):
        raise InputError('only="random" cannot hold which weights are stored at all, and this model is sparse')
    random = {name for name, _ in module.parts()}
    means = {
        name: tensor_checksum(parameter)
        for name, parameter in module.model.named_parameters()
        if parameter.requires_grad or name in random
    }
    return _take_random(module, "", tensors) | {"type": "random", "means": means}


def _take_random(module: Bayesian, prefix: str, tensors: dict[str, Tensor]) -> dict[str, Any]:
    """Describe what randomness adds to a model, and put its tensors into ``tensors``."""
    module.weights()  # raises inside drawn(), where the parameters hold a draw and not the means
    for name, random in module.parts():
        for kind in ("rho", "index", "memory"):
            part = getattr(random, kind)
            if part is not None:
                tensors[f"{prefix}{kind}.{name}"] = part.detach().contiguous()
    return {
        "posterior": describe(module.posterior),
        "prior": describe_prior(module.prior),
        "propagate": describe_propagation(module.propagate),
        "predict_by": describe_prediction(module),
        "kl": describe(module.kl_estimator),
        "random": {name: parts.index is None for name, parts in module.parts()},
    }


class _Restoring:
    """Puts a model together again from a file's description and tensors.

    `root` checks and builds everything but leaves the weights of the model alone; `fill` then reads them.
    """

    def __init__(self, source: Path, tensors: StoredTensors, model: nn.Module, prior: PriorLike | None) -> None:
        self.source, self.tensors, self.prior = source, tensors, prior
        self.model = model
        self.instances: list[nn.Module] = []
        self.to_fill: list[tuple[nn.Module, dict[str, str]]] = []
        self.dense: dict[str, Tensor] = {}  # weights of the model before they became sparse
        self.blocks: list[tuple[Scatter, int]] = []  # the blocks of weights that were sparse already

    def fill(self) -> None:
        """Read the weights of all modules."""
        for scatter, block in self.blocks:
            scatter.block = block
        for module, stored in self.to_fill:
            fill(module, stored, self.tensors)

    def root(self, data: dict[str, Any]) -> nn.Module:
        """Build the whole. The copies of the model must be made before anything is built on it."""
        self.instances = [self.model, *(copy.deepcopy(self.model) for _ in range(_leaves(data) - 1))]
        return self.node(data, "")

    def node(self, data: dict[str, Any], prefix: str) -> nn.Module:
        """Build one module and the modules in it."""
        if data["type"] in ("Bayesian", "random"):
            return self._bayesian(data, prefix)
        if data["type"] == "module":
            return self._module(data, prefix)[0]
        if data["type"] not in PREDICTORS:
            raise ForeignFile(
                f"{self.source} holds a predictor {data['type']!r}, and this program has none of that name; "
                f"install the package that adds it. Known are {list(PREDICTORS)}"
            )
        cls = PREDICTORS[data["type"]]
        parts = {name: self.node(part, f"{prefix}{name}/") for name, part in data["parts"].items()}
        predictor = cls.rebuild(parts, **data["config"])
        like = next(iter(self.model.parameters()), torch.zeros(0))
        for name in data["own"]:
            predictor.register_buffer(name, self.tensors[f"{prefix}own.{name}"].to(home(like)))
        return predictor

    def _module(self, data: dict[str, Any], prefix: str) -> tuple[nn.Module, dict[str, str]]:
        """Return a module that will be filled, and under which name the file holds each of its tensors."""
        module, ties = self.instances.pop(0), data["ties"]
        self._make_sparse(module, data.get("sparse", {}), data.get("blocks", {}), prefix)
        _check_model(self.source, ties, self.tensors, f"{prefix}model.", module)
        stored = {name: f"{prefix}model.{ties.get(name, name)}" for name in module.state_dict()}
        self.to_fill.append((module, stored))
        return module, stored

    def _known(self, means: dict[str, str]) -> nn.Module:
        """Return the model, whose weights must be those that the random part was saved beside."""
        module = self.instances.pop(0)
        parameters = dict(module.named_parameters(remove_duplicate=False))
        if any(parameter.is_meta for parameter in parameters.values()):
            raise InputError(
                f"{self.source} holds scales alone, and the model lies on the meta device, without weights; load the "
                "weights first"
            )
        missing = sorted(means.keys() - parameters.keys())
        if missing:
            raise WrongModel(
                f"{self.source} holds the random part of another architecture: the model lacks {len(missing)} of its "
                f"{len(means)} weights (first {missing[:3]}); build the model as it was when it was saved"
            )
        other = [name for name, checksum in means.items() if tensor_checksum(parameters[name]) != checksum]
        if other:
            raise WrongModel(
                f"{self.source} holds scales for other weights than the model has: {len(other)} of {len(means)} "
                f"tensors differ (first {other[:3]}, which is {parameters[other[0]].dtype} here); load the weights "
                "that were saved together with this file, in the dtype that they had, before you load this file"
            )
        return module

    def _make_sparse(
        self, module: nn.Module, shapes: dict[str, list[int]], blocks: dict[str, int], prefix: str
    ) -> None:
        """Make those weights of a dense model sparse that are sparse in the file."""
        known, layers = scatters(module), dict(module.named_modules())
        for name, shape in shapes.items():
            layer: Any = layers.get(dense_name(name).rpartition(".")[0])
            weight = getattr(layer, "weight", None)
            if not isinstance(weight, Tensor) or (name not in known and is_parametrized(layer, "weight")):
                continue  # `_check_model` compares the tensors and names what does not fit
            if list(weight.shape) != shape:
                raise WrongModel(
                    f"{self.source} holds another architecture: {dense_name(name)!r} has shape {tuple(shape)} in the "
                    f"file and {tuple(weight.shape)} in the model"
                )
            index = self.tensors[f"{prefix}model.{name.removesuffix('original')}0.index"]
            inside = index.dim() == 1 and len(index) and int(index[0]) >= 0 and int(index[-1]) < weight.numel()
            if not inside or bool((index.diff() <= 0).any()):
                raise ValueError(f"positions outside of {dense_name(name)!r}, or not in order")
            block = blocks.get(name, 1)
            if not isinstance(block, int) or block < 1 or (block > 1 and not in_blocks(index, tuple(shape), block)):
                raise ValueError(f"positions in {dense_name(name)!r} that are not in blocks of {block}")
            if name in known:
                self.blocks.append((known[name], block))
            else:
                if module is self.model:
                    self.dense[dense_name(name)] = weight.detach()
                sparsify(layer, index.to(weight.device), block)
        if shapes:
            keep_layout(module)

    def _bayesian(self, data: dict[str, Any], prefix: str) -> Bayesian:
        if data["prior"] is None and self.prior is None:
            raise InputError(
                f"the prior in {self.source} is one that a file cannot hold; pass it again: load(..., prior=...)"
            )
        estimator: Estimator = restore(data["kl"])
        family: Family = restore(data["posterior"])
        propagate, predict_by = restore_propagations(data)
        if data["type"] == "Bayesian":
            model, stored = self._module(data, prefix)
        else:
            model, stored = self._known(data["means"]), {}

        def mean(name: str, parameter: Tensor) -> Tensor:
            return self.tensors[stored[name]].to(home(parameter)) if stored else parameter.detach()

        selection = {
            name: None if whole else self.tensors[f"{prefix}index.{name}"] for name, whole in data["random"].items()
        }
        with means_from(mean):
            bnn = Bayesian(
                model,
                subspace=_Stored(selection),
                posterior=family,
                prior=restore_prior(data["prior"]) if self.prior is None else self.prior,
                propagate=propagate,
                predict_by=predict_by,
                kl=estimator,
            )
        with torch.no_grad():
            for name, parts in bnn.parts():
                for kind, value in (("rho", parts.rho), ("memory", parts.memory)):
                    if value is None:
                        continue
                    saved = self.tensors[f"{prefix}{kind}.{name}"]
                    if saved.shape != value.shape:
                        raise ValueError(f"{kind} of {name!r} has shape {tuple(saved.shape)}, not {tuple(value.shape)}")
                    value.copy_(saved)
        return bnn


def _sparse_weights(module: nn.Module) -> dict[str, Any]:
    """Describe the sparse weights of a module: their shapes, and the size of their blocks if that is not 1."""
    known = scatters(module)
    blocks = {name: scatter.block for name, scatter in known.items() if scatter.block > 1}
    described: dict[str, Any] = {"sparse": {name: list(scatter.shape) for name, scatter in known.items()}}
    return described | ({"blocks": blocks} if blocks else {})


def _leaves(data: dict[str, Any]) -> int:
    return sum(map(_leaves, data["parts"].values())) if "parts" in data else 1


class _Stored(Subspace):
    """The random coordinates that a file names. A parameter that was frozen since then is random all the same."""

    eligible = staticmethod(anything)

    def __init__(self, selection: Selection) -> None:
        self.selection = selection

    def select(self, model: nn.Module) -> Selection:
        """Return the saved selection, under the names and on the devices that the parameters of ``model`` have."""
        named = dict(model.named_parameters(remove_duplicate=False))
        first_name = {parameter: name for name, parameter in model.named_parameters()}
        selection: Selection = {}
        for name, index in self.selection.items():
            parameter = named[name]
            if index is not None and not 0 <= int(index.min()) <= int(index.max()) < parameter.numel():
                raise ValueError(f"positions outside of {name!r}")
            selection[first_name[parameter]] = None if index is None else index.to(home(parameter))
        return selection

    def choose(self, pool: list[Slot]) -> Selection:
        """Never called, because `select` does not choose."""
        raise AssertionError(f"a stored selection does not choose among {len(pool)} slots")


def _keep_state(module: nn.Module, prefix: str, tensors: dict[str, Tensor]) -> dict[str, str]:
    """Put every tensor of a module into ``tensors`` once. Return, for each other name of a tied tensor, that name."""
    state = module.state_dict()
    for name, value in state.items():
        if not isinstance(value, Tensor):
            raise InputError(f"the model's extra state {name!r} is a {type(value).__name__}: a file holds only tensors")
    groups = _tied(state)
    tensors |= {f"{prefix}model.{names[0]}": state[names[0]].detach().contiguous() for names in groups}
    return {alias: names[0] for names in groups for alias in names[1:]}


def _apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors of which each fills a memory of its own, as files need it. Only those that do not are copied."""
    apart: dict[str, Tensor] = {}
    taken: set[int] = set()
    for name, value in tensors.items():
        memory = value.untyped_storage()
        fills = value.numel() * value.element_size() == memory.nbytes()
        apart[name] = value if fills and memory._cdata not in taken else value.clone()
        taken.add(memory._cdata)
    return apart


def _tied(state: dict[str, Tensor]) -> list[list[str]]:
    """Group the names that stand for the same memory."""
    groups: dict[Any, list[str]] = {}
    for name, value in state.items():
        place = value.untyped_storage()._cdata if value.is_meta else value.data_ptr()  # where no memory is, no address
        memory = (value.device, place, value.dtype, value.shape, value.stride()) if value.numel() else name
        groups.setdefault(memory, []).append(name)
    return list(groups.values())


def _check_model(source: Path, ties: dict[str, str], tensors: StoredTensors, prefix: str, model: nn.Module) -> None:
    """Raise if the tensors of a file, whose names begin with ``prefix``, are not those of a model."""
    saved = {name.removeprefix(prefix): name for name in tensors if name.startswith(prefix)}
    saved |= {alias: saved[first] for alias, first in ties.items()}
    state = model.state_dict()
    missing, extra = sorted(state.keys() - saved.keys()), sorted(saved.keys() - state.keys())
    if missing or extra:
        raise WrongModel(
            f"{source} holds another architecture: the model has {len(missing)} tensors that the file lacks (first "
            f"{missing[:3]}), and the file has {len(extra)} that the model lacks (first {extra[:3]}); "
            "build the model as it was when it was saved"
        )
    for first, *others in _tied(state):
        for other in others:
            if saved[first] != saved[other] and not torch.equal(tensors[saved[first]], tensors[saved[other]]):
                raise WrongModel(
                    f"{source} holds another architecture: the model ties {[first, *others]}, the file does not"
                )
    for name, value in state.items():
        shape, dtype = tensors.shape(saved[name]), tensors.dtype(saved[name])
        if value.shape != shape:
            raise WrongModel(
                f"{source} holds another architecture: {name!r} has shape {tuple(shape)} in the file and "
                f"{tuple(value.shape)} in the model"
            )
        if value.dtype != dtype:
            raise WrongModel(
                f"{name!r} is {dtype} in {source} and {value.dtype} in the model; convert the model first: "
                f"model.to({dtype})"
            )
    for name, buffer in model.named_buffers():
        if buffer.is_meta and name not in state:
            raise InputError(
                f"the buffer {name!r} lies on the meta device, and no file holds it, because the model does not save "
                "it; put only parameters there: with accelerate.init_empty_weights(include_buffers=False)"
            )
