"""Where scales start: a multiple of the usual size of the weights."""

import math

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.optim import IVON, random_tensors
from leanbayes.optim.starts import usual_sizes


def test_the_usual_size_is_the_spread_of_fresh_weights() -> None:
    torch.manual_seed(0)
    for layer in (nn.Linear(40, 5000), nn.Conv2d(4, 2000, 3)):
        bnn = lb.Bayesian(layer)
        size, of_bias = usual_sizes(bnn.model, random_tensors(bnn))
        assert layer.weight.std().item() == pytest.approx(size, rel=0.02)
        assert of_bias == size


def test_vectors_take_the_size_of_the_matrix_before_them() -> None:
    model = nn.Sequential(nn.LayerNorm(12), nn.Linear(12, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))
    bnn = lb.Bayesian(model)
    sizes = dict(zip((t.name for t in random_tensors(bnn)), usual_sizes(bnn.model, random_tensors(bnn)), strict=True))
    assert sizes["0.weight"] == sizes["1.weight"] == sizes["2.bias"] == pytest.approx(1 / 6)
    assert sizes["3.weight"] == sizes["3.bias"] == pytest.approx(1 / 3)
    alone = lb.Bayesian(nn.BatchNorm1d(3))
    assert usual_sizes(alone.model, random_tensors(alone)) == [3**-0.5] * 2


def test_sparse_layers_count_what_they_store() -> None:
    bnn = lb.Bayesian(nn.Sequential(nn.Linear(30, 10), nn.Linear(10, 2)), subspace=lb.sparse(0.2, dense=()))
    stored = {name: len(parts.rho) for name, parts in bnn.parts() if "original" in name}
    sizes = dict(zip((t.name for t in random_tensors(bnn)), usual_sizes(bnn.model, random_tensors(bnn)), strict=True))
    for (name, count), outputs in zip(stored.items(), (10, 2), strict=True):
        assert sizes[name] == pytest.approx((3 * count / outputs) ** -0.5)


def test_scales_start_there_but_below_the_prior() -> None:
    bnn = lb.Bayesian(nn.Sequential(nn.Linear(12, 3), nn.Linear(3, 1)))
    optimizer = IVON(bnn, n_data=100, steps=10, weight_decay=1.0, relative_scale=0.5)  # the prior's scale is 0.1
    scales = [tensor.scale() for tensor in random_tensors(bnn)]
    torch.testing.assert_close(scales[0], torch.full((3, 12), 0.5 / 6))
    torch.testing.assert_close(scales[2], torch.full((1, 3), 0.09))
    summary = optimizer.summary()
    assert summary.moved == pytest.approx(0, abs=1e-6)
    assert math.isclose(summary.start[0], 0.5 / 6, rel_tol=1e-5)


@pytest.mark.parametrize("options", [{"initial_scale": 0.1}, {"initial_curvature": 0.1}])
def test_only_one_start_is_taken(options: dict[str, float]) -> None:
    with pytest.raises(lb.errors.InputError, match="relative_scale each say where the scales start"):
        IVON(lb.Bayesian(nn.Linear(2, 1)), n_data=5, steps=3, relative_scale=0.2, **options)
    with pytest.raises(lb.errors.InputError, match="leave one of them out"):
        lb.optim.NaturalGradients(relative_scale=0.2, **options)
