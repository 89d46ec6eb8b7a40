"""The oracles must be able to fail: each is shown something that is wrong by a little."""

import pytest
import torch

from tests.oracles import (
    assert_close,
    covariance_within_standard_errors,
    mean_within_standard_errors,
    moments_within_standard_errors,
    normal_kl,
)


@pytest.fixture
def draws() -> torch.Tensor:
    return 2 + 3 * torch.randn(10_000, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def test_the_right_moments_pass(draws):
    moments_within_standard_errors(draws, 2.0, 9.0)
    covariance_within_standard_errors(draws, torch.full((4,), 2.0), 9 * torch.eye(4))


@pytest.mark.parametrize(("mean", "variance"), [(2.2, 9.0), (2.0, 10.0), (2.0, 8.0)])
def test_wrong_moments_fail(draws, mean, variance):
    with pytest.raises(AssertionError, match="allowed"):
        moments_within_standard_errors(draws, mean, variance)


def test_one_wrong_entry_among_many_fails(draws):
    expected = torch.full((4,), 2.0)
    expected[3] = 2.2
    with pytest.raises(AssertionError, match="entry 3 of 4"):
        mean_within_standard_errors(draws, expected)


def test_a_wrong_correlation_fails(draws):
    draws[:, 1] = draws[:, 0]
    with pytest.raises(AssertionError, match="allowed"):
        covariance_within_standard_errors(draws, torch.full((4,), 2.0), 9 * torch.eye(4))


def test_draws_that_do_not_vary_must_be_exact():
    mean_within_standard_errors(torch.ones(5), 1.0)
    with pytest.raises(AssertionError, match="allowed"):
        mean_within_standard_errors(torch.ones(5, dtype=torch.float64), 1.0 + 1e-8)
    with pytest.raises(AssertionError, match="finite"):
        mean_within_standard_errors(torch.full((5,), torch.nan), 1.0)


def test_kl_of_equal_laws_is_zero_and_grows():
    assert normal_kl(torch.ones(3), 2 * torch.ones(3), 1.0, 2.0).item() == 0
    assert normal_kl(torch.tensor([1.0]), torch.tensor([1.0]), 0.0, 1.0).item() == 0.5


def test_named_tensors_are_compared_by_name_and_number():
    one = {"a": torch.ones(2)}
    assert_close(one, {"a": torch.ones(2)})
    with pytest.raises(AssertionError):
        assert_close(one, {"b": torch.ones(2)})
    with pytest.raises(AssertionError, match="a:"):
        assert_close(one, {"a": torch.ones(2) + 1e-6})
