"""The folder of ``--out``."""

from pathlib import Path

import pytest

from leanbayes.errors import FileError
from leanbayes.lab.cli.folder import make_folder


def test_a_folder_is_made_with_those_above_it(tmp_path: Path) -> None:
    assert make_folder(str(tmp_path / "a" / "b")).is_dir()
    assert make_folder(str(tmp_path / "a" / "b")).is_dir()


@pytest.mark.parametrize("out", ["file", "file/below", "a\0b", "x" * 300])
def test_what_cannot_be_a_folder(tmp_path: Path, out: str) -> None:
    """``--out`` that is a file ended with the words of the system, or with a traceback."""
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="--out"):
        make_folder(str(tmp_path / out))
