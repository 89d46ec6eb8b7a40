"""The examples run, from the shell, as the README says, and the README's own lines print what it shows."""

import re
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
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


def test_the_lines_of_the_readme_print_what_it_shows() -> None:
    text = (ROOT / "README.md").read_text()
    lines, shown = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL)[0]
    assert len([line for line in lines.splitlines() if line]) == 10
    printed = StringIO()
    with redirect_stdout(printed):
        exec(compile(lines, "README.md", "exec"), {})
    numbers = [[float(word) for word in output.split()] for output in (printed.getvalue(), shown)]
    assert numbers[0] == pytest.approx(numbers[1], abs=0.02)  # another machine rounds otherwise, at each of 500 steps


def test_the_readme_is_one_screen() -> None:
    """A sentence, a picture, `pip install`, ten lines with their output, one table, and links to the site."""
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 60
    assert len(re.findall(r"^\|---", text, re.MULTILINE)) == 1


@pytest.mark.slow
def test_the_lesions_demo_doubts_more_where_it_errs_and_draws_the_picture_of_the_site(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "lesions.py"), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "ScalesDidNotMove" not in done.stderr
    agree, elsewhere = (float(line.split()[-2]) for line in done.stdout.splitlines() if line.startswith("mean"))
    assert elsewhere > 2 * agree
    assert (tmp_path / "lesions.png").read_bytes().startswith(b"\x89PNG")
