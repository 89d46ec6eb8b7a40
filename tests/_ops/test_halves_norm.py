"""Batch norm with other gains and offsets for each half of a batch, against torch in float64."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from leanbayes._ops.halves_norm import kernel_fits, norm_of_halves

EPS = 1e-3


def numbers(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Activations far from 0, two gains, two offsets, running statistics and a gradient."""
    generator = torch.Generator().manual_seed(0)
    x = 3 * torch.randn(shape, generator=generator) + 20 * torch.randn(shape[1:2], generator=generator).view(-1, 1, 1)
    channels = [torch.rand(shape[1], generator=generator) for _ in range(6)]
    return [values.to(dtype) for values in (x, *channels, torch.randn(shape, generator=generator))]


def by_torch(x: Tensor, gains: tuple[Tensor, Tensor], offsets: tuple[Tensor, Tensor], *statistics: Tensor) -> Tensor:
    """Norm the whole batch, then multiply and add half by half."""
    first, second = F.batch_norm(x, *statistics, None, None, True, 0.1, EPS).split([(len(x) + 1) // 2, len(x) // 2])
    shape = (1, -1, 1, 1)
    return torch.cat([half * gain.view(shape) + offset.view(shape) for half, gain, offset in
                      zip((first, second), gains, offsets, strict=True)])  # fmt: skip


@pytest.mark.parametrize("shape", [(5, 3, 40, 30), (64, 7, 9, 11)])
def test_values_gradients_and_running_statistics_are_those_of_torch(shape: tuple[int, ...]) -> None:
    pytest.importorskip("numba")
    results = []
    for dtype in (torch.float32, torch.float64):
        x, a, b, c, d, mean, variance, gradient = numbers(shape, dtype)
        inputs = [value.requires_grad_() for value in (x, a, b, c, d)]
        if dtype == torch.float32:
            assert kernel_fits(x)
            out = norm_of_halves(x, (a, b), (c, d), mean, variance, 0.1, EPS)
        else:
            out = by_torch(x, (a, b), (c, d), mean, variance)
        out.backward(gradient)
        results.append([out.detach(), mean, variance, *(value.grad for value in inputs)])
    for ours, exact in zip(*results, strict=True):
        size = float(exact.square().mean().sqrt())
        torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-5 * size)


def test_second_derivatives_are_those_of_torch() -> None:
    pytest.importorskip("numba")
    results = []
    for dtype in (torch.float32, torch.float64):
        x, a, b, c, d, mean, variance, gradient = numbers((8, 2, 24, 24), dtype)
        inputs = [value.requires_grad_() for value in (x, a, b, c, d)]
        ours = dtype == torch.float32
        norm = (lambda *given: norm_of_halves(*given, 0.1, EPS)) if ours else by_torch
        first = torch.autograd.grad(norm(x, (a, b), (c, d), mean, variance), inputs, gradient, create_graph=True)
        results.append(torch.autograd.grad(sum((value.square() * value).sum() for value in first), inputs[:3]))
    for ours_, exact in zip(*results, strict=True):
        torch.testing.assert_close(ours_.double(), exact, rtol=1e-3, atol=1e-3 * float(exact.square().mean().sqrt()))


def test_only_contiguous_float32_activations_with_positions_have_kernels() -> None:
    pytest.importorskip("numba")
    x = torch.zeros(8, 16, 16, 16)
    assert kernel_fits(x)
    assert not kernel_fits(x.double())
    assert not kernel_fits(x.contiguous(memory_format=torch.channels_last))
    assert not kernel_fits(torch.zeros(100, 1000))
    assert not kernel_fits(torch.zeros(100, 100, 2, 2))
    assert not kernel_fits(torch.zeros(2, 2, 4, 4))
