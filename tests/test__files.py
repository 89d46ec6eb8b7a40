"""Files that are written whole or not at all, and that are refused with a reason."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from leanbayes._files import read_header, read_tensors, write_bytes, write_tensors, write_text
from leanbayes.errors import FileError, ForeignFile, NewerFile, TruncatedFile

HEADER = {"kind": "model", "format": 1, "name": "é"}
TENSORS = {"a": torch.arange(3), "b": torch.ones(2, 2, dtype=torch.bfloat16)}


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x", TENSORS, HEADER)
    header, tensors = read_tensors(tmp_path / "x", "model", 1)
    assert header == HEADER == read_header(tmp_path / "x", "model", 1)
    assert all(torch.equal(value, tensors[name]) for name, value in TENSORS.items())
    write_text(tmp_path / "t", "é")
    write_bytes(tmp_path / "b", b"\x00")
    assert (tmp_path / "t").read_text(encoding="utf-8") == "é"
    assert (tmp_path / "b").read_bytes() == b"\x00"
    assert {path.name for path in tmp_path.iterdir()} == {"x", "t", "b"}
    assert (tmp_path / "x").stat().st_mode == (tmp_path / "t").stat().st_mode


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tensors(tmp_path / "x", TENSORS, HEADER)
    before = (tmp_path / "x").read_bytes()

    def half(tensors: object, path: Path, **_: object) -> None:
        path.write_bytes(before[:20])
        raise OSError("disk full")

    monkeypatch.setattr("leanbayes._files.save_file", half)
    with pytest.raises(FileError, match="disk full"):
        write_tensors(tmp_path / "x", TENSORS, HEADER)
    assert (tmp_path / "x").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    with pytest.raises(FileError, match="does not exist; make it first"):
        write_text(tmp_path / "missing" / "x", "")


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with pytest.raises(FileError, match="there is no file"):
        read_header(path, "model", 1)
    write_tensors(path, TENSORS, HEADER)
    with pytest.raises(NewerFile, match="has format 1, and this version reads up to 0"):
        read_header(path, "model", 0)
    with pytest.raises(ForeignFile, match="leanbayes checkpoint"):
        read_header(path, "checkpoint", 1)
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(TruncatedFile, match="cut short"):
        read_header(path, "model", 1)
    path.write_text("hello, this is no such file")
    with pytest.raises(ForeignFile, match="no safetensors file"):
        read_header(path, "model", 1)
    for metadata in (None, {"leanbayes": "{"}, {"leanbayes": json.dumps([1])}):
        save_file(TENSORS, path, metadata=metadata)
        with pytest.raises(ForeignFile):
            read_header(path, "model", 1)
