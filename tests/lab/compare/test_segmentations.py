"""Scores of one segmentation against closed forms and loops over pairs."""

import math
import warnings
from itertools import combinations, product

import numpy as np
import pytest
import torch
from scipy import ndimage

from leanbayes.lab.compare.segmentations import Segmentations, dice_of_masks, hausdorff95, pairwise_dice
from leanbayes.metrics import dice


def test_dice_is_that_of_the_metrics() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(3, (4, 6, 5), generator=generator) for _ in range(2))
    a[0] = b[0] = 0
    one_hot = torch.nn.functional.one_hot(a, 3).movedim(-1, 1).double()
    assert float(dice_of_masks(a, b, 3).mean()) == pytest.approx(float(dice(one_hot, b)))


def test_pairwise_dice_is_the_mean_over_pairs() -> None:
    masks = torch.randint(2, (5, 7), generator=torch.Generator().manual_seed(1))
    masks[3] = masks[1]
    pairs = [float(dice_of_masks(a[None], b[None], 2)) for a, b in combinations(masks, 2)]
    assert pairwise_dice(masks, 2) == pytest.approx(sum(pairs) / len(pairs))


def test_hausdorff_distance_knows_the_spacing() -> None:
    a, b = torch.zeros(2, 9, 9, 9, dtype=torch.long)
    a[2, 4, 4], b[6, 4, 4] = 1, 1
    assert hausdorff95(a, b, 2, (2.5, 1.0, 1.0)) == pytest.approx(10.0)
    assert hausdorff95(a, a, 2, (2.5, 1.0, 1.0)) == 0
    assert hausdorff95(a * 0, b * 0, 2, (1.0, 1.0, 1.0)) == 0
    assert math.isnan(hausdorff95(a, b * 0, 2, (1.0, 1.0, 1.0)))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("shape", "spacing"), [((23, 17), (1.0, 1.0)), ((14, 11, 9), (0.7, 1.3, 3.0))])
def test_hausdorff_distance_is_that_of_monai(shape: tuple[int, ...], spacing: tuple[float, ...], seed: int) -> None:
    metrics = pytest.importorskip("monai.metrics")
    random = np.random.default_rng(seed)
    a, b = (
        torch.from_numpy(np.digitize(ndimage.gaussian_filter(random.normal(size=shape), 1.5), [0.02, 0.12]))
        for _ in range(2)
    )
    expected = []
    for label in (1, 2):
        pair = [(mask == label)[None, None].float() for mask in (a, b)]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # MONAI 1.6 warns about its own call
            expected.append(float(metrics.compute_hausdorff_distance(*pair, True, percentile=95, spacing=spacing)))
    assert hausdorff95(a, b, 3, spacing) == pytest.approx(sum(expected) / 2, rel=1e-6)


@pytest.mark.parametrize("shape", [(15, 12), (9, 8, 7)])
def test_hausdorff_distance_is_that_of_monai_for_extreme_masks(shape: tuple[int, ...]) -> None:
    """Single voxels, masks that fill the image or touch its border, scattered ones, and empty ones."""
    metrics = pytest.importorskip("monai.metrics")
    random = np.random.default_rng(5)
    spacing = (0.6, 2.0, 3.5)[: len(shape)]
    one, other = (torch.zeros(shape, dtype=torch.long) for _ in range(2))
    one[(0,) * len(shape)], other[(-1,) * len(shape)] = 1, 1
    whole, empty = torch.ones_like(one), torch.zeros_like(one)
    half = empty.clone()
    half[: shape[0] // 2] = 1
    scattered = torch.from_numpy((random.random(shape) < 0.1).astype(np.int64))
    masks = [one, other, whole, half, scattered, empty]
    for a, b in product(masks, masks):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # MONAI warns about its own call, and about empty masks
            pair = [mask[None, None].float() for mask in (a, b)]
            expected = float(metrics.compute_hausdorff_distance(*pair, True, percentile=95, spacing=spacing))
        if a is empty and b is empty:
            expected = 0.0  # two empty masks agree; MONAI has no number for them
        assert hausdorff95(a, b, 2, spacing) == pytest.approx(expected, rel=1e-6, nan_ok=True)


def test_volumes_are_millilitres_and_have_an_interval() -> None:
    truth = torch.zeros(4, 5, 5, dtype=torch.long)
    truth[:2] = 1
    draws = torch.stack([truth, truth, truth * 0])
    scores = Segmentations(2, (10.0, 2.0, 5.0), -100).scores(truth, truth * 0.1, truth, draws, None)
    assert scores["volume"] == pytest.approx(5.0)
    assert (scores["volume_error"], scores["dice"], scores["hd95"]) == (0, 1, 0)
    assert 0 <= scores["volume_low"] < scores["volume_high"] == pytest.approx(5.0)
    assert scores["draw_disagreement"] == pytest.approx(2 / 3)


def test_pixels_that_do_not_count_and_raters() -> None:
    truth = torch.tensor([[1, 1, 255, 0]])
    predicted = torch.tensor([[1, 1, 1, 0]])
    total = torch.tensor([[0.0, 0.6, 0.0, 0.0]])
    raters = torch.tensor([[[1, 1, 0, 0]], [[1, 0, 0, 0]]])
    scores = Segmentations(2, None, 255).scores(predicted, total, truth, raters, raters)
    assert scores["dice"] == 1
    assert scores["rater_dice"] == pytest.approx(2 / 3)
    assert scores["dice_of_raters"] == pytest.approx((1 + 2 / 3) / 2)
    assert scores["ged"] == pytest.approx(0, abs=1e-6)
    assert scores["entropy_correlation"] == pytest.approx(1)
    assert scores["raters"] == 2
