import os
from pathlib import Path

import pytest
import torch

from leanbayes import _files
from leanbayes.errors import FileError, ForeignFile, LeanBayesError
from leanbayes.lab.data.shifts import cache, cached, corrupt

from .pictures import pictures

X = pictures(5).float()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the corruptions that were computed."""
    seen: list[str] = []

    def counted(images, name, severity, **options):
        seen.append(name)
        return corrupt(images, name, severity, **options)

    monkeypatch.setattr(cache, "corrupt", counted)
    return seen


def test_computed_once_and_read_the_same(tmp_path: Path, calls: list[str]) -> None:
    folder = tmp_path / "not" / "there"
    first = cached(X, "gaussian_noise", 3, folder=folder, seed=4)
    again = cached(X.clone(), "gaussian_noise", 3, folder=str(folder), seed=4)
    assert calls == ["gaussian_noise"]
    assert torch.equal(first, again)
    assert [path.suffix for path in folder.iterdir()] == [".safetensors"]
    exact = corrupt(X, "gaussian_noise", 3, seed=4)
    assert (first - exact).abs().max() <= 0.5 / 255 + 1e-6
    torch.testing.assert_close(first * 255, (first * 255).round())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtype_follows_the_images(tmp_path: Path, dtype: torch.dtype) -> None:
    x = X.to(dtype)
    computed, read_back = (cached(x, "fog", 2, folder=tmp_path) for _ in range(2))
    assert computed.dtype == read_back.dtype == dtype
    assert torch.equal(computed, read_back)


def test_whatever_differs_is_another_file(tmp_path: Path, calls: list[str]) -> None:
    cached(X, "fog", 1, folder=tmp_path)
    cached(X, "fog", 2, folder=tmp_path)
    cached(X, "fog", 1, folder=tmp_path, seed=1)
    cached(X, "snow", 1, folder=tmp_path)
    cached(X[:4], "fog", 1, folder=tmp_path)
    cached(X.double(), "fog", 1, folder=tmp_path)
    cached(X.reshape(5, 3, 16, 64), "fog", 1, folder=tmp_path)
    changed = X.clone()
    changed[4, 2, 31, 31] += 1e-4
    cached(changed, "fog", 1, folder=tmp_path)
    assert len(calls) == 8
    assert len(list(tmp_path.iterdir())) == 8


def test_a_file_cut_short_is_made_again(tmp_path: Path, calls: list[str]) -> None:
    whole = cached(X, "contrast", 1, folder=tmp_path)
    (path,) = tmp_path.iterdir()
    data = path.read_bytes()
    for part in (b"", data[:20], data[:-1]):
        path.write_bytes(part)
        assert torch.equal(cached(X, "contrast", 1, folder=tmp_path), whole)
        assert len(path.read_bytes()) == len(data)  # whole again; the order of the header may differ
    assert len(calls) == 4


def test_a_file_of_something_else_is_refused_and_left(tmp_path: Path) -> None:
    cached(X, "contrast", 1, folder=tmp_path)
    (path,) = tmp_path.iterdir()
    other = cached(X, "contrast", 2, folder=tmp_path)
    (second,) = set(tmp_path.iterdir()) - {path}
    path.write_bytes(second.read_bytes())
    with pytest.raises(ForeignFile, match="remove it"):
        cached(X, "contrast", 1, folder=tmp_path)
    path.write_bytes(b"\x80\x04K\x01." * 10)  # a pickle
    with pytest.raises(ForeignFile):
        cached(X, "contrast", 1, folder=tmp_path)
    assert path.read_bytes() == b"\x80\x04K\x01." * 10
    assert torch.equal(cached(X, "contrast", 2, folder=tmp_path), other)


def test_nothing_is_left_when_writing_or_computing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="folder"):
        cached(X, "contrast", 1, folder=tmp_path / "file" / "below")
    with pytest.raises(LeanBayesError, match=r"\[0, 1\]"):
        cached(X + 1, "contrast", 1, folder=tmp_path / "new")
    with pytest.raises(LeanBayesError, match="1 to 5"):
        cached(X, "contrast", 9, folder=tmp_path / "new")

    def fails(*_args, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(cache, "corrupt", fails)
    with pytest.raises(KeyboardInterrupt):
        cached(X, "contrast", 1, folder=tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_remains_are_swept_also_where_everything_is_there(
    tmp_path: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cached(X, "gaussian_noise", 1, folder=tmp_path)
    (tmp_path / f".x.{_files._machine()}-{os.getpid()}-0123abcd.part").mkdir()
    monkeypatch.setattr(_files, "_swept", set())  # as in a new process
    cached(X, "gaussian_noise", 1, folder=tmp_path)
    assert len(calls) == len(list(tmp_path.iterdir())) == 1
