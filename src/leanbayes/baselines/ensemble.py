"""Deep ensembles (Lakshminarayanan et al. 2017): several networks, which predict together where that is faster."""

import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import stack_module_state, vmap
from torch.utils._pytree import tree_leaves, tree_map

from leanbayes._calls import Inputs, call, call_with, prediction_tensor
from leanbayes._wrappers import unwrap
from leanbayes.bayesian import Bayesian, refuse_random_parts
from leanbayes.errors import InputError, UnknownName
from leanbayes.prediction import Predictor, in_eval, laws_of, outputs_of
from leanbayes.prediction.prediction import networks_of
from leanbayes.propagate.outputs import Outputs

__all__ = ["Ensemble"]

_QUICK = 1.0  # seconds: a shorter measurement is repeated, because the first vmapped call is slow to start


class Ensemble(Predictor):
    """Networks that were trained separately; draw i is member i.

    If the members are random, such as `Bayesian` ones, the draws go round: member 0, 1, …, 0, 1, …, each time with a
    new draw.

    Args:
        members: the trained modules.
        method: "together" predicts in one vmapped pass over stacked parameters, which needs the memory of the
            activations of all members. "loop" predicts one member after the other. "auto" takes whichever is faster on
            the first batch, and the loop where the members cannot be stacked: other architectures, random members, or
            operations without a batching rule. The two ways round differently, so choose one of them where results must
            repeat bit for bit.

    >>> ensemble = Ensemble(nn.Linear(2, 3), nn.Linear(2, 3))
    >>> ensemble.members, [out.shape for out in ensemble.outputs(torch.zeros(5, 2), 2, None)]
    (2, [torch.Size([5, 3]), torch.Size([5, 3])])
    """

    def __init__(self, *members: nn.Module, method: Literal["auto", "together", "loop"] = "auto") -> None:
        super().__init__()
        if not members or not all(isinstance(member, nn.Module) for member in members):
            raise InputError(
                f"an ensemble needs at least one module, got {[type(m).__name__ for m in members]}; give the members "
                "one by one: Ensemble(*models)"
            )
        members = tuple(map(unwrap, members))
        if method not in ("auto", "together", "loop"):
            raise UnknownName.of("method", method, ["auto", "together", "loop"])
        for member in members:
            if not isinstance(member, Predictor):
                refuse_random_parts(member)
        self.models = nn.ModuleList(members)
        self.method = method
        self._random = any(isinstance(member, Bayesian | Predictor) for member in members)
        self._faster: dict[torch.device | None, bool] = {}  # by device: whether one pass together was faster
        if method == "together":
            self._check_alike()

    @property
    def members(self) -> int | None:  # type: ignore[override]
        """The number of draws: the members, or all draws of random members; None if there is no limit."""
        limits = [model.members for model in self.models if isinstance(model, Predictor)]
        finite = [limit for limit in limits if limit is not None]
        if self._random and not finite:
            return None
        return len(self.models) * min(finite, default=1)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the mean of the members' outputs. Train the members one by one, not through this pass."""
        outs = [model(*args, **kwargs) for model in self.models]
        return tree_map(lambda *leaves: _mean(leaves), outs[0], *outs[1:])

    def outputs(self, x: Inputs, draws: int, generator: torch.Generator | None) -> Iterator[Any]:
        """Yield the outputs of one member after the other."""
        if self.members is not None and draws > self.members:
            raise InputError(f"{draws} draws were asked of an ensemble that has {self.members}")
        if self._random:
            yield from self._round(x, draws, generator)
            return
        chosen = list(self.models)[:draws]
        device = next((leaf.device for leaf in tree_leaves(x) if isinstance(leaf, Tensor)), None)
        if self.method == "auto" and device not in self._faster and len(chosen) > 1:
            yield from self._measure(chosen, x, device)
        elif len(chosen) > 1 and (self.method == "together" or self._faster.get(device)):
            yield from self._together(chosen, x)
        else:
            yield from (self._one(model, x) for model in chosen)

    def laws(self, x: Inputs, output: Callable[[Any], Any] = prediction_tensor) -> list[Outputs] | None:
        """Return the distributions of all members, if every member predicts in one pass."""
        laws: list[list[Outputs]] = []
        for model in self.models:
            of_member = laws_of(model, x, output)
            if of_member is None or (laws and len(of_member) != len(laws[0])):  # every member counts alike
                return None
            laws.append(of_member)
        return [law for of_member in laws for law in of_member]

    def networks(self, draws: int, source: torch.Generator) -> list[Callable[[Tensor], Any]]:
        """Return the members as differentiable functions; draws of random members go round."""
        count, draws = len(self.models), draws if self.members is None else min(draws, self.members)
        members = [networks_of(model, len(range(i, draws, count)), source) for i, model in enumerate(self.models)]
        return [members[draw % count][draw // count % len(members[draw % count])] for draw in range(draws)]

    def parts(self) -> dict[str, nn.Module]:
        """Return the members by number."""
        return {str(number): model for number, model in enumerate(self.models)}

    def config(self) -> dict[str, Any]:
        """Return the method."""
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

    def _measure(self, models: list[nn.Module], x: Inputs, device: torch.device | None) -> list[Any]:
        """Time both ways once or twice, and remember whether the pass together works, agrees and is faster."""
        start = _now(device)
        outs = [self._one(model, x) for model in models]
        loop = _now(device) - start
        try:
            self._check_alike()
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # torch warns where it has no batching rule, and then loops
                together, same = self._time_together(models, x, device, outs)
                if loop < _QUICK:
                    together = min(together, self._time_together(models, x, device, outs)[0])
                    start = _now(device)
                    for model in models:
                        self._one(model, x)
                    loop = min(loop, _now(device) - start)
            self._faster[device] = same and together < loop
        except (RuntimeError, ValueError, Warning):
            self._faster[device] = False
        return outs

    def _time_together(
        self, models: list[nn.Module], x: Inputs, device: torch.device | None, expected: list[Any]
    ) -> tuple[float, bool]:
        start = _now(device)
        outs = self._together(models, x)
        seconds, pairs = _now(device) - start, zip(tree_leaves(outs), tree_leaves(expected), strict=True)
        return seconds, all(_close(one, other) for one, other in pairs)

    def _check_alike(self) -> None:
        """Raise unless the members differ only in the values of their tensors."""
        if self._random:
            raise InputError('random members cannot be stacked; use method="auto" or "loop"')
        first = self.models[0]
        for number, model in enumerate(self.models):
            if _architecture(model) != _architecture(first):
                raise InputError(
                    f'member {number} has a different architecture from member 0; use method="auto" or "loop":\n'
                    f"{model}\nand\n{first}"
                )


def _architecture(model: nn.Module) -> Any:
    kinds = [(name, type(module), module.extra_repr()) for name, module in model.named_modules()]
    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return kinds, {name: (tensor.shape, tensor.dtype, tensor.device) for name, tensor in state.items()}


def _mean(leaves: tuple[Any, ...]) -> Any:
    return torch.stack(leaves).mean(0) if isinstance(leaves[0], Tensor) else leaves[0]


def _close(output: Any, expected: Any) -> bool:
    if not isinstance(output, Tensor):
        return bool(output == expected)
    loose = torch.finfo(output.dtype).eps ** 0.5 if output.is_floating_point() else 0.0
    scale = expected.abs().max().item() if expected.numel() else 0.0
    return torch.allclose(output, expected, rtol=loose, atol=loose * scale, equal_nan=True)


def _now(device: torch.device | None) -> float:
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
