"""How a model stores sparse weights, which are zero outside of k chosen positions.

A sparse weight is a parametrization (`torch.nn.utils.parametrize`). The layer's parameter is the vector of its k stored
values, a buffer holds their positions, and ``layer.weight`` is a `SparseTensor` of both. So the layer, its gradient,
the optimizer and every file hold k numbers, and the code of the model needs no change.
"""

import copy
from collections.abc import Container, Iterator, Mapping
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from leanbayes._ops import innermost_norm
from leanbayes._ops.sparse import batch_innermost
from leanbayes._ops.sparse_block_plan import in_blocks
from leanbayes._ops.sparse_tensor import SparseTensor
from leanbayes.errors import InputError
from leanbayes.subspace.blocks import Blocks

__all__ = ["Scatter", "dense_name", "densify", "keep_layout", "make_dense", "scatters", "sparse_state", "sparsify"]

_SMALL_BATCH = 32  # below it, sparse products are hardly ever chosen
_PLAIN = (Tensor, nn.Parameter, type(None))
_OWN = ".parametrizations.weight.original"


class Scatter(nn.Module):
    """The parametrization that turns stored values into the weight to which they belong."""

    index: Tensor
    block: int = 1  # also of a module that an older version has pickled

    def __init__(self, index: Tensor, shape: tuple[int, ...], block: int = 1) -> None:
        super().__init__()
        self.register_buffer("index", index)
        self.shape = tuple(shape)
        self.block = block
        self.check_blocks()

    def forward(self, values: Tensor) -> Tensor:
        """Return a `SparseTensor`. Stand-ins of random values scatter themselves."""
        scattered: Any = getattr(values, "scattered", None)
        if scattered is not None:
            result: Tensor = scattered(self.index, self.shape)
            return result
        return SparseTensor.of(values, self.index, self.shape)

    def right_inverse(self, dense: Tensor) -> Tensor:
        """Return those values of a dense weight that are stored."""
        return dense.detach().flatten().index_select(0, self.index)

    @property
    def size(self) -> int:
        """The number of entries of the dense weight."""
        return prod(self.shape)

    @property
    def blocks(self) -> Blocks:
        """The blocks in which entries are stored; blocks of size 1 if each entry stands alone."""
        return Blocks(self.shape, self.block)

    def check_blocks(self) -> None:
        """Raise if the positions are not in whole blocks."""
        if self.block > 1 and not self.index.is_meta and not in_blocks(self.index, self.shape, self.block):
            raise InputError(
                f"the {len(self.index)} positions in a weight of shape {self.shape} are not in whole blocks of "
                f"{self.block} output channels; make the model sparse with block=1, or with the block of the positions"
            )

    def extra_repr(self) -> str:
        """Say how many entries are stored."""
        return f"{len(self.index)} of {self.size}" + (f", in blocks of {self.block}" if self.block > 1 else "")


class _BatchInnermost:
    """A batch norm that has the batch innermost in memory, in its input and output, as sparse products have it."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise over the batch and all positions of a channel, whose order in memory makes no difference."""
        if type(x) is not Tensor or x.dim() < 3 or x.device.type != "cpu" or len(x) < _SMALL_BATCH:
            return super().forward(x)  # type: ignore[misc,no-any-return]
        norm: Any = self
        if any(type(value) not in _PLAIN for value in (norm.weight, norm.bias)):
            # A random weight differs between the examples, which its rule must find on the first axis.
            return super().forward(x)  # type: ignore[misc,no-any-return]
        x = batch_innermost(x)  # turns the output of a dense layer once for all layers that follow
        rows = innermost_norm.rows_of(x)
        if norm.training and innermost_norm.kernel_fits(rows, norm.weight, norm.bias):
            normed, mean, variance = innermost_norm.batch_norm(x, norm.weight, norm.bias, norm.eps)
            _track(norm, mean, variance, rows.shape[1])
            return normed
        whole: Tensor = super().forward(rows.view(1, len(rows), *[1] * (x.dim() - 3), -1))  # type: ignore[misc]
        return whole.view(x.movedim(0, -1).shape).movedim(-1, 0)


def _track(norm: Any, mean: Tensor, variance: Tensor, count: int) -> None:
    """Update the running statistics of a batch norm in the way of torch, from those of a batch of ``count`` numbers."""
    if not norm.track_running_stats or norm.running_mean is None:
        return
    with torch.no_grad():
        if norm.num_batches_tracked is not None:
            norm.num_batches_tracked.add_(1)
        weight = norm.momentum if norm.momentum is not None else 1 / float(norm.num_batches_tracked)
        norm.running_mean.lerp_(mean.to(norm.running_mean), weight)
        norm.running_var.lerp_((variance * (count / (count - 1))).to(norm.running_var), weight)


_NORMS: dict[Any, Any] = {
    kind: type(kind.__name__, (_BatchInnermost, kind), {}) for kind in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
}


def keep_layout(model: nn.Module) -> None:
    """Let the batch norms of a sparse model work in the layout of its products, in which those of torch are slow."""
    for module in model.modules():
        module.__class__ = _NORMS.get(type(module), type(module))


def sparsify(layer: nn.Module, index: Tensor, block: int = 1) -> Scatter:
    """Store only the flat positions ``index`` of a layer's weight. The parameter stays the same object.

    Args:
        layer: the layer, which is changed in place.
        index: the sorted flat positions.
        block: the size of the blocks of output channels that the positions are whole blocks of.

    >>> layer = nn.Linear(3, 2)
    >>> scatter = sparsify(layer, torch.tensor([0, 4], dtype=torch.int32))
    >>> [tuple(p.shape) for p in layer.parameters()], layer(torch.ones(1, 3)).shape
    ([(2,), (2,)], torch.Size([1, 2]))
    """
    weight: Any = layer.weight
    scatter = Scatter(index, tuple(weight.shape), block)
    parametrize.register_parametrization(layer, "weight", scatter, unsafe=True)
    weight.grad = None
    return scatter


def scatters(model: nn.Module) -> dict[str, Scatter]:
    """Return the sparse weights of a model by the names of the parameters that hold their stored values."""
    return {f"{name}{_OWN}".removeprefix("."): scatter for name, _, scatter in _layers(model)}


def dense_name(name: str) -> str:
    """Return the name that a sparse parameter has in the dense model.

    >>> dense_name("layer1.0.conv1.parametrizations.weight.original"), dense_name("fc.bias")
    ('layer1.0.conv1.weight', 'fc.bias')
    """
    return f"{f'.{name}'.removesuffix(_OWN)}.weight".removeprefix(".") if _is_own(name) else name


def densify(model: nn.Module) -> nn.Module:
    """Return a copy of the model in which sparse weights are dense tensors with their zeros."""
    plain = copy.deepcopy(model)
    make_dense(plain, {})
    return plain


def make_dense(model: nn.Module, weights: Mapping[str, Tensor], stay: Container[str] = ()) -> None:
    """Store the sparse weights of a model as dense tensors again.

    Args:
        model: the model, which is changed in place.
        weights: dense values by name. A weight without an entry keeps the values that it has.
        stay: the names of weights that stay sparse.
    """
    for name, layer, _ in list(_layers(model)):
        if f"{name}{_OWN}".removeprefix(".") in stay:
            continue
        weight: Any = layer.weight
        dense = weights.get(f"{name}.weight".removeprefix("."), weight.dense().detach())
        _release(layer).data = dense
    if scatters(model):
        return
    for module in model.modules():
        if isinstance(module, _BatchInnermost):
            module.__class__ = type(module).__bases__[1]


def _release(layer: Any) -> nn.Parameter:
    """Undo the parametrization of a layer's weight. The function of torch changes the class, which copies share."""
    lists, kind = layer.parametrizations, type(layer)
    own: nn.Parameter = lists.weight.original
    del lists["weight"]
    if len(lists):  # other parametrizations stay, so the layer gets a new class without this one
        layer.__class__ = type(kind.__name__, kind.__bases__, {k: v for k, v in vars(kind).items() if k != "weight"})
    else:
        layer.__class__ = kind.__bases__[0]
        del layer.parametrizations
    layer._parameters = {"weight": own, **layer._parameters}
    return own


def sparse_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the state of the dense model, with its names, and with sparse weights as ``torch.sparse_coo`` tensors."""
    own, skipped = scatters(model), {f"{name.removesuffix('original')}0.index" for name in scatters(model)}
    state = {}
    for name, value in model.state_dict().items():
        if name in own:
            scatter = own[name]
            places = torch.stack(torch.unravel_index(scatter.index.long(), scatter.shape))
            value = torch.sparse_coo_tensor(places, value, scatter.shape, is_coalesced=True, check_invariants=False)
        if name not in skipped:
            state[dense_name(name)] = value.detach()
    return state


def _is_own(name: str) -> bool:
    return f".{name}".endswith(_OWN)


def _layers(model: nn.Module) -> Iterator[tuple[str, nn.Module, Scatter]]:
    for name, module in model.named_modules():
        if parametrize.is_parametrized(module, "weight"):
            lists: Any = module.parametrizations
            if isinstance(lists.weight[0], Scatter):
                yield name, module, lists.weight[0]
