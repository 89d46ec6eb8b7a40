"""The schedules that LeanBayes has itself."""

import math
from dataclasses import dataclass

from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

from leanbayes.objective import anneal, constant, warm_up
from leanbayes.train.schedules import NamedSchedule

__all__ = ["ANNEAL", "CONSTANT", "COSINE", "WARMUP_COSINE", "WARM_UP", "WarmupCosine"]

_WARMUP = 0.05  # the share of the steps in which the learning rate rises


@dataclass(frozen=True)
class WarmupCosine:
    """The factor of the learning rate: it rises in a straight line, then falls to 0 as half a cosine.

    With W = max(1, 5 % of the steps), rounded, step t of T has the factor (t + 1)/(W + 1) if t < W, and otherwise
    ½(1 + cos(π(t − W)/(T − W))). A training of one or two steps has no warm-up.

    Args:
        steps: T, how many steps the training has.

    >>> [round(WarmupCosine(20)(step), 3) for step in (0, 1, 10, 20)]
    [0.5, 1.0, 0.541, 0.0]
    """

    steps: int

    @property
    def warmup(self) -> int:
        """W, the number of steps in which the learning rate rises."""
        return max(1, round(_WARMUP * self.steps)) if self.steps > 2 else 0

    def __call__(self, step: int) -> float:
        """Return the factor of a step, counted from 0."""
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        progress = (step - self.warmup) / max(self.steps - self.warmup, 1)
        return 0.5 * (1 + math.cos(math.pi * min(progress, 1.0)))


CONSTANT = NamedSchedule("constant", rate=lambda optimizer, steps: None, kl_weight=constant())  # noqa: ARG005
COSINE = NamedSchedule("cosine", rate=lambda optimizer, steps: CosineAnnealingLR(optimizer, max(steps, 1)))
WARMUP_COSINE = NamedSchedule("warmup_cosine", rate=lambda optimizer, steps: LambdaLR(optimizer, WarmupCosine(steps)))
ANNEAL = NamedSchedule("anneal", kl_weight=anneal())
WARM_UP = NamedSchedule("warm_up", kl_weight=warm_up())
