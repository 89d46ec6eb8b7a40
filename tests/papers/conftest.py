"""What the tests of studies share."""

import sys

import pytest

from leanbayes_papers import STUDIES


@pytest.fixture
def verdicts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures and tables take most of the time, and change no verdict."""
    for study in STUDIES.values():
        module = sys.modules[study.conclude.__module__]
        for name in {"lines", "by_rate", "bands", "maps", "summary"} & vars(module).keys():
            monkeypatch.setattr(module, name, lambda *arguments, **options: None)
