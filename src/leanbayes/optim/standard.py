"""The optimizers of torch that `leanbayes.fit` knows by name."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from leanbayes.bayesian import Bayesian
from leanbayes.optim.protocol import NamedOptimizer, Problem

__all__ = ["ADAM", "ADAMW", "SGD", "SGDWithAdamForScales"]

_BETAS, _EPSILON = (0.9, 0.999), 1e-8


class SGDWithAdamForScales(torch.optim.SGD):
    """SGD with momentum for the means, and Adam for the scales.

    The gradient of the KL divergence with respect to log σ is at most of the size β/n, so steps in its direction leave
    σ where it began. Adam divides the gradient by its size. A parameter group with ``rule="adam"`` is updated by Adam,
    all others by SGD. Schedules of the learning rate reach both, and a checkpoint holds the state of both.

    Args:
        groups: parameter groups.
        lr: the learning rate of groups that have none of their own.
        momentum: the momentum of SGD.
    """

    def __init__(self, groups: list[dict[str, Any]], lr: float, momentum: float = 0.9) -> None:
        super().__init__([{"rule": "sgd", **group} for group in groups], lr=lr, momentum=momentum)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        """Make one step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        groups = self.param_groups
        self.param_groups = [group for group in groups if group["rule"] == "sgd"]
        try:
            super().step()
        finally:
            self.param_groups = groups
        for group in groups:
            if group["rule"] == "adam":
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._adam(parameter, parameter.grad, group["lr"])
        return loss

    def _adam(self, parameter: Tensor, gradient: Tensor, lr: float) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            state["first"], state["second"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += 1
        first, second = _BETAS
        state["first"].lerp_(gradient, 1 - first)
        state["second"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        root = (state["second"] / (1 - second ** state["step"])).sqrt_().add_(_EPSILON)
        parameter.addcdiv_(state["first"], root, value=-lr / (1 - first ** state["step"]))


def _sgd(problem: Problem) -> torch.optim.Optimizer:
    model = problem.model
    scales = {id(parts.rho) for _, parts in model.parts()} if isinstance(model, Bayesian) else set()
    if not scales:
        return torch.optim.SGD(problem.groups, lr=problem.lr, momentum=0.9)
    groups = [
        {"rule": "adam", **group} if all(id(parameter) in scales for parameter in group["params"]) else group
        for group in problem.groups
    ]
    return SGDWithAdamForScales(groups, problem.lr)


ADAM = NamedOptimizer("adam", lambda problem: torch.optim.Adam(problem.groups, lr=problem.lr))
ADAMW = NamedOptimizer("adamw", lambda problem: torch.optim.AdamW(problem.groups, lr=problem.lr))
SGD = NamedOptimizer("sgd", _sgd, default_scale_lr=0.01)
