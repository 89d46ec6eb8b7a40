import pytest
import torch

torch.set_num_threads(1)  # the tensors here are tiny: on a busy machine a second thread costs more than it gives


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Every test starts from the same random state, whatever ran before it."""
    torch.manual_seed(0)
