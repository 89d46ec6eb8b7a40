"""The kernels of a mirrored pair against torch in float64."""

import pytest
import torch
import torch.nn.functional as F

from leanbayes._ops.mirrored import kernel_fits, pair, pull_back

COUNT = 2**17 + 777


def numbers(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """μ, ρ with scales from 10⁻⁹ to 20, ξ and two gradients."""
    generator = torch.Generator().manual_seed(0)
    mean, noise, first, second = (torch.randn(COUNT, generator=generator) for _ in range(4))
    return [values.to(dtype) for values in (mean, torch.linspace(-20, 20, COUNT), noise, first, second)]


def test_a_pair_and_its_gradients_are_those_of_torch() -> None:
    pytest.importorskip("numba")
    mean, rho, noise, first, second = numbers()
    exact = [values.requires_grad_() for values in numbers(torch.float64)[:2]]
    offset = F.softplus(exact[1], threshold=40) * noise.double()
    (first * (exact[0] + offset) + second * (exact[0] - offset)).sum().backward()
    for ours, theirs in zip(pair(mean, rho, noise), (exact[0] + offset, exact[0] - offset), strict=True):
        torch.testing.assert_close(ours.double(), theirs.detach(), rtol=1e-6, atol=1e-6)
    for ours, wanted in zip(pull_back(first, second, rho, noise), exact, strict=True):
        torch.testing.assert_close(ours.double(), wanted.grad, rtol=2e-6, atol=1e-6)


def test_only_large_contiguous_float32_tensors_have_kernels() -> None:
    pytest.importorskip("numba")
    assert kernel_fits(*numbers())
    assert not kernel_fits(*numbers(torch.float64))
    assert not kernel_fits(*(values[:1000] for values in numbers()))
    assert not kernel_fits(torch.zeros(2**9, 2**9).T)
