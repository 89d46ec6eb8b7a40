"""A tensor that takes the place of a random weight in a pass: a rule decides what an operation does with it."""

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from leanbayes._ops.normal import fill
from leanbayes._ops.questions import QUESTIONS
from leanbayes._ops.sparse_tensor import SparseTensor
from leanbayes._sharding import is_piece
from leanbayes.posteriors import RandomWeight
from leanbayes.propagate.dispatch import leaves_of
from leanbayes.propagate.registry import Registry
from leanbayes.propagate.uses import Uses, uses_of_now

__all__ = ["StandIn", "draw_of", "make_stand_in"]


class StandIn(Tensor):
    """A tensor that looks like the mean of a `RandomWeight` and behaves as the rules of one propagation say.

    Questions about shape, type or device are answered by the mean. An operation without a rule gets one weight draw,
    the same for the whole pass. That draw is correct, only noisier. So does every operation of a weight whose uses in
    a pass would not agree otherwise, such as a layer that is called twice; see `leanbayes.propagate.uses`.

    Attributes:
        weight: the random weight.
        rules: the rules of the propagation, by operation.
        generator: the source of random numbers.
        held: the noise of this pass, once it is drawn.
        source: the stand-in whose noise this one shares, if there is one.
        seed: the seed of which kernels make the noise of this pass, where it takes the place of the noise.
        both: the draw of this pass and its mirror image along a first axis, where they are computed ahead.
        uses: counts the uses of weights in this pass, if somebody asks for it.
        plain: whether every operation gets the weight draw of this pass.
        recomputable: whether a checkpoint may use it again in the backward pass: it answers as the first time.
    """

    recomputable = True
    weight: RandomWeight
    rules: Registry
    generator: torch.Generator | None
    held: Tensor | None
    source: "StandIn | None"
    seed: int | None
    both: Tensor | None
    uses: Uses | None
    plain: bool
    sampled: dict[Any, Tensor]

    def scattered(self, index: Tensor, shape: tuple[int, ...]) -> "StandIn":
        """Return a stand-in for the sparse weight whose stored entries this one stands for; both share their noise."""
        whole = make_stand_in(self.weight.scattered(index, shape), self.rules, self.generator)
        whole.source, whole.uses, whole.plain = self, self.uses, self.plain
        return whole

    def noise(self) -> Tensor:
        """Return the noise of this pass, which is drawn at the first call and then kept."""
        if self.source is not None:
            return self.source.noise()
        if self.held is None:
            if self.seed is None:
                self.held = self.weight.noise(self.generator)
            else:
                self.held = fill(torch.empty(self.weight.mean.shape), self.seed)
        return self.held

    def draw(self) -> Tensor:
        """Return the weight sample of this pass. One that is used more than once is computed once."""
        if not self.plain:
            return self.weight.sample(self.noise())
        mode = (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        if mode not in self.sampled:
            self.sampled[mode] = self.weight.sample(self.noise())
        return self.sampled[mode]

    def settle(self) -> None:
        """Compute what is computed once, however often the weight is used, and needed by most rules."""
        _ = self.weight.spread, self.weight.random_mean
        if self.weight.index is not None:
            _ = self.weight.positions

    def recall(self, drawn: Any = None) -> Any:
        """Return what was drawn so far in this pass; if it is given, go back to it."""
        now = (self.held, dict(self.sampled))
        if drawn is not None:
            self.held, self.sampled = drawn[0], dict(drawn[1])
        return now

    def note(self, *, by_rule: bool) -> None:
        """Count a use of the weight in this pass."""
        if self.uses is not None:
            self.uses.note(self.rules.name, self.weight.name, by_rule=by_rule, agree=self.rules.agree)

    def fits(self, args: Any, kwargs: Any) -> bool:
        """Return whether the first axis of the operation's input holds the examples, where a rule relies on that."""
        if self.uses is None or self.uses.examples is None or not self.rules.by_example:
            return True
        given = args[0] if args else kwargs.get("input", kwargs.get("input1"))
        return not isinstance(given, Tensor) or given.dim() == 0 or len(given) == self.uses.examples

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Apply the rule for ``func``; without a rule, call it with weight draws."""
        kwargs = kwargs or {}
        if func in QUESTIONS:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        met = [leaf for leaf in leaves_of((args, kwargs)) if isinstance(leaf, StandIn)]
        if any(one.plain for one in met):  # the others meet their rule, or none, when the operation is called again
            args, kwargs = tree_map(_plain_draw_of, (args, kwargs))
            return func(*args, **kwargs)
        rule = met[0].rules.find(func)
        if rule is not None and all(one.fits(args, kwargs) for one in met):
            given = args[0] if args else kwargs.get("input")
            for position, one in enumerate(met):  # an input is drawn, whatever the rule does with the weight
                one.note(by_rule=one is not given or position > 0)
            return rule.function(func, *args, **kwargs)
        for one in met:
            one.note(by_rule=False)
        args, kwargs = tree_map(draw_of, (args, kwargs))
        return func(*args, **kwargs)


class _TracedStandIn(StandIn):
    """A stand-in without storage, for the time in which a graph is recorded."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, *given: Any) -> Any:
        """Refuse an operation that has bypassed `__torch_function__`."""
        raise NotImplementedError(f"{func} reached the stand-in of a random weight while a graph was recorded")


def make_stand_in(weight: RandomWeight, rules: Registry, generator: torch.Generator | None) -> StandIn:
    """Make a stand-in for ``weight`` under ``rules``."""
    mean = weight.mean
    if isinstance(mean, SparseTensor):
        like = mean.stored.new_zeros(()).expand(mean.shape)
    elif is_piece(mean):
        like = torch.empty((), dtype=mean.dtype, device=mean.device).expand(mean.shape)
    else:
        like = mean.detach()
    stand_in: StandIn
    if torch.compiler.is_compiling():  # the mean has no values then, and a tensor of another class cannot be made of it
        stand_in = torch.Tensor._make_wrapper_subclass(
            _TracedStandIn, like.shape, dtype=like.dtype, device=like.device, requires_grad=mean.requires_grad
        )
    else:
        stand_in = torch.Tensor._make_subclass(StandIn, like, mean.requires_grad)
    stand_in.weight, stand_in.rules, stand_in.generator = weight, rules, generator
    stand_in.held = stand_in.source = stand_in.seed = stand_in.both = None
    stand_in.uses, stand_in.sampled = uses_of_now(), {}
    stand_in.plain = stand_in.uses is not None and stand_in.uses.is_plain(rules.name, weight.name)
    return stand_in


def draw_of(value: Any) -> Any:
    """Return the weight draw of a stand-in, and any other value as it is."""
    with torch._C.DisableTorchFunctionSubclass():
        return value.draw() if isinstance(value, StandIn) else value


def _plain_draw_of(value: Any) -> Any:
    return draw_of(value) if isinstance(value, StandIn) and value.plain else value
