"""Schedules by name: how the learning rate and the weight of the KL change during training.

`SCHEDULES` holds what ``Optimization(schedule="name")`` and ``fit(..., kl_weight="name")`` can find: the objects of
type `NamedSchedule` in the modules of this package and behind entry points of the group "leanbayes.schedules".
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from leanbayes._catalogue import Catalogue
from leanbayes.errors import InputError, UnknownName
from leanbayes.objective import Schedule

__all__ = ["SCHEDULES", "NamedSchedule", "kl_schedule", "rate_schedule"]

RateSchedule = Callable[[Optimizer, int], LRScheduler | None]
"""Takes the optimizer and the number of steps, and returns a scheduler that `fit` steps after each optimizer step.

None stands for a learning rate that stays as it is."""


@dataclass(frozen=True)
class NamedSchedule:
    """A schedule that users choose by name, for the learning rate, for the KL weight, or for both.

    Args:
        name: the name.
        rate: the schedule of the learning rate, if there is one of this name.
        kl_weight: the schedule of the KL weight, if there is one of this name. It is a function of the share of
            training that is done, from 0 to 1.
    """

    name: str
    rate: RateSchedule | None = None
    kl_weight: Schedule | None = None

    def __post_init__(self) -> None:
        if self.rate is None and self.kl_weight is None:
            raise InputError(f"the schedule {self.name!r} schedules nothing; give it rate=, kl_weight= or both")


SCHEDULES: Catalogue[NamedSchedule] = Catalogue(
    "schedule",
    lambda value: value.name if isinstance(value, NamedSchedule) else None,
    package="leanbayes.train.schedules",
    group="leanbayes.schedules",
)


def rate_schedule(name: str) -> RateSchedule:
    """Return the schedule of the learning rate that has this name.

    >>> rate_schedule("constant")(None, 10) is None
    True
    """
    schedule = SCHEDULES[name].rate if name in SCHEDULES else None
    if schedule is None:
        known = [member.name for member in SCHEDULES.values() if member.rate is not None]
        raise UnknownName.of("schedule of the learning rate", name, known)
    return schedule


def kl_schedule(name: str) -> Schedule:
    """Return the schedule of the KL weight that has this name.

    >>> kl_schedule("warm_up")(0.25)
    0.5
    """
    schedule = SCHEDULES[name].kl_weight if name in SCHEDULES else None
    if schedule is None:
        known = [member.name for member in SCHEDULES.values() if member.kl_weight is not None]
        raise UnknownName.of("schedule of the KL weight", name, known)
    return schedule
