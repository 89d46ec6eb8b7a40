"""The budget: what every method may spend on one network, so that a comparison is fair."""

import math
from dataclasses import dataclass

from leanbayes.errors import InputError
from leanbayes.lab.recipes.options import option
from leanbayes.train import Optimization

__all__ = ["Budget"]


@dataclass(frozen=True)
class Budget:
    """What every method may spend on the training of one network."""

    epochs: int = option(40, "How many epochs one network is trained for, over all stages of its method.")
    batch_size: int = option(64, "How many examples a batch holds.")
    optimizer: str = option("adam", "The optimizer: adam, adamw or sgd.")
    lr: float = option(2e-3, "The learning rate of the weights.")
    schedule: str = option("constant", "How the learning rate changes during training: constant or cosine.")
    weight_decay: float = option(0.0, "The weight decay of the weights' means; the scales have none.")
    clip: float | None = option(None, "The largest norm of the gradient; larger ones are scaled down to it.")
    patience: int | None = option(
        None, "Stop a stage after this many epochs without a better negative log likelihood on the validation set."
    )
    class_weights: str | None = option(
        None,
        "How much each class counts in training: balanced (every class counts alike, however rare it is), or one "
        "number for each class, with spaces between them. Scores never use these "
        "weights. By default all classes count 1.",
    )

    def __post_init__(self) -> None:
        self.weights_of_classes()
        for name in ("epochs", "batch_size"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, got {getattr(self, name)}")
        names = ("optimizer", "lr", "schedule", "weight_decay", "clip", "patience")
        Optimization(**{name: getattr(self, name) for name in names})  # refuses what it cannot use, before any training

    def weights_of_classes(self) -> list[float] | None:
        """Return the numbers of ``class_weights``; None for no weights and for balanced ones.

        >>> Budget(class_weights="1 2.5").weights_of_classes()
        [1.0, 2.5]
        """
        if self.class_weights in (None, "balanced"):
            return None
        try:
            weights = [float(number) for number in str(self.class_weights).replace(",", " ").split()]
        except ValueError:
            weights = []
        if not weights or not all(0 <= weight < math.inf for weight in weights):
            raise InputError(
                "class_weights must be balanced, or one number of at least 0 for each class with spaces between them, "
                f"got {self.class_weights!r}"
            )
        return weights
