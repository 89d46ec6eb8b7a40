"""Names that every docstring example may use."""

from typing import Any

import pytest
import torch

pytest_plugins = ["pytester"]  # for tests of what tests do


@pytest.fixture(autouse=True)
def _doctest_names(doctest_namespace: dict[str, Any]) -> None:
    doctest_namespace.update(torch=torch, nn=torch.nn, F=torch.nn.functional)
