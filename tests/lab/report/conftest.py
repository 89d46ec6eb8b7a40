from pathlib import Path

import pytest

from leanbayes.lab.report import write_report
from tests.lab.report.browser import browser, visit  # noqa: F401
from tests.lab.report.fixtures import TASKS


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The report of each kind of task."""
    root = tmp_path_factory.mktemp("report")
    return {kind: write_report(make(root / kind)) for kind, make in TASKS.items()}
