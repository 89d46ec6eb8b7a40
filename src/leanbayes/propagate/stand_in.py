"""A tensor that takes the place of a random weight in a pass: a rule decides what an operation does with it."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from leanbayes._ops.questions import QUESTIONS
from leanbayes._ops.sparse_tensor import SparseTensor
from leanbayes.posteriors import RandomWeight
from leanbayes.propagate.registry import Registry

__all__ = ["StandIn", "draw_of", "make_stand_in"]


class StandIn(Tensor):
    """A tensor that looks like the mean of a `RandomWeight` and behaves as the rules of one propagation say.

    Questions about shape, type or device are answered by the mean. An operation without a rule gets one weight draw,
    the same for the whole pass. That draw is correct, only noisier.

    Attributes:
        weight: the random weight.
        rules: the rules of the propagation, by operation.
        generator: the source of random numbers.
        held: the noise of this pass, once it is drawn.
        source: the stand-in whose noise this one shares, if there is one.
    """

    weight: RandomWeight
    rules: Registry
    generator: torch.Generator | None
    held: Tensor | None
    source: "StandIn | None"

    def scattered(self, index: Tensor, shape: tuple[int, ...]) -> "StandIn":
        """Return a stand-in for the sparse weight whose stored entries this one stands for; both share their noise."""
        whole = make_stand_in(self.weight.scattered(index, shape), self.rules, self.generator)
        whole.source = self
        return whole

    def noise(self) -> Tensor:
        """Return the noise of this pass, which is drawn at the first call and then kept."""
        if self.source is not None:
            return self.source.noise()
        if self.held is None:
            self.held = self.weight.noise(self.generator)
        return self.held

    def draw(self) -> Tensor:
        """Return the weight sample of this pass."""
        return self.weight.sample(self.noise())

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Apply the rule for ``func``; without a rule, call it with weight draws."""
        kwargs = kwargs or {}
        if func in QUESTIONS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        first = next(leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, StandIn))
        rule = first.rules.find(func)
        if rule is not None:
            return rule.function(func, *args, **kwargs)
        args, kwargs = tree_map(draw_of, (args, kwargs))
        return func(*args, **kwargs)


def make_stand_in(weight: RandomWeight, rules: Registry, generator: torch.Generator | None) -> StandIn:
    """Make a stand-in for ``weight`` under ``rules``."""
    mean = weight.mean
    like = mean.stored.new_zeros(()).expand(mean.shape) if isinstance(mean, SparseTensor) else mean.detach()
    stand_in: StandIn = torch.Tensor._make_subclass(StandIn, like, mean.requires_grad)
    stand_in.weight, stand_in.rules, stand_in.generator = weight, rules, generator
    stand_in.held = stand_in.source = None
    return stand_in


def draw_of(value: Any) -> Any:
    """Return the weight draw of a stand-in, and any other value as it is."""
    with torch._C.DisableTorchFunctionSubclass():
        return value.draw() if isinstance(value, StandIn) else value
