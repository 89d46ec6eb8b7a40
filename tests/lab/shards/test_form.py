"""Forms of many inputs: each is cut into shards that give the inputs of the whole, once and in order."""

import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from leanbayes.errors import FileError, InputError, MissingPackage
from leanbayes.lab.data import Preparation
from leanbayes.lab.shards import cut, form_of, read_part

FEATURES = Preparation("classes", (1.0, 2.0), (2.0, 1.0), ("no", "yes"), features=("a", "b"))
PICTURES = Preparation("classes", (0.5,), (0.5,), ("no", "yes"), size=(4, 4))


def pixels(number: int) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (4, 4), dtype=np.uint8)


def png(number: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels(number)).save(file, "PNG")
    return file.getvalue()


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def read_all(path: Path, plan: Preparation, size: int = 3) -> tuple[list[str], torch.Tensor]:
    names, inputs = [], []
    for part in cut(path, plan, size):
        cases = read_part(path, part, plan)
        assert 1 <= len(cases) <= size
        names += cases.names
        inputs += [cases[index].x for index in range(len(cases))]
    return names, torch.stack(inputs)


def expected_pictures(number: int) -> torch.Tensor:
    return torch.stack([PICTURES.standardise(torch.from_numpy(pixels(index))[None]) for index in range(number)])


def test_rows_of_tables(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(7, 2))
    np.savez(tmp_path / "x.npz", x=x)
    (tmp_path / "x.csv").write_text("b,a,c\n" + "\n".join(f"{b!r},{a!r},9" for a, b in x.tolist()))
    truth = torch.from_numpy((x - [1, 2]) / [2, 1]).float()
    for name in ("x.npz", "x.csv"):
        names, inputs = read_all(tmp_path / name, FEATURES)
        assert names == [str(index) for index in range(7)]
        assert torch.allclose(inputs, truth, atol=1e-6)


def test_folders_and_lists_of_images(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(7):
        (tmp_path / "in" / f"{number}.png").write_bytes(png(number))
    names, inputs = read_all(tmp_path / "in", PICTURES)
    assert names == [f"{number}.png" for number in range(7)]
    assert torch.equal(inputs, expected_pictures(7))
    (tmp_path / "list.csv").write_text("path\n" + "\n".join(f"in/{number}.png" for number in range(7)))
    names, again = read_all(tmp_path / "list.csv", PICTURES)
    assert names == [f"in/{number}.png" for number in range(7)]
    assert torch.equal(again, inputs)
    (tmp_path / "in" / "3.png").unlink()
    with pytest.raises(
        FileError, match=r"1 of the 7 files that .*list.csv names are missing, such as in/3.png; restore"
    ):
        cut(tmp_path / "list.csv", PICTURES, 3)


def test_a_file_that_vanishes_after_the_cut_is_named(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(2):
        (tmp_path / "in" / f"{number}.png").write_bytes(png(number))
    (part,) = cut(tmp_path / "in", PICTURES, 5)
    (tmp_path / "in" / "0.png").unlink()
    with pytest.raises(FileError, match=r"1 files are missing, such as .*0\.png"):
        read_part(tmp_path / "in", part, PICTURES)


def test_a_webdataset(tmp_path: Path) -> None:
    path = tmp_path / "set.tar"
    with tarfile.open(path, "w") as archive:
        for number in range(7):
            add(archive, f"a/{number:02d}.cls", b"1")
            add(archive, f"a/{number:02d}.seg.png" if number == 3 else f"a/{number:02d}.png", png(number))
            add(archive, f"a/{number:02d}.json", b"{}")
    names, inputs = read_all(path, PICTURES)
    assert names == [f"a/{number:02d}" for number in range(7)]
    assert torch.equal(inputs, expected_pictures(7))


def test_arrays_in_a_webdataset_are_never_unpickled(tmp_path: Path) -> None:
    path = tmp_path / "set.tar"
    array, objects = io.BytesIO(), io.BytesIO()
    np.save(array, np.array([3.0, 2.0]))
    np.save(objects, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with tarfile.open(path, "w") as archive:
        add(archive, "0.npy", array.getvalue())
        add(archive, "1.npy", objects.getvalue())
        add(archive, "2.pkl", pickle.dumps({"a": 1}))
    (first, second) = cut(path, FEATURES, 1)
    assert read_part(path, first, FEATURES)[0].x.tolist() == [1.0, 0.0]
    with pytest.raises(FileError, match="holds Python objects"):
        read_part(path, second, FEATURES)


@pytest.mark.parametrize("damage", ["cut", "noise", "a header in the middle"])
def test_a_damaged_webdataset_is_refused(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "set.tar"
    with tarfile.open(path, "w") as archive:
        for number in range(3):
            add(archive, f"{number}.png", png(number))
    data = path.read_bytes()
    middle = data[:1024] + b"x" + data[1025:]  # the header of the second member
    path.write_bytes({"cut": data[:600], "noise": bytes(range(256)) * 8}.get(damage, middle))
    with pytest.raises((FileError, InputError)):
        read_all(path, PICTURES)


def test_a_compressed_webdataset_is_refused(tmp_path: Path) -> None:
    (tmp_path / "set.tar.gz").write_bytes(b"")
    with pytest.raises(InputError, match="unpack it to a plain"):
        cut(tmp_path / "set.tar.gz", PICTURES, 3)


def test_two_inputs_in_a_sample_are_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "set.tar", "w") as archive:
        for name in ("0.png", "0.left.png", "1.png"):
            add(archive, name, png(0))
    with pytest.raises(InputError, match=r"sample 0 of .* has two inputs"):
        read_all(tmp_path / "set.tar", PICTURES)


def test_parquet(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    x = np.random.default_rng(0).normal(size=(7, 2))
    table = arrow.table({"b": x[:, 1], "c": x[:, 0], "a": x[:, 0], "name": [f"n{number}" for number in range(7)]})
    parquet.write_table(table, tmp_path / "x.parquet", row_group_size=2)
    names, inputs = read_all(tmp_path / "x.parquet", FEATURES)
    assert names == [f"n{number}" for number in range(7)]
    assert torch.allclose(inputs, torch.from_numpy((x - [1, 2]) / [2, 1]).float(), atol=1e-6)
    parquet.write_table(arrow.table({"image": [png(number) for number in range(7)]}), tmp_path / "y.parquet")
    names, inputs = read_all(tmp_path / "y.parquet", PICTURES)
    assert names == [str(number) for number in range(7)]
    assert torch.equal(inputs, expected_pictures(7))
    with pytest.raises(InputError, match="has no column 'a'"):
        cut(tmp_path / "y.parquet", FEATURES, 3)
    (tmp_path / "z.parquet").write_bytes(b"PAR1 nothing PAR1")
    with pytest.raises(FileError, match="cannot read"):
        cut(tmp_path / "z.parquet", FEATURES, 3)


def test_parquet_without_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.parquet").write_bytes(b"")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(MissingPackage, match=r"leanbayes\[parquet\]"):
        cut(tmp_path / "x.parquet", FEATURES, 3)


def test_a_folder_of_files_of_several_forms(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(5, 2))
    np.savez(tmp_path / "one.npz", x=x[:3])
    (tmp_path / "two.csv").write_text("a,b\n" + "\n".join(f"{a!r},{b!r}" for a, b in x[3:].tolist()))
    names, inputs = read_all(tmp_path, FEATURES, 2)
    assert names == ["one.npz/0", "one.npz/1", "one.npz/2", "two.csv/0", "two.csv/1"]
    assert torch.allclose(inputs, torch.from_numpy((x - [1, 2]) / [2, 1]).float(), atol=1e-6)


def test_what_cannot_be_cut_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="there is no file or folder"):
        form_of(tmp_path / "nothing", FEATURES)
    (tmp_path / "text.txt").write_text("")
    with pytest.raises(InputError, match=r"nothing that can be cut into shards; give one of: .*WebDataset"):
        form_of(tmp_path / "text.txt", FEATURES)


def test_a_file_that_changed_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((7, 2)))
    *_, last = cut(tmp_path / "x.npz", FEATURES, 3)
    np.savez(tmp_path / "x.npz", x=np.zeros((6, 2)))
    with pytest.raises(InputError, match="has changed since it was cut"):
        read_part(tmp_path / "x.npz", last, FEATURES)
