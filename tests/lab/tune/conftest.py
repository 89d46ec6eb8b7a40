import sqlite3
from pathlib import Path

import pytest

from leanbayes.lab.recipes import RECIPES
from tests.lab.tune.bowl import Bowl


@pytest.fixture(autouse=True)
def _bowl(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "bowl" not in RECIPES  # asking also makes the catalogue look for its members, which would replace ours
    monkeypatch.setitem(RECIPES._members, "bowl", Bowl)


@pytest.fixture(autouse=True)
def _no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test need not outlive a power cut; a kill it does."""

    def connect(file: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(file, timeout=60, check_same_thread=False)
        connection.execute("PRAGMA synchronous = OFF")
        return connection

    monkeypatch.setattr("leanbayes.lab.tune.study._connect", connect)
