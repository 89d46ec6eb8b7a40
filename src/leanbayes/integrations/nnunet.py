"""nnU-Net: its trained folds as an ensemble, and its plain networks as the start of Bayesian ones.

nnU-Net writes a folder for each configuration: ``plans.json``, ``dataset.json``, and ``fold_0/checkpoint_final.pth`` to
``fold_4/checkpoint_final.pth``. `read_plans` reads what they say of the data, `read_network` one fold, and
`read_ensemble` several folds. The networks are those of the package dynamic-network-architectures, which nnU-Net itself
builds them with.

A checkpoint is a pickle, which could run code. Only tensors and plain values are read from it. The numbers of NumPy in
its log are left out, so nothing of NumPy runs either. ``plans.json`` may name three networks and the layers of torch
that nnU-Net uses, and nothing else. A checkpoint whose checksums do not fit, or that would take more memory than its
file has bytes, is refused.
"""

import encodings.aliases
import json
import pickle
import pickletools
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes.baselines import Ensemble
from leanbayes.errors import FileError, ForeignFile, InputError, LeanBayesError, TruncatedFile
from leanbayes.integrations._optional import optional
from leanbayes.likelihood import Bernoulli, Categorical, Likelihood

with optional("leanbayes.integrations.nnunet", "nnunet", "dynamic_network_architectures"):
    from dynamic_network_architectures.architectures import unet

__all__ = ["Plans", "read_ensemble", "read_network", "read_plans"]

_NETWORKS = ("PlainConvUNet", "ResidualEncoderUNet", "ResidualUNet")
_DIMENSIONS = [f"{name}{count}d" for name in ("Conv", "InstanceNorm", "BatchNorm", "Dropout") for count in (1, 2, 3)]
_LAYERS = frozenset([*_DIMENSIONS, "LeakyReLU", "ReLU", "GELU", "SiLU", "ELU", "PReLU"])
_NUMPY = tuple(f"numpy.{core}.multiarray.scalar" for core in ("core", "_core"))
_PREFIXES = ("module.", "_orig_mod.")  # of networks inside DataParallel and torch.compile
# torch's reader of weights also builds byte arrays of any length, and applies codecs, also to their own results.
_FILLS_MEMORY = ("builtins bytearray", "__builtin__ bytearray")
_BYTES_TO_BYTES = frozenset(f"{name}_codec" for name in ("hex", "base64", "quopri", "uu", "zlib", "bz2"))


@dataclass(frozen=True)
class Plans:
    """What a folder of nnU-Net says of its data and its network.

    Attributes:
        configuration: the name of the configuration, such as "3d_fullres".
        channels: how many channels the network takes.
        labels: the names of the outputs in their order; the first one is the background, unless they are regions.
        regions: whether the labels overlap, so that each output is a yes or no of its own.
        patch_size: the sides of the windows that the network was trained on.
        spacing: the distance of two voxels along each axis in millimetres, to which nnU-Net brings images.
        normalization: how nnU-Net normalises each channel.
    """

    configuration: str
    channels: int
    labels: tuple[str, ...]
    regions: bool
    patch_size: tuple[int, ...]
    spacing: tuple[float, ...]
    normalization: tuple[str, ...]

    @property
    def likelihood(self) -> Likelihood:
        """What the outputs mean: one class of each voxel, or a yes or no for each region."""
        return Bernoulli() if self.regions else Categorical()


def read_plans(folder: Path | str, configuration: str | None = None) -> Plans:
    """Read what a folder of nnU-Net says of its data.

    Args:
        folder: the folder with ``plans.json`` and ``dataset.json``.
        configuration: the name of the configuration. By default it is the end of the name of the folder, as nnU-Net
            names it (nnUNetTrainer__nnUNetPlans__3d_fullres), or the only one.
    """
    return _read(Path(folder), configuration)[0]


def read_network(
    folder: Path | str,
    fold: int | str = 0,
    *,
    checkpoint: str = "checkpoint_final.pth",
    configuration: str | None = None,
    deep_supervision: bool = False,
) -> nn.Module:
    """Read the trained network of one fold. It takes images as nnU-Net has preprocessed them, and returns logits.

    Args:
        folder: the folder with ``plans.json``, ``dataset.json`` and the folders of folds.
        fold: the number of the fold, or "all".
        checkpoint: the name of the file.
        configuration: see `read_plans`.
        deep_supervision: whether the network returns the logits of all its resolutions as a list, as nnU-Net trains it.
            Bayesian training needs the finest one only.
    """
    folder = Path(folder)
    plans, architecture = _read(folder, configuration)
    file = folder / f"fold_{fold}" / checkpoint
    state = _weights(file, plans.configuration)
    return _network(file, plans, architecture, state, deep_supervision)


def read_ensemble(
    folder: Path | str,
    folds: Iterable[int | str] | None = None,
    *,
    checkpoint: str = "checkpoint_final.pth",
    configuration: str | None = None,
) -> Ensemble:
    """Read the trained networks of several folds as an ensemble, which nnU-Net itself averages.

    Args:
        folder: see `read_network`.
        folds: the folds, by default all that have the checkpoint. "all" is the network that was trained on all data; it
            is only read if it is asked for, or if there is no other one.
        checkpoint: the name of the files.
        configuration: see `read_plans`.
    """
    folder = Path(folder)
    if folds is None:
        there = sorted(path.parent.name.removeprefix("fold_") for path in folder.glob(f"fold_*/{checkpoint}"))
        chosen: Sequence[int | str] = [fold for fold in there if fold != "all"] or there
        if not chosen:
            raise FileError(f"there is no fold_*/{checkpoint} in {folder}; give the folder that holds plans.json")
    else:
        chosen = list(folds)
        if not chosen or len(set(map(str, chosen))) < len(chosen):
            raise InputError(f"folds must be different numbers, at least one, got {chosen}")
    networks = [read_network(folder, fold, checkpoint=checkpoint, configuration=configuration) for fold in chosen]
    return Ensemble(*networks)


def _read(folder: Path, configuration: str | None) -> tuple[Plans, Mapping[str, Any]]:
    plans, dataset = (_json(folder / name) for name in ("plans.json", "dataset.json"))
    try:
        return _parsed(folder, plans, dataset, configuration)
    except LeanBayesError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ForeignFile(
            f"plans.json and dataset.json in {folder} are not those of nnU-Net 2.4 or later ({error!r}); train with "
            "that version"
        ) from error


def _parsed(folder: Path, plans: Any, dataset: Any, configuration: str | None) -> tuple[Plans, Mapping[str, Any]]:
    known = plans["configurations"]
    name = configuration
    if name is None:
        name = folder.resolve().name.rpartition("__")[2]
        name = next(iter(known)) if name not in known and len(known) == 1 else name
    if name not in known:
        raise InputError(f"{folder} has the configurations {sorted(known)}, not {name!r}; give configuration=")
    settings = _inherited(known, name, folder)
    labels: Mapping[str, Any] = dataset["labels"]
    regions = any(isinstance(value, list) and len(value) > 1 for value in labels.values())
    names = [label for label in labels if label != "ignore"]
    if regions:
        names = [label for label in names if labels[label] not in (0, [0])]
    else:
        names.sort(key=lambda label: int(labels[label]))
    channels = dataset.get("channel_names") or dataset["modality"]
    cascade = settings.get("previous_stage") is not None
    read = Plans(
        configuration=name,
        channels=len(channels) + (len(names) - (not regions) if cascade else 0),
        labels=tuple(map(str, names)),
        regions=regions,
        patch_size=tuple(int(side) for side in settings["patch_size"]),
        spacing=tuple(float(step) for step in settings["spacing"]),
        normalization=tuple(map(str, settings["normalization_schemes"])),
    )
    architecture = settings["architecture"]
    return read, {key: architecture[key] for key in ("network_class_name", "arch_kwargs", "_kw_requires_import")}


def _inherited(known: Mapping[str, Any], name: str, folder: Path) -> dict[str, Any]:
    """The settings of a configuration, which may take those that it lacks from another one."""
    settings, seen = dict(known[name]), [name]
    while (parent := settings.pop("inherits_from", None)) is not None:
        if parent in seen or parent not in known:
            raise ForeignFile(f"plans.json in {folder} has a configuration {seen[-1]!r} that inherits from {parent!r}")
        seen.append(parent)
        settings = dict(known[parent]) | settings
    return settings


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise FileError(
            f"cannot read {path}: {error}; give the folder that nnU-Net wrote for a configuration"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ForeignFile(f"{path} is no JSON: {error}; copy it again") from error


class _LeftOut:
    """Stands for a number or a type of NumPy in the log of a checkpoint, which nobody needs."""

    def __init__(self, *parts: object) -> None:
        """Take and forget the parts."""

    def __setstate__(self, state: object) -> None:
        """Take and forget the state."""


class _Number(_LeftOut):
    """The same: torch wants a class for each name that it may meet."""


def _weights(file: Path, configuration: str) -> dict[str, Tensor]:
    """Read the weights of a checkpoint. Nothing but tensors and plain values is unpickled."""
    if not file.is_file():
        raise FileError(f"there is no file {file}; check the fold and the name of the checkpoint")
    _check_archive(file)
    # torch's reader of weights refuses every name that is not listed. These two are mapped to classes that do nothing.
    allowed: list[Any] = [(_LeftOut, "numpy.dtype"), *((_Number, name) for name in _NUMPY)]
    try:
        with torch.serialization.safe_globals(allowed):
            content = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        first = str(error).strip().partition("\n")[0]
        raise ForeignFile(f"{file} holds more than weights and plain values, so it is not read: {first}") from error
    except Exception as error:  # what torch raises on damaged pickles is not documented
        first = str(error).strip().partition("\n")[0]
        raise TruncatedFile(f"{file} is cut short or is no checkpoint of nnU-Net: {first}; copy it again") from error
    weights = content.get("network_weights") if isinstance(content, dict) else None
    if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise ForeignFile(f"{file} has no network_weights, so it is no checkpoint of nnU-Net")
    arguments = content.get("init_args")
    trained = arguments.get("configuration") if isinstance(arguments, dict) else None
    if isinstance(trained, str) and trained != configuration:
        raise InputError(f"{file} was trained with the configuration {trained!r}, not {configuration!r}")
    return {_plain_name(str(name)): value for name, value in weights.items()}


def _check_archive(file: Path) -> None:
    """Refuse a checkpoint that is packed, damaged, or asks for memory. torch itself checks none of that."""
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            packed = any(member.compress_type != zipfile.ZIP_STORED for member in members)
            if packed or sum(member.file_size for member in members) > file.stat().st_size:
                raise ForeignFile(f"{file} would unpack to more than its size; save it with torch.save")
            damaged = archive.testzip()
            if damaged is not None:
                raise TruncatedFile(f"{file} is damaged: the checksum of {damaged} does not fit; copy it again")
            for member in members:
                if member.filename.endswith("data.pkl"):
                    _check_pickle(file, archive.read(member))
    except LeanBayesError:
        raise
    except Exception as error:  # what readers of archives and pickles raise on damaged files is not documented
        raise TruncatedFile(f"{file} is cut short or is no checkpoint of nnU-Net: {error}; copy it again") from error


def _check_pickle(file: Path, content: bytes) -> None:
    """Refuse a pickle that could grow without bound while it is read. Nothing is unpickled here."""
    for _, argument, _ in pickletools.genops(content):
        text = argument if isinstance(argument, str) else ""
        codec = encodings.normalize_encoding(text).lower()
        if text in _FILLS_MEMORY or encodings.aliases.aliases.get(codec, codec) in _BYTES_TO_BYTES:
            raise ForeignFile(f"{file} holds more than weights and plain values, so it is not read: {text!r}")


def _plain_name(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name


def _network(
    file: Path, plans: Plans, architecture: Mapping[str, Any], state: Mapping[str, Tensor], deep_supervision: bool
) -> nn.Module:
    """Build the network without memory, and give it the tensors of the file if all of them fit."""
    kind = _network_class(architecture["network_class_name"])
    try:
        settings = {str(name): value for name, value in architecture["arch_kwargs"].items()}
        _check_counts(settings, len(state))
        for name in architecture["_kw_requires_import"]:
            settings[name] = None if settings[name] is None else _layer(settings[name])
        settings["deep_supervision"] = deep_supervision
        with torch.device("meta"):  # plans.json may ask for any size
            network: nn.Module = kind(input_channels=plans.channels, num_classes=len(plans.labels), **settings)
        network.load_state_dict(dict(state), assign=True)
    except (
        *(TypeError, ValueError, KeyError, AttributeError, IndexError, AssertionError, RuntimeError, ArithmeticError),
        MemoryError,
    ) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [repr(error)]
        raise ForeignFile(
            f"{file} does not fit the network that plans.json describes: {' '.join(lines[:2])}"
        ) from error
    return network.eval()


def _check_counts(settings: Mapping[str, Any], tensors: int) -> None:
    """Refuse counts of stages and layers (n_stages, n_conv_per_stage, …) that would take hours to build.

    Each layer has a tensor of its own in the checkpoint.
    """
    for name, value in settings.items():
        counts = value if isinstance(value, list) else [value]
        total = sum(count for count in counts if isinstance(count, int | float)) if name.startswith("n_") else 0
        if total > tensors:
            raise ValueError(f"{name}={value!r:.100} asks for more layers than the {tensors} tensors of the checkpoint")


def _network_class(path: Any) -> Any:
    name = str(path).rpartition(".")[2]
    if not str(path).startswith("dynamic_network_architectures.") or name not in _NETWORKS:
        raise InputError(
            f"plans.json asks for the network {path!r}; a file must not decide which code runs, so only these of "
            f"dynamic_network_architectures are built: {', '.join(_NETWORKS)}"
        )
    return getattr(unet, name)


def _layer(path: Any) -> Any:
    name = str(path).rpartition(".")[2]
    if not str(path).startswith("torch.nn.") or name not in _LAYERS:
        raise ValueError(f"plans.json asks for the layer {path!r}, which is none that nnU-Net uses")
    return getattr(nn, name)
