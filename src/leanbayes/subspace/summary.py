"""Where the random weights sit, tensor by tensor: the papers' figures of layer sparsity (001, figures 12 and 13)."""

from collections.abc import Iterator
from dataclasses import dataclass

__all__ = ["Summary", "TensorSummary"]


@dataclass(frozen=True)
class TensorSummary:
    """One tensor: how many of its coordinates are random."""

    name: str
    shape: tuple[int, ...]
    size: int
    random: int
    stored: int | None = None  # of a sparse tensor; None where all of it is

    @property
    def sparsity(self) -> float:
        """The deterministic share, as 001 plots it: 1 is fully deterministic."""
        return 1 - self.random / max(self.size, 1)


@dataclass(frozen=True)
class Summary:
    """Every floating-point tensor of a model in order, and the totals.

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
        """Coordinates in all."""
        return sum(tensor.size for tensor in self.tensors)

    @property
    def random(self) -> int:
        """Random coordinates in all: as many scales are trained."""
        return sum(tensor.random for tensor in self.tensors)

    @property
    def stored(self) -> int:
        """Coordinates that take memory: all but the zeros of sparse tensors."""
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
