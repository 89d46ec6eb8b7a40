"""Deep ensembles (Lakshminarayanan et al. 2017): several networks, predicted together where that is faster."""

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import stack_module_state, vmap
from torch.utils._pytree import tree_leaves, tree_map

from leanbayes._calls import Inputs, call, call_with
from leanbayes.bayesian import Bayesian, refuse_random_parts
from leanbayes.errors import InputError, UnknownName
from leanbayes.prediction import Predictor, in_eval, outputs_of
from leanbayes.prediction.prediction import networks_of

__all__ = ["Ensemble"]

_QUICK = 1.0  # seconds: of a shorter measurement much may be the first vmapped call's own start, so it is made twice


class Ensemble(Predictor):
    """Networks that were trained apart; draw i is member i.

    Together means one vmapped pass over stacked parameters (and so the memory of all members' activations). With
    random members, such as `Bayesian` ones, the draws go round: member 0, 1, …, 0, 1, …, each time with a new draw.

    Args:
        members: the trained modules.
        method: "together", "loop", or "auto": whichever is faster on the first batch. Only "auto" falls back to the
            loop where the members cannot be stacked (other architectures, random members, operations without a
            batching rule). The two round differently: fix one where results must repeat bit for bit.

    >>> ensemble = Ensemble(nn.Linear(2, 3), nn.Linear(2, 3))
    >>> ensemble.members, [out.shape for out in ensemble.outputs(torch.zeros(5, 2), 2, None)]
    (2, [torch.Size([5, 3]), torch.Size([5, 3])])
    """

    def __init__(self, *members: nn.Module, method: Literal["auto", "together", "loop"] = "auto") -> None:
        super().__init__()
        if not members or not all(isinstance(member, nn.Module) for member in members):
            raise InputError(f"an ensemble needs at least one module, got {[type(m).__name__ for m in members]}")
        if method not in ("auto", "together", "loop"):
            raise UnknownName.of("method", method, ["auto", "together", "loop"])
        for member in members:
            if not isinstance(member, Predictor):
                refuse_random_parts(member)
        self.models = nn.ModuleList(members)
        self.method = method
        self._random = any(isinstance(member, Bayesian | Predictor) for member in members)
        self._faster: dict[torch.device | None, bool] = {}  # where: whether together was faster
        if method == "together":
            self._check_alike()

    @property
    def members(self) -> int | None:  # type: ignore[override]
        """How many; of random members, how often each can be drawn in all, or None: without end."""
        limits = [model.members for model in self.models if isinstance(model, Predictor)]
        finite = [limit for limit in limits if limit is not None]
        if self._random and not finite:
            return None
        return len(self.models) * min(finite, default=1)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The mean of the members' outputs. Members are trained one by one, not through this."""
        outs = [model(*args, **kwargs) for model in self.models]
        return tree_map(lambda *leaves: _mean(leaves), outs[0], *outs[1:])

    def outputs(self, x: Inputs, draws: int, generator: torch.Generator | None) -> Iterator[Any]:
        """Member after member."""
        if self.members is not None and draws > self.members:
            raise InputError(f"{draws} draws were asked of an ensemble that has {self.members}")
        if self._random:
            yield from self._round(x, draws, generator)
            return
        chosen = list(self.models)[:draws]
        place = next((leaf.device for leaf in tree_leaves(x) if isinstance(leaf, Tensor)), None)
        if self.method == "auto" and place not in self._faster and len(chosen) > 1:
            yield from self._measure(chosen, x, place)
        elif len(chosen) > 1 and (self.method == "together" or self._faster.get(place)):
            yield from self._together(chosen, x)
        else:
            yield from (self._one(model, x) for model in chosen)

    def networks(self, draws: int, source: torch.Generator) -> list[Callable[[Tensor], Any]]:
        """Return the members as differentiable functions; draws of random members go round."""
        count, draws = len(self.models), draws if self.members is None else min(draws, self.members)
        members = [networks_of(model, len(range(i, draws, count)), source) for i, model in enumerate(self.models)]
        return [members[draw % count][draw // count % len(members[draw % count])] for draw in range(draws)]

    def parts(self) -> dict[str, nn.Module]:
        """The members, by number."""
        return {str(number): model for number, model in enumerate(self.models)}

    def config(self) -> dict[str, Any]:
        """The method."""
        return {"method": self.method}

    def _round(self, x: Inputs, draws: int, generator: torch.Generator | None) -> Iterator[Any]:
        count = len(self.models)
        sources = [outputs_of(model, x, len(range(i, draws, count)), generator) for i, model in enumerate(self.models)]
        for draw in range(draws):
            with in_eval(self), torch.no_grad():
                out = next(sources[draw % count])
            yield out

    def _one(self, model: nn.Module, x: Inputs) -> Any:
        with in_eval(model), torch.no_grad():
            return call(model, x)

    def _together(self, models: list[nn.Module], x: Inputs) -> list[Any]:
        with in_eval(self), torch.no_grad():
            parameters, buffers = stack_module_state(models)

            def one(tensors: dict[str, Tensor]) -> Any:
                return call(lambda *args, **kwargs: call_with(models[0], tensors, args, kwargs), x)

            stacked = vmap(one)({**parameters, **buffers})
        return [tree_map(lambda leaf, i=i: leaf[i], stacked) for i in range(len(models))]

    def _measure(self, models: list[nn.Module], x: Inputs, place: torch.device | None) -> list[Any]:
        """Both ways, once or twice; the faster one is kept if it can be done and agrees."""
        start = _now(place)
        outs = [self._one(model, x) for model in models]
        loop = _now(place) - start
        try:
            self._check_alike()
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # torch warns where it has no batching rule, and then loops
                together, same = self._time_together(models, x, place, outs)
                if loop < _QUICK:
                    together = min(together, self._time_together(models, x, place, outs)[0])
                    start = _now(place)
                    for model in models:
                        self._one(model, x)
                    loop = min(loop, _now(place) - start)
            self._faster[place] = same and together < loop
        except (RuntimeError, ValueError, Warning):
            self._faster[place] = False
        return outs

    def _time_together(
        self, models: list[nn.Module], x: Inputs, place: torch.device | None, expected: list[Any]
    ) -> tuple[float, bool]:
        start = _now(place)
        found = self._together(models, x)
        seconds, pairs = _now(place) - start, zip(tree_leaves(found), tree_leaves(expected), strict=True)
        return seconds, all(_close(one, other) for one, other in pairs)

    def _check_alike(self) -> None:
        """Raise unless the members differ in nothing but the values of their tensors."""
        if self._random:
            raise InputError('random members cannot be stacked; use method="auto" or "loop"')
        first = self.models[0]
        for number, model in enumerate(self.models):
            if _architecture(model) != _architecture(first):
                raise InputError(
                    f'member {number} has another architecture than member 0; use method="auto" or "loop":\n'
                    f"{model}\nand\n{first}"
                )


def _architecture(model: nn.Module) -> Any:
    kinds = [(name, type(module), module.extra_repr()) for name, module in model.named_modules()]
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return kinds, {name: (tensor.shape, tensor.dtype, tensor.device) for name, tensor in state.items()}


def _mean(leaves: tuple[Any, ...]) -> Any:
    return torch.stack(leaves).mean(0) if isinstance(leaves[0], Tensor) else leaves[0]


def _close(found: Any, expected: Any) -> bool:
    if not isinstance(found, Tensor):
        return bool(found == expected)
    loose = torch.finfo(found.dtype).eps ** 0.5 if found.is_floating_point() else 0.0
    scale = expected.abs().max().item() if expected.numel() else 0.0
    return torch.allclose(found, expected, rtol=loose, atol=loose * scale, equal_nan=True)


def _now(place: torch.device | None) -> float:
    if place is not None and place.type == "cuda":
        torch.cuda.synchronize(place)
    return time.perf_counter()
