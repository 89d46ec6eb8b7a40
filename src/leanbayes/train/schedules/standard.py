"""The schedules that LeanBayes has itself."""

from torch.optim.lr_scheduler import CosineAnnealingLR

from leanbayes.objective import anneal, constant, warm_up
from leanbayes.train.schedules import NamedSchedule

__all__ = ["ANNEAL", "CONSTANT", "COSINE", "WARM_UP"]

CONSTANT = NamedSchedule("constant", rate=lambda optimizer, steps: None, kl_weight=constant())  # noqa: ARG005
COSINE = NamedSchedule("cosine", rate=lambda optimizer, steps: CosineAnnealingLR(optimizer, max(steps, 1)))
ANNEAL = NamedSchedule("anneal", kl_weight=anneal())
WARM_UP = NamedSchedule("warm_up", kl_weight=warm_up())
