"""Every operation that is linear in its weight, in small shapes, and the truth about it by dense algebra in float64."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap

from leanbayes.posteriors import Normal, RandomWeight
from leanbayes.propagate import PROPAGATIONS


def stand_in(propagate: str, weight: RandomWeight, generator: torch.Generator | None = None) -> Tensor:
    """What takes the place of one weight under a propagation."""
    return PROPAGATIONS[propagate]().stand_ins({"w": weight}, nn.Identity(), generator)["w"]


@dataclass(frozen=True)
class Case:
    """An operation ``run(x, weight, bias)``, and the shapes that it takes."""

    name: str
    operation: Callable[..., Tensor]
    inputs: tuple[int, ...]
    weight: tuple[int, ...]
    bias: int | None
    options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.name

    def x(self) -> Any:
        if self.operation is F.embedding:
            return torch.tensor([[0, 2, 2], [3, 1, 0]])
        if self.operation is F.bilinear:
            return tuple(torch.randn(*self.inputs[:-1], size, dtype=torch.float64) for size in self.weight[1:])
        return torch.randn(self.inputs, dtype=torch.float64)

    def run(self, x: Any, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.operation is F.embedding:
            return F.embedding(x, weight, **self.options)
        inputs = x if isinstance(x, tuple) else (x,)
        return self.operation(*inputs, weight, bias, **self.options)


CASES = [
    Case("linear, no batch", F.linear, (3,), (4, 3), 4),
    Case("linear", F.linear, (2, 3), (4, 3), 4),
    Case("linear, 2 leading axes", F.linear, (2, 3, 3), (2, 3), 2),
    Case("linear, 3 leading axes", F.linear, (2, 2, 2, 3), (2, 3), 2),
    Case("conv1d", F.conv1d, (2, 2, 5), (3, 2, 2), 3),
    Case("conv1d, no batch", F.conv1d, (2, 5), (3, 2, 2), 3),
    Case("conv1d, stride and padding", F.conv1d, (2, 2, 6), (3, 2, 3), 3, {"stride": 2, "padding": 1}),
    Case("conv1d, dilation", F.conv1d, (2, 2, 6), (2, 2, 2), 2, {"dilation": 3}),
    Case("conv1d, groups", F.conv1d, (2, 4, 4), (4, 2, 2), 4, {"groups": 2}),
    Case("conv1d, depthwise, same", F.conv1d, (2, 3, 4), (3, 1, 2), 3, {"groups": 3, "padding": "same"}),
    Case("conv2d", F.conv2d, (2, 2, 3, 4), (2, 2, 2, 2), 2),
    Case("conv2d, stride", F.conv2d, (2, 2, 4, 4), (3, 2, 2, 2), 3, {"stride": (2, 1)}),
    Case("conv2d, dilation, groups", F.conv2d, (2, 4, 4, 3), (2, 2, 2, 2), 2, {"dilation": (2, 1), "groups": 2}),
    Case("conv2d, same", F.conv2d, (2, 1, 3, 3), (2, 1, 2, 3), 2, {"padding": "same", "dilation": (1, 2)}),
    Case("conv3d", F.conv3d, (2, 1, 2, 3, 3), (2, 1, 2, 2, 2), 2, {"stride": (1, 2, 1), "padding": (1, 0, 0)}),
    Case("conv3d, groups, same", F.conv3d, (1, 2, 2, 2, 3), (2, 1, 2, 1, 3), 2, {"groups": 2, "padding": "same"}),
    Case("conv_transpose1d", F.conv_transpose1d, (2, 2, 3), (2, 3, 2), 3),
    Case("conv_transpose1d, stride", F.conv_transpose1d, (2, 2, 3), (2, 2, 3), 2, {"stride": 2, "output_padding": 1}),
    Case("conv_transpose1d, groups", F.conv_transpose1d, (2, 4, 3), (4, 1, 2), 2, {"groups": 2, "dilation": 2}),
    Case("conv_transpose2d", F.conv_transpose2d, (2, 2, 2, 2), (2, 2, 2, 3), 2, {"stride": 2, "output_padding": 1}),
    Case("conv_transpose2d, groups", F.conv_transpose2d, (2, 4, 2, 2), (4, 1, 2, 2), 2, {"groups": 2, "padding": 1}),
    Case("conv_transpose3d", F.conv_transpose3d, (1, 1, 2, 2, 2), (1, 2, 2, 2, 1), 2, {"stride": 2, "dilation": 2}),
    Case("conv_transpose3d, groups", F.conv_transpose3d, (1, 2, 2, 1, 2), (2, 1, 2, 2, 1), 2, {"groups": 2}),
    Case("bilinear", F.bilinear, (2, 3), (3, 2, 3), 3),
    Case("bilinear, 2 leading axes", F.bilinear, (2, 2, 3), (2, 2, 2), 2),
    Case("embedding", F.embedding, (), (5, 3), None),
    Case("embedding, padding", F.embedding, (), (5, 3), None, {"padding_idx": 0}),
]  # fmt: skip

RANDOM = ("weight", "bias", "both", "part of both")


@dataclass(frozen=True)
class Setting:
    """A case with numbers: means, and which of the two are random."""

    case: Case
    x: Any
    weight: RandomWeight | Tensor
    bias: RandomWeight | Tensor | None

    def draws(self, propagate: str, n: int) -> Tensor:
        """n passes by the propagation itself, each with stand-ins of its own."""

        def one(_: Tensor) -> Tensor:
            pair = [stand_in(propagate, w) if isinstance(w, RandomWeight) else w for w in (self.weight, self.bias)]
            return self.case.run(self.x, *pair)

        return vmap(one, randomness="different")(torch.arange(n))

    def mean(self) -> Tensor:
        """The plain operation at the means."""
        return self.case.run(self.x, _mean(self.weight), _mean(self.bias))

    def covariance(self) -> Tensor:
        """J Σ Jᵀ of the flattened output, where J moves one random coordinate at a time."""
        size = self.mean().numel()
        total = torch.zeros(size, size, dtype=torch.float64)
        means = _mean(self.weight), _mean(self.bias)
        for position, random in enumerate((self.weight, self.bias)):
            if not isinstance(random, RandomWeight):
                continue
            flat = random.mean.flatten()
            places = range(flat.numel()) if random.index is None else random.index.tolist()
            for place, scale in zip(places, random.spread.flatten(), strict=True):
                unit = torch.zeros_like(flat)
                unit[place] = 1
                moved = [m + unit.view(m.shape) if i == position else m for i, m in enumerate(means)]
                column = scale * (self.case.run(self.x, *moved) - self.mean()).flatten()  # exact: it is linear
                total += column.outer(column)
        return total

    def variance(self) -> Tensor:
        return self.covariance().diagonal().view(self.mean().shape)


def setting(case: Case, random: str) -> Setting:
    """Numbers for a case, from the global random state."""
    weight = torch.randn(case.weight, dtype=torch.float64)
    bias = None if case.bias is None else torch.randn(case.bias, dtype=torch.float64)
    weight_is_random, bias_is_random = random != "bias", random != "weight" and bias is not None
    part = random == "part of both"
    return Setting(
        case,
        case.x(),
        _random(weight, part) if weight_is_random else weight,
        _random(bias, part) if bias_is_random else bias,
    )


def _random(mean: Tensor, part: bool) -> RandomWeight:
    if not part:
        return RandomWeight("w", mean, None, torch.rand_like(mean) + 0.1, Normal())
    size = max(1, mean.numel() // 3)
    index = torch.randperm(mean.numel())[:size].sort().values.to(torch.int32)
    return RandomWeight("w", mean, index, torch.rand(size, dtype=torch.float64) + 0.1, Normal())


def _mean(value: Any) -> Any:
    return value.mean if isinstance(value, RandomWeight) else value
