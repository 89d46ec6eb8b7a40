"""Packed tensors in a file, and back."""

import copy
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from leanbayes.errors import ShapeMismatch
from leanbayes.evaluation.packing import packed, unpack
from leanbayes.evaluation.pruning import prune
from tests.evaluation.test_pruning import bayesian, cnn, same_state, state


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_file_of_what_is_packed_has_that_size_and_gives_the_model_back(dtype: torch.dtype, tmp_path: Path) -> None:
    result = prune(bayesian(cnn(dtype)), 0.9)
    save_file(packed(result.model), tmp_path / "sparse")
    with (tmp_path / "sparse").open("rb") as file:
        header = 8 + int.from_bytes(file.read(8), "little")
    assert (tmp_path / "sparse").stat().st_size - header == result.bytes < result.dense_bytes
    other = copy.deepcopy(result.model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.fill_(7)
    unpack(load_file(tmp_path / "sparse"), other)
    assert same_state(state(other), state(result.model))
    with pytest.raises(ShapeMismatch, match=r"'model.0.weight'"):
        unpack({}, other)
    with pytest.raises(ShapeMismatch, match="shape"):
        unpack({"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}, nn.Linear(2, 2))
