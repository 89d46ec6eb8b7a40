"""The variance after a convolution by boxes in sweeps, against the formula in float64: values and gradients."""

import threading

import pytest
import torch
import torch.nn.functional as F

from leanbayes._ops import box_variance as box_module
from leanbayes._ops import moments as ops
from leanbayes._ops.box_variance import box_variance

WINDOWS = {
    "3x3": ((3, 1, 1, 1), (3, 1, 1, 1)),
    "1x1": ((1, 1, 0, 1), (1, 1, 0, 1)),
    "1x1 with a stride": ((1, 2, 0, 1), (1, 2, 0, 1)),
    "3x3 with a stride": ((3, 2, 1, 1), (3, 2, 1, 1)),
    "without padding, with gaps": ((3, 1, 0, 2), (2, 1, 0, 1)),
    "unlike along rows and columns": ((5, 3, 2, 1), (2, 1, 1, 2)),
    "larger than the image": ((9, 1, 4, 1), (9, 1, 4, 1)),
}


@pytest.fixture(autouse=True)
def sweep_small_tensors_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "_LEAST", 1)


def operands(channels=4, outputs=5, count=3):
    x = torch.randn(count, channels, 7, 6).contiguous(memory_format=torch.channels_last)
    return [t.requires_grad_() for t in (x, torch.rand_like(x), torch.rand(outputs, 2 * channels))]


def formula(x, v, matrix, windows):
    """Convolve σ² and x², side by side, with filters that are even over their window."""
    (rows, *_), (columns, *_) = windows
    _, stride, padding, dilation = zip(*windows, strict=True)
    kernel = matrix[:, :, None, None].expand(*matrix.shape, rows, columns)
    both = torch.cat([v, x.square()], 1)
    return F.conv2d(both, kernel, None, stride, padding, dilation)


def sums_of(x, v):
    return torch.stack([part.sum((2, 3)) for part in (x, x.square(), v)], 1)


@pytest.mark.parametrize("name", WINDOWS)
@pytest.mark.parametrize("piece", [1, 2**20], ids=["one example at a time", "all together"])
def test_values_and_gradients(name, piece, monkeypatch):
    monkeypatch.setattr(box_module, "_PIECE", piece)
    x, v, matrix = operands()
    swept = box_variance(x, v, matrix, WINDOWS[name])
    if swept is None:
        pytest.skip("no sweep takes these tensors here")
    variance, sums = swept
    double = [t.detach().double().requires_grad_() for t in (x, v, matrix)]
    truth, true_sums = formula(*double, WINDOWS[name]), sums_of(*double[:2])
    torch.testing.assert_close(variance.double(), truth, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(sums.double(), true_sums, rtol=1e-5, atol=1e-5)
    g, h = torch.randn(variance.shape), torch.randn(sums.shape)
    ours = torch.autograd.grad((variance * g).sum() + (sums * h).sum(), (x, v, matrix))
    theirs = torch.autograd.grad((truth * g.double()).sum() + (true_sums * h.double()).sum(), double)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["3x3", "3x3 with a stride", "1x1"])
def test_grad_mode_changes_no_number(name):
    x, v, matrix = operands()
    with_gradients = box_variance(x, v, matrix, WINDOWS[name])
    with torch.no_grad():
        without = box_variance(x, v, matrix, WINDOWS[name])
    if without is None:
        pytest.skip("no sweep takes these tensors here")
    assert with_gradients is not None
    assert all(torch.equal(one, other) for one, other in zip(with_gradients, without, strict=True))


@pytest.mark.parametrize("needed", [(0,), (1,), (2,), (0, 1)], ids=str)
def test_gradients_of_some_tensors_alone(needed):
    tensors = operands()
    swept = box_variance(*tensors, WINDOWS["3x3"])
    if swept is None:
        pytest.skip("no sweep takes these tensors here")
    every = torch.autograd.grad(swept[0].square().sum(), tensors)
    some = [t.detach().requires_grad_(i in needed) for i, t in enumerate(tensors)]
    variance, _ = box_variance(*some, WINDOWS["3x3"])
    for i, gradient in zip(
        needed, torch.autograd.grad(variance.square().sum(), [some[i] for i in needed]), strict=True
    ):
        torch.testing.assert_close(gradient, every[i])


def test_one_channel_has_two_layouts_at_once():
    x, v, matrix = operands(channels=1, outputs=1)
    swept = box_variance(x, v, matrix, WINDOWS["3x3"])
    if swept is None:
        pytest.skip("no sweep takes these tensors here")
    torch.testing.assert_close(swept[0], formula(x, v, matrix, WINDOWS["3x3"]), rtol=1e-5, atol=1e-5)
    ours = torch.autograd.grad(swept[0].square().sum(), (x, v, matrix))
    theirs = torch.autograd.grad(formula(x, v, matrix, WINDOWS["3x3"]).square().sum(), (x, v, matrix))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_two_threads_get_the_same_numbers():
    x, v, matrix = (t.detach() for t in operands(8, 8, 6))
    results = []

    def run() -> None:
        with torch.no_grad():
            results.append([box_variance(x, v, matrix, WINDOWS["3x3"]) for _ in range(20)])

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if results[0][0] is None:
        pytest.skip("no sweep takes these tensors here")
    assert all(torch.equal(variance, results[0][0][0]) for part in results for variance, _ in part)


def test_what_the_kernels_do_not_take_is_left_to_torch():
    x, v, matrix = (t.detach() for t in operands())
    assert box_variance(x.double(), v.double(), matrix.double(), WINDOWS["3x3"]) is None
    assert box_variance(x.contiguous(), v.contiguous(), matrix, WINDOWS["3x3"]) is None  # channels are not innermost
    assert box_variance(x[:0], v[:0], matrix, WINDOWS["3x3"]) is None
    assert box_variance(x, v, matrix, ((9, 1, 0, 1), (9, 1, 0, 1))) is None  # torch says what is wrong
