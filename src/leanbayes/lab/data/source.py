"""A user's own data: read from files, checked, divided in three sets, and made a task for any model."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from leanbayes._calls import prediction_tensor
from leanbayes.errors import FileError, InputError, ShapeMismatch, UnknownName
from leanbayes.lab.data.arrays import Array, array_sets, as_inputs, load_npz
from leanbayes.lab.data.folders import class_folders
from leanbayes.lab.data.images import ImageFiles, Size, Track, common_shape, untracked
from leanbayes.lab.data.masks import MaskFiles, label_count, mask_folders, mask_pairs
from leanbayes.lab.data.preparation import Kind, Preparation, statistics
from leanbayes.lab.data.splits import SPLITS, complete
from leanbayes.lab.data.tables import integers, is_number, read_csv
from leanbayes.lab.data.targets import class_values, kind_of, one_axis, targets_of
from leanbayes.lab.data.task import Task
from leanbayes.lab.models import model_named
from leanbayes.likelihood import Bernoulli, Categorical, Gaussian, Likelihood

__all__ = ["Examples", "Source", "from_arrays", "likelihood_for", "read"]

_FEW = 20  # different integers in a CSV's column up to which they are classes
_ROWS = 1024  # at a time, so that bytes need not all be numbers at once


class Numbered(Protocol):
    """Tensors by number: a tensor itself, or files."""

    def __len__(self) -> int: ...
    def __getitem__(self, place: int, /) -> Tensor: ...


class Examples(Dataset[tuple[Tensor, Tensor]]):
    """Pairs (x, y), each x prepared when it is asked for."""

    def __init__(self, inputs: Numbered, targets: Numbered, preparation: Preparation) -> None:
        self.inputs, self.targets, self.preparation = inputs, targets, preparation

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, place: int) -> tuple[Tensor, Tensor]:
        return self.preparation.standardise(self.inputs[place]), self.targets[place]


@dataclass(frozen=True)
class Source:
    """Three sets of examples, and how their inputs were prepared: save ``preparation`` beside a model."""

    name: str
    train: Examples
    validation: Examples
    test: Examples
    preparation: Preparation

    @property
    def usual_model(self) -> str:
        """The model for such data, by name: unet for pixels, small_cnn for other images, mlp for features."""
        if self.preparation.size is None:
            return "mlp"
        return "unet" if self.preparation.kind == "pixels" else "small_cnn"

    def task(self, model: str | None = None) -> Task:
        """A task for a model by name (see `leanbayes.lab.models.model_named`), tried on two examples at once.

        By default it is ``usual_model``.
        """
        plan, name = self.preparation, model or self.usual_model
        make = partial(model_named, name, **plan.shape)
        with torch.random.fork_rng(devices=[]):  # the trial model's weights must not move those of the real ones
            self._try(make(), name)
        return Task(self.name, self.train, self.validation, self.test, make, likelihood_for(plan), plan.classes)

    def _try(self, model: nn.Module, name: str) -> None:
        places = range(min(2, len(self.train)))
        x, y = (torch.stack(parts) for parts in zip(*(self.train[place] for place in places), strict=True))
        try:
            with torch.no_grad():
                returned = model.eval()(x)
        except (RuntimeError, ValueError, TypeError) as error:
            first = str(error).partition("\n")[0]
            raise ShapeMismatch(f"model {name!r} fails on inputs of shape {tuple(x.shape)}: {first}") from error
        output, width = prediction_tensor(returned), self.preparation.outputs
        expected = (len(x), width, *y.shape[1:]) if self.preparation.kind == "pixels" else (len(x), width)
        if isinstance(output, Tensor) and output.shape != expected:
            raise ShapeMismatch(
                f"model {name!r} returns {tuple(output.shape)} for inputs {tuple(x.shape)}; these data need {expected}"
            )
        likelihood_for(self.preparation).nll(output, y)


def likelihood_for(preparation: Preparation) -> Likelihood:
    """What a model's outputs mean. For a regression they are means and as many log-variances, side by side."""
    if preparation.kind == "regression":
        return Gaussian(noise="input")
    if preparation.kind == "labels":
        return Bernoulli()
    return Categorical() if preparation.ignore is None else Categorical(ignore_index=preparation.ignore)


def read(
    path: Path | str,
    *,
    kind: Kind | None = None,
    masks: Path | str | None = None,
    target: str | None = None,
    size: int | Size | None = None,
    ignore: int | None = None,
    seed: int = 0,
    track: Track = untracked,
) -> Source:
    """Read data to learn from: a folder of class folders, of images with masks, an .npz or a CSV.

    Sets that are not told apart by folders (train, validation or val, test) or by names of arrays (x_train, ...) are
    drawn by ``seed``, class by class: 15 % each for validation and test. Inputs are standardised with the training
    set's mean and standard deviation, and so are the targets of a regression.

    Args:
        path: the folder or the file.
        kind: what is predicted, where the data leave it open: "classes", "labels" (several yes-or-no answers),
            "pixels" or "regression".
        masks: the folder of masks, if ``path`` is one of images; matched by name, with class indices or 0 and 255.
        target: a CSV's column to predict; all others are features.
        size: (height, width) to resize images to, or one number for both; by default all must be alike.
        ignore: the value of mask pixels that do not count.
        seed: for the division.
        track: shows how far the reading of images is, such as ``rich.progress.track``.
    """
    path, masks = Path(path), None if masks is None else Path(masks)
    if kind is not None and kind not in get_args(Kind):
        raise UnknownName.of("kind", kind, get_args(Kind))
    if not path.exists():
        raise FileError(f"there is no file or folder {path}")
    form = "a folder" if path.is_dir() else path.suffix.lower()
    if form not in ("a folder", ".npz", ".csv"):
        raise InputError(f"cannot learn from {path}; give a folder of images, an .npz or a .csv file")
    _refuse(form, path, {"masks": masks, "size": size}, "a folder")
    _refuse(form, path, {"target": target}, ".csv")
    if form == ".npz":
        source = _from_npz(path, kind, ignore, seed)
    elif form == ".csv":
        source = _from_csv(path, target, kind, seed)
    else:
        source = _from_folder(path, masks, kind, _sides(size), ignore, seed, track)
    if ignore is not None and source.preparation.kind != "pixels":
        raise InputError(f"ignore={ignore} is for masks only; leave it out for {path}")
    return source


def _from_folder(
    path: Path, masks: Path | None, kind: Kind | None, size: Size | None, ignore: int | None, seed: int, track: Track
) -> Source:
    if kind not in (None, "classes", "pixels") or (kind == "classes" and masks is not None):
        raise InputError(f"{path} is a folder of images {'with' if masks else 'without'} masks: it has no {kind!r}")
    folders = {} if kind == "classes" else mask_folders(path, masks)
    if folders:
        return _from_masks(path, folders, size, ignore, seed, track)
    if kind == "pixels":
        raise InputError(f"{path} has no folders images and masks; give the folder of masks with masks=...")
    return _from_class_folders(path, size, seed, track)


def _sides(size: int | Size | None) -> Size | None:
    sides = (size, size) if isinstance(size, int) else size
    if sides is not None and (len(sides) != 2 or min(sides) < 1):
        raise InputError(f"size must be a positive number or a pair (height, width), got {size}")
    return sides


def _from_class_folders(path: Path, size: Size | None, seed: int, track: Track) -> Source:
    classes, sets = class_folders(path, seed)
    channels, sides = common_shape([file for pairs in sets.values() for file, _ in pairs], size, track)
    inputs = {name: ImageFiles([file for file, _ in pairs], channels, sides, track) for name, pairs in sets.items()}
    targets = {name: torch.tensor([label for _, label in pairs]) for name, pairs in sets.items()}
    mean, std = statistics(_each(inputs["train"]))
    plan = Preparation("classes", mean, std, classes, size=sides, resize=size is not None)
    return _source(path, inputs, targets, plan)


def _from_masks(
    path: Path, folders: Mapping[str, tuple[Path, Path]], size: Size | None, ignore: int | None, seed: int, track: Track
) -> Source:
    pairs = complete({name: mask_pairs(*two) for name, two in folders.items()}, lambda _: 0, seed, path)
    channels, sides = common_shape([image for some in pairs.values() for image, _ in some], size, track)
    inputs = {name: ImageFiles([image for image, _ in some], channels, sides, track) for name, some in pairs.items()}
    targets = {name: MaskFiles(some, sides, track) for name, some in pairs.items()}
    others = [masks.first for name, masks in targets.items() if name != "train"]
    count, yes_or_no = label_count(targets["train"].first, others, ignore)
    for masks in targets.values():
        masks.yes_or_no = yes_or_no
    classes = ("background", "foreground") if yes_or_no else tuple(map(str, range(count)))
    mean, std = statistics(_each(inputs["train"]))
    plan = Preparation("pixels", mean, std, classes, size=sides, resize=size is not None, ignore=ignore)
    return _source(path, inputs, targets, plan)


def _from_npz(path: Path, kind: Kind | None, ignore: int | None, seed: int) -> Source:
    sets = {name: (x, one_axis(y, kind)) for name, (x, y) in array_sets(load_npz(path), path).items()}
    return from_arrays(path, sets, kind or kind_of(sets["train"][1]), ignore=ignore, seed=seed)


def _from_csv(path: Path, target: str | None, kind: Kind | None, seed: int) -> Source:
    table = read_csv(path)
    if target is None:
        raise InputError(f"say which column of {path} to predict with target=...; its columns are {list(table.names)}")
    texts = table.texts(target)
    features = tuple(name for name in table.names if name != target)
    if not features:
        raise InputError(f"{path} has no column besides {target!r} to predict it from")
    if kind not in (None, "classes", "regression"):
        raise InputError(f"{path} is a table, which gives no {kind!r}; choose classes or regression")
    whole = integers(texts)
    if kind is None:
        few = whole is not None and len(set(whole)) <= _FEW
        kind = "classes" if few or not any(map(is_number, texts)) else "regression"
    y = np.array(table.numbers(target) if kind == "regression" else texts if whole is None else whole)
    x = np.array([table.numbers(name) for name in features]).T
    return from_arrays(path, {"train": (x, y)}, kind, features=features, seed=seed)


def from_arrays(
    path: Path,
    sets: Mapping[str, tuple[Array, Array]],
    kind: Kind,
    *,
    features: tuple[str, ...] = (),
    ignore: int | None = None,
    seed: int = 0,
) -> Source:
    """Make a source of inputs and targets by set; ``path`` is for its name and for errors."""
    y = sets["train"][1]
    group = class_values(y, path) if kind == "classes" and y.ndim == 1 else [0] * len(y)
    places = complete({name: range(len(x)) for name, (x, _) in sets.items()}, group.__getitem__, seed, path)
    chosen = {name: [part[places[name]] for part in sets.get(name, sets["train"])] for name in places}
    inputs = {name: as_inputs(x, f"the {name} inputs of {path}") for name, (x, _) in chosen.items()}
    size = (inputs["train"].shape[2], inputs["train"].shape[3]) if inputs["train"].dim() == 4 else None
    targets = targets_of(kind, {name: y for name, (_, y) in chosen.items()}, path, size, ignore)
    mean, std = statistics(inputs["train"].split(_ROWS))
    names = () if size else features or tuple(f"x{place}" for place in range(len(mean)))
    plan = Preparation(
        kind,
        mean,
        std,
        targets.classes,
        size=size,
        features=names,
        target_mean=targets.mean,
        target_std=targets.std,
        ignore=ignore,
    )
    return _source(path, inputs, targets.sets, plan)


def _source(path: Path, inputs: Mapping[str, Numbered], targets: Mapping[str, Numbered], plan: Preparation) -> Source:
    sets = {name: Examples(inputs[name], targets[name], plan) for name in SPLITS}
    whole = path.resolve()
    return Source(whole.name if whole.is_dir() else whole.stem, preparation=plan, **sets)


def _each(inputs: Numbered) -> Iterator[Tensor]:
    """Batches of one."""
    return (inputs[place][None] for place in range(len(inputs)))


def _refuse(form: str, path: Path, options: Mapping[str, object], only: str) -> None:
    for name, value in options.items():
        if value is not None and form != only:
            raise InputError(f"{name}={value} is for {only.replace('.', 'a .')} only; leave it out for {path}")
