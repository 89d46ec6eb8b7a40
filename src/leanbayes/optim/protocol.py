"""What `leanbayes.fit` asks of an optimizer, and what it tells one.

Most optimizers take a list of parameter groups and the gradient of the evidence lower bound. ``torch.optim.Adam`` is
one of them. Such an optimizer needs a `NamedOptimizer` if users shall choose it by name, and nothing else from here.

**Optimizers that own the scales.** A natural-gradient optimizer such as IVON computes the gradient of the KL divergence
in closed form and turns the curvature of the loss into scales. Such an optimizer sets ``owns_scales = True``. Then:

1. `fit` builds it with ``build(problem)``. The groups of the `Problem` hold the means, the weights that are not random
   and what the likelihood learns, but not the scales. `leanbayes.optim.random_tensors` lists the random tensors. The
   optimizer puts their raw scales ``rho`` into a parameter group of its own, because ``zero_grad`` and the gradient
   scaler of mixed precision act on the optimizer's groups, and because a checkpoint holds the optimizer's state.
2. The loss that `fit` differentiates is the expected negative log-likelihood of one example, without the KL.
3. Before each call of ``step``, `fit` writes the present KL weight into ``group["kl_weight"]`` of every group.
4. When ``step`` is called, ``mean.grad`` and ``rho.grad`` hold the gradients, summed over micro-batches and averaged
   over processes. `RandomTensor.scale_gradient` gives ∂loss/∂σ. For Gaussian weights (∂loss/∂σ)/σ is an unbiased
   estimate of the expected curvature ∂²loss/∂μ² (Price's theorem), whichever propagation computed the loss.
5. The optimizer writes new scales with `RandomTensor.set_scale`.
6. All that the optimizer remembers lies in ``state[parameter]`` as tensors and numbers, and in its groups as numbers.
   `fit` saves both in a checkpoint. When sparse weights move, entries of a parameter's own shape move with it, and the
   entries of new weights are 0. After that `fit` calls ``adopt_scales(rho, changed)``, if the optimizer has it, with
   the mask of the new weights, so that the optimizer can derive its entries from the scales that they start with.
7. ``step`` may raise `leanbayes.errors.NonFinite` before it changes anything; `fit` adds where the training was.

`fit` clips the gradients of the other parameters only, since a clipped curvature would be a wrong one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from torch import nn
from torch.optim import Optimizer

__all__ = ["NamedOptimizer", "OptimizerBuilder", "Problem"]


@dataclass(frozen=True)
class Problem:
    """What `fit` knows when it builds an optimizer.

    Attributes:
        model: the model that is trained, a `Bayesian` or a plain module.
        groups: parameter groups with their learning rates and weight decays. The scales have a group of their own,
            which is missing if the optimizer owns the scales.
        lr: the learning rate of the means.
        weight_decay: the weight decay of the means.
        n_data: the number of examples in the training set.
        steps: the number of optimizer steps in the whole training.
        kl_weight: the weight of the KL at the start of the training.
    """

    model: nn.Module
    groups: list[dict[str, Any]]
    lr: float
    weight_decay: float
    n_data: int
    steps: int
    kl_weight: float = 1.0


@runtime_checkable
class OptimizerBuilder(Protocol):
    """Anything with a name that builds an optimizer: a `NamedOptimizer`, or a class with a class method ``build``.

    It may have the attribute ``owns_scales``, which is False where it is missing, ``default_lr``, the learning rate for
    users who name none, which is 0.001 where it is missing, and ``default_scale_lr``, the learning rate of the scales,
    which is that of the means where it is missing.
    """

    @property
    def name(self) -> str:
        """The name of the optimizer."""

    def build(self, problem: Problem) -> Optimizer:
        """Return the optimizer for this problem."""
        ...


@dataclass(frozen=True)
class NamedOptimizer:
    """An optimizer that users choose by name.

    An object of this class in a module of `leanbayes.optim`, or behind an entry point of the group
    "leanbayes.optimizers", can be chosen with ``fit(..., optimizer="its name")``.

    Args:
        name: the name.
        build: a function of a `Problem` that returns a ``torch.optim.Optimizer``.
        owns_scales: whether the optimizer owns the scales, as the module `leanbayes.optim.protocol` describes.
        default_scale_lr: the learning rate of the scales for users who name none. None stands for that of the means.
    """

    name: str
    build: Callable[[Problem], Optimizer]
    owns_scales: bool = False
    default_scale_lr: float | None = None
