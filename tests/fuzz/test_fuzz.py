"""Damaged files of every kind, read in a process of their own with little memory: every answer must be one of ours.

``python -m tests.fuzz --mutations 5000 --seed 0`` is the long run by hand.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.__main__ import attack
from tests.fuzz.mutations import damage_bytes, damage_json, damage_text
from tests.fuzz.reader import Reader

ROOT = Path(__file__).resolve().parents[2]


def outcome(mutations: int, seed: int, seconds: int) -> dict:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    command = [sys.executable, "-m", "tests.fuzz", "--mutations", str(mutations), "--seed", str(seed)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.stdout, done.stderr[-3000:]  # a reader that crashes the interpreter ends here
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("mutations", "seconds"),
    [
        pytest.param(300, 580, marks=pytest.mark.timeout(600)),  # ten seconds on a free core
        pytest.param(5000, 3500, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
def test_no_damaged_file_gives_an_error_that_is_not_ours(mutations: int, seconds: int) -> None:
    """Before, forged headers of models and checkpoints gave errors of Python, such as KeyError: 'about'."""
    result = outcome(mutations, seed=17, seconds=seconds)
    assert result["failures"] == {}
    assert result["mutations"] >= 0.9 * mutations
    assert result["megabytes"] < 1024


@pytest.mark.parametrize("damage", [damage_bytes, damage_text, damage_json])
def test_damage_depends_on_the_seed_alone_and_is_damage(damage) -> None:
    whole = json.dumps({"a": [1, 2, {"b": "text"}], "c": None}).encode()
    first, second = ([damage(whole, random.Random(seed)) for seed in range(50)] for _ in range(2))
    assert first == second
    assert sum(data != whole for data in first) > 40


def test_the_attack_notices_errors_that_are_not_ours(tmp_path: Path) -> None:
    def read() -> None:
        raise KeyError("about")

    reader = Reader(tmp_path / "file", read, damage_bytes)
    assert "KeyError" in (attack("reader", reader, b"content", 0, 0) or "")
