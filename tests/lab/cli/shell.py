"""The command line from outside: in another process, in this one, and with bad input."""

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from leanbayes.lab.cli import main

QUICK = ["--epochs", "4", "--batch-size", "16", "--samples", "4", "--quiet"]


def shell(*arguments: str, folder: Path, code: int = 0) -> str:
    """Run the command in another process; its standard output, or its one line of complaint."""
    done = subprocess.run(
        [sys.executable, "-m", "leanbayes.lab.cli", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
        env=os.environ | {"COLUMNS": "200"},
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    if code == 2:
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        return done.stderr
    return done.stdout


def run(*arguments: str) -> None:
    """The same in this process, which is quicker."""
    assert main(arguments) == 0


def complaint(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line that bad input gets."""
    capsys.readouterr()
    assert main(arguments) == 2
    message = capsys.readouterr()
    assert len(message.err.strip().splitlines()) == 1, message.err
    assert message.out == ""
    return message.err


def picture(path: Path, bright: str, seed: int, size: int = 12) -> None:
    """Noise with a bright left or right half."""
    pixels = np.random.default_rng(seed).integers(0, 90, (size, size), dtype=np.uint8)
    half = slice(0, size // 2) if bright == "left" else slice(size // 2, size)
    pixels[:, half] += 120
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))
