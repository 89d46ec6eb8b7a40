"""Pictures of a segmented image: the predicted classes, and how unsure the model is of each pixel."""

import io
import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image
from torch import Tensor

from leanbayes._files import write_bytes
from leanbayes.prediction import Prediction

__all__ = ["map_names", "write_map"]


def map_names(images: Iterable[str]) -> dict[str, str]:
    """Return for each image the beginning of the names of its maps, such that no two images share one.

    It is the name of the image, with its folders and without its suffix. Where two images would share that, it is the
    whole name, and where they would share even that, a number makes the difference. Capital letters do not make a
    difference, because some file systems ignore them.

    >>> map_names(["a.png", "b.png", "b.bmp"])
    {'a.png': 'a', 'b.png': 'b.png', 'b.bmp': 'b.bmp'}
    >>> map_names(["c/d.png", "c_d.png"])
    {'c/d.png': 'c_d.png', 'c_d.png': 'c_d.png-2'}
    """
    stems = {image: "_".join(PurePosixPath(image).with_suffix("").parts) for image in images}
    counts = Counter(stem.casefold() for stem in stems.values())
    names, taken = {}, {stem.casefold() for stem in stems.values() if counts[stem.casefold()] == 1}
    for image, stem in stems.items():
        name = stem
        if counts[stem.casefold()] > 1:
            whole = name = "_".join(PurePosixPath(image).parts)
            number = 2
            while name.casefold() in taken:
                name, number = f"{whole}-{number}", number + 1
            taken.add(name.casefold())
        names[image] = name
    return names


def write_map(folder: Path, name: str, prediction: Prediction, row: int) -> None:
    """Write ``<name>_classes.png``, which holds class indices, and ``<name>_<uncertainty>.png`` for each uncertainty.

    An uncertainty is grey, from black for 0 to white for log C nats, the most that C classes can have.

    Args:
        folder: where the pictures go.
        name: the beginning of the names of the maps; see `map_names`.
        prediction: the predictions of a batch.
        row: which image of the batch it is.
    """
    mean = prediction.mean[row]
    _write(folder / f"{name}_classes.png", mean.argmax(0))
    most = math.log(mean.shape[0])
    for kind in ("total", "aleatoric", "epistemic"):
        _write(folder / f"{name}_{kind}.png", (getattr(prediction, kind)[row] * (255 / most)).round().clamp(0, 255))


def _write(path: Path, pixels: Tensor) -> None:
    data = io.BytesIO()
    Image.fromarray(np.array(pixels.tolist(), np.uint8)).save(data, format="PNG")
    write_bytes(path, data.getvalue())
