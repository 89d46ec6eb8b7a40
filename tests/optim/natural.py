"""A small optimizer that owns the scales: it shows the protocol, and is no good method."""

from typing import Any

import torch
from torch.optim import Optimizer

from leanbayes.optim import Problem, RandomTensor, random_tensors


class Natural(Optimizer):
    """Means by plain gradient; 1/σ² is a running mean of n·(∂loss/∂σ)/σ + KL weight, for the prior N(0, 1)."""

    name = "natural"
    owns_scales = True

    def __init__(self, groups: list[dict[str, Any]], random: list[RandomTensor], lr: float, n_data: int) -> None:
        scales = {"params": [tensor.rho for tensor in random], "lr": 0.0}
        super().__init__([*groups, scales], {"lr": lr, "beta": 0.9})
        self.random, self.n_data = random, n_data

    @classmethod
    def build(cls, problem: Problem) -> "Natural":
        return cls(problem.groups, random_tensors(problem.model), problem.lr, problem.n_data)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        *others, scales = self.param_groups
        for tensor in self.random:
            state, curvature = self.state[tensor.rho], self.n_data * tensor.scale_gradient() / tensor.scale()
            before = state.get("precision", tensor.scale() ** -2)
            state["precision"] = scales["beta"] * before + (1 - scales["beta"]) * (
                curvature.clamp_min(0) + scales["kl_weight"]
            )
            state["steps"] = state.get("steps", 0) + 1
            tensor.set_scale(state["precision"] ** -0.5)
        for group in others:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter -= group["lr"] * parameter.grad
