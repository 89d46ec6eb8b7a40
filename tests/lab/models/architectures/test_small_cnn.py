import pytest
import torch

from leanbayes.errors import InputError
from leanbayes.lab.models import small_cnn


@pytest.mark.parametrize("size", [(8, 8), (9, 14), (28, 28), (33, 8), (64, 100)])
def test_small_cnn_takes_any_size_from_8(size: tuple[int, int]) -> None:
    assert small_cnn(1, 4, size)(torch.randn(2, 1, *size)).shape == (2, 4)


def test_small_cnn_refuses_smaller_images() -> None:
    with pytest.raises(InputError, match="8x8 or more, got 7x9"):
        small_cnn(1, 4, (7, 9))
