"""A schedule: the learning rate falls to a tenth after half of training, and the KL counts from then on."""

from torch.optim.lr_scheduler import StepLR

from leanbayes.train import NamedSchedule

STEPS = NamedSchedule(
    "steps",
    rate=lambda optimizer, steps: StepLR(optimizer, max(1, steps // 2)),
    kl_weight=lambda share: float(share >= 0.5),
)
