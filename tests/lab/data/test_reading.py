from pathlib import Path

import numpy as np
import pytest

from leanbayes.errors import FileError, InputError
from leanbayes.lab.data import READERS, Reader, ReadOptions, Source, read
from leanbayes.lab.data.source import from_arrays


def _read_text(path: Path, options: ReadOptions) -> Source:
    rows = np.array([[float(cell) for cell in line.split()] for line in path.read_text().splitlines()])
    return from_arrays(path, {"train": (rows[:, :-1], rows[:, -1:])}, "regression", seed=options.seed)


def test_a_reader_from_outside_is_found(tmp_path: Path) -> None:
    """One `Reader` is all that a third party writes for a new form of data."""
    READERS.register(Reader("numbers", "a .numbers file", lambda path: path.suffix == ".numbers", _read_text))
    rows = np.random.default_rng(0).normal(size=(40, 3))
    np.savetxt(tmp_path / "a.numbers", rows)
    source = read(tmp_path / "a.numbers")
    assert source.preparation.kind == "regression"
    assert len(source.train) + len(source.validation) + len(source.test) == 40
    with pytest.raises(InputError, match=r"target=y is for a .csv file only; leave it out for .*, which is a .numbers"):
        read(tmp_path / "a.numbers", target="y")


def test_what_nothing_reads_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.xyz").write_text("1 2")
    with pytest.raises(InputError, match=r"cannot learn from .*a.xyz; give one of: .*an .npz file"):
        read(tmp_path / "a.xyz")
    with pytest.raises(FileError, match="there is no file or folder"):
        read(tmp_path / "nowhere")
