"""The figure about cases says what the numbers say."""

from pathlib import Path

import numpy as np
import pytest

from leanbayes.lab.report.cases import cases
from leanbayes.lab.report.read import Arrays


def section(**by_method):
    by_key = {
        f"{name}/case/{key}": np.asarray(values, float)
        for name, pair in by_method.items()
        for key, values in zip(("dice", "total"), pair, strict=True)
    }
    return cases(list(by_method), Arrays(Path("arrays"), by_key))


def test_perfect_doubt_and_its_reverse() -> None:
    quality = np.linspace(0.1, 0.9, 20)
    figure = section(good=(quality, 1 - quality), bad=(quality, quality))
    good, bad, referral = figure.panels
    assert good.note == f"rank correlation -1.00; refer the 10% least sure: mean Dice 0.500 to {quality[2:].mean():.3f}"
    assert bad.note.startswith("rank correlation 1.00")
    assert "good: 0.500 to 0.900; bad: 0.500 to 0.100" in referral.alternative
    assert [entry.words for entry in figure.legend] == ["good", "bad"]


@pytest.mark.parametrize("pair", [([0.5] * 9, range(9)), (range(9), [1] * 9), ([0.1, 0.2], [0.3, 0.1])])
def test_nothing_is_drawn_where_nothing_can_be_said(pair) -> None:
    assert section(a=pair).panels == ()
