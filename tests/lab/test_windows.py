"""Predictions by windows: networks that see one pixel at a time must not notice the windows."""

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.baselines import Ensemble
from leanbayes.errors import InputError
from leanbayes.lab.windows import Windowed

IMAGE = torch.randn(1, 2, 13, 11, generator=torch.Generator().manual_seed(0))


def pointwise() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(2, 4, 1), nn.ReLU(), nn.Conv2d(4, 3, 1))


def test_all_windows_of_a_draw_see_the_same_weights() -> None:
    bnn = lb.Bayesian(pointwise(), posterior=lb.posteriors.Normal(0.5))
    flat = torch.ones(1, 2, 13, 11)
    drawn = list(Windowed(bnn, (4, 4)).outputs(flat, 3, torch.Generator().manual_seed(1)))
    for output in drawn:
        assert output.shape == (1, 3, 13, 11)
        torch.testing.assert_close(output, output[..., :1, :1].expand_as(output), atol=1e-5, rtol=0)
    assert (drawn[0] - drawn[1]).abs().min() > 1e-3


def test_one_pass_of_moments_is_that_of_the_whole_image() -> None:
    bnn = lb.Bayesian(pointwise(), propagate="local", predict_by="moments", posterior=lb.posteriors.Normal(0.3))
    whole, parts = lb.predict(bnn, IMAGE), lb.predict(Windowed(bnn, (4, 4)), IMAGE)
    for name in ("mean", "total", "epistemic"):
        torch.testing.assert_close(getattr(parts, name), getattr(whole, name), atol=1e-5, rtol=1e-4)
    assert parts.draws.tolist() == [1]


def test_a_plain_network_is_called_once_and_an_ensemble_once_for_each_member() -> None:
    plain = pointwise()
    prediction = lb.predict(Windowed(plain, (4, 4)), IMAGE, samples=32)
    assert prediction.draws.tolist() == [1]
    torch.testing.assert_close(prediction.mean, lb.predict(plain, IMAGE).mean, atol=1e-6, rtol=1e-5)
    torch.manual_seed(0)
    ensemble = Ensemble(pointwise(), nn.Conv2d(2, 3, 1))
    together = lb.predict(Windowed(ensemble, (4, 4)), IMAGE)
    assert together.draws.tolist() == [2]
    torch.testing.assert_close(together.mean, lb.predict(ensemble, IMAGE).mean, atol=1e-5, rtol=1e-4)


def test_the_seed_repeats_a_prediction_and_images_may_be_smaller_than_a_window() -> None:
    bnn = lb.Bayesian(nn.Conv2d(2, 3, 3, padding=1), posterior=lb.posteriors.Normal(0.3))
    windowed = Windowed(bnn, (16, 8))
    first, second = (lb.predict(windowed, IMAGE, samples=3, generator=torch.Generator().manual_seed(5)) for _ in "ab")
    assert torch.equal(first.mean, second.mean)
    assert first.mean.shape == (1, 3, 13, 11)
    with pytest.raises(InputError, match="windows are cut from a tensor"):
        next(iter(windowed.outputs((IMAGE, IMAGE), 1, None)))
    (network,) = windowed.networks(1, torch.Generator().manual_seed(0))
    assert network(IMAGE.clone().requires_grad_()).requires_grad
    again = Windowed.rebuild(windowed.parts(), **windowed.config())
    assert again.window == (16, 8)
