"""A task: the data that every method is trained and judged on, with a model and a likelihood for them."""

from collections.abc import Callable, Mapping, Sized
from dataclasses import dataclass, field, replace
from typing import Any, cast

from torch import Tensor, nn
from torch.utils.data import Dataset

from leanbayes.errors import InputError
from leanbayes.lab.data.preparation import Preparation
from leanbayes.likelihood import Likelihood
from leanbayes.prediction import Prediction

__all__ = ["Task", "length"]


@dataclass(frozen=True)
class Task:
    """What is to be learnt: three sets of pairs (x, y), a model for them, and what its outputs mean.

    Args:
        name: the name that tables show.
        train: the examples that methods learn from.
        validation: the examples on which settings are chosen, such as the epoch to keep or a temperature.
        test: the examples that methods are judged on.
        model: a function that builds a new, untrained network. Torch's random state decides its initial weights.
        likelihood: what the outputs of the network mean.
        classes: the names of the classes in the order of the outputs; empty for regression.
        shifted: further sets that differ from the training set, so that a network should be unsure about them.
        preparation: how the inputs and the targets were prepared, if they were. `in_units` needs it.
        groups: a function of the inputs of a batch that returns an integer for each, such as the hospital that it comes
            from. Comparisons show the coverage of each group, and ``+conformal:per=group`` guarantees it.
    """

    name: str
    train: Dataset[Any]
    validation: Dataset[Any]
    test: Dataset[Any]
    model: Callable[[], nn.Module]
    likelihood: Likelihood
    classes: tuple[str, ...] = ()
    shifted: Mapping[str, Dataset[Any]] = field(default_factory=dict)
    preparation: Preparation | None = None
    groups: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        for name in ("train", "validation", "test"):
            if not length(getattr(self, name)):
                raise InputError(f"the {name} set of task {self.name!r} is empty; give it at least one example")

    def in_units(self, prediction: Prediction) -> Prediction:
        """Return a prediction in the unit of the target, such as metres.

        Networks learn standardised targets, (y − mean)/std. The mean of the result is multiplied by std and shifted by
        mean, and its variances are multiplied by std². Predictions of classes come back unchanged.
        """
        return prediction if self.preparation is None else self.preparation.in_units(prediction)

    def targets_in_units(self, targets: Tensor) -> Tensor:
        """Return targets of the task's sets in their unit, such as metres; classes come back unchanged."""
        return targets if self.preparation is None else self.preparation.targets_in_units(targets)

    def scored(self, prediction: Prediction, targets: Any) -> tuple[Prediction, Any]:
        """Return a prediction and its targets as they are scored: those of a regression in the target's unit.

        The numbers are in float64, because a target may be large and vary little. Targets that do not belong to the
        predictions, as those of shifted sets, come back unchanged.
        """
        if self.preparation is None or not self.preparation.target_mean:
            return prediction, targets
        names = ("mean", "total", "aleatoric", "epistemic")
        wide = replace(prediction, **{name: getattr(prediction, name).double() for name in names})
        if isinstance(targets, Tensor) and targets.shape == wide.mean.shape:
            targets = self.targets_in_units(targets.double())
        return self.in_units(wide), targets


def length(data: Dataset[Any]) -> int:
    """Return how many examples a data set has."""
    return len(cast(Sized, data))
