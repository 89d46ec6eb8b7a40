"""Pictures of a segmentation: the predicted classes and how unsure each pixel is."""

import io
import math
from pathlib import Path, PurePosixPath

import numpy as np
from PIL import Image
from torch import Tensor

from leanbayes._files import write_bytes
from leanbayes.prediction import Prediction

__all__ = ["write_map"]


def write_map(folder: Path, name: str, found: Prediction, row: int) -> None:
    """Beside each other in ``folder``: ``<name>_classes.png`` (class indices) and ``<name>_<uncertainty>.png``.

    Uncertainties are grey from black (0) to white (log C nats, the most that C classes can have).
    """
    stem = "_".join(PurePosixPath(name).with_suffix("").parts)
    mean = found.mean[row]
    _write(folder / f"{stem}_classes.png", mean.argmax(0))
    most = math.log(mean.shape[0])
    for kind in ("total", "aleatoric", "epistemic"):
        _write(folder / f"{stem}_{kind}.png", (getattr(found, kind)[row] * (255 / most)).round().clamp(0, 255))


def _write(path: Path, pixels: Tensor) -> None:
    data = io.BytesIO()
    Image.fromarray(np.array(pixels.tolist(), np.uint8)).save(data, format="PNG")
    write_bytes(path, data.getvalue())
