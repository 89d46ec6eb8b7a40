import numpy as np
import pytest
import torch

from leanbayes.lab.report import plots
from leanbayes.metrics import calibration_error


def confidences(n=500):
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1, n)
    return confidence, (rng.random(n) < confidence**2).astype(float)


def test_reliability_bins_give_the_calibration_error():
    confidence, correct = confidences()
    x, y, share = plots.reliability_bins(confidence, correct, bins=15)
    probabilities = torch.tensor(np.stack([confidence, 1 - confidence], 1))
    expected = calibration_error(probabilities, torch.tensor(1 - correct).long(), bins=15)
    assert share.sum() == pytest.approx(1)
    assert np.sum(share * np.abs(x - y)) == pytest.approx(float(expected), abs=1e-12)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_certain_confidences_have_a_bin(value):
    x, y, share = plots.reliability_bins(np.full(4, value), np.array([0.0, 1, 1, 1]))
    assert (x.tolist(), y.tolist(), share.tolist()) == ([value], [0.75], [1.0])


def test_pooling_is_the_mean_of_what_is_random():
    matrix = np.arange(24.0).reshape(4, 6)
    matrix[0, :3] = np.nan
    matrix[1, :3] = np.nan
    matrix[2, 3] = np.nan
    pooled = plots.pooled(matrix, rows=2, columns=2)
    assert np.isnan(pooled[0, 0])
    assert pooled[0, 1] == np.mean(matrix[:2, 3:])
    assert pooled[1, 1] == np.nanmean(matrix[2:, 3:])
    np.testing.assert_array_equal(plots.pooled(matrix), matrix)


def test_pooling_of_uneven_blocks_loses_no_weight():
    result = np.full((513, 7), np.nan)
    result[512, 6] = 0.3
    assert np.nanmax(plots.pooled(result, 64, 4)) == 0.3
    assert plots.pooled(result, 64, 4).shape == (64, 4)


def test_bin_shares_sum_to_one_whatever_lies_outside():
    shares = plots.bin_shares(np.array([-1.0, 0.0, 0.5, 1.0, 7.0]), 1.0, bins=2)
    assert shares.tolist() == [0.4, 0.6]


def test_ticks_of_ranges_that_are_close_can_be_told_apart():
    middles = np.array([1.9331, 1.9382, 1.9471])
    figure = plots.ranges(["a", "b", "c"], middles, middles, middles, "size", np.nan)
    figure.draw_without_rendering()
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert len(labels) > 1
    assert len(set(labels)) == len(labels)
