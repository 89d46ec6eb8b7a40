"""The examples run, from the shell, as the README says."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def test_the_digits_demo_prints_its_table_and_draws_its_figure(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "digits.py"), "--out", str(tmp_path), "--epochs", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for word in ("accuracy", "NLL", "Brier", "ECE", "rotated", "unseen", "deterministic", "partial, 360 random"):
        assert word in done.stdout
    assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_the_lesions_demo_doubts_more_where_it_errs_and_draws_the_picture_of_the_site(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "lesions.py"), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ScalesDidNotMove" not in done.stderr
    agree, elsewhere = (float(line.split()[-2]) for line in done.stdout.splitlines() if line.startswith("mean"))
    assert elsewhere > 2 * agree
    assert (tmp_path / "lesions.png").read_bytes().startswith(b"\x89PNG")
