"""Names that every docstring example may use, and short sweeps of the garbage collector."""

import gc
from typing import Any

import pytest
import torch

pytest_plugins = ["pytester"]  # for tests of what tests do


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace: dict[str, Any]) -> None:
    doctest_namespace.update(torch=torch, nn=torch.nn, F=torch.nn.functional)


def pytest_collection_finish() -> None:
    """Set aside the collected tests and the imported packages, so that the garbage collector never visits them again.

    They are a million objects that live until the end. The laboratory sweeps the memory after each training, and a
    sweep over all of them takes far longer than the training of a tiny network.
    """
    gc.collect()
    gc.freeze()
