"""Draws of what a model returns, each made in the cheapest way that is known so far."""

import copy
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._pytree import tree_leaves, tree_map

from leanbayes._calls import Inputs, call, call_with, map_tensors
from leanbayes._calls import batch_size as size_of
from leanbayes.bayesian import Bayesian
from leanbayes.posteriors import RandomWeight
from leanbayes.prediction.prediction import Predictor, in_eval
from leanbayes.prediction.through import Through
from leanbayes.propagate import OnePass, Propagation, Sample
from leanbayes.propagate.outputs import Outputs
from leanbayes.propagate.shared import Diverged, SharedPrefix
from leanbayes.propagate.uses import consistently

__all__ = ["Draws", "outputs_of"]

_SHARE_FROM = 0.05  # share of a pass: less work than this before the first random weight is not worth keeping
_SMALL_CALL = 2e-4  # seconds: operations below this spend their time on being called, so vmap may be faster
_VMAP_BYTES = 2**28

T = TypeVar("T")


def outputs_of(model: nn.Module, x: Inputs, draws: int, generator: torch.Generator | None = None) -> Iterator[Any]:
    """Yield what a model or predictor returns in each of ``draws`` draws; predictors on top of another use this."""
    if isinstance(model, Predictor):
        yield from model.outputs(x, draws, generator)
        return
    source = Draws(model, x, method="auto", generator=generator, output=lambda returned: returned)
    outputs = source.take(draws)
    for _ in range(draws):
        with in_eval(model), torch.no_grad():  # left again before the caller gets the output
            out = next(outputs)
        yield out


class Draws:
    """The outputs of one batch, draw after draw, each made in the cheapest way that is known so far.

    The first draw is recorded, to see which work precedes the first random weight (`SharedPrefix`) and what the other
    work costs. The noise of the n-th draw does not depend on how the draw is computed.

    Args:
        model: a `Bayesian`, a `Predictor`, or a plain module, whose outputs are all equal.
        inputs: the batch.
        by: the propagation; by default that of the model's predictions.
        method: "auto", "loop" or "vmap"; see `predict`.
        generator: the source of all random numbers.
        output: picks the tensors from what the model returns.
        through: calls the network of each draw, in parts or several times; see `predict`.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Inputs,
        *,
        by: Propagation | None = None,
        method: str,
        generator: torch.Generator | None,
        output: Callable[[Any], Any],
        through: Through | None = None,
    ) -> None:
        self.model, self.inputs, self.through = model, inputs, through
        self.generator, self.output = generator, output
        self.weights: dict[str, RandomWeight] = {} if not isinstance(model, Bayesian) or model.held else model.weights()
        self.by: Propagation = by or (model.predict_by if isinstance(model, Bayesian) else Sample())
        self.certain = model.held if isinstance(model, Bayesian) else not isinstance(model, Predictor)
        self.method = method if self.by.plain_draws and through is None else "loop"
        self.ready: list[Any] = []  # outputs that are computed but not yet asked for
        self.noises: list[dict[str, Tensor]] = []  # noise that is drawn but not yet used
        self.fresh: Iterator[dict[str, Tensor]] = iter(())  # noise that is not yet drawn
        self.chunk = 0 if self.method == "loop" else 1  # draws at a time; 0: vmap is out of the question
        self.recorded = False
        self.prefix: SharedPrefix | None = None
        self.buffers: dict[str, Tensor] = {}
        self.law: Outputs | None = None  # the distribution of the outputs, where one pass gives it

    def only(self, inputs: Inputs) -> "Draws":
        """Return the same for other inputs. For a batch of another size, another way of drawing may be the fastest."""
        other = copy.copy(self)
        other.inputs, other.ready, other.recorded, other.prefix, other.law = inputs, [], False, None, None
        if self.method != "loop" and size_of(inputs) != size_of(self.inputs):
            other.chunk = 1
        return other

    def take(self, count: int) -> Iterator[Any]:
        """Yield ``count`` outputs; groups of draws that belong together begin anew."""
        if isinstance(self.model, Predictor):
            yield from map(self.output, self._of_predictor(self.model, count))
            return
        self.fresh = self.by.noises(self.weights, self.generator)
        for done in range(count):
            if not self.ready:
                self._make(count - done)
            yield self.ready.pop(0)

    def _make(self, wanted: int) -> None:
        if self.certain:
            self.ready = [self.output(self._called(self.model))] * wanted
        elif isinstance(self.by, OnePass):
            self._from_law(self.by)
        elif wanted > 1 and self.method == "vmap":
            self._vmapped(min(wanted, max(self.chunk, 32)))
        elif wanted > 1 and self.chunk > 1:
            self._vmapped(min(wanted, self.chunk))
        elif wanted > 1 and not self.recorded and self.through is None:
            self._record(wanted)
        else:
            self._one()

    def _record(self, wanted: int) -> None:
        """Make the first draw; find the work that all draws share, and decide how the other draws are made."""
        self.recorded = True
        prefix, out = self._consistently(self._recorded)
        self.ready.append(map_tensors(torch.clone, out))
        if prefix.usable and prefix.clean_seconds > _SHARE_FROM * (prefix.clean_seconds + prefix.random_seconds):
            self.prefix = prefix
        bound_by_calls = prefix.random_seconds < _SMALL_CALL * prefix.random_calls
        if self.chunk == 1 and bound_by_calls and wanted > 4:
            self._try_vmap(wanted - 2, max(2, _VMAP_BYTES // max(prefix.random_bytes, 1)))

    def _recorded(self) -> tuple[SharedPrefix, Any]:
        assert isinstance(self.model, Bayesian)
        prefix = SharedPrefix(self.model.model, self.weights, self.inputs)
        tensors = self._stand_ins()
        with prefix:
            out = self._pass(tensors)
        prefix.finish_recording(out)
        return prefix, out

    def _try_vmap(self, wanted: int, most: int) -> None:
        """Time one draw, then a vmapped chunk; the faster way makes the other draws. The draws of the trial count."""
        start = self._now()
        self._one()
        one = self._now() - start
        trial = min(wanted, most, 8)
        start = self._now()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # torch warns where it has no batching rule, and then loops
                self._vmapped(trial)
        except (RuntimeError, ValueError, UserWarning):
            self.chunk = 0
            return
        self.chunk = most if self._now() - start < one * trial else 0

    def _from_law(self, by: OnePass) -> None:
        """Draw the outputs from their distribution, which one pass gives for all draws."""
        if self.law is None:
            assert isinstance(self.model, Bayesian)
            self.law = by.law(self.model, self.inputs, weights=self.weights, output=self.output)
        self.ready.append(self.law.draw(self.generator))

    def _one(self) -> None:
        out = self._consistently(lambda: self._sharing(self._pass, self._stand_ins()))
        self.ready.append(map_tensors(torch.clone, out))  # a weight or an input would change with the next draw

    def _consistently(self, attempt: Callable[[], T]) -> T:
        """Make a draw in which a weight that is used twice is the same both times."""
        assert isinstance(self.model, Bayesian)
        if self.by.plain_draws:
            return attempt()
        return consistently(attempt, self.model.reuse, self.model.model, self.inputs, self.generator)

    def _vmapped(self, count: int) -> None:
        noises = [next(self.fresh) for _ in range(count)]
        stacked = {name: w.sample(torch.stack([noise[name] for noise in noises])) for name, w in self.weights.items()}
        try:
            self.ready += _unstack(self._sharing(vmap(self._pass, randomness="different"), stacked))
        except BaseException:
            self.noises = noises + self.noises  # to be used one by one
            raise

    def _sharing(self, function: Callable[[dict[str, Tensor]], Any], tensors: dict[str, Tensor]) -> Any:
        """Call ``function`` while operations that all draws share are answered from the record."""
        prefix = self.prefix
        if prefix is None:
            return function(tensors)
        states = torch.random.get_rng_state()
        try:
            with prefix.replay():
                out = function(tensors)
            prefix.check(out)
        except Diverged:
            self.prefix = None
            prefix.restore()
            torch.random.set_rng_state(states)
            return function(tensors)
        self.prefix = prefix if prefix.usable else None
        return out

    def _pass(self, tensors: dict[str, Tensor]) -> Any:
        assert isinstance(self.model, Bayesian)
        module, by = self.model.model, self.by

        def network(*args: Any, **kwargs: Any) -> Any:
            returned = call_with(module, tensors, by.prepare(args), by.prepare(kwargs))
            return by.drawn(returned, self.generator)

        return self.output(self._called(network))

    def _called(self, network: Callable[..., Any]) -> Any:
        """What the network of one draw gives for the inputs."""
        return call(network, self.inputs) if self.through is None else self.through(network, self.inputs)

    def _of_predictor(self, predictor: Predictor, count: int) -> Iterator[Any]:
        if self.through is None:
            return predictor.outputs(self.inputs, count, self.generator)
        source = self.generator
        if source is None:
            source = torch.Generator().manual_seed(int(torch.randint(2**63 - 1, ())))
        return (self._called(network) for network in predictor.networks(count, source))

    def _stand_ins(self) -> dict[str, Tensor]:
        if not self.by.plain_draws:
            assert isinstance(self.model, Bayesian)
            return self.by.stand_ins(self.weights, self.model.model, self.generator)
        noise = self.noises.pop(0) if self.noises else None
        if noise is None and self.by.group > 1:
            noise = next(self.fresh)
        for name, weight in self.weights.items():  # only the random coordinates are written anew
            if name not in self.buffers:
                self.buffers[name] = weight.mean.clone(memory_format=torch.contiguous_format)
            if noise is None:
                weight.draw_into(self.buffers[name], self.generator)
            else:
                weight.sample_into(self.buffers[name], noise[name])
        return self.buffers

    def _now(self) -> float:
        for device in {weight.mean.device for weight in self.weights.values() if weight.mean.is_cuda}:
            torch.cuda.synchronize(device)
        return time.perf_counter()


def _unstack(stacked: Any) -> Iterator[Any]:
    for draw in range(len(tree_leaves(stacked)[0])):
        yield tree_map(lambda leaf, i=draw: leaf[i], stacked)
