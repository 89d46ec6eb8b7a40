"""The sparse subspace (SSVI, Li et al. 2024): a few weights of each layer are stored, and all others are zero."""

from dataclasses import dataclass
from math import prod
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from leanbayes.errors import SelectionError, UnknownName
from leanbayes.subspace.blocks import Blocks, fitting_block
from leanbayes.subspace.select import Selection, Subspace, everything
from leanbayes.subspace.slots import Slot, matches, not_norm
from leanbayes.subspace.storage import keep_layout, scatters, sparsify

__all__ = ["Layout", "Sparse", "Start", "layers_of", "make_sparse", "sparse"]

Layout = Literal["uniform", "erdos_renyi"]
Start = Literal["random", "magnitude"]
_KINDS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(frozen=True)
class Sparse(Subspace):
    """A sparse model, and the choice of its random weights among the stored ones. See `sparse` for the fields."""

    density: float
    layout: Layout
    dense: tuple[str, ...] | None
    start: Start
    seed: int
    inside: Subspace
    block: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.block, bool) or not isinstance(self.block, int) or self.block < 1:
            raise SelectionError(
                f"block must be a whole number of output channels, at least 1 (1 stores single weights, 16 suits the "
                f"kernels), got {self.block!r}"
            )
        if not 0 < self.density <= 1:
            raise SelectionError(f"density must be above 0 and at most 1 (0.05 keeps 5 %), got {self.density}")
        if self.layout not in ("uniform", "erdos_renyi"):
            raise UnknownName.of("layout", self.layout, ["uniform", "erdos_renyi"])
        if self.start not in ("random", "magnitude"):
            raise UnknownName.of("start", self.start, ["random", "magnitude"])

    def select(self, model: nn.Module) -> Selection:
        """Make the model sparse unless it is sparse already, and choose among the stored weights."""
        if not scatters(model):
            self.apply(model)
        return self.inside.select(model)

    def choose(self, pool: list[Slot]) -> Selection:
        """Choose as ``inside`` chooses."""
        return self.inside.choose(pool)

    def apply(self, model: nn.Module) -> None:
        """Choose which weights of the model are stored, and release all others."""
        layers = layers_of(model)
        names = list(layers)
        stay_dense = names[:1] if self.dense is None else [n for n in names if any(matches(n, p) for p in self.dense)]
        for pattern in self.dense or ():
            if not any(matches(name, pattern) for name in names):
                raise SelectionError(
                    f"dense={self.dense}: {pattern!r} matched none of {len(names)} weights; the first are {names[:3]}"
                )
        layers = {name: layer for name, layer in layers.items() if name not in stay_dense}
        if not layers:
            raise SelectionError(
                f"no layer is left to be sparse: of {len(names)} linear maps and convolutions {stay_dense} stay dense; "
                "give dense=() to make the first one sparse too"
            )
        shapes = [tuple(layer.weight.shape) for layer in layers.values()]
        keep_layout(model)
        generator = torch.Generator().manual_seed(self.seed)
        for layer, count in zip(layers.values(), counts(shapes, self.density, self.layout), strict=True):
            weight = layer.weight.detach()
            block = fitting_block(len(weight) // getattr(layer, "groups", 1), self.block)
            index = _positions(weight, Blocks(tuple(weight.shape), block), count, self.start, generator)
            sparsify(layer, index.to(weight.device), block)
            if self.start == "random":  # fewer inputs with larger weights give outputs of the same variance
                with torch.no_grad():
                    layer.parametrizations.weight.original.mul_((weight.numel() / len(index)) ** 0.5)


def sparse(
    density: float,
    *,
    layout: Layout = "uniform",
    dense: tuple[str, ...] | None = None,
    start: Start = "random",
    seed: int = 0,
    inside: Subspace | None = None,
    block: int = 1,
) -> Subspace:
    """Store few weights of each layer, which are random; all others are exactly zero and take no memory.

    This is the subspace of SSVI (Li et al. 2024). It changes the model, because it releases the dense weights.
    `Bayesian.densify` returns a plain dense model.

    Args:
        density: the share of the weights of linear maps and convolutions that is stored.
        layout: "uniform" stores the same share of each layer, as the paper does. "erdos_renyi" stores a larger share of
            small layers than of large ones, in proportion to (inputs + outputs + extents of the kernel) / size.
        dense: names or globs of the layers that stay dense. By default this is the first layer. Biases and norms always
            stay dense.
        start: which weights are stored at first: "random" ones, which are scaled up by 1/√density, or those of the
            largest "magnitude".
        seed: the seed of the random choice.
        inside: which of the stored weights are random. By default these are all but the weights of norms. With
            ``top_k(scores, rate=…)``, a few of the stored weights of a sparse model are random.
        block: how many neighbouring output channels are stored together, for one input channel and one position of the
            kernel. Products by blocks of 16 are faster than those by single weights, which 1 stores. All blocks of a
            layer have one size, so that a move changes no number of stored weights. Where ``block`` does not divide the
            output channels (of one group), the size is the largest smaller divisor that is a multiple of 8, or the
            largest divisor at all: 8 for 1000 classes, 10 for 10 or 100 classes, and 1 for a depthwise convolution. The
            fast kernels take multiples of 8; other blocks are computed as single weights are. Each layer stores a whole
            number of blocks, at least one, so its density is only near to ``density``.

    Returns:
        A subspace for `Bayesian`.

    >>> model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Linear(20, 10))
    >>> selection = sparse(0.1).select(model)
    >>> [(name, tuple(p.shape)) for name, p in model.named_parameters() if "original" in name]
    [('2.parametrizations.weight.original', (20,))]
    """
    return Sparse(density, layout, dense, start, seed, inside or everything(eligible=not_norm), block)


def make_sparse(model: nn.Module, density: float, **options: object) -> nn.Module:
    """Make a plain model sparse, without any randomness.

    Args:
        model: the model, which is changed in place.
        density: the share of the weights of linear maps and convolutions that is stored.
        **options: the options ``layout``, ``dense``, ``start``, ``seed`` and ``block`` of `sparse`.

    Returns:
        The same model.
    """
    chosen = sparse(density, **options)  # type: ignore[arg-type]
    assert isinstance(chosen, Sparse)
    chosen.apply(model)
    return model


def counts(shapes: list[tuple[int, ...]], density: float, layout: Layout) -> list[int]:
    """Return how many entries of each weight are stored: at least one, and round(density · all) for "erdos_renyi".

    >>> counts([(10, 10), (100, 100)], 0.1, "uniform"), counts([(10, 10), (100, 100)], 0.1, "erdos_renyi")
    ([10, 1000], [92, 918])
    """
    sizes = [prod(shape) for shape in shapes]
    if layout == "uniform":
        return [max(1, round(density * size)) for size in sizes]
    wanted, full = round(density * sum(sizes)), set[int]()
    while True:  # a layer that would be more than full is full, and the others share what remains
        remaining = wanted - sum(sizes[i] for i in full)
        free = [i for i in range(len(sizes)) if i not in full]
        total = sum(sum(shapes[i]) for i in free)
        shares = {i: remaining * sum(shapes[i]) / total for i in free}
        over = {i for i in free if shares[i] > sizes[i]}
        if not over:
            break
        full |= over
    numbers = [sizes[i] if i in full else max(1, int(shares[i])) for i in range(len(sizes))]
    below = sorted((i for i in free if numbers[i] < shares[i]), key=lambda i: numbers[i] - shares[i])
    for i in below[: max(0, wanted - sum(numbers))]:  # those furthest below their share; never one beyond its size
        numbers[i] += 1
    while sum(numbers) > max(wanted, len(numbers)):  # layers with a share below one got a whole weight
        numbers[numbers.index(max(numbers))] -= 1
    return numbers


def layers_of(model: nn.Module) -> dict[str, Any]:
    """Return the linear maps and convolutions whose weight can be sparse: not frozen, tied or parametrized already."""
    uses: dict[int, int] = {}
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    return {
        f"{name}.weight".removeprefix("."): module
        for name, module in model.named_modules()
        if isinstance(module, _KINDS)
        and not parametrize.is_parametrized(module, "weight")
        and module.weight.requires_grad
        and uses[id(module.weight)] == 1
    }


def _positions(weight: Tensor, blocks: Blocks, count: int, start: Start, generator: torch.Generator) -> Tensor:
    """Return the sorted positions of about ``count`` weights in whole blocks."""
    number = max(1, round(count / blocks.size))
    if start == "magnitude":
        chosen = blocks.sums(weight.abs()).topk(number, sorted=False).indices
    else:
        chosen = torch.randperm(blocks.count, generator=generator)[:number]
    return blocks.positions(chosen).to(torch.int32 if weight.numel() < 2**31 else torch.int64)
