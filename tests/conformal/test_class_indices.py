"""Class indices are checked once, in one place, for every calibration by classes."""

import pytest
import torch

import leanbayes as lb
from leanbayes.conformal.class_indices import class_indices

MEAN = torch.zeros(4, 3)


def test_indices_and_which_of_them_count() -> None:
    labels = torch.tensor([0, 2, 255, 1], dtype=torch.uint8)
    given, counted = class_indices(labels, lb.Categorical(ignore_index=255), MEAN, (4,), "labels are needed")
    assert given.dtype == torch.int64
    assert given.tolist() == [0, 2, 255, 1]
    assert counted.tolist() == [True, True, False, True]


@pytest.mark.parametrize("bad", [torch.zeros(4), torch.zeros(4, dtype=torch.complex64), torch.zeros(3).long()])
def test_other_shapes_and_types_are_named(bad: torch.Tensor) -> None:
    with pytest.raises(lb.errors.ShapeMismatch, match=r"^labels are needed, got torch\.\w+ of shape \(\d,\)$"):
        class_indices(bad, lb.Categorical(), MEAN, (4,), "labels are needed")


@pytest.mark.parametrize("index", [-1, 3])
def test_an_index_outside_of_the_classes_is_named(index: int) -> None:
    with pytest.raises(lb.errors.InputError, match=rf"between 0 and 2, and one is {index}; .*ignore_index"):
        class_indices(torch.tensor([0, 1, index, 2]), lb.Categorical(), MEAN, (4,), "labels are needed")
