"""The variance of a layer with little memory, against the plain formula in float64: values and gradients."""

import pytest
import torch
import torch.nn.functional as F

from leanbayes._ops import moments as ops
from leanbayes._ops.layer_variance import layer_variance, second_moment

LAYERS = {
    "images": (
        lambda *t: F.conv2d(*t, padding=1),
        (3, 4, 7, 7),
        (5, 4, 3, 3),
        ([1, 1], [1, 1], [1, 1], False, [0, 0], 1),
    ),
    "tokens": (F.linear, (3, 9, 4), (5, 4), ()),
}


@pytest.fixture(autouse=True)
def sweep_small_tensors_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "_LEAST", 1)


def operands(shape, kernel):
    x = torch.randn(shape)
    if x.dim() == 4:
        x = x.contiguous(memory_format=torch.channels_last)
    return [t.requires_grad_() for t in (x, torch.rand_like(x), torch.randn(kernel), torch.rand(kernel), torch.rand(5))]


@pytest.mark.parametrize("name", LAYERS)
def test_values_and_gradients(name):
    operation, shape, kernel, geometry = LAYERS[name]
    x, v, w, scales, b = operands(shape, kernel)
    swept = ops.square(x, v)
    if swept is None:
        pytest.skip("no sweep takes these tensors here")
    computed, sums = layer_variance(x, v, w, w.square(), scales.square(), scales, torch.square, b, geometry, swept)
    double = [t.detach().double().requires_grad_() for t in (x, v, w, scales, b)]
    dx, dv, dw, ds, db = double
    truth = operation(dx.square() + dv, ds.square(), db) + operation(dv, dw.square(), None)
    axes = (2, 3) if x.dim() == 4 else (1,)
    true_sums = torch.stack([part.sum(axes) for part in (dx, dx.square(), dv)], 1)
    torch.testing.assert_close(computed.double(), truth, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(sums.double(), true_sums, rtol=1e-4, atol=1e-4)
    g, h = torch.randn(computed.shape), torch.randn(sums.shape)
    ours = torch.autograd.grad((computed * g).sum() + (sums * h).sum(), (x, v, w, scales, b))
    theirs = torch.autograd.grad((truth * g.double()).sum() + (true_sums * h.double()).sum(), double)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=1e-3)


def test_the_second_moment_has_the_gradient_of_its_formula():
    x, v, *_ = operands(*LAYERS["tokens"][1:3])
    swept = ops.square(x, v)
    if swept is None:
        pytest.skip("no sweep takes these tensors here")
    second, sums = second_moment(x, v, swept)
    torch.testing.assert_close(second, x.square() + v)
    of_x, of_v = torch.autograd.grad(second.sum() + sums[:, 0].sum(), (x, v))
    torch.testing.assert_close(of_x, 2 * x + 1)
    torch.testing.assert_close(of_v, torch.ones_like(v))
