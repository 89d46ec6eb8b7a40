import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="package", autouse=True)
def _little_garbage() -> Iterator[None]:
    """Each training collects garbage, for which Python would look at every object of the whole test session."""
    gc.freeze()
    yield
    gc.unfreeze()
