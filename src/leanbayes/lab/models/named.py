"""Models by name: the architectures of this package and of others, and the functions of users."""

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from leanbayes._catalogue import Catalogue
from leanbayes.errors import InputError
from leanbayes.lab.models.architecture import Architecture

__all__ = ["MODELS", "model_named"]

MODELS: Catalogue[Architecture] = Catalogue(
    "model",
    lambda value: value.name if isinstance(value, Architecture) else None,
    package="leanbayes.lab.models.architectures",
    group="leanbayes.models",
)
"""Every architecture that `model_named` knows, by its name."""


def model_named(spec: str, **shape: Any) -> nn.Module:
    """Build a new, untrained model.

    Args:
        spec: a name in `MODELS`, or a function of a user as ``"package.module:function"``. Modules of users are first
            looked for in the working directory.
        **shape: what the model must know about the data. Images have ``in_channels`` and ``size`` (height, width). All
            data have ``in_features``, the number of all values of one input, and ``classes``, the number of outputs.
            The function that builds the model receives those that its signature names. It may call ``classes``
            ``num_classes``.

    >>> model_named("mlp", in_features=4, classes=3)[-1]
    Linear(in_features=64, out_features=3, bias=True)
    """
    with _working_directory_importable():
        make = MODELS[spec].build if spec in MODELS else _users_function(spec)
        model = make(**_arguments(make, spec, shape))
    if not isinstance(model, nn.Module):
        raise InputError(f"model {spec!r} returned a {type(model).__name__}; it must return a torch.nn.Module")
    return model


def _users_function(spec: str) -> Callable[..., Any]:
    module_name, colon, name = spec.partition(":")
    if not (colon and module_name and name) or module_name.startswith("."):
        known = ", ".join(sorted(MODELS))
        raise InputError(f"unknown model {spec!r}; choose from {known}, or give your own as 'package.module:function'")
    importlib.invalidate_caches()
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name + ".").startswith(error.name + "."):
            raise InputError(
                f"model {spec!r}: there is no module {error.name!r} in {Path.cwd()} or among the installed packages"
            ) from error
        raise InputError(f"model {spec!r}: {module_name} imports {error.name!r}, which is not installed") from error
    except Exception as error:  # whatever the user's module raises
        reason = str(error).partition("\n")[0]
        raise InputError(f"model {spec!r}: importing {module_name} failed: {type(error).__name__}: {reason}") from error
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            raise InputError(f"model {spec!r}: {module_name} has no {name!r}")
        value = getattr(value, part)
    if not callable(value):
        raise InputError(f"model {spec!r} is a {type(value).__name__}; it must be a function that returns a model")
    make: Callable[..., Any] = value
    return make


def _arguments(make: Callable[..., Any], spec: str, shape: dict[str, Any]) -> dict[str, Any]:
    """Return those of ``shape`` that ``make`` accepts, and refuse a function that needs anything else."""
    offered = {**shape, "num_classes": shape["classes"]} if "classes" in shape else dict(shape)
    try:
        parameters = inspect.signature(make).parameters.values()
    except ValueError:  # a function written in C may have no signature
        return {}
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    for p in parameters:
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            if p.name in named and p.name in offered:
                continue
            raise InputError(
                f"model {spec!r} needs an argument {p.name!r}, but these data give {sorted(shape)}; "
                "give it a default or choose another model"
            )
    arguments = {name: offered[name] for name in named if name in offered}
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        arguments |= {name: value for name, value in shape.items() if name != "classes" or "num_classes" not in named}
    return arguments


@contextmanager
def _working_directory_importable() -> Iterator[None]:
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
