"""Operations in small shapes, each as a function of one correlated tensor, and maybe of random weights."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes.posteriors import Normal, RandomWeight
from leanbayes.propagate.covariance import CovarianceTensor, Setting, full


@dataclass(frozen=True)
class Case:
    """``run(x, *weights)`` for x of ``shape`` (of one example) and ``weights``; ``off`` is its error, in deviations."""

    name: str
    run: Callable[..., Tensor]
    shape: tuple[int, ...]
    weights: tuple[tuple[int, ...], ...] = ()
    scale: float = 0.7
    off: float = 0.0

    def __str__(self) -> str:
        return self.name

    def inputs(self, examples: int = 2) -> tuple[Tensor, Tensor]:
        """Mean, and a covariance in blocks by the first axis, as (N, G, B, B)."""
        mean = torch.randn(examples, *self.shape, dtype=torch.float64)
        groups = self.shape[0]
        size = mean[0].numel() // groups
        factor = torch.randn(examples, groups, size, size, dtype=torch.float64) * self.scale / size**0.5
        return mean, factor @ factor.mT + 0.05 * self.scale**2 * torch.eye(size, dtype=torch.float64)

    def full_inputs(self, examples: int = 2) -> tuple[Tensor, Tensor]:
        """Mean, and a covariance without structure, as (N, 1, D, D)."""
        mean, _ = self.inputs(examples)
        size = mean[0].numel()
        factor = torch.randn(examples, 1, size, size, dtype=torch.float64) * self.scale / size**0.5
        return mean, factor @ factor.mT + 0.05 * self.scale**2 * torch.eye(size, dtype=torch.float64)

    def parameters(self) -> tuple[list[Tensor], list[Tensor]]:
        """Means and deviations of the weights, some of which are 0."""
        means = [torch.randn(shape, dtype=torch.float64) for shape in self.weights]
        return means, [(0.2 + torch.rand_like(m)) * (torch.rand_like(m) > 0.2) for m in means]


def random_weight(mean: Tensor, deviation: Tensor) -> CovarianceTensor:
    return CovarianceTensor.of_weight(RandomWeight("w", mean, None, deviation, Normal()), Setting())


def propagate(case: Case, mean: Tensor, blocks: Tensor, *weights: Tensor, **setting: Any) -> tuple[Tensor, Tensor]:
    """Mean and (N, D, D); the weights' means first, then their deviations."""
    half = len(weights) // 2
    random = [random_weight(m, s) for m, s in zip(weights[:half], weights[half:], strict=True)]
    result = case.run(CovarianceTensor.of(mean, blocks, Setting(**setting)), *random)
    assert isinstance(result, CovarianceTensor)
    return result.expected, full(result)


def module(made: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(3)
    for tensor in [*made.double().eval().parameters(), *made.buffers()]:
        if tensor.is_floating_point():
            tensor.data.copy_(torch.rand(tensor.shape, dtype=tensor.dtype, generator=generator) + 0.5)
        tensor.requires_grad_(False)
    return made


PLAIN = torch.tensor([0.5, -1.5, 2.0], dtype=torch.float64)

LINEAR = [
    Case("avg_pool1d", lambda x: F.avg_pool1d(x, 2, 1, 1), (2, 4)),
    Case("avg_pool2d", lambda x: F.avg_pool2d(x, 2, ceil_mode=True, count_include_pad=False), (2, 3, 2)),
    Case("avg_pool2d, no channels", lambda x: F.avg_pool2d(x, 2), (2, 4)),
    Case("adaptive_avg_pool1d", lambda x: F.adaptive_avg_pool1d(x, 2), (2, 3)),
    Case("adaptive_avg_pool2d", nn.AdaptiveAvgPool2d((1, 2)), (2, 2, 3)),
    Case("interpolate", lambda x: F.interpolate(x, size=(3, 3), mode="bilinear"), (1, 2, 3)),
    Case("mean", lambda x: x.mean((2, 3)), (3, 2, 2)),
    Case("mean, last, kept", lambda x: torch.mean(x, -1, keepdim=True), (3, 2)),
    Case("sum, channels", lambda x: x.sum(1), (3, 2)),
    Case("batch norm, eval", module(nn.BatchNorm2d(2)), (2, 2, 2)),
    Case("batch norm 1d, eval", module(nn.BatchNorm1d(3)), (3,)),
    Case("pad", lambda x: F.pad(x, (1, 0), value=0.3), (2, 3)),
    Case("pad, reflect", lambda x: F.pad(x, (1, 1), mode="reflect"), (2, 3)),
    Case("pad, channels", lambda x: F.pad(x, (0, 0, 1, 0)), (2, 3)),
    Case("flatten", lambda x: torch.flatten(x, 1), (2, 3)),
    Case("reshape", lambda x: x.reshape(len(x), 2, 3), (3, 2)),
    Case("view, -1", lambda x: x.view(-1, 6), (3, 2)),
    Case("unflatten", lambda x: x.unflatten(1, (3, 2)), (6,)),
    Case("permute", lambda x: x.permute(0, 2, 1), (2, 3)),
    Case("transpose", lambda x: x.transpose(1, 2), (2, 3)),
    Case("x[:, 1:]", lambda x: x[:, 1:], (3, 2)),
    Case("x[:, 0]", lambda x: x[:, 0], (3, 2)),
    Case("x[..., None]", lambda x: x[..., None], (3,)),
    Case("x[:, [2, 0, 0]]", lambda x: x[:, [2, 0, 0]], (3,)),
    Case("chunk", lambda x: x.chunk(2, 1)[1], (4, 2)),
    Case("squeeze", lambda x: x.unsqueeze(1).squeeze(1), (3,)),
    Case("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), (4, 1, 1)),
    Case("contiguous", lambda x: x.contiguous().clone().double(), (3,)),
    Case("dropout, eval", lambda x: F.dropout(x, 0.5, training=False), (3,)),
    Case("x + x", lambda x: x + x, (3,)),
    Case("x - x", lambda x: x - x, (3,)),
    Case("1 - x", lambda x: 1 - x, (3,)),
    Case("plain + x", lambda x: PLAIN + x, (3,)),
    Case("2 * x", lambda x: 2 * x, (3,)),
    Case("x * plain", lambda x: x * PLAIN, (2, 3)),
    Case("x / plain", lambda x: x / PLAIN, (3,)),
    Case("x / 3", lambda x: x / 3, (3,)),
    Case("-x", lambda x: -x, (3,)),
    Case("linear", lambda x: F.linear(x, torch.stack([PLAIN, PLAIN**2]), PLAIN[:2]), (3,)),
    Case("conv2d", lambda x: F.conv2d(x, torch.arange(12.0).double().view(3, 2, 2, 1) / 5, PLAIN), (2, 2, 2)),
]
"""Linear in x, with nothing else random."""

LAYERS = [
    Case("linear, random", F.linear, (4,), ((3, 4), (3,))),
    Case("linear, no bias", F.linear, (4,), ((3, 4),)),
    Case("linear, positions", F.linear, (3, 2), ((2, 2), (2,))),
    Case("linear, only bias", lambda x, b: F.linear(x, torch.stack([PLAIN, PLAIN**2]), b), (3,), ((2,),)),
    Case("conv1d", lambda x, w, b: F.conv1d(x, w, b, 2, 1), (2, 4), ((3, 2, 3), (3,))),
    Case("conv1d, same", lambda x, w: F.conv1d(x, w, padding="same"), (2, 3), ((2, 2, 3),)),
    Case("conv1d, dilation", lambda x, w: F.conv1d(x, w, dilation=2), (2, 4), ((2, 2, 2),)),
    Case("conv2d", lambda x, w, b: F.conv2d(x, w, b, padding=1), (2, 2, 2), ((2, 2, 2, 2), (2,))),
    Case("conv2d, groups", lambda x, w, b: F.conv2d(x, w, b, groups=2), (4, 2, 2), ((2, 2, 2, 1), (2,))),
    Case("conv2d, only bias", lambda x, b: F.conv2d(x, torch.ones(2, 1, 2, 2).double(), b), (1, 3, 2), ((2,),)),
    Case("conv3d", F.conv3d, (1, 2, 2, 2), ((2, 1, 2, 1, 2),)),
    Case("batch norm", lambda x, g, b: F.batch_norm(x, PLAIN, PLAIN**2, g, b), (3, 2), ((3,), (3,))),
    Case("batch norm, no positions", lambda x, g, b: F.batch_norm(x, PLAIN, PLAIN**2, g, b), (3,), ((3,), (3,))),
    Case("batch norm, no offset", lambda x, g: F.batch_norm(x, PLAIN, PLAIN**2, g), (3, 2), ((3,),)),
    Case("x + w", lambda x, w: x + w, (2, 3), ((3,),)),
    Case("x - w, each", lambda x, w: x - w, (2, 2), ((1, 2, 2),)),
    Case("w * x", lambda x, w: w * x, (2, 3), ((2, 1),)),
]
"""Linear in x and in each random weight."""

KINKS = [
    Case("relu", F.relu, (4, 2), scale=1.5),
    Case("relu, module", nn.ReLU(inplace=True), (6,), scale=1.5),
    Case("leaky relu", lambda x: F.leaky_relu(x, 0.2), (4, 2), scale=1.5),
    Case("abs", torch.abs, (3, 2)),
]

SMOOTH = [
    Case("tanh", torch.tanh, (3, 2), off=2e-3),
    Case("sigmoid", torch.sigmoid, (3, 2), off=1e-3),
    Case("gelu", F.gelu, (3, 2), off=3e-3),
    Case("silu", F.silu, (3, 2), off=2e-3),
    Case("softplus", F.softplus, (3, 2), off=1e-3),
    Case("square", torch.square, (3, 2), off=1e-9),
]

FIRST_ORDER = [
    Case("softmax", lambda x: F.softmax(x, 1), (4,), scale=0.02, off=0.06),
    Case("softmax, inner", lambda x: x.softmax(-1), (2, 3), scale=0.02, off=0.06),
    Case("log_softmax", lambda x: F.log_softmax(x, 1), (4,), scale=0.02, off=0.06),
    Case("log_softmax, channels", lambda x: F.log_softmax(x, dim=1), (3, 2), scale=0.02, off=0.06),
]

MAXIMA = [
    Case("max_pool1d", lambda x: F.max_pool1d(x, 2), (2, 4)),
    Case("max_pool2d", nn.MaxPool2d(2, 1, 1), (2, 2, 3)),
    Case("max_pool3d", lambda x: F.max_pool3d(x, 2), (1, 2, 2, 4)),
    Case("adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, 2), (2, 3, 2)),
]

ALL = [*LINEAR, *LAYERS, *KINKS, *SMOOTH, *FIRST_ORDER, *MAXIMA]
