"""The mean over patients is the mean of their means, whatever the batches are, and nothing grows with the cases."""

import pytest
import torch

import leanbayes as lb
from leanbayes.conformal.mean_losses import MeanLosses


@pytest.mark.parametrize("as_tensor", [False, True])
def test_the_mean_is_over_patients(as_tensor: bool) -> None:
    source = torch.Generator().manual_seed(0)
    losses = torch.rand(50, 7, generator=source, dtype=torch.float64)
    patients = torch.randint(9, (50,), generator=source)
    summed = MeanLosses(patients if as_tensor else patients.tolist())
    for part in losses.split(8):
        summed.add(part)
    expected = torch.stack([losses[patients == name].mean(0) for name in patients.unique()]).mean(0)
    assert summed.count == len(patients.unique())
    torch.testing.assert_close(summed.means(), expected, rtol=1e-12, atol=0)


def test_without_patients_every_case_counts_and_only_the_sum_is_stored() -> None:
    losses = torch.rand(50, 7, dtype=torch.float64)
    summed = MeanLosses()
    for part in losses.split(8):
        summed.add(part)
    assert summed.count == 50
    assert summed.sum is not None
    assert summed.sum.shape == (7,)
    torch.testing.assert_close(summed.means(), losses.mean(0))


@pytest.mark.parametrize("bad", [torch.nan, -0.1, 1.1, torch.inf])
def test_losses_that_are_none(bad: float) -> None:
    with pytest.raises(lb.errors.InputError, match="between 0 and 1"):
        MeanLosses().add(torch.tensor([[0.5], [bad]]))


def test_patients_that_do_not_fit() -> None:
    with pytest.raises(lb.errors.ShapeMismatch, match="each of 2 cases or more, got 1"):
        MeanLosses(["a"]).add(torch.zeros(2, 1))
    more = MeanLosses(["a", "b", "c"])
    more.add(torch.zeros(2, 1))
    with pytest.raises(lb.errors.ShapeMismatch, match="each of 2 cases, got 3"):
        more.means()
    with pytest.raises(lb.errors.InputError, match="no losses"):
        MeanLosses().means()
