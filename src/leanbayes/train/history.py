"""What `fit` reports: one `Epoch` after each pass over the data, and all of them in a `History`."""

from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Callback", "Epoch", "History"]


@dataclass(frozen=True)
class Epoch:
    """The result of one epoch.

    Attributes:
        epoch: the number of the epoch, from 0.
        loss: −ELBO / n_data in nats, the mean over the batches of the epoch.
        nll: the negative log-likelihood of one example in nats, the mean over the batches.
        kl: the KL divergence of the whole model in nats, the mean over the batches. If the optimizer owns the scales,
            no step computes the KL; ``kl`` is then measured once, at the end of the epoch, and ``loss`` contains it.
        kl_weight: the weight of the KL at the end of the epoch.
        validation: the mean negative log-likelihood of the validation set, or None without one.
        seconds: how long the epoch took, with its validation.
    """

    epoch: int
    loss: float
    nll: float
    kl: float
    kl_weight: float
    validation: float | None
    seconds: float


@dataclass
class History:
    """All epochs of a training.

    Attributes:
        epochs: one `Epoch` after the other.
        best: the number of the epoch with the least validation loss, or None without a validation set.
    """

    epochs: list[Epoch] = field(default_factory=list)
    best: int | None = None

    @property
    def losses(self) -> list[float]:
        """The loss of each epoch."""
        return [epoch.loss for epoch in self.epochs]


Callback = Callable[[Epoch], None]
"""A function that `fit` calls with each `Epoch`."""
