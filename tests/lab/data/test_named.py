import gzip
import hashlib
import io
import sys
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from leanbayes.errors import FileError, InputError
from leanbayes.lab.data import DATA, DataSet, Origin, Remote, data_dir, load_data
from tests.lab.data.sets.test_digits import idx

FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args) -> None:
        pass


@pytest.fixture
def web(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """A folder, and the address at which it is served."""
    pytest.importorskip("pooch")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    folder = tmp_path / "web"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


def publish_mnist(folder: Path, address: str, sums: bool = True) -> DataSet:
    """MNIST in little, as it would be if it were published here."""
    remotes = []
    for name, count in zip(FILES, (60, 60, 20, 20), strict=True):
        array = np.arange(count * 64) % 251 if "images" in name else np.arange(count) % 5
        data = gzip.compress(
            idx(array.astype(np.uint8).reshape(count, 8, 8) if "images" in name else array.astype(np.uint8))
        )
        (folder / f"{name}.gz").write_bytes(data)
        remotes.append(Remote(f"{address}{name}.gz", md5(data) if sums else "0" * 32, (f"MNIST/raw/{name}.gz",)))
    return replace(DATA["mnist"], origin=Origin("MNIST", "http://example.org", tuple(remotes)))


def test_what_is_missing_is_fetched_and_what_is_there_stays(web, tmp_path: Path) -> None:
    with DATA.replacing(publish_mnist(*web)):
        own = tmp_path / "data" / "MNIST" / "raw" / FILES[3]  # unpacked, and other than what is published
        own.parent.mkdir(parents=True)
        own.write_bytes(idx(np.full(20, 4, np.uint8)))
        with pytest.raises(FileError, match=r"no MNIST/raw/train-images.*or ask for its download"):
            load_data("mnist", tmp_path / "data")
        source = load_data("mnist", tmp_path / "data", download=True)
        assert (len(source.train), len(source.test)) == (51, 20)
        assert {int(y) for _, y in source.test} == {4}
        assert sorted(path.name for path in own.parent.iterdir()) == sorted(
            [*(f"{name}.gz" for name in FILES[:3]), FILES[3]]
        )
        for file in web[0].iterdir():
            file.unlink()
        assert len(load_data("mnist", tmp_path / "data", download=True).train) == 51  # nothing is asked for any more


def test_a_wrong_sum_leaves_nothing_behind(web, tmp_path: Path) -> None:
    with DATA.replacing(publish_mnist(*web, sums=False)):
        with pytest.raises(FileError, match=r"cannot fetch .*hash.*http://example.org"):
            load_data("mnist", tmp_path / "data", download=True)
        assert not [path for path in (tmp_path / "data").rglob("*") if path.is_file()]


def test_what_is_not_published_any_more(web, tmp_path: Path) -> None:
    with DATA.replacing(publish_mnist(*web)):
        (web[0] / f"{FILES[1]}.gz").unlink()
        with pytest.raises(FileError, match=r"cannot fetch .*train-labels.*404.*get it from http://example.org"):
            load_data("mnist", tmp_path / "data", download=True)


def archive(**members: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name.replace("__", "/"))
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return file.getvalue()


def test_an_archive_gives_only_what_is_asked_of_it(web, tmp_path: Path) -> None:
    folder, address = web
    data = archive(set__a=b"A", set__b=b"B", **{"..__evil": b"E", "set__extra": b"X"})
    (folder / "set.tar.gz").write_bytes(data)
    top = tmp_path / "data"
    (top / "set").mkdir(parents=True)
    (top / "set" / "b").write_bytes(b"mine")
    Origin("a set", "page", (Remote(f"{address}set.tar.gz", md5(data), ("set/a", "set/b")),)).fetch(top)
    assert (top / "set" / "a").read_bytes() == b"A"
    assert (top / "set" / "b").read_bytes() == b"mine"
    assert {path.name for path in tmp_path.rglob("*") if path.is_file()} == {"a", "b", "set.tar.gz"}
    with pytest.raises(FileError, match=r"cannot fetch .*set/c"):
        Origin("a set", "page", (Remote(f"{address}set.tar.gz", md5(data), ("set/c",)),)).fetch(top)


def test_fetching_needs_pooch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(InputError, match=r"pip install 'leanbayes\[data\]'"):
        load_data("cifar10", tmp_path, download=True)


@pytest.mark.skipif(not (data_dir() / "MNIST" / "raw").is_dir(), reason="MNIST is not here")
def test_real_mnist_has_the_published_sums() -> None:
    for remote in DATA["mnist"].origin.remotes:
        assert md5((data_dir() / remote.gives[0]).read_bytes()) == remote.md5
