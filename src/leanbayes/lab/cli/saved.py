"""A model from the file that ``train`` or ``compare`` saved. Such a file says what the network is, and runs no code."""

import hashlib
from pathlib import Path
from typing import Any

import torch
from torch import nn

from leanbayes.baselines import Ensemble
from leanbayes.errors import ForeignFile, InputError, LeanBayesError
from leanbayes.lab.data import Preparation
from leanbayes.lab.models import MODELS, model_named
from leanbayes.storage import about, load

__all__ = ["read_model"]

# A weight costs at least a byte in a file, unless it is one of the zeros of a sparse model, of which there are at most
# some hundred for each stored number. A file that asks for more weights than that asks for memory only.
_WEIGHTS_PER_BYTE = 200


def read_model(file: Path, model: str | None = None) -> tuple[nn.Module, Preparation, str]:
    """Read a predictor, and how its inputs are prepared.

    Args:
        file: the file. It may come from a stranger: it may name a built-in architecture and nothing else.
        model: the user's own function that builds the network, as ``package.module:function``, or the name of an
            architecture. None takes the architecture that the file names.

    Returns:
        The predictor, the preparation, and the SHA-256 of the file. The predictor computes in the same way each time.
    """
    notes = about(file)
    if not isinstance(notes, dict) or not {"model", "preparation"} <= notes.keys():
        raise ForeignFile(
            f"{file} does not say how its inputs are prepared; save the model with leanbayes train or compare"
        )
    preparation = _preparation(file, notes["preparation"])
    predictor = load(file, _network(file, notes["model"], model, preparation))
    for module in predictor.modules():
        if isinstance(module, Ensemble) and module.method == "auto":
            module.method = "loop"  # the choice by a clock could fall otherwise next time, and rounds differently
    with file.open("rb") as data:
        digest = hashlib.file_digest(data, "sha256").hexdigest()
    return predictor, preparation, digest


def _preparation(file: Path, fields: Any) -> Preparation:
    """Read the preparation of a file, in which every value may be of any type."""
    if not isinstance(fields, dict):
        raise ForeignFile(f"{file} holds no preparation, but a {type(fields).__name__}")
    size = fields.get("size")
    right = {
        **{name: _all(fields.get(name, []), int | float) for name in ("mean", "std", "target_mean", "target_std")},
        **{name: _all(fields.get(name, []), str) for name in ("classes", "features")},
        "size": size is None or (_all(size, int) and len(size) in (2, 3) and min(size) > 0),
        **{name: fields.get(name) is None or _all(fields[name], int | float) for name in ("window", "spacing")},
        "resample": isinstance(fields.get("resample", False), bool),
        "ignore": fields.get("ignore") is None or isinstance(fields["ignore"], int),
        "kind": isinstance(fields.get("kind"), str),
    }
    wrong = [name for name, is_right in right.items() if not is_right]
    if wrong:
        raise ForeignFile(f"{file} holds a preparation whose {wrong[0]} cannot be used")
    try:
        return Preparation.from_json(fields)
    except (LeanBayesError, TypeError, OverflowError) as error:
        raise ForeignFile(f"{file} holds no preparation that can be used: {error}") from error


def _all(values: Any, kind: Any) -> bool:
    return isinstance(values, list) and all(isinstance(value, kind) for value in values)


def _network(file: Path, noted: Any, given: str | None, preparation: Preparation) -> nn.Module:
    shape = preparation.shape
    if given is not None and given not in MODELS:
        return model_named(given, **shape)
    name = noted if given is None else given
    if not isinstance(name, str) or name not in MODELS:
        raise InputError(
            f"{file} says that its network is {noted!r}, which is not built in, and a file must not decide which code "
            "runs; if you know and trust that function, name it: --model package.module:function"
        )
    try:
        with torch.device("meta"):  # tensors without memory
            weights = sum(parameter.numel() for parameter in model_named(name, **shape).parameters())
        if weights > _WEIGHTS_PER_BYTE * file.stat().st_size:
            raise ForeignFile(f"{file} is too small for the {weights} weights that it claims to have")
        return model_named(name, **shape)
    except LeanBayesError:
        raise
    except (RuntimeError, ValueError, TypeError, ArithmeticError, MemoryError) as error:
        first = (str(error).strip().splitlines() or [""])[0]
        raise ForeignFile(f"{file} asks for a {name} of a shape that cannot be built: {first}") from error
