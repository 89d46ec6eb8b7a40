from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)  # the tensors here are tiny: on a busy machine a second thread costs more than it gives

# The same examples in every run: a test that fails once in ten runs would stop a change that has nothing to do with it.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.load_profile("fixed")


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Every test starts from the same random state, whatever ran before it."""
    torch.manual_seed(0)


@pytest.fixture
def fresh_accelerate() -> Iterator[None]:
    """Give a test its own state of accelerate, which keeps one for the whole process, whatever tests ran before."""
    state = pytest.importorskip("accelerate.state")

    def forget() -> None:
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()

    forget()
    yield
    forget()
