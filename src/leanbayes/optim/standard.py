"""The optimizers of torch that `leanbayes.fit` knows by name."""

import torch

from leanbayes.optim.protocol import NamedOptimizer

__all__ = ["ADAM", "ADAMW", "SGD"]

ADAM = NamedOptimizer("adam", lambda problem: torch.optim.Adam(problem.groups, lr=problem.lr))
ADAMW = NamedOptimizer("adamw", lambda problem: torch.optim.AdamW(problem.groups, lr=problem.lr))
SGD = NamedOptimizer("sgd", lambda problem: torch.optim.SGD(problem.groups, lr=problem.lr, momentum=0.9))
