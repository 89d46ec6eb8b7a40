"""One move of the sparse weights during training (SSVI, Li et al. 2024, section 3.3).

A move removes the least important stored weights and adds those for which the loss has the largest gradient. The dense
gradient exists for one layer at a time. The state of the optimizer moves with the weights.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from leanbayes._ops.sparse import watching
from leanbayes.bayesian import Bayesian, Coordinates
from leanbayes.errors import InputError
from leanbayes.subspace import dense_name, scatters
from leanbayes.subspace.rewire import Move, Rewire, plan_move

__all__ = ["Rewirer"]

Loss = Callable[[int], Tensor]
"""Computes a loss anew; its argument is the number of the draw, and each number has its own batch."""


class Rewirer:
    """Moves the sparse weights of a model.

    Args:
        model: a `Bayesian` whose subspace is sparse, or a plain model that was made sparse.
        how: the criteria and the schedule of the moves.
        optimizer: the optimizer; its state moves with the weights that stay.
        reduce: returns the mean of a tensor over all processes, because all of them must move the same weights.
    """

    def __init__(
        self, model: nn.Module, how: Rewire, optimizer: Optimizer, reduce: Callable[[Tensor], Tensor] = lambda t: t
    ) -> None:
        self.model, self.how, self.optimizer, self.reduce = model, how, optimizer, reduce
        inner = model.model if isinstance(model, Bayesian) else model
        assert isinstance(inner, nn.Module)
        self.values = dict(inner.named_parameters())
        self.layers = {name: scatter for name, scatter in scatters(inner).items() if self.values[name].requires_grad}
        if not self.layers:
            raise InputError(
                "rewire= moves sparse weights, and this model has none; build it with "
                "subspace=leanbayes.sparse(density), or call leanbayes.make_sparse(model, density)"
            )
        self.random: dict[str, Coordinates] = dict(model.parts()) if isinstance(model, Bayesian) else {}
        for name, scatter in self.layers.items():
            scatter.check_blocks()  # the state of another model may have been loaded
            parts = self.random.get(name)
            if isinstance(model, Bayesian) and parts is not None and model.posterior.relative:
                raise InputError(
                    f"a weight that is added starts at 0, where {model.posterior} has no density; "
                    "choose leanbayes.posteriors.Normal()"
                )
            if parts is not None and parts.index is not None:
                raise InputError(
                    f"only a part of the stored weights of {dense_name(name)!r} is random, and a part cannot move; "
                    "rewire the sparse model first, then choose the part: Bayesian(sparse_model, subspace=top_k(...))"
                )
            if parts is None and how.removal != "magnitude":
                raise InputError(
                    f"{dense_name(name)!r} is not random: it has no scale for the criterion {how.removal!r}; "
                    'choose Rewire(removal="magnitude")'
                )

    def move(self, loss: Loss, share: float) -> dict[str, Move]:
        """Replace a share of each layer's stored weights, and return what moved by the name of the parameter."""
        leaving = {name: self._leaving(name, share) for name in self.layers}
        moves: dict[str, Move] = {}
        norms = [module for module in self.model.modules() if isinstance(module, nn.modules.batchnorm._NormBase)]
        before = [(buffer, buffer.clone()) for norm in norms for buffer in norm.buffers()]
        for group in [[name] for name in self.layers] if self.how.addition == "draws" else [list(self.layers)]:
            moves |= self._moves(group, leaving, loss)
        with torch.no_grad():
            for buffer, old in before:  # the optimizer step has counted this batch already
                buffer.copy_(old)
            for name, move in moves.items():
                self._carry_out(name, move)
        return moves

    def _leaving(self, name: str, share: float) -> Tensor:
        parts, scale = self.random.get(name), None
        if parts is not None:
            assert isinstance(self.model, Bayesian)
            scale = self.model.posterior.spread(parts.rho.detach())
        scatter = self.layers[name]
        places = scatter.blocks.places(scatter.index) if scatter.block > 1 else None
        return self.how.leaving(self.values[name].detach(), scale, share, places)

    def _moves(self, names: list[str], leaving: dict[str, Tensor], loss: Loss) -> dict[str, Move]:
        """Plan the moves of these layers by one backward pass, or by one for each draw."""
        moves: dict[str, Move] = {}
        draws = self.how.batches
        sums: dict[str, Tensor] = {}

        def use(name: str, draw: int, gradient: Tensor) -> None:
            gradient = self.reduce(gradient)
            if draws > 1:
                sums[name] = gradient.abs() + sums.get(name, 0)
            if draw == draws - 1:
                chosen = sums.pop(name) if draws > 1 else gradient
                moves[name] = plan_move(self.layers[name].index, leaving[name], chosen, self.layers[name].blocks)

        for draw in range(draws):
            watchers = {id(self.layers[name].index): _Watcher(partial(use, name, draw)) for name in names}
            with self._at_mean(), watching(watchers):
                value = loss(draw)
            torch.autograd.grad(value, [self.values[name] for name in names], allow_unused=True)
            for watcher in watchers.values():
                watcher.finish()
        return moves

    @contextmanager
    def _at_mean(self) -> Iterator[None]:
        if self.how.addition == "mean" and isinstance(self.model, Bayesian):
            with self.model.at_mean():
                yield
        else:
            yield

    def _carry_out(self, name: str, move: Move) -> None:
        values, parts, scatter = self.values[name], self.random.get(name), self.layers[name]
        scatter.index = move.index  # as a new tensor, because kernels cache plans by the tensor of positions
        self._permute(values, move)
        if parts is None:
            return
        assert isinstance(self.model, Bayesian)
        family: Any = self.model.posterior
        scale = self.how.new_scale
        if scale == "mean":
            scale = float(family.spread(parts.rho).double().mean())
        self._permute(parts.rho, move, replace(family, init_scale=scale).initial(values[:1], None))
        adopt = getattr(getattr(self.optimizer, "optimizer", self.optimizer), "adopt_scales", None)  # accelerate wraps
        if adopt is not None:
            adopt(parts.rho, move.arrived)
        if parts.memory is not None and parts.memory.shape == values.shape:
            parts.memory.copy_(move.carried(parts.memory))

    def _permute(self, parameter: Tensor, move: Move, new: float | Tensor = 0.0) -> None:
        parameter.copy_(move.carried(parameter, new))
        parameter.grad = None
        for name, state in self.optimizer.state.get(parameter, {}).items():
            if isinstance(state, Tensor) and state.shape == parameter.shape:
                self.optimizer.state[parameter][name] = move.carried(state)


class _Watcher:
    """Adds the gradients of a layer that is called several times in one pass, and uses their sum."""

    def __init__(self, use: Callable[[Tensor], None]) -> None:
        self.use, self.calls = use, 0
        self.sum: Tensor | None = None

    def __call__(self) -> Callable[[Tensor], None]:
        """Count a product with the layer's weight, and return what takes its gradient in the backward pass."""
        self.calls += 1
        return self.add

    def add(self, gradient: Tensor) -> None:
        """Add the gradient of one product; the last one completes the sum."""
        self.sum = gradient if self.sum is None else self.sum + gradient
        self.calls -= 1
        if not self.calls:
            self.finish()

    def finish(self) -> None:
        """Use the sum if it is still there. Not every product of a pass is a part of the loss."""
        if self.sum is not None:
            self.use(self.sum)
            self.sum = None
