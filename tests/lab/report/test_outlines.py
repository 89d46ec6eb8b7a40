import re

import numpy as np
import pytest

from leanbayes.lab.report.outlines import outline


def edges(path: str) -> set[tuple[str, int, int]]:
    """The unit edges that a path draws: (h or v, x, y)."""
    drawn = set()
    for x, y, way, length in re.findall(r"M(\d+) (\d+)([hv])(\d+)", path):
        for step in range(int(length)):
            edge = (way, int(x) + step, int(y)) if way == "h" else (way, int(x), int(y) + step)
            assert edge not in drawn
            drawn.add(edge)
    return drawn


def expected(mask: np.ndarray) -> set[tuple[str, int, int]]:
    """Every side of an inside pixel whose other side is outside, pixel by pixel."""
    wide = np.pad(mask, 1)
    drawn = set()
    for y, x in np.argwhere(mask):
        drawn |= {("h", x, y)} if not wide[y, x + 1] else set()
        drawn |= {("h", x, y + 1)} if not wide[y + 2, x + 1] else set()
        drawn |= {("v", x, y)} if not wide[y + 1, x] else set()
        drawn |= {("v", x + 1, y)} if not wide[y + 1, x + 2] else set()
    return drawn


@pytest.mark.parametrize("seed", range(5))
def test_a_path_draws_every_edge_once(seed: int) -> None:
    mask = np.random.default_rng(seed).random((9, 13)) < 0.4
    assert edges(outline(mask)) == expected(mask)


def test_straight_edges_are_one_stroke() -> None:
    mask = np.zeros((6, 8), bool)
    mask[1:4, 2:7] = True
    assert outline(mask) == "M2 1h5M2 4h5M2 1v3M7 1v3"
    assert outline(np.zeros((6, 8), bool)) == ""


def test_noise_is_drawn_coarsely_instead_of_at_any_length() -> None:
    mask = np.random.default_rng(0).random((256, 250)) < 0.5
    path = outline(mask, longest=2000)
    assert 0 < len(path) <= 2000
    steps = {int(length) for _, _, _, length in re.findall(r"M(\d+) (\d+)([hv])(\d+)", path)}
    assert all(step % 2 == 0 for step in steps)
