"""Some sixty shapes of models with inputs. Sizes are tiny; all is float64 unless the case says otherwise."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.utils.checkpoint import checkpoint

__all__ = ["CASES", "Case"]

WIDE = torch.float64


@dataclass(frozen=True)
class Case:
    """A shape.

    Attributes:
        build: makes the model.
        inputs: makes a batch of two examples; a tuple gives several arguments.
        positions: whether positions share a weight and are joined later. `Local` draws them apart, as it documents.
        only: the propagations that accept this shape among "moments" and "covariance"; the others must refuse it.
        train: whether the model is in training mode.
        refused: the words of the error if no propagation accepts this shape.
        slow: whether the propagations besides "sample" are left to the thorough run, because torch compiles long.
        tolerance: how much rounding there is, for half precision.
    """

    build: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    positions: bool = False
    only: tuple[str, ...] = ()
    train: bool = False
    refused: str | None = None
    slow: bool = False
    tolerance: float = 0.0


class Net(nn.Module):
    """A module with these parts whose forward is a function of the module and its inputs."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.function = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(self, *args, **kwargs)


class Answer(NamedTuple):
    logits: Tensor
    extra: Tensor


def x(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(*shape, dtype=WIDE, generator=torch.Generator().manual_seed(4))


def ids(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(0, 5, shape, generator=torch.Generator().manual_seed(4))


def weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(*shape))


BOTH = ("moments", "covariance")


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))


def tied(net: Any, t: Tensor) -> Tensor:
    return F.linear(net.table(t).mean(1), net.table.weight)


def loop(net: Any, sequence: Tensor) -> Tensor:
    state = sequence.new_zeros(len(sequence), 3)
    for moment in sequence.unbind(1):
        state = net.cell(moment, state)
    return state


def counting(net: Any, t: Tensor) -> Tensor:
    net.count += 1
    net.average = 0.9 * net.average + 0.1 * t.mean().detach()
    return net.layer(t)


def with_buffers() -> nn.Module:
    net = Net(counting, layer=nn.Linear(3, 2))
    net.register_buffer("count", torch.zeros(()))
    net.register_buffer("average", torch.zeros(()))
    return net


def hooked() -> nn.Module:
    model = mlp()
    model[0].register_forward_hook(lambda module, args, out: out * 2)
    model[2].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    model[2].register_full_backward_hook(lambda module, before, after: None)
    return model


def lazily() -> nn.Module:
    model = nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(2))
    model(torch.zeros(1, 3))
    return model


class Halved(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return w / 2 + w.T / 2


def parametrized() -> nn.Module:
    layer = nn.Linear(3, 3)
    parametrize.register_parametrization(layer, "weight", Halved())
    return layer


def mixed(net: Any, t: Tensor) -> Tensor:
    return net.out(net.body(t.to(torch.float32)).to(WIDE))


class Mixed(Net):
    """Its parts keep their own types when the whole is made float64."""

    def double(self) -> "Mixed":
        self.out.double()
        return self


def in_place(net: Any, t: Tensor) -> Tensor:
    h = net.one(t)
    h.relu_()
    h += 1
    h[:, 0] = 0
    return net.two(h)


def silent(net: Any, t: Tensor) -> Tensor:
    with torch.no_grad():
        h = net.one(t)
    return net.two(torch.tanh(h))


def replaced(net: Any, t: Tensor) -> Tensor:
    kept = net.one.weight
    del net.one.weight
    net.one.weight = kept * 1.5
    try:
        return net.one(t)
    finally:
        del net.one.weight
        net.one.weight = kept


def complex_product(net: Any, t: Tensor) -> Tensor:
    return torch.view_as_real(t.to(torch.complex128) @ torch.complex(net.real, net.imaginary)).flatten(1)


def attention(**options: Any) -> nn.Module:
    return Net(
        lambda net, t: net.part(t, t, t, need_weights=False)[0].mean(1),
        part=nn.MultiheadAttention(4, 2, batch_first=True, **options),
    )


def encoder(nested: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0, batch_first=True)
    whole = nn.TransformerEncoder(layer, 1, enable_nested_tensor=nested)

    def forward(net: Any, t: Tensor) -> Tensor:
        hidden = torch.zeros(2, 3, dtype=torch.bool)
        hidden[1, 2] = True
        return net.whole(t, src_key_padding_mask=hidden)[:, 0]

    return Net(forward, whole=whole)


def saving(reentrant: bool) -> nn.Module:
    return Net(
        lambda net, t: net.two(checkpoint(lambda z: torch.tanh(net.one(z)), t, use_reentrant=reentrant)),
        one=nn.Linear(3, 4),
        two=nn.Linear(4, 2),
    )


def quantised() -> nn.Module:
    return Net(
        lambda net, t: net.two(torch.fake_quantize_per_tensor_affine(net.one(t).float(), 0.05, 0, -128, 127).double()),
        one=nn.Linear(3, 4),
        two=nn.Linear(4, 2),
    )


def empty_parts(net: Any, t: Tensor) -> Tensor:
    return torch.cat([net.layer(t[:0]), net.layer(t)])


def own_generator() -> nn.Module:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, t: Tensor, generator: torch.Generator | None = None) -> Tensor:
            return self.layer(t) + (0 if generator is None else torch.randn((), generator=generator))

    return Own()


def shared() -> nn.Module:
    part = nn.Linear(3, 3)
    return nn.Sequential(part, nn.Tanh(), part)


def siamese(net: Any, first: Tensor, second: Tensor) -> Tensor:
    return (net.layer(first) * net.layer(second)).sum(1, keepdim=True)


CASES: dict[str, Case] = {
    # a weight that is used more than once
    "tied embedding": Case(lambda: Net(tied, table=nn.Embedding(5, 3)), ids(2, 3), positions=True),
    "shared submodule": Case(shared, x(2, 3)),
    "called twice": Case(lambda: Net(lambda n, t: n.one(torch.tanh(n.one(t))), one=nn.Linear(3, 3)), x(2, 3)),
    "siamese": Case(lambda: Net(siamese, layer=nn.Linear(3, 3)), lambda: (x(2, 3)(), x(2, 3)().flip(1))),
    "transposed weight": Case(lambda: Net(lambda n, t: F.linear(F.linear(t, n.w), n.w.T), w=weight(4, 3)), x(2, 3)),
    "loop of linear cells": Case(
        lambda: Net(loop, cell=Net(lambda n, a, s: torch.tanh(n.a(a) + n.b(s)), a=nn.Linear(2, 3), b=nn.Linear(3, 3))),
        x(2, 3, 2),
    ),
    "loop of RNN cells": Case(lambda: Net(loop, cell=nn.GRUCell(2, 3)), x(2, 3, 2)),
    "weight plus itself": Case(lambda: Net(lambda n, t: t @ (n.w + n.w.T), w=weight(3, 3)), x(2, 3)),
    "weight tied in a list": Case(
        lambda: Net(lambda n, t: t @ n.ws[0] @ n.ws[1], ws=nn.ParameterList([w := weight(3, 3), w])), x(2, 3)
    ),
    # layers
    "linear": Case(lambda: nn.Linear(3, 2), x(2, 3), only=BOTH),
    "linear without bias": Case(lambda: nn.Linear(3, 2, bias=False), x(2, 3), only=BOTH),
    "mlp": Case(mlp, x(2, 3), only=BOTH),
    "bilinear": Case(lambda: nn.Bilinear(3, 2, 2), lambda: (x(2, 3)(), x(2, 2)()), only=("moments",)),
    "convolution": Case(lambda: nn.Conv2d(2, 2, 2), x(2, 2, 3, 3), positions=True, only=BOTH),
    "convolution, pooled": Case(
        lambda: nn.Sequential(nn.Conv2d(1, 2, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        x(2, 1, 3, 3), positions=True, only=BOTH,
    ),
    "grouped convolution": Case(lambda: nn.Conv2d(4, 2, 2, groups=2), x(2, 4, 3, 3), positions=True, only=BOTH),
    "depthwise convolution": Case(lambda: nn.Conv2d(3, 3, 2, groups=3), x(2, 3, 3, 3), positions=True, only=BOTH),
    "convolution 1D": Case(lambda: nn.Conv1d(2, 2, 2, stride=2), x(2, 2, 4), positions=True, only=BOTH),
    "convolution 3D": Case(lambda: nn.Conv3d(1, 2, 2), x(2, 1, 2, 3, 2), positions=True, only=BOTH),
    "dilated convolution": Case(
        lambda: nn.Conv2d(1, 2, 2, dilation=2, padding="same"), x(2, 1, 3, 3), positions=True, only=BOTH
    ),
    "reflected convolution": Case(
        lambda: nn.Conv1d(2, 2, 3, padding=1, padding_mode="reflect"), x(2, 2, 4), positions=True, only=BOTH
    ),
    "transposed convolution": Case(
        lambda: nn.ConvTranspose2d(2, 2, 2, stride=2), x(2, 2, 2, 2), positions=True, only=("moments",)
    ),
    "embedding": Case(lambda: nn.Embedding(5, 3), ids(2, 3), only=("moments",)),
    "embedding with max_norm": Case(lambda: nn.Embedding(5, 3, max_norm=1.0), ids(2, 3)),
    "embedding bag": Case(lambda: nn.EmbeddingBag(5, 3), ids(2, 3)),
    "LSTM": Case(lambda: Net(lambda n, t: n.part(t)[0][:, -1], part=nn.LSTM(2, 3, batch_first=True)), x(2, 3, 2)),
    "GRU, two layers": Case(
        lambda: Net(lambda n, t: n.part(t)[0][:, -1], part=nn.GRU(2, 2, 2, batch_first=True, bidirectional=True)),
        x(2, 3, 2),
    ),
    "LSTM, time first": Case(
        lambda: Net(lambda n, t: n.part(t.transpose(0, 1))[0][-1], part=nn.LSTM(2, 3)), x(2, 3, 2)
    ),
    "batch norm": Case(lambda: nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), x(2, 3), only=BOTH),
    "layer norm": Case(lambda: nn.Sequential(nn.LayerNorm(3), nn.Linear(3, 2)), x(2, 3), only=("moments",)),
    "group norm": Case(lambda: nn.GroupNorm(2, 4), x(2, 4, 3), only=("moments",)),
    "instance norm": Case(lambda: nn.InstanceNorm1d(2, affine=True), x(2, 2, 3), only=("moments",)),
    "PReLU": Case(lambda: nn.Sequential(nn.Linear(3, 2), nn.PReLU()), x(2, 3), only=("moments",)),
    "attention": Case(attention, x(2, 3, 4), positions=True, only=("moments",)),
    "attention with other sizes": Case(
        lambda: Net(
            lambda n, q, k: n.part(q, k, k, need_weights=False)[0].mean(1),
            part=nn.MultiheadAttention(4, 2, batch_first=True, kdim=3, vdim=3),
        ),
        lambda: (x(2, 2, 4)(), x(2, 3, 3)()), positions=True, only=("moments",),
    ),
    "encoder": Case(lambda: encoder(False), x(2, 3, 4), positions=True, only=("moments",)),
    "encoder, nested tensors": Case(lambda: encoder(True), x(2, 3, 4), positions=True, only=("moments",)),
    "encoder, time first": Case(
        lambda: Net(
            lambda n, t: n.part(t.transpose(0, 1)).mean(0), part=nn.TransformerEncoderLayer(4, 2, 6, dropout=0.0)
        ),
        x(2, 3, 4), positions=True, only=("moments",),
    ),
    # how the weight is used
    "matmul": Case(lambda: Net(lambda n, t: t @ n.w, w=weight(3, 2)), x(2, 3), only=("moments",)),
    "transposed matmul": Case(lambda: Net(lambda n, t: (n.w.T @ t.T).T, w=weight(3, 2)), x(2, 3), only=("moments",)),
    "einsum": Case(
        lambda: Net(lambda n, t: torch.einsum("ni,io->no", t, n.w), w=weight(3, 2)), x(2, 3), only=("moments",)
    ),
    "F.linear of a transposed weight": Case(
        lambda: Net(lambda n, t: F.linear(t, n.w.t()), w=weight(3, 2)), x(2, 3), only=("moments",)
    ),
    "sliced weight": Case(
        lambda: Net(lambda n, t: torch.cat([F.linear(t, n.w[:1]), F.linear(t, n.w[1:])], 1), w=weight(3, 3)),
        x(2, 3), only=("moments",),
    ),
    "overlapping slices": Case(
        lambda: Net(lambda n, t: F.linear(t, n.w[:2]) + F.linear(t, n.w[1:]), w=weight(3, 3)), x(2, 3)
    ),
    "weight.data": Case(lambda: Net(lambda n, t: F.linear(t, n.w.data), w=weight(2, 3)), x(2, 3)),
    "scale and shift": Case(
        lambda: Net(lambda n, t: t * n.a + n.b, a=weight(3), b=weight(3)), x(2, 3), only=("moments",)
    ),
    "parameter list": Case(
        lambda: Net(lambda n, t: sum(F.linear(t, w) for w in n.ws), ws=nn.ParameterList([weight(2, 3), weight(2, 3)])),
        x(2, 3), only=("moments", "covariance"),
    ),
    "returned weight": Case(lambda: Net(lambda n, t: n.w.expand(len(t), 3), w=weight(3)), x(2, 3), only=("moments",)),
    "scalar output": Case(
        lambda: Net(lambda n, t: n.layer(t).sum(), layer=nn.Linear(3, 2)), x(1, 3), only=("moments",)
    ),
    "complex weights": Case(lambda: Net(complex_product, real=weight(3, 2), imaginary=weight(3, 2)), x(2, 3)),
    # what the model does to its weights
    "weight norm": Case(lambda: parametrizations.weight_norm(nn.Linear(3, 2)), x(2, 3)),
    "spectral norm": Case(lambda: parametrizations.spectral_norm(nn.Linear(3, 2)), x(2, 3)),
    "parametrized": Case(parametrized, x(2, 3)),
    "weights replaced in forward": Case(lambda: Net(replaced, one=nn.Linear(3, 2)), x(2, 3), only=("moments",)),
    # what the model does besides
    "hooks": Case(hooked, x(2, 3), only=BOTH),
    "buffers changed in forward": Case(with_buffers, x(2, 3), only=BOTH),
    "in-place activations": Case(
        lambda: Net(in_place, one=nn.Linear(3, 4), two=nn.Linear(4, 2)), x(2, 3), only=("moments",)
    ),
    "no_grad inside": Case(lambda: Net(silent, one=nn.Linear(3, 4), two=nn.Linear(4, 2)), x(2, 3), only=BOTH),
    "dropout": Case(
        lambda: nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2)), x(2, 3), train=True, only=BOTH
    ),
    "checkpointed": Case(lambda: saving(False), x(2, 3), only=BOTH),
    "checkpointed, reentrant": Case(lambda: saving(True), x(2, 3), only=BOTH),
    "quantised activations": Case(quantised, x(2, 3)),
    "empty parts of the batch": Case(lambda: Net(empty_parts, layer=nn.Linear(3, 2)), x(2, 3)),
    "own generator": Case(own_generator, x(2, 3), only=BOTH),
    "lazily initialised": Case(lazily, x(2, 3), only=BOTH),
    "deepcopied": Case(lambda: copy.deepcopy(mlp()), x(2, 3), only=BOTH),
    "pickled": Case(lambda: pickle.loads(pickle.dumps(mlp())), x(2, 3), only=BOTH),  # noqa: S301
    # types and outputs
    "float32 inside float64": Case(
        lambda: Mixed(mixed, body=nn.Linear(3, 4), out=nn.Linear(4, 2)), x(2, 3), tolerance=1e-6, only=BOTH
    ),
    "bfloat16 inside float64": Case(
        lambda: Mixed(
            lambda n, t: n.out(n.body(t.to(torch.bfloat16)).to(WIDE)),
            body=nn.Linear(3, 4).bfloat16(),
            out=nn.Linear(4, 2),
        ),
        x(2, 3), tolerance=0.02, only=BOTH,
    ),
    "dict output": Case(lambda: Net(lambda n, t: {"logits": n.part(t), "n": 3}, part=mlp()), x(2, 3), only=BOTH),
    "tuple output": Case(lambda: Net(lambda n, t: (n.part(t), None), part=mlp()), x(2, 3), only=BOTH),
    "named tuple output": Case(lambda: Net(lambda n, t: Answer(n.part(t), t), part=mlp()), x(2, 3), only=BOTH),
    # refused as a whole
    "scripted": Case(lambda: torch.jit.script(mlp()), x(2, 3), refused="torch.jit"),
    "compiled": Case(lambda: torch.compile(mlp(), backend="eager"), x(2, 3), refused=r"torch\.compile\(Bayesian"),
    "dynamically quantised": Case(
        lambda: torch.ao.quantization.quantize_dynamic(mlp(), {nn.Linear}),
        x(2, 3), refused="0 parameters can be random",
    ),
}  # fmt: skip
