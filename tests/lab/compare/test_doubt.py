"""Scores of doubt: they are large where a mask is likely wrong, and validation cases choose among them."""

import itertools

import pytest
import torch

from leanbayes.lab.compare.doubt import DOUBTS, chosen_doubt, doubt_scores, edge_width, quality_of
from leanbayes.metrics.boundary import edge_band


def of(foreground: torch.Tensor, spacing: tuple[float, ...] | None = None) -> dict[str, float]:
    p = torch.stack([1 - foreground, foreground])
    total = torch.special.entr(p).sum(0)
    return doubt_scores(p, total, total / 2, spacing)


def test_the_expected_dice_is_close_to_its_mean_over_masks() -> None:
    """Over all masks of independent pixels, by enumeration. The ratio of expectations is a little too large."""
    p = torch.tensor([[0.9, 0.8, 0.95, 0.3, 0.1, 0.05, 0.6, 0.02]], dtype=torch.float64)
    mask = p > 0.5
    expected = 0.0
    for bits in itertools.product((0, 1), repeat=8):
        y = torch.tensor([bits], dtype=torch.float64)
        probability = float(torch.where(y > 0, p, 1 - p).prod())
        expected += probability * float(2 * (y * mask).sum() / (y.sum() + mask.sum()))
    assert of(p)["expected_dice_loss"] == pytest.approx(1 - expected, abs=0.02)


def test_where_nothing_is_predicted_doubt_is_the_probability_of_something() -> None:
    p = torch.tensor([[0.2, 0.0, 0.3]])
    assert of(p)["expected_dice_loss"] == pytest.approx(1 - 0.8 * 0.7)
    assert of(p * 0)["expected_dice_loss"] == pytest.approx(0, abs=1e-9)
    assert of(p)["edge_total"] == pytest.approx(float(torch.special.entr(torch.tensor([0.3, 0.7])).sum()), rel=1e-5)


def test_doubt_near_the_edge_knows_the_spacing() -> None:
    p = torch.rand(12, 10, generator=torch.Generator().manual_seed(0))
    total = torch.special.entr(torch.stack([1 - p, p])).sum(0)
    for spacing in (None, (1.0, 3.0)):
        band = edge_band((p > 0.5).long()[None], edge_width(spacing), spacing)[0]
        assert of(p, spacing)["edge_total"] == pytest.approx(float(total[band].mean()), rel=1e-5)
        assert of(p, spacing)["edge_epistemic"] == pytest.approx(float(total[band].mean()) / 2, rel=1e-5)
    assert edge_width((2.5, 0.5, 0.5)) == 1.0


def rows(count: int) -> list[dict[str, float]]:
    return [{"dice": 1 - n / count, "total": n % 3, "edge_total": n, "epistemic": -n} for n in range(count)]


def test_validation_cases_choose_the_score_that_ranks_them_best() -> None:
    chosen = chosen_doubt(rows(12))
    assert chosen is not None
    assert chosen["name"] == "edge_total"
    assert chosen["rank_correlation"] == pytest.approx(-1)
    assert chosen["cases"] == 12


def test_too_few_or_equal_cases_choose_nothing() -> None:
    assert chosen_doubt(rows(9)) is None
    assert chosen_doubt([{"dice": 1.0, "total": float(n)} for n in range(20)]) is None
    assert chosen_doubt([{"dice": n / 20, "total": 1.0} for n in range(20)]) is None
    assert chosen_doubt([{"dice": n / 20, "total": float("nan")} for n in range(20)]) is None
    missing = rows(12)
    del missing[3]["edge_total"]
    assert (chosen_doubt(missing) or {})["name"] == "total"
    assert chosen_doubt([]) is None


def test_rounding_errors_are_no_doubt() -> None:
    """The epistemic uncertainty of a plain network is rounding, which may rank a few cases by chance."""
    plain = [{"dice": 1 - n / 20, "expected_dice_loss": (n % 7) / 7, "epistemic": 1e-8 * n} for n in range(20)]
    assert (chosen_doubt(plain) or {})["name"] == "expected_dice_loss"


def test_with_several_raters_the_mean_dice_with_each_is_ranked() -> None:
    """The Dice with one random rater is a lottery: here it says the opposite of the mean over raters."""
    rated = [{"dice": n / 20, "dice_of_raters": 1 - n / 20, "total": float(n)} for n in range(20)]
    assert quality_of(rated[3]) == 1 - 3 / 20
    assert quality_of({"dice": 0.25}) == 0.25
    assert (chosen_doubt(rated) or {})["rank_correlation"] == pytest.approx(-1)


def test_every_score_has_words() -> None:
    assert all(words for words in DOUBTS.values())
