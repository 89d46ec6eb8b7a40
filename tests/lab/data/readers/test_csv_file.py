from pathlib import Path

import numpy as np
import pytest
import torch

from leanbayes.errors import LeanBayesError
from leanbayes.lab.data import read
from leanbayes.likelihood import Categorical, Gaussian
from tests.lab.data.makers import csv_file

RNG = np.random.default_rng(0)


def rows(target: list[object], separator: str = ",") -> list[str]:
    return [separator.join([f"{index}", f"{index * index / 7}", str(value)]) for index, value in enumerate(target)]


def refused(message: str, path: Path, **options) -> None:
    with pytest.raises(LeanBayesError) as caught:
        read(path, **{"target": "y", **options})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_texts_are_classes(tmp_path: Path, separator: str) -> None:
    names = ["ill" if index % 3 else "well" for index in range(60)]
    path = csv_file(tmp_path / "a.csv", separator.join(["a", "b", "y"]), rows(names, separator))
    source = read(path, target="y")
    assert source.preparation.classes == ("ill", "well")
    assert source.preparation.features == ("a", "b")
    sets = [source.train, source.validation, source.test]
    assert [len(data) for data in sets] == [42, 9, 9]
    numbers = [int(data.inputs[index][0]) for data in sets for index in range(len(data))]
    assert sorted(numbers) == list(range(60))
    assert [int(y) for data in sets for _, y in data] == [int(index % 3 == 0) for index in numbers]
    assert sum(int(y) for _, y in source.test) == 3
    task = source.task()
    assert isinstance(task.likelihood, Categorical)
    assert task.model()(torch.zeros(4, 2)).shape == (4, 2)


def test_features_are_standardised_by_the_training_rows_alone(tmp_path: Path) -> None:
    path = csv_file(tmp_path / "a.csv", "a,b,y", rows([index % 2 for index in range(60)]))
    source = read(path, target="y")
    raw = np.asarray(source.train.inputs)
    np.testing.assert_allclose(source.preparation.mean, raw.mean(0), rtol=1e-12)
    np.testing.assert_allclose(source.preparation.std, raw.std(0), rtol=1e-12)
    whole = np.array([[index, index * index / 7] for index in range(60)])
    assert not np.allclose(source.preparation.mean, whole.mean(0), rtol=1e-6)
    x = np.stack([np.asarray(x) for x, _ in source.test])
    np.testing.assert_allclose(x, (np.asarray(source.test.inputs) - raw.mean(0)) / raw.std(0), atol=1e-6)


def test_few_integers_are_classes_and_many_or_fractions_are_numbers(tmp_path: Path) -> None:
    def kind(values: list[object], **options) -> str:
        return read(csv_file(tmp_path / "a.csv", "a,b,y", rows(values)), target="y", **options).preparation.kind

    assert kind([index % 20 for index in range(100)]) == "classes"
    assert kind([index % 21 for index in range(100)]) == "regression"
    assert kind([(index % 4) / 2 for index in range(100)]) == "regression"
    assert kind([index % 4 for index in range(100)], kind="regression") == "regression"
    assert kind([index % 21 for index in range(100)], kind="classes") == "classes"


def test_integers_are_ordered_as_numbers(tmp_path: Path) -> None:
    path = csv_file(tmp_path / "a.csv", "a,b,y", rows([(2, 10, 1)[index % 3] for index in range(60)]))
    assert read(path, target="y").preparation.classes == ("1", "2", "10")


def test_regression_keeps_the_way_back(tmp_path: Path) -> None:
    truth = (RNG.normal(size=60) * 30 + 1000).tolist()
    source = read(csv_file(tmp_path / "a.csv", "a,b,y", rows(truth)), target="y")
    plan = source.preparation
    row_numbers = [int(source.train.inputs[index][0]) for index in range(len(source.train))]
    np.testing.assert_allclose(plan.target_mean, [np.mean([truth[index] for index in row_numbers])])
    np.testing.assert_allclose(plan.target_std, [np.std([truth[index] for index in row_numbers])])
    for index, (_, y) in enumerate(source.test):
        back = float(y) * plan.target_std[0] + plan.target_mean[0]
        assert back == pytest.approx(truth[int(source.test.inputs[index][0])], abs=1e-3)
    task = source.task("mlp")
    assert isinstance(task.likelihood, Gaussian)
    x, y = (torch.stack(parts) for parts in zip(*source.train, strict=True))
    assert torch.isfinite(task.likelihood.nll(task.model()(x), y))


def test_target_may_stand_anywhere_and_quotes_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    lines = [f'"{"x, y" if index % 2 else "z"}", {index}.5 ,1e{index % 3}' for index in range(40)]
    (tmp_path / "a.csv").write_text("\n".join(["the class,a,b", *lines, "", ""]), encoding="utf-8-sig")
    source = read(tmp_path / "a.csv", target="the class")
    assert source.preparation.classes == ("x, y", "z")
    assert source.preparation.features == ("a", "b")


def test_tables_that_cannot_be_used(tmp_path: Path) -> None:
    lines = rows([index % 2 for index in range(20)])
    path = csv_file(tmp_path / "a.csv", "a,b,y", lines)
    refused("has no column 'z'; its columns are ['a', 'b', 'y']", path, target="z")
    refused("say which column of", path, target=None)
    refused("which gives no 'pixels'", path, kind="pixels")
    refused("masks=m is for a folder of images or a folder of scans only", path, masks="m")
    refused("two columns named 'a'", csv_file(tmp_path / "b.csv", "a,a,y", lines))
    refused("column 1 of", csv_file(tmp_path / "b.csv", ",a,y", lines))
    refused("has no rows", csv_file(tmp_path / "b.csv", "a,b,y", []))
    refused("no column besides 'y'", csv_file(tmp_path / "b.csv", "y", ["1", "2"]))
    refused("one class only ([0])", csv_file(tmp_path / "b.csv", "a,b,y", rows([0] * 20)))
    refused("too many for classes", csv_file(tmp_path / "b.csv", "a,b,y", rows([f"p{n}" for n in range(60)])))
    refused("too few examples (3)", csv_file(tmp_path / "b.csv", "a,b,y", rows(["u", "v", "u"])))
    (tmp_path / "b.csv").write_text("")
    refused("has no rows", tmp_path / "b.csv")
    (tmp_path / "b.csv").write_bytes(b"a,b,y\n\xff\xfe,1,2\n")
    refused("save it as CSV in UTF-8", tmp_path / "b.csv")
