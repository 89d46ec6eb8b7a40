"""A tensor that stands in for a random weight: where an operation has a rule the rule decides, else a draw is used."""

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
    """Looks like the mean of a `RandomWeight`, and behaves as the rules of one propagation say.

    What only asks for a shape or a type is answered by the mean. An operation without a rule gets one weight draw, the
    same for the whole pass: a correct draw, only noisier.
    """

    weight: RandomWeight
    rules: Registry
    generator: torch.Generator | None
    held: Tensor | None
    source: "StandIn | None"

    def scattered(self, index: Tensor, shape: tuple[int, ...]) -> "StandIn":
        """A stand-in for the weight whose stored entries this one stands for, with the same noise."""
        made = make_stand_in(self.weight.scattered(index, shape), self.rules, self.generator)
        made.source = self
        return made

    def noise(self) -> Tensor:
        """The noise of this pass, drawn when first asked for and then kept."""
        if self.source is not None:
            return self.source.noise()
        if self.held is None:
            self.held = self.weight.noise(self.generator)
        return self.held

    def draw(self) -> Tensor:
        """The weight sample of this pass."""
        return self.weight.sample(self.noise())

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Apply the rule for ``func``, or call it with draws."""
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
    """A stand-in for ``weight`` under ``rules``."""
    mean = weight.mean
    like = mean.stored.new_zeros(()).expand(mean.shape) if isinstance(mean, SparseTensor) else mean.detach()
    stand_in: StandIn = torch.Tensor._make_subclass(StandIn, like, mean.requires_grad)
    stand_in.weight, stand_in.rules, stand_in.generator = weight, rules, generator
    stand_in.held = stand_in.source = None
    return stand_in


def draw_of(value: Any) -> Any:
    """The draw of a stand-in; anything else as it is."""
    with torch._C.DisableTorchFunctionSubclass():
        return value.draw() if isinstance(value, StandIn) else value
