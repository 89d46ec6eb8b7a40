"""The examples run, from the shell, as the README says."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_the_digits_demo_prints_its_table_and_draws_its_figure(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "digits.py"), "--out", str(tmp_path), "--epochs", "4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for word in ("accuracy", "NLL", "Brier", "ECE", "rotated", "unseen", "deterministic", "partial, 360 random"):
        assert word in done.stdout
    assert (tmp_path / "digits.png").read_bytes().startswith(b"\x89PNG")
