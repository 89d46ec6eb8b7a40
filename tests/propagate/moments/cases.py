"""Operations on small random tensors, and what the rule of each promises."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap

from leanbayes.propagate.moments import MomentTensor, Setting


@dataclass(frozen=True)
class Case:
    """An operation on random inputs.

    Attributes:
        name: What the test is called.
        run: The operation.
        shapes: The shapes of its inputs.
        off: The error, in standard deviations, that a rule may have if it is not exact.
        scale: About the standard deviation of the inputs.
        batched: Whether the first axis of every input holds examples.
        leading: Whether the operation accepts further leading axes.
    """

    name: str
    run: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]
    off: float = 0.0
    scale: float = 0.7
    batched: bool = True
    leading: bool = False

    def __str__(self) -> str:
        return self.name

    def inputs(self) -> tuple[list[Tensor], list[Tensor]]:
        """Return means and variances; if the rule is exact, some variances are zero."""
        means = [torch.randn(shape, dtype=torch.float64) for shape in self.shapes]
        holes = 0.15 if self.off == 0 else 0.0
        spreads = [self.scale * (0.5 + torch.rand_like(m)) * (torch.rand_like(m) >= holes) for m in means]
        return means, [spread.square() for spread in spreads]

    def draws(self, means: Sequence[Tensor], variances: Sequence[Tensor], n: int) -> Tensor:
        """Apply the operation itself to n draws of its inputs."""
        drawn = [m + v.sqrt() * torch.randn(n, *m.shape, dtype=m.dtype) for m, v in zip(means, variances, strict=True)]
        return self.run(*drawn) if self.leading else vmap(self.run)(*drawn)


def random(mean: Tensor, variance: Tensor, **setting: Any) -> MomentTensor:
    return MomentTensor.of(mean, variance, None, Setting(**setting))


def propagate(
    case: Case, means: Sequence[Tensor], variances: Sequence[Tensor], **setting: Any
) -> tuple[Tensor, Tensor]:
    computed = case.run(*(random(m, v, **setting) for m, v in zip(means, variances, strict=True)))
    assert isinstance(computed, MomentTensor)
    return computed.expected, computed.variance


def of_one(name: str, run: Callable[[Tensor], Tensor], *shape: int, **promise: Any) -> Case:
    return Case(name, run, (shape or (2, 3),), **promise)


def norm(make: Callable[[], nn.Module]) -> Callable[[Tensor], Tensor]:
    """Return a norm with plain parameters."""
    module = make().double().eval()
    generator = torch.Generator().manual_seed(3)
    for tensor in [*module.parameters(), *module.buffers()]:
        if tensor.is_floating_point():
            tensor.data.copy_(torch.rand(tensor.shape, dtype=tensor.dtype, generator=generator) + 0.5)
        tensor.requires_grad_(False)
    return module


def rotated(x: Tensor) -> Tensor:
    """Rotate pairs of entries by angles that grow with the position, as language models do with queries and keys."""
    angles = torch.arange(x.shape[-2], dtype=x.dtype)[:, None] * torch.tensor([1.0, 0.1], dtype=x.dtype).repeat(2)
    left, right = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
    return x * angles.cos() + torch.cat((-right, left), -1) * angles.sin()


def mean_square(x: Tensor) -> Tensor:
    return x.pow(2).mean(-1, keepdim=True) + 1e-6


PLAIN = torch.tensor([[0.5, -1.5, 2.0], [1.0, 0.3, -0.7]], dtype=torch.float64)
MASK = torch.tensor([[True, False, True], [False, True, True]])
INDEX = torch.tensor([[2, 0], [1, 1]])

ACTIVATIONS = [
    of_one("relu", F.relu),
    of_one("torch.relu", torch.relu),
    of_one("leaky relu", lambda x: F.leaky_relu(x, 0.2)),
    of_one("leaky relu, steep", lambda x: F.leaky_relu(x, 1.7)),
    of_one("prelu", lambda x: F.prelu(x, PLAIN[0])),
    Case("prelu, random slope", F.prelu, ((2, 3), (1,)), batched=False),
    of_one("abs", torch.abs),
    of_one("relu6", F.relu6),
    of_one("hardtanh", F.hardtanh),
    of_one("hardtanh, uneven", lambda x: F.hardtanh(x, -0.2, 0.9)),
    of_one("clamp below", lambda x: x.clamp(min=0.3)),
    of_one("clamp above", lambda x: torch.clamp(x, max=0.3)),
    of_one("hardsigmoid", F.hardsigmoid),
    of_one("elu", F.elu),
    of_one("elu, alpha", lambda x: F.elu(x, 0.4)),
    of_one("celu", lambda x: F.celu(x, 1.7)),
    of_one("selu", F.selu),
    of_one("exp", torch.exp, scale=0.4),
    of_one("square", torch.square),
    of_one("x ** 2", lambda x: x**2),
    of_one("x * x", lambda x: x * x),
    of_one("gelu", F.gelu, off=1e-3),
    of_one("gelu, tanh", lambda x: F.gelu(x, approximate="tanh"), off=1e-3),
    of_one("silu", F.silu, off=1e-3),
    of_one("mish", F.mish, off=1e-3),
    of_one("sigmoid", torch.sigmoid, off=1e-3),
    of_one("tanh", torch.tanh, off=1e-3),
    of_one("softplus", F.softplus, off=1e-3),
    of_one("softplus, beta", lambda x: F.softplus(x, beta=2.0), off=1e-3),
    of_one("logsigmoid", F.logsigmoid, off=1e-3),
    of_one("hardswish", F.hardswish, off=1e-2),
    of_one("x ** 3", lambda x: x**3),
]

ARITHMETIC = [
    Case("x + y", lambda x, y: x + y, ((2, 3), (2, 3))),
    Case("x + y, broadcast", lambda x, y: x + y, ((2, 3), (3,)), batched=False),
    Case("add, alpha", lambda x, y: torch.add(x, y, alpha=-0.5), ((2, 3), (2, 3))),
    Case("x - y", lambda x, y: x - y, ((2, 3), (2, 3))),
    of_one("x + x", lambda x: x + x),
    of_one("x - x", lambda x: x - x),
    of_one("1 - x", lambda x: 1 - x),
    of_one("x - plain", lambda x: x - PLAIN, batched=False),
    of_one("plain + x", lambda x: PLAIN + x, batched=False),
    of_one("-x", lambda x: -x),
    Case("x * y", lambda x, y: x * y, ((2, 3), (2, 3))),
    Case("x * y, broadcast", lambda x, y: x * y, ((2, 3, 2), (2, 3, 1))),
    of_one("2 * x", lambda x: 2 * x),
    of_one("x * plain", lambda x: x * PLAIN, batched=False),
    of_one("x / plain", lambda x: x / PLAIN, batched=False),
    of_one("masked_fill", lambda x: x.masked_fill(MASK, 0.4), batched=False),
    Case("where", lambda x, y: torch.where(MASK, x, y), ((2, 3), (2, 3)), batched=False),
    of_one("where, plain", lambda x: torch.where(MASK, x, PLAIN), batched=False),
    of_one("rotary embedding", lambda x: rotated(x), 2, 1, 3, 4),
]

PRODUCTS = [
    Case("matmul", torch.matmul, ((2, 3), (3, 2)), batched=False),
    Case("x @ y", lambda x, y: x @ y, ((2, 2, 3), (2, 3, 2))),
    Case("x @ vector", lambda x, y: x @ y, ((2, 3), (3,)), batched=False),
    Case("x @ y, one matrix for all", lambda x, y: x @ y, ((2, 2, 3), (3, 2)), batched=False),
    of_one("plain @ x", lambda x: PLAIN @ x, 3, 2, batched=False),
    of_one("x @ plain", lambda x: x @ PLAIN.T),
    Case("bmm", torch.bmm, ((2, 2, 3), (2, 3, 1))),
    Case("einsum", lambda x, y: torch.einsum("bij,bkj->bik", x, y), ((2, 2, 3), (2, 2, 3))),
    Case("einsum, outer", lambda x, y: torch.einsum("bi,bj->bij", x, y), ((2, 3), (2, 2))),
    of_one("einsum, plain", lambda x: torch.einsum("ij,bj->bi", PLAIN, x)),
    Case("addmm", torch.addmm, ((2,), (2, 3), (3, 2)), batched=False),
    Case(
        "baddbmm",
        lambda c, x, y: torch.baddbmm(c, x, y, beta=0.5, alpha=2.0),
        ((2, 2, 2), (2, 2, 3), (2, 3, 2)),
    ),
]

REDUCTIONS = [
    of_one("sum", torch.sum, batched=False),
    of_one("sum, axis", lambda x: x.sum(1)),
    of_one("sum, axes, kept", lambda x: torch.sum(x, (1, -1), keepdim=True), 2, 2, 3),
    of_one("mean", torch.mean, batched=False),
    of_one("mean, axis", lambda x: x.mean(-1, keepdim=True)),
    of_one("avg_pool1d", lambda x: F.avg_pool1d(x, 2), 2, 1, 4),
    of_one("avg_pool1d, padding", lambda x: F.avg_pool1d(x, 3, 2, 1, count_include_pad=False), 2, 1, 4),
    of_one("avg_pool2d, ceil", lambda x: F.avg_pool2d(x, 2, ceil_mode=True), 2, 1, 3, 3),
    of_one("avg_pool2d, padding", lambda x: F.avg_pool2d(x, (2, 3), (2, 1), (1, 1)), 2, 1, 3, 2),
    of_one("avg_pool2d, divisor", lambda x: F.avg_pool2d(x, 2, 1, 1, divisor_override=3), 2, 1, 2, 2),
    of_one("avg_pool3d", lambda x: F.avg_pool3d(x, 2, 1), 1, 1, 2, 3, 2),
    of_one("adaptive_avg_pool1d", lambda x: F.adaptive_avg_pool1d(x, 2), 2, 1, 3),
    of_one("adaptive_avg_pool2d", lambda x: F.adaptive_avg_pool2d(x, (2, None)), 2, 1, 3, 2),
    of_one("adaptive_avg_pool2d, one", lambda x: F.adaptive_avg_pool2d(x, 1), 2, 1, 2, 3),
    of_one("adaptive_avg_pool3d", lambda x: F.adaptive_avg_pool3d(x, 1), 1, 1, 2, 2, 2),
    of_one("interpolate, nearest", lambda x: F.interpolate(x, scale_factor=2), 2, 1, 2, 2),
    of_one("interpolate, linear", lambda x: F.interpolate(x, size=5, mode="linear"), 2, 1, 3),
    of_one("interpolate, bilinear", lambda x: F.interpolate(x, size=(3, 5), mode="bilinear"), 1, 1, 2, 3),
    of_one(
        "interpolate, corners",
        lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear", align_corners=True),
        *(1, 1, 2, 3),
    ),
    of_one("interpolate, bicubic", lambda x: F.interpolate(x, scale_factor=(2.0, 1.5), mode="bicubic"), 1, 1, 2, 3),
    of_one("interpolate, area", lambda x: F.interpolate(x, size=(2, 2), mode="area"), 1, 1, 3, 3),
    of_one("interpolate, trilinear", lambda x: F.interpolate(x, size=(3, 2, 1), mode="trilinear"), 1, 1, 2, 2, 2),
]

SHAPES = [
    of_one("reshape", lambda x: x.reshape(2, -1), 2, 3, 2),
    of_one("view", lambda x: x.view(2, 2, 3), 2, 6),
    of_one("flatten", lambda x: torch.flatten(x, 1), 2, 3, 2),
    of_one("unflatten", lambda x: x.unflatten(1, (3, 2)), 2, 6),
    of_one("permute", lambda x: x.permute(0, 2, 1), 2, 3, 2),
    of_one("transpose", lambda x: x.transpose(1, 2), 2, 3, 2),
    of_one("mT", lambda x: x.mT, 2, 3, 2),
    of_one("T", lambda x: x.T, batched=False),
    Case("cat", lambda x, y: torch.cat([x, y], 1), ((2, 3), (2, 1))),
    of_one("cat, plain", lambda x: torch.cat([x, PLAIN], 0), batched=False),
    Case("stack", lambda x, y: torch.stack([x, y], -1), ((2, 3), (2, 3))),
    of_one("chunk", lambda x: x.chunk(2, 1)[1], 2, 4),
    of_one("split", lambda x: x.split([1, 2], 1)[1]),
    of_one("unbind", lambda x: x.unbind(1)[2]),
    of_one("x[:, 1:]", lambda x: x[:, 1:]),
    of_one("x[:, 0]", lambda x: x[:, 0]),
    of_one("x[..., None]", lambda x: x[..., None]),
    of_one("x[:, list]", lambda x: x[:, [2, 0, 0]]),
    of_one("gather", lambda x: x.gather(1, INDEX), batched=False),
    of_one("pad", lambda x: F.pad(x, (1, 2), value=0.3)),
    of_one("pad, reflect", lambda x: F.pad(x, (1, 1), mode="reflect"), 2, 1, 3),
    of_one("squeeze", lambda x: x.unsqueeze(1).squeeze(1)),
    of_one("expand", lambda x: x.expand(2, -1, 3), 2, 2, 1),
    of_one("repeat", lambda x: x.repeat(1, 2)),
    of_one("flip", lambda x: x.flip(1)),
    of_one("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), 2, 4, 1, 1),
    of_one("contiguous", lambda x: x.contiguous()),
    of_one("clone", lambda x: x.clone()),
    of_one("to", lambda x: x.to(torch.float64)),
    of_one("dropout, eval", lambda x: F.dropout(x, 0.5, training=False)),
]

NORMS = [
    of_one("batch norm, eval", norm(lambda: nn.BatchNorm1d(3))),
    of_one(
        "batch norm 2d, eval",
        norm(lambda: nn.BatchNorm2d(2)),
        2,
        2,
        2,
        2,
    ),
    of_one(
        "instance norm, running",
        norm(lambda: nn.InstanceNorm1d(2, affine=True, track_running_stats=True)),
        2,
        2,
        3,
    ),
]

APPROXIMATE = [
    of_one("layer norm", norm(lambda: nn.LayerNorm(96)), 1, 96, off=0.15, scale=0.05),
    of_one("rms norm", norm(lambda: nn.RMSNorm(96)), 1, 96, off=0.15, scale=0.05),
    of_one("rms norm, spelled out", lambda x: x * torch.rsqrt(mean_square(x)), 1, 96, off=0.15, scale=0.05),
    of_one("rms norm by division", lambda x: x / mean_square(x).sqrt(), 1, 96, off=0.15, scale=0.05),
    of_one("rms norm by a power", lambda x: x * mean_square(x).pow(-0.5), 1, 96, off=0.15, scale=0.05),
    of_one("root of a mean of squares", lambda x: mean_square(x).sqrt(), 1, 96, off=0.15, scale=0.05),
    of_one("rms norm of another", lambda x: x[:, :1] * torch.rsqrt(mean_square(x)), 1, 96, off=0.15, scale=0.05),
    of_one("group norm", norm(lambda: nn.GroupNorm(2, 4)), 1, 4, 48, off=0.15, scale=0.05),
    of_one("instance norm", norm(lambda: nn.InstanceNorm1d(2, affine=True)), 1, 2, 96, off=0.15, scale=0.05),
    of_one("softmax", lambda x: F.softmax(x, 1), off=0.05, scale=0.05),
    of_one("softmax, method", lambda x: x.softmax(-1), off=0.05, scale=0.05),
    of_one("log_softmax", lambda x: F.log_softmax(x, 1), off=0.05, scale=0.05),
]  # fmt: skip

MAXIMA = [
    of_one("max_pool1d", lambda x: F.max_pool1d(x, 2), 2, 1, 4),
    of_one("max_pool2d", lambda x: F.max_pool2d(x, 2, 1, 1), 2, 2, 3, 3),
    of_one("max_pool2d, of torch itself", lambda x: torch.max_pool2d(x, 2, 1, 1), 2, 2, 3, 3),
    of_one("max_pool2d, module", nn.MaxPool2d(3, 2, 1, ceil_mode=True), 2, 2, 4, 4),
    of_one("max_pool3d", lambda x: F.max_pool3d(x, 2), 1, 1, 2, 2, 4),
    of_one("adaptive_max_pool2d", lambda x: F.adaptive_max_pool2d(x, 2), 2, 2, 3, 4),
    of_one("adaptive_max_pool1d", nn.AdaptiveMaxPool1d(2), 2, 2, 5),
    of_one("max along", lambda x: x.max(1).values),
    of_one("amax", lambda x: x.amax(1, keepdim=True)),
]


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v)


def masked_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=torch.tensor([[True, False], [True, True]]))


ATTENTION = [
    Case("attention", attention, ((1, 2, 2, 3),) * 3, off=0.35, scale=0.1, leading=True),
    Case("attention, mask", masked_attention, ((1, 2, 2, 3),) * 3, off=0.35, scale=0.1, leading=True),
    Case(
        "attention, causal",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        ((1, 2, 2, 3),) * 3,
        off=0.35,
        scale=0.1,
        leading=True,
    ),
    Case(
        "attention, grouped queries",
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        ((1, 4, 2, 3), (1, 2, 2, 3), (1, 2, 2, 3)),
        off=0.35,
        scale=0.1,
        leading=True,
    ),
]

MULTILINEAR = [*ARITHMETIC, *PRODUCTS, *REDUCTIONS, *SHAPES, *NORMS]
"""Operations that are linear in each input: dense algebra gives their moments to the last digits."""

FIRST_ORDER = [*APPROXIMATE, *ATTENTION]
ALL = [*ACTIVATIONS, *MULTILINEAR, *FIRST_ORDER, *MAXIMA]
