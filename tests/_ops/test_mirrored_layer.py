"""Products whose halves have mirrored draws of a large weight, against draws that are made and kept."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from leanbayes._ops.mirrored_layer import MirroredProduct, product_of
from leanbayes._ops.normal import fill

SEED = 11
CASES: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...], tuple[Any, ...]]] = {
    "linear": (F.linear, (5, 3, 600), (300, 600), ()),
    "conv1d": (F.conv1d, (4, 256, 5), (256, 256, 3), (2, 1)),
    "conv2d": (F.conv2d, (4, 64, 6, 5), (256, 64, 3, 3), ((2, 1), 1, 1)),
    "groups": (F.conv2d, (3, 64, 4, 4), (512, 32, 3, 3), (1, (1, 0), 1, 2)),
    "transposed": (F.conv_transpose2d, (3, 128, 3, 3), (128, 128, 3, 3), (2, 1, 1, 1, 1)),
    "conv3d": (F.conv3d, (2, 32, 3, 4, 4), (160, 32, 3, 3, 3), (1, 1)),
}


def setting(name: str) -> tuple[Any, tuple[Any, ...], list[torch.Tensor]]:
    operation, shape, size, args = CASES[name]
    outputs = size[1] if "transposed" in name else size[0]
    generator = torch.Generator().manual_seed(0)
    x, mean, rho = (torch.randn(part, generator=generator) for part in (shape, size, size))
    biases = torch.randn(2, outputs, generator=generator)
    return operation, args, [x, 0.05 * mean, rho - 4, biases]


def kept(operation: Any, args: tuple[Any, ...], inputs: list[torch.Tensor], noise: torch.Tensor) -> torch.Tensor:
    x, mean, rho, biases = inputs
    offset = F.softplus(rho) * noise.to(rho)
    half = (len(x) + 1) // 2
    products = (x[:half], mean + offset, biases[0]), (x[half:], mean - offset, biases[1])
    return torch.cat([operation(*parts, *args) for parts in products])


@pytest.mark.parametrize("name", CASES)
def test_products_and_gradients_are_those_of_kept_draws(name: str) -> None:
    pytest.importorskip("numba")
    operation, args, inputs = setting(name)
    product = product_of(operation, args, {})
    assert product is not None
    noise = fill(torch.empty(inputs[1].shape), SEED)
    exact = [value.double().requires_grad_() for value in inputs]
    ours = [value.requires_grad_() for value in inputs]
    wanted = kept(operation, args, exact, noise)
    x, mean, rho, biases = ours
    result = MirroredProduct.apply(product, SEED, x, mean, rho, biases)
    torch.testing.assert_close(result.double(), wanted, rtol=1e-4, atol=1e-4)
    pull = torch.randn(result.shape, generator=torch.Generator().manual_seed(1))
    wanted.backward(pull.double())
    result.backward(pull)
    for value, truth in zip(ours, exact, strict=True):
        torch.testing.assert_close(value.grad.double(), truth.grad, rtol=1e-4, atol=1e-3)


def test_gradients_can_be_differentiated_and_left_out() -> None:
    pytest.importorskip("numba")
    operation, args, inputs = setting("linear")
    product = product_of(operation, args, {})
    assert product is not None
    noise = fill(torch.empty(inputs[1].shape), SEED)
    ends = []
    for dtype in (torch.float32, torch.float64):
        x, mean, rho, biases = (value.to(dtype).detach().requires_grad_() for value in inputs)
        if dtype == torch.float32:
            result = MirroredProduct.apply(product, SEED, x, mean, rho, biases)
        else:
            result = kept(operation, args, [x, mean, rho, biases], noise)
        (slope,) = torch.autograd.grad(result.square().sum(), x, create_graph=True)
        slope.square().sum().backward()
        ends.append([slope.detach(), mean.grad, rho.grad])
    for ours, exact in zip(*ends, strict=True):
        torch.testing.assert_close(ours.double(), exact, rtol=1e-3, atol=1e-3 * exact.abs().max().item())
    x, mean, rho, biases = inputs
    result = MirroredProduct.apply(product, SEED, x, mean, rho.requires_grad_(), None)
    result.sum().backward()
    assert x.grad is None
    assert mean.grad is None
    assert rho.grad is not None


def test_what_is_no_known_product_has_none() -> None:
    assert product_of(F.conv2d, (1, "same"), {}) is None
    assert product_of(F.conv2d, (), {"stride": 2}) is None
    assert product_of(F.conv2d, (), {}) == product_of(F.conv2d, ((1, 1), (0,), 1, 1), {})
