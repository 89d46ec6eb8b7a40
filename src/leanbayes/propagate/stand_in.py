"""A tensor that stands in for a random weight: where an operation has a rule the rule decides, else a draw is used."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from leanbayes.posterior import RandomWeight
from leanbayes.propagate.registry import Registry

__all__ = ["QUESTIONS", "StandIn", "draw_of", "make_stand_in"]

# What only asks about the tensor is answered by the mean: no draw is needed for a shape.
_PROPERTIES = "shape dtype device ndim layout requires_grad grad_fn is_leaf itemsize nbytes"
_KINDS = "is_cuda is_cpu is_mps is_xpu is_meta is_sparse is_mkldnn is_quantized is_nested"
_METHODS = (
    "size dim numel nelement ndimension stride is_floating_point is_complex is_contiguous element_size get_device"
)
QUESTIONS = {
    *(getattr(Tensor, name).__get__ for name in f"{_PROPERTIES} {_KINDS}".split()),
    *(getattr(Tensor, name) for name in f"{_METHODS} data_ptr __len__ __hash__".split()),
    *(torch.is_floating_point, torch.is_complex, torch.numel),
}


class StandIn(Tensor):
    """Looks like the mean of a `RandomWeight`, and behaves as the rules of one propagation say.

    An operation without a rule gets one weight draw, the same for the whole pass: a correct draw, only noisier.
    """

    weight: RandomWeight
    rules: Registry
    generator: torch.Generator | None
    held: Tensor | None

    def noise(self) -> Tensor:
        """The noise of this pass, drawn when first asked for and then kept."""
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
    stand_in: StandIn = torch.Tensor._make_subclass(StandIn, weight.mean.detach(), weight.mean.requires_grad)
    stand_in.weight, stand_in.rules, stand_in.generator, stand_in.held = weight, rules, generator, None
    return stand_in


def draw_of(value: Any) -> Any:
    """The draw of a stand-in; anything else as it is."""
    with torch._C.DisableTorchFunctionSubclass():
        return value.draw() if isinstance(value, StandIn) else value
