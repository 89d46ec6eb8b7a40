"""Files that are written whole or not at all, and that are refused with a reason."""

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from leanbayes import _files
from leanbayes._files import (
    discard,
    read_header,
    read_tensors,
    sweep,
    write_bytes,
    write_file,
    write_tensors,
    write_text,
)
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


def test_every_flipped_bit_is_an_error(tmp_path: Path) -> None:
    """Before there were checksums, one flipped bit of an exponent made a weight of 9e36 and nobody heard of it."""
    path = tmp_path / "x"
    tensors = {"a": torch.tensor([0.5, -2.0]), "b": torch.tensor(7), "empty": torch.zeros(0, 3), "c": torch.ones(2) > 0}
    write_tensors(path, tensors, HEADER)
    whole, caught = path.read_bytes(), 0
    for position in range(len(whole)):
        for bit in (0, 3, 6):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << bit
            path.write_bytes(damaged)
            try:
                header, read = read_tensors(path, "model", 1)
            except FileError:
                caught += 1
                continue
            assert header == HEADER
            assert read.keys() == tensors.keys()
            assert all(torch.equal(value, read[name]) for name, value in tensors.items())
            assert all(value.dtype == read[name].dtype for name, value in tensors.items())
    assert caught > 0.9 * 3 * len(whole)  # only blanks between the parts of JSON may change


def test_damage_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_tensors(path, {"weight": torch.ones(4)}, HEADER)
    data = bytearray(path.read_bytes())
    data[-1] ^= 64
    path.write_bytes(data)
    with pytest.raises(TruncatedFile, match=r"damaged: the checksum of 'weight' does not fit; copy it again"):
        read_tensors(path, "model", 1)
    write_tensors(path, {"weight": torch.ones(4)}, HEADER)
    path.write_bytes(path.read_bytes().replace(b"leanbayes.checksums", b"leanbayes.checksumz"))
    with pytest.raises(TruncatedFile, match="checksum of its header"):
        read_header(path, "model", 1)


def test_a_file_without_checksums_is_read(tmp_path: Path) -> None:
    """Version 0.1 wrote none."""
    save_file(TENSORS, tmp_path / "x", metadata={"leanbayes": json.dumps(HEADER)})
    header, tensors = read_tensors(tmp_path / "x", "model", 1)
    assert header == HEADER
    assert all(torch.equal(value, tensors[name]) for name, value in TENSORS.items())


def test_the_disk_confirms_the_file_before_its_name_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without these two calls a power cut may leave an empty file, and before this test nobody missed them."""
    events: list[str] = []
    flush, replace = os.fsync, Path.replace

    def fsync(descriptor: int) -> None:
        events.append("flush the folder" if stat.S_ISDIR(os.fstat(descriptor).st_mode) else "flush the file")
        flush(descriptor)

    def rename(self: Path, target: Path) -> Path:
        events.append("rename")
        return replace(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", rename)
    for write in (
        lambda: write_tensors(tmp_path / "x", TENSORS, HEADER),
        lambda: write_text(tmp_path / "t", "text"),
        lambda: write_bytes(tmp_path / "b", b"bytes"),
    ):
        events.clear()
        write()
        assert events == ["flush the file", "rename", "flush the folder"]


def test_a_folder_that_the_disk_does_not_confirm_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flush = os.fsync

    def fsync(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(5, "Input/output error")
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(FileError, match="is written, but the disk did not confirm its name"):
        write_text(tmp_path / "t", "text")


def test_the_remains_of_killed_processes_are_swept(tmp_path: Path) -> None:
    """A kill during a write left a file of the size of a checkpoint for ever."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    machine, living = _files._machine(), os.getppid()
    stale = [f".x.{machine}-{ended.pid}-0123abcd.part", f".y.{machine}-{os.getpid()}-0123abcd.part"]
    kept = [f".x.{machine}-{living}-0123abcd.part", f".x.00000000-{ended.pid}-0123abcd.part", ".x.part", "x.part"]
    for name in (*stale, *kept):
        (tmp_path / name).write_bytes(b"half")
    for name in (f".z.{machine}-{ended.pid}-0123abcd.part", f".z.{machine}-{living}-0123abcd.part"):
        (tmp_path / name).mkdir()
        (tmp_path / name / ".tmpA1b2C3").write_bytes(b"half")  # safetensors makes such a file
    kept.append(f".z.{machine}-{living}-0123abcd.part")
    write_text(tmp_path / "t", "the first write into a folder sweeps it")
    assert {path.name for path in tmp_path.iterdir()} == {*kept, "t"}
    sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*kept, "t"}


def test_who_holds_the_lock_sweeps_what_no_process_number_can_tell(tmp_path: Path) -> None:
    """A process number that another process has by now, or of another machine, kept the remains for ever."""
    machine, living = _files._machine(), os.getppid()
    remains = [f".x.{machine}-{living}-0123abcd.part", ".y.00000000-1-0123abcd.part"]
    for name in remains:
        (tmp_path / name).mkdir()
        (tmp_path / name / "x").write_bytes(b"half")
    for name in (".z.part", "x", ".hidden"):
        (tmp_path / name).write_bytes(b"of somebody else")
    sweep(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {*remains, ".z.part", "x", ".hidden"}

    def fill(temporary: Path) -> None:
        sweep(tmp_path, alone=True)  # as another thread of this process may do
        temporary.write_text("whole")

    write_file(tmp_path / "t", fill)
    assert (tmp_path / "t").read_text() == "whole"
    assert {path.name for path in tmp_path.iterdir()} == {".z.part", "x", ".hidden", "t"}
    sweep(tmp_path / "no folder", alone=True)


def test_a_folder_is_removed_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A removal that stopped in between left half of the checkpoints, with which no training could go on."""
    folder = tmp_path / "checkpoints"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", _raises_no_access)
        with pytest.raises(FileError, match="cannot remove"):
            discard(folder)
        assert len(list(folder.iterdir())) == 2
    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", lambda path, **_: (path / "a").rmdir())  # then the process is killed
        discard(folder)
    assert not folder.exists()
    assert [list(path.iterdir()) for path in tmp_path.iterdir()] != [[]]
    sweep(tmp_path)
    assert not list(tmp_path.iterdir())
    discard(folder)  # which is not there


def _raises_no_access(*_: object) -> None:
    raise PermissionError("no access")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # of newer Pythons: the child only kills itself
def test_a_kill_inside_safetensors_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Safetensors writes a temporary file of its own beside the file, which a kill left for ever."""

    def killed(tensors: object, path: Path, **_: object) -> None:
        path.with_name(".tmpA1b2C3").write_bytes(b"half")
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(_files, "save_file", killed)
    child = os.fork()
    if not child:
        write_tensors(tmp_path / "x", TENSORS, HEADER)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1
    sweep(tmp_path)
    assert not list(tmp_path.iterdir())


def _header_of(**more: Any) -> dict[str, str]:
    return {"leanbayes": json.dumps({**HEADER, **more})}


def _nested(depth: int) -> dict[str, str]:
    return {"leanbayes": json.dumps(HEADER)[:-1] + ', "x": ' + "[" * depth + "]" * depth + "}"}


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        (_nested(100_000), "nested more than"),
        (_nested(60), "nested more than"),
        (_header_of(many={str(index): 0 for index in range(200_000)}), "200,003 values"),
        (_header_of(long="x" * 2**25), "characters"),
    ],
    ids=["deep", "somewhat deep", "many members", "long"],
)
def test_absurd_headers_are_refused_in_one_line(tmp_path: Path, metadata: dict[str, str], words: str) -> None:
    """A nested header raised a RecursionError."""
    save_file({}, tmp_path / "x", metadata=metadata)
    with pytest.raises(ForeignFile, match=words) as caught:
        read_header(tmp_path / "x", "model", 1)
    assert "\n" not in str(caught.value)


def test_absurd_numbers_and_sizes_are_refused(tmp_path: Path) -> None:
    many = {str(index): {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]} for index in range(200_000)}
    for members, words in (
        (many, "200,000 tensors"),
        ({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}, "cut short"),
    ):
        text = json.dumps({"__metadata__": _header_of(), **members}).encode()
        (tmp_path / "x").write_bytes(len(text).to_bytes(8, "little") + text)
        with pytest.raises(FileError, match=words):
            read_tensors(tmp_path / "x", "model", 1)
    with (tmp_path / "x").open("wb") as file:
        file.write((2**27).to_bytes(8, "little") + b"{")
        file.truncate(2**28)
    with pytest.raises(ForeignFile, match="header of 134,217,728 bytes"):
        read_tensors(tmp_path / "x", "model", 1)


def test_nothing_is_written_that_could_not_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no file could be read back"):
        write_tensors(tmp_path / "x", {}, {**HEADER, "many": [0] * 200_000})
    assert not list(tmp_path.iterdir())


def test_other_programs_read_our_tensors(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x", TENSORS, HEADER)
    assert all(torch.equal(value, TENSORS[name]) for name, value in load_file(tmp_path / "x").items())
