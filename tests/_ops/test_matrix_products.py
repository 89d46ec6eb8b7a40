"""Products of matrices as convolutions, against the product in float64: values, gradients and what is left alone."""

import pytest
import torch

from leanbayes._ops import matrix_products
from leanbayes._ops.matrix_products import against_rows, times_matrix

SHAPES = {"rows": (64, 12), "tokens": (4, 16, 12), "images": (2, 8, 6, 12), "a prime number of rows": (67, 12)}


@pytest.fixture(autouse=True)
def convolve_small_matrices_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matrix_products, "_LEAST", 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SHAPES)
def test_values_and_gradients(name, dtype):
    value, matrix = torch.randn(SHAPES[name], dtype=dtype), torch.randn(5, 12, dtype=dtype)
    pair = [t.requires_grad_() for t in (value, matrix)]
    double = [t.detach().double().requires_grad_() for t in pair]
    product, truth = times_matrix(*pair), double[0] @ double[1].mT
    assert product.dtype == dtype
    torch.testing.assert_close(product.double(), truth, rtol=1e-5, atol=1e-5)
    g = torch.randn(product.shape, dtype=dtype)
    ours = torch.autograd.grad(product, pair, g)
    theirs = torch.autograd.grad(truth, double, g.double())
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(against_rows(g, value.detach()), ours[1], rtol=1e-4, atol=1e-4)


def test_second_derivatives_exist():
    value, matrix = torch.randn(32, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    (first,) = torch.autograd.grad(times_matrix(value, matrix).square().sum(), value, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), matrix)
    (first,) = torch.autograd.grad((value @ matrix.mT).square().sum(), value, create_graph=True)
    torch.testing.assert_close(second, torch.autograd.grad(first.sum(), matrix)[0], rtol=1e-4, atol=1e-4)


def test_a_matrix_that_is_not_contiguous_is_taken():
    value, matrix = torch.randn(32, 3), torch.randn(3, 4).mT
    torch.testing.assert_close(times_matrix(value, matrix), value @ matrix.mT)


def test_a_convolution_is_taken_where_the_rows_can_be_divided():
    value, matrix = torch.randn(64, 12), torch.randn(5, 12)
    if not torch.backends.mkldnn.is_available():
        pytest.skip("torch has no oneDNN here")
    assert matrix_products._number_of_images(value, matrix) == 16
    assert matrix_products._number_of_images(value[:15], matrix) is None  # too few
    assert matrix_products._number_of_images(torch.randn(67, 12), matrix) is None  # a prime
    assert matrix_products._number_of_images(value.double(), matrix.double()) is None


def test_functions_of_torch_func_are_followed():
    value, matrix = torch.randn(7, 32, 3), torch.randn(4, 3)
    torch.testing.assert_close(torch.func.vmap(times_matrix, (0, None))(value, matrix), value @ matrix.mT)
