"""Seeds of single draws, so that a draw can be repeated."""

import torch

__all__ = ["draw_seeds"]


def draw_seeds(count: int, generator: torch.Generator | None) -> list[int]:
    """Draw ``count`` seeds from a generator, or from torch's global state."""
    device = "cpu" if generator is None else generator.device
    return [int(torch.randint(2**63 - 1, (), generator=generator, device=device)) for _ in range(count)]
