"""Several raters: against explicit loops over pairs of sets, scipy, and cases by hand."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import jaccard_score
from torch import Tensor

from leanbayes.errors import InputError, NonFinite, ShapeMismatch
from leanbayes.metrics import generalised_energy_distance, rater_agreement, rater_entropy


def _masks(count: int, images: int, classes: int, seed: int, share: float = 0.5) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    masks = torch.randint(0, classes, (count, images, 4, 5), generator=generator)
    return masks * (torch.rand(masks.shape, generator=generator) < share)


def _distance(a: Tensor, b: Tensor, classes: int) -> float:
    each = [1 - jaccard_score((a == c).flatten(), (b == c).flatten(), zero_division=1.0) for c in range(1, classes)]
    return float(np.mean(each))


@pytest.mark.parametrize("classes", [2, 4])
def test_energy_distance_by_pairs(classes: int) -> None:
    samples, raters = _masks(5, 3, classes, 0), _masks(4, 3, classes, 1, share=0.2)
    raters[0, 1] = samples[0, 1] = samples[1, 1] = 0
    result = generalised_energy_distance(samples, raters, classes)
    for image in range(3):
        s, y = samples[:, image], raters[:, image]
        cross = np.mean([_distance(a, b, classes) for a in s for b in y])
        within = np.mean([_distance(a, b, classes) for a in s for b in s])
        between = np.mean([_distance(a, b, classes) for a in y for b in y])
        assert result[image].item() == pytest.approx(2 * cross - within - between, abs=1e-6)


def test_empty_masks() -> None:
    empty, subset = torch.zeros(2, 1, 6, dtype=torch.long), torch.ones(3, 1, 6, dtype=torch.long)
    assert generalised_energy_distance(empty, empty).item() == 0
    assert generalised_energy_distance(empty, subset).item() == 2  # every pair at distance 1


@given(st.integers(1, 5), st.integers(1, 5), st.integers(2, 3), st.integers(0, 500))
@settings(max_examples=40, deadline=None)
def test_energy_distance_is_a_distance(draws: int, raters: int, classes: int, seed: int) -> None:
    a, b = _masks(draws, 2, classes, seed), _masks(raters, 2, classes, seed + 1, share=0.3)
    result = generalised_energy_distance(a, b, classes)
    assert (result >= -1e-6).all()
    assert (result <= 2).all()
    torch.testing.assert_close(result, generalised_energy_distance(b, a, classes))
    same = generalised_energy_distance(a, a.flip(0), classes)
    torch.testing.assert_close(same, torch.zeros(2), atol=1e-6, rtol=0)


def test_draws_that_vary_as_raters_do_are_nearer_than_one_good_mask() -> None:
    raters = _masks(4, 8, 2, 5)
    ours = generalised_energy_distance(raters[[0, 1, 2, 3]], raters).mean()
    assert ours + 0.1 < generalised_energy_distance(raters[:1].expand(4, -1, -1, -1), raters).mean()


def test_rater_entropy_against_scipy() -> None:
    raters = _masks(5, 2, 3, 2)
    votes = torch.stack([(raters == c).double().mean(0) for c in range(3)]).numpy()
    np.testing.assert_allclose(rater_entropy(raters, 3).numpy(), scipy.stats.entropy(votes), atol=1e-6)
    assert rater_entropy(raters[:1], 3).max() == 0


def test_agreement_against_scipy() -> None:
    raters = _masks(4, 3, 2, 3)
    entropy = torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    truth = rater_entropy(raters)
    expected = [scipy.stats.pearsonr(entropy[i].flatten(), truth[i].flatten()).statistic for i in range(3)]
    np.testing.assert_allclose(rater_agreement(entropy, raters).numpy(), expected, rtol=1e-6)
    torch.testing.assert_close(rater_agreement(3 * entropy + 1, raters), rater_agreement(entropy, raters))
    torch.testing.assert_close(rater_agreement(0.5 * truth, raters), torch.ones(3))
    torch.testing.assert_close(rater_agreement(-truth, raters), -torch.ones(3))


def test_a_constant_map_has_no_correlation() -> None:
    raters = _masks(4, 2, 2, 3)
    raters[:, 1] = raters[0, 1]
    result = rater_agreement(torch.rand(2, 4, 5), raters)
    assert not math.isnan(result[0])
    assert math.isnan(result[1])
    assert rater_agreement(torch.full((2, 4, 5), 0.1), raters).isnan().all()


def test_bad_masks_are_named() -> None:
    masks = _masks(2, 3, 2, 0)
    with pytest.raises(InputError, match="classes 0 to 1, got 0 to 7"):
        generalised_energy_distance(masks * 7, masks)
    with pytest.raises(InputError, match="integers"):
        generalised_energy_distance(masks.float(), masks)
    with pytest.raises(InputError, match="at least 2"):
        rater_entropy(masks, 1)
    with pytest.raises(ShapeMismatch, match="not empty"):
        rater_entropy(masks[:0])
    with pytest.raises(ShapeMismatch, match="one shape after axis 0"):
        generalised_energy_distance(masks, masks[:, :2])
    with pytest.raises(ShapeMismatch, match="entropy"):
        rater_agreement(torch.rand(3, 4, 6), masks)
    with pytest.raises(NonFinite, match="entropy"):
        rater_agreement(torch.full((3, 4, 5), math.nan), masks)
    assert torch.equal(rater_entropy(masks.bool()), rater_entropy(masks))
