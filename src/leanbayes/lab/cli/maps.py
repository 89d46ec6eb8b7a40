"""Pictures of a segmented image: the predicted classes, and how unsure the model is of each pixel."""

import io
import math
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image
from torch import Tensor

from leanbayes._files import write_bytes
from leanbayes.prediction import Prediction

__all__ = ["write_map"]


def write_map(folder: Path, name: str, prediction: Prediction, row: int) -> None:
    """Write ``<name>_classes.png``, which holds class indices, and ``<name>_<uncertainty>.png`` for each uncertainty.

    An uncertainty is grey, from black for 0 to white for log C nats, the most that C classes can have.

    Args:
        folder: where the pictures go.
        name: the name of the image; folders in it become part of the file's name.
        prediction: the predictions of a batch.
        row: which image of the batch it is.
    """
    stem = "_".join(PurePosixPath(name).with_suffix("").parts)
    mean = prediction.mean[row]
    _write(folder / f"{stem}_classes.png", mean.argmax(0))
    most = math.log(mean.shape[0])
    for kind in ("total", "aleatoric", "epistemic"):
        _write(folder / f"{stem}_{kind}.png", (getattr(prediction, kind)[row] * (255 / most)).round().clamp(0, 255))


def _write(path: Path, pixels: Tensor) -> None:
    data = io.BytesIO()
    Image.fromarray(np.array(pixels.tolist(), np.uint8)).save(data, format="PNG")
    write_bytes(path, data.getvalue())
