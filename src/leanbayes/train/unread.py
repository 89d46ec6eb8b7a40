"""Losses that nobody has read yet.

To read a number that a GPU computes, the program waits until the GPU is done. A training that looks at every loss
before it goes on therefore leaves the GPU idle between steps. On a GPU `fit` collects the losses instead, looks at many
of them at once, and finds the first one that is not finite then.
"""

import torch
from torch import Tensor

from leanbayes.errors import NonFinite

__all__ = ["UnreadLosses", "reading_waits"]

_MOST = 50


def reading_waits(device: torch.device) -> bool:
    """Return whether the program waits when it reads a number on this device.

    >>> reading_waits(torch.device("cpu")), reading_waits(torch.device("cuda"))
    (False, True)
    """
    return device.type != "cpu"


class UnreadLosses:
    """The losses of the last steps, which are read together.

    Args:
        device: where the training runs. On the CPU nothing is collected, because each loss is read at once.

    >>> losses = UnreadLosses(torch.device("cuda"))
    >>> for step, value in enumerate([1.0, float("nan"), 2.0]):
    ...     losses.add(f"step {step}", torch.tensor(value))
    >>> losses.read()
    Traceback (most recent call last):
    leanbayes.errors.NonFinite: step 1: the loss is nan; ...
    """

    def __init__(self, device: torch.device) -> None:
        self.collects = reading_waits(device)
        self.positions: list[str] = []
        self.losses: list[Tensor] = []

    def add(self, position: str, loss: Tensor) -> None:
        """Collect the loss of one step; read all of them if there are many.

        Args:
            position: where the training is, in words for the error.
            loss: the loss, as a scalar on the device.
        """
        if not self.collects:
            return
        self.positions.append(position)
        self.losses.append(loss.detach())
        if len(self.losses) >= _MOST:
            self.read()

    def read(self) -> None:
        """Raise an error that names the first loss that is not finite. Call this before weights are kept."""
        if not self.losses:
            return
        positions, values = self.positions, torch.stack(self.losses).tolist()
        self.positions, self.losses = [], []
        for position, value in zip(positions, values, strict=True):
            if value != value or value in (float("inf"), float("-inf")):
                raise NonFinite(
                    f"{position}: the loss is {value}; check the inputs and targets for NaN and for classes that the "
                    "network has no output for, lower the learning rate, or start from smaller scales"
                )
