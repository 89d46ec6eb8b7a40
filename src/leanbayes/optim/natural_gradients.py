"""`NaturalGradients`: the settings of IVON for `leanbayes.fit`."""

from dataclasses import asdict, dataclass
from typing import ClassVar, Literal

from leanbayes.bayesian import Bayesian
from leanbayes.optim.ivon import IVON
from leanbayes.optim.protocol import Problem
from leanbayes.optim.random_tensor import random_tensors
from leanbayes.optim.settings import DEFAULT_RATES, check_settings

__all__ = ["DEFAULT", "NaturalGradients"]


@dataclass(frozen=True)
class NaturalGradients:
    """The settings of `IVON` for `lb.fit`, which knows the number of examples and steps by itself.

    ``fit(..., optimizer="ivon")`` uses the defaults. Other settings go through `lb.Optimization`, for example
    ``lb.Optimization(lb.optim.NaturalGradients(temperature=0.3, initial_scale=0.03), schedule="cosine")``.
    The arguments are those of `IVON`; the weight decay is that of `lb.Optimization`, and 0 there means that it follows
    from the prior.
    """

    name: ClassVar[str] = "ivon"
    owns_scales: ClassVar[bool] = True
    temperature: float = 1.0
    initial_scale: float | None = None
    initial_curvature: float | None = None
    relative_scale: float | None = None
    beta1: float = 0.9
    beta2: float | None = None
    clip: float | None = None
    plain_lr: float = 2e-3
    means: Literal["natural", "adam"] = "natural"
    average: float = 0.0

    def __post_init__(self) -> None:
        settings = asdict(self)
        starts = {name: settings.pop(name) for name in ("initial_scale", "initial_curvature", "relative_scale")}
        check_settings(starts=starts, **settings)

    @property
    def default_lr(self) -> float:
        """The learning rate for users who name none."""
        return DEFAULT_RATES[self.means]

    def build(self, problem: Problem) -> IVON:
        """Build the optimizer for a training."""
        if not isinstance(problem.model, Bayesian):
            random_tensors(problem.model)  # raises the error that says what to do
        assert isinstance(problem.model, Bayesian)
        own = {id(parameter) for parameter in problem.model.parameters()}
        return IVON(
            problem.model,
            problem.lr,
            n_data=problem.n_data,
            steps=problem.steps,
            weight_decay=problem.weight_decay or None,
            kl_weight=problem.kl_weight,
            others=[p for group in problem.groups for p in group["params"] if id(p) not in own],
            **asdict(self),
        )


DEFAULT = NaturalGradients()
"""What ``optimizer="ivon"`` stands for."""
