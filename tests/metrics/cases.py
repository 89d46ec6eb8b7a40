"""Predictions of every kind, and a predictor whose draws are given."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes.prediction import Predictor

VOID = 255


def classes(n: int = 600, c: int = 5, seed: int = 0, sharp: float = 1.5) -> tuple[Tensor, Tensor]:
    """Logits and targets that agree more often than not."""
    generator = torch.Generator().manual_seed(seed)
    logits = sharp * torch.randn(n, c, generator=generator, dtype=torch.float64)
    return logits, (logits + torch.randn(n, c, generator=generator)).argmax(1)


def labels(n: int = 400, c: int = 4, seed: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, c, generator=generator, dtype=torch.float64)
    return logits, (torch.rand(n, c, generator=generator) < logits.sigmoid()).long()


def pixels(n: int = 9, c: int = 3, side: int = 12, seed: int = 2, void: bool = True) -> tuple[Tensor, Tensor]:
    """Logits (n, c, side, side) and masks; some pixels, and all of the last image, are void."""
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(n, c, side, side, generator=generator, dtype=torch.float64)
    targets = (logits + 2 * torch.randn(n, c, side, side, generator=generator)).argmax(1)
    if void:
        targets[torch.rand(targets.shape, generator=generator) < 0.2] = VOID
        targets[-1] = VOID
    return logits, targets


class Given(Predictor):
    """Inputs hold the outputs of the draws: (N, draws, ...)."""

    def __init__(self, draws: int) -> None:
        super().__init__()
        self.members = draws

    def outputs(self, x: Any, draws: int, generator: torch.Generator | None) -> Iterator[Any]:
        yield from x.unbind(1)

    def parts(self) -> dict[str, nn.Module]:
        return {}


def cut(x: Tensor, y: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
    return list(zip(x.split(size), y.split(size), strict=True))
