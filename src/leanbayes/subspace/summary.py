"""How many weights are random, tensor by tensor (the figures of layer sparsity of sensitivity-guided subnetworks)."""

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Summary", "TensorSummary"]


@dataclass(frozen=True)
class TensorSummary:
    """How many coordinates of one tensor are random.

    Attributes:
        name: the name of the tensor in the dense model.
        shape: its shape.
        size: the number of its coordinates.
        random: how many of them are random.
        stored: how many of them are stored, for a sparse tensor; None for a dense one.
    """

    name: str
    shape: tuple[int, ...]
    size: int
    random: int
    stored: int | None = None

    @property
    def sparsity(self) -> float:
        """The share of coordinates that are not random."""
        return 1 - self.random / max(self.size, 1)


@dataclass(frozen=True)
class Summary:
    """All floating-point tensors of a model in order, and the totals.

    >>> print(Summary((TensorSummary("fc.weight", (2, 8), 16, 4), TensorSummary("fc.bias", (2,), 2, 0))))
    tensor      shape    size  random  sparsity
    fc.weight   2x8        16       4    0.7500
    fc.bias     2           2       0    1.0000
    in all                 18       4    0.7778
    """

    tensors: tuple[TensorSummary, ...]

    def __iter__(self) -> Iterator[TensorSummary]:
        return iter(self.tensors)

    @property
    def size(self) -> int:
        """The number of all coordinates."""
        return sum(tensor.size for tensor in self.tensors)

    @property
    def random(self) -> int:
        """The number of all random coordinates. Without shared scales, as many scales are trained."""
        return sum(tensor.random for tensor in self.tensors)

    @property
    def stored(self) -> int:
        """The number of coordinates that take memory: all but the zeros of sparse tensors."""
        return sum(tensor.size if tensor.stored is None else tensor.stored for tensor in self.tensors)

    @property
    def density(self) -> float:
        """The share of all coordinates that is stored."""
        return self.stored / max(self.size, 1)

    def __str__(self) -> str:
        shapes = ["x".join(map(str, tensor.shape)) for tensor in self.tensors]
        name = max(len(text) for text in ("in all", *(tensor.name for tensor in self.tensors)))
        shape = max(len(text) for text in ("shape", *shapes))
        size = max(len("size"), len(str(self.size)))
        random = max(len("random"), len(str(self.random)))
        total = TensorSummary("in all", (), self.size, self.random)
        rows = [f"{'tensor':{name}}   {'shape':{shape}}  {'size':>{size}}  {'random':>{random}}  sparsity"]
        for tensor, text in zip((*self.tensors, total), (*shapes, ""), strict=True):
            counts = f"{tensor.size:{size}}  {tensor.random:{random}}  {tensor.sparsity:8.4f}"
            rows.append(f"{tensor.name:{name}}   {text:{shape}}  {counts}")
        if self.stored < self.size:
            rows.append(f"{self.stored} of {self.size} are stored, the others are zero")
        return "\n".join(rows)
