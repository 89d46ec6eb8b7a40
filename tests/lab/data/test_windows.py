from pathlib import Path

import numpy as np
import pytest
import torch

from leanbayes.errors import InputError
from leanbayes.lab.data import read
from leanbayes.lab.data.windows import padded
from tests.lab.data.makers import class_tree, mask_tree


def test_what_is_missing_is_added_at_both_ends() -> None:
    values = torch.ones(1, 3, 4)
    wide = padded(values, (5, 7), -1.0)
    assert wide.shape == (1, 5, 7)
    assert torch.equal(wide[:, 1:4, 1:5], values)
    assert float(wide.sum()) == 12 - 23
    assert padded(values, (3, 4)) is values


def test_pictures_and_arrays_have_windows_too(tmp_path: Path) -> None:
    source = read(mask_tree(tmp_path / "m"), window=(8, 8), patches=2)
    assert source.train[0][0].shape == (1, 8, 8)
    assert source.test[0][0].shape == (1, 10, 12)
    assert len(source.train) == 2 * 14
    x = np.random.default_rng(0).normal(size=(20, 6, 7, 8)).astype(np.float32)
    np.savez(tmp_path / "a.npz", x=x, y=(x > 0).astype(np.uint8))
    volumes = read(tmp_path / "a.npz", window=(4, 4, 4))
    x, y = volumes.train[5]
    assert torch.equal(y.bool(), x[0] > -volumes.preparation.mean[0] / volumes.preparation.std[0])
    with pytest.raises(InputError, match="window= is for segmentation"):
        read(class_tree(tmp_path / "c"), window=(8, 8))
    with pytest.raises(InputError, match="patches must be at least 1"):
        read(tmp_path / "m", window=(8, 8), patches=0)
