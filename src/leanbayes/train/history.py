"""What `fit` reports: one `Epoch` after each pass over the data, and all of them in a `History`."""

from dataclasses import dataclass, field

__all__ = ["Epoch", "History", "Scales", "Stop"]


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


@dataclass(frozen=True)
class Scales:
    """How the scales σ of the random weights moved in a training.

    Attributes:
        start: the 5, 25, 50, 75 and 95 % quantiles of σ before the first step.
        end: the same quantiles for the weights that the training returned.
        moved: the median of |log σ − log σ₀|, where σ₀ is the scale at the start. 0.01 stands for one percent.
        steps: how many optimizer steps lie between the two.
    """

    start: tuple[float, ...]
    end: tuple[float, ...]
    moved: float
    steps: int


@dataclass(frozen=True)
class Stop:
    """What a callback returns to end the training.

    Args:
        reason: why, in words; `History.stopped` repeats it.
        final: whether the training is over. The epoch under way then ends, with its validation and its callbacks, and
            another `fit` with the same checkpoints gives the same result at once. With False the training only pauses,
            for example because the time is up: the epoch under way is not reported, and another `fit` with the same
            checkpoints goes on.

    >>> Stop("the loss is low enough").final
    True
    """

    reason: str = "a callback stopped the training"
    final: bool = True


@dataclass
class History:
    """All epochs of a training.

    Attributes:
        epochs: one `Epoch` after the other.
        best: the number of the epoch with the least validation loss, or None without a validation set.
        scales: how the scales moved, or None for a model that has no scales to train.
        stopped: the reason of the callback that stopped the training, or None if none did.
    """

    epochs: list[Epoch] = field(default_factory=list)
    best: int | None = None
    scales: Scales | None = None
    stopped: str | None = None

    @property
    def losses(self) -> list[float]:
        """The loss of each epoch."""
        return [epoch.loss for epoch in self.epochs]
