"""Architectures by name: the papers', small ones, and the user's own as ``"package.module:function"``."""

import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from leanbayes.errors import InputError
from leanbayes.lab.models.densenet import DenseNet, densenet
from leanbayes.lab.models.encoder3d import Encoder3d, encoder3d
from leanbayes.lab.models.lenet import lenet5, lenet300
from leanbayes.lab.models.mlp import mlp
from leanbayes.lab.models.parts import LARGE, Stem
from leanbayes.lab.models.resnet import ResNet, preact_resnet, resnet, resnet18, resnet50, small_resnet
from leanbayes.lab.models.small_cnn import small_cnn
from leanbayes.lab.models.unet import UNet, unet
from leanbayes.lab.models.vgg import alexnet, vgg16
from leanbayes.lab.models.vit import ViT, vit

__all__ = [
    "MODELS", "DenseNet", "Encoder3d", "ResNet", "Stem", "UNet", "ViT", "alexnet", "densenet", "encoder3d", "lenet5",
    "lenet300", "mlp", "model_named", "preact_resnet", "resnet", "resnet18", "resnet50", "small_cnn", "small_resnet",
    "unet", "vgg16", "vit",
]  # fmt: skip


def _entered(make: Callable[..., nn.Module], depth: int, stem: Stem | None = None) -> Callable[..., nn.Module]:
    """``make`` with a stem, by default the one that fits the images: large ones have their sides divided by 4."""

    def build(in_channels: int, classes: int, size: tuple[int, int] = (32, 32)) -> nn.Module:
        fitting = "imagenet" if min(size) > LARGE else "small"
        return make(depth, num_classes=classes, in_channels=in_channels, stem=stem or fitting)

    return build


MODELS: dict[str, Callable[..., nn.Module]] = {
    "alexnet": alexnet,
    **{f"densenet{depth}": _entered(densenet, depth) for depth in (121, 161, 169, 201)},
    "encoder3d": encoder3d,
    "lenet5": lenet5,
    "lenet300": lenet300,
    "mlp": mlp,
    **{f"preact_resnet{depth}": _entered(preact_resnet, depth) for depth in (18, 34, 50, 101, 152)},
    **{f"resnet{depth}": _entered(resnet, depth) for depth in (18, 34, 50, 101, 152)},
    "resnet18_cifar7": _entered(resnet, 18, "cifar7"),
    "small_cnn": small_cnn,
    "small_resnet": small_resnet,
    "unet": unet,
    "unet64": partial(unet, width=64, depth=4),
    "vgg16": vgg16,
    "vit": vit,
    "vit_s16": partial(vit, patch=16, width=384, depth=12, heads=6),
    "vit_b16": partial(vit, patch=16, width=768, depth=12, heads=12),
}
"""What `model_named` knows, each called with what its signature names of what the data give."""


def model_named(spec: str, **shape: Any) -> nn.Module:
    """A new model of `MODELS`, or of the user's own function ``"package.module:function"``.

    A function is called with those of ``shape`` that its signature names. What data give is ``in_channels`` and
    ``size`` (height, width) for images, ``in_features`` (all numbers of one input), and ``classes``: how many outputs
    are needed, which may also be called ``num_classes``. Own modules are looked for in the working directory first.

    >>> model_named("mlp", in_features=4, classes=3)[-1]
    Linear(in_features=64, out_features=3, bias=True)
    """
    with _working_directory_importable():
        make = MODELS[spec] if spec in MODELS else _own(spec)
        model = make(**_arguments(make, spec, shape))
    if not isinstance(model, nn.Module):
        raise InputError(f"model {spec!r} returned a {type(model).__name__}; it must return a torch.nn.Module")
    return model


def _own(spec: str) -> Callable[..., Any]:
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
        first = str(error).partition("\n")[0]
        raise InputError(f"model {spec!r}: importing {module_name} failed: {type(error).__name__}: {first}") from error
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise InputError(f"model {spec!r}: {module_name} has no {name!r}")
        found = getattr(found, part)
    if not callable(found):
        raise InputError(f"model {spec!r} is a {type(found).__name__}; it must be a function that returns a model")
    make: Callable[..., Any] = found
    return make


def _arguments(make: Callable[..., Any], spec: str, shape: dict[str, Any]) -> dict[str, Any]:
    """Those of ``shape`` that ``make`` accepts; complain of what it needs besides."""
    given = {**shape, "num_classes": shape["classes"]} if "classes" in shape else dict(shape)
    try:
        parameters = inspect.signature(make).parameters.values()
    except ValueError:  # some of C's have none
        return {}
    named = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    for p in parameters:
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            if p.name in named and p.name in given:
                continue
            raise InputError(
                f"model {spec!r} needs an argument {p.name!r}, but these data give {sorted(shape)}; "
                "give it a default or choose another model"
            )
    arguments = {name: given[name] for name in named if name in given}
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
