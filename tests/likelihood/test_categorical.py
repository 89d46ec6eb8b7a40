"""The likelihood of classes against torch.distributions in float64, and against draws that are all kept."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import leanbayes as lb
from tests.likelihood.cases import entropy, from_draws, normal


def test_categorical_nll_is_that_of_torch_distributions() -> None:
    logits, target = 3 * normal(7, 4), torch.randint(0, 4, (7,))
    expected = -torch.distributions.Categorical(logits=logits).log_prob(target).sum()
    torch.testing.assert_close(lb.Categorical().nll(logits, target), expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(lb.Categorical()(logits, target), expected / 7, rtol=1e-12, atol=0)


def test_categorical_per_pixel_with_weights_and_void() -> None:
    """Σ over pixels that count of weight[y]·(−log p(y)): no division by the sum of weights."""
    logits, target = 2 * normal(3, 4, 5, 2), torch.randint(0, 4, (3, 5, 2))
    weights = torch.tensor([0.5, 1.0, 3.0, 0.0], dtype=torch.float64)
    target[0, :2] = 255
    nll = lb.Categorical(class_weights=weights, ignore_index=255).nll(logits, target)
    expected = 0.0
    for n in range(3):
        for i in range(5):
            for j in range(2):
                label = int(target[n, i, j])
                if label != 255:
                    law = torch.distributions.Categorical(logits=logits[n, :, i, j])
                    expected -= weights[label].item() * law.log_prob(torch.tensor(label)).item()
    assert nll.item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_class_weights_meet_outputs_of_another_dtype(dtype: torch.dtype) -> None:
    """Weights are given once, as float32; the model decides the outputs' dtype."""
    logits, target = torch.zeros(2, 3, dtype=dtype), torch.tensor([0, 2])
    nll = lb.Categorical(class_weights=torch.tensor([1.0, 1.0, 3.0])).nll(logits, target)
    assert nll.item() == pytest.approx(4 * math.log(3), rel=1e-2 if dtype == torch.bfloat16 else 1e-6)


def test_categorical_uncertainty_is_that_of_the_stacked_draws() -> None:
    outputs = [2 * normal(5, 4) for _ in range(9)]
    result = from_draws(lb.Categorical(), outputs)
    p = np.stack([torch.distributions.Categorical(logits=o).probs.numpy() for o in outputs])
    np.testing.assert_allclose(result.mean, p.mean(0), rtol=1e-12)
    np.testing.assert_allclose(result.total, entropy(p.mean(0), 1), rtol=1e-12)
    np.testing.assert_allclose(result.aleatoric, entropy(p, 2).mean(0), rtol=1e-12)
    divergence = (p * np.log(p / p.mean(0))).sum(2).mean(0)  # mutual information as a mean KL(p_s‖mean)
    np.testing.assert_allclose(result.epistemic, divergence, rtol=1e-10)


def test_categorical_uncertainty_per_pixel() -> None:
    outputs = [2 * normal(2, 3, 4, 5) for _ in range(6)]
    result = from_draws(lb.Categorical(), outputs)
    p = np.stack([torch.softmax(o, 1).numpy() for o in outputs])
    assert result.mean.shape == (2, 3, 4, 5)
    assert result.total.shape == result.aleatoric.shape == result.epistemic.shape == (2, 4, 5)
    np.testing.assert_allclose(result.total, entropy(p.mean(0), 1), rtol=1e-12)
    np.testing.assert_allclose(result.aleatoric, entropy(p, 2).mean(0), rtol=1e-12)


def test_equal_draws_leave_no_epistemic_uncertainty() -> None:
    result = from_draws(lb.Categorical(), [normal(20, 4)] * 7)
    assert (result.epistemic >= 0).all()
    torch.testing.assert_close(result.epistemic, torch.zeros(20, dtype=torch.float64), rtol=0, atol=1e-14)


class TestClassAxis:
    """Before, `predict` took the softmax of (N, T, V) logits over T, the tokens, without a word."""

    @pytest.fixture
    def logits(self):
        return torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))

    def test_three_axes_must_be_stated(self, logits):
        model = lb.Bayesian(nn.Linear(4, 3))
        x = torch.randn(2, 5, 4)
        for by in ("sample", "moments"):
            with pytest.raises(lb.errors.ShapeMismatch, match=r"class_axis=-1"):
                lb.predict(model, x, by=by, samples=2)
            result = lb.predict(model, x, likelihood=lb.Categorical(class_axis=-1), by=by, samples=4)
            assert result.mean.shape == (2, 3, 5)
            assert result.total.shape == (2, 5)
            torch.testing.assert_close(result.mean.sum(1), torch.ones(2, 5))
        assert lb.Categorical(class_axis=1).predictive(logits).sum(1).allclose(torch.ones(2, 3))

    def test_images_need_nothing(self):
        assert lb.Categorical().predictive(torch.randn(2, 3, 4, 5)).sum(1).allclose(torch.ones(2, 4, 5))

    def test_targets_tell_the_axis(self, logits):
        tokens, pixels = torch.randint(0, 3, (2, 5)), torch.randint(0, 5, (2, 3))
        nll = lb.Categorical().nll(logits, tokens)
        torch.testing.assert_close(
            nll, nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="sum")
        )
        torch.testing.assert_close(nll, lb.Categorical(class_axis=-1).nll(logits, tokens))
        torch.testing.assert_close(
            lb.Categorical().nll(logits, pixels), nn.functional.cross_entropy(logits, pixels, reduction="sum")
        )
        with pytest.raises(lb.errors.ShapeMismatch, match="must be stated"):
            lb.Categorical().nll(torch.zeros(2, 3, 3), torch.zeros(2, 3, dtype=torch.long))

    def test_the_moments_of_a_language_model_are_those_of_draws(self):
        """Each class has noise of its own, also where the classes are the last axis."""
        torch.manual_seed(0)
        model = lb.Bayesian(nn.Linear(4, 3).double(), posterior=lb.posteriors.Normal(0.5))
        x = torch.randn(2, 5, 4, dtype=torch.float64)
        options = {"likelihood": lb.Categorical(class_axis=-1), "generator": torch.Generator().manual_seed(1)}
        drawn = lb.predict(model, x, samples=4000, keep_samples=True, **options)
        passed = lb.predict(model, x, by="moments", samples=512, **options)
        error = drawn.samples.std(0) / 4000**0.5
        assert ((drawn.mean - passed.mean).abs() < 5 * error + 0.005).all()

    @pytest.mark.parametrize("axis", [0, 1.5, "last"])
    def test_an_axis_that_is_none(self, axis):
        with pytest.raises(lb.errors.InputError, match="class_axis"):
            lb.Categorical(class_axis=axis)
        with pytest.raises(lb.errors.ShapeMismatch, match="class_axis is 4"):
            lb.Categorical(class_axis=4).predictive(torch.zeros(2, 3))
