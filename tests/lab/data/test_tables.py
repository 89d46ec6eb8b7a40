import json
from pathlib import Path

import numpy as np
import pytest
import torch

from leanbayes.errors import InputError, LeanBayesError
from leanbayes.lab.data import Preparation, read
from leanbayes.lab.data.tables import csv_safe, is_number, read_csv
from leanbayes.likelihood import Categorical, Gaussian
from tests.lab.data.makers import csv_file

RNG = np.random.default_rng(0)


def rows(target: list[object], separator: str = ",") -> list[str]:
    return [separator.join([f"{place}", f"{place * place / 7}", str(value)]) for place, value in enumerate(target)]


def refused(message: str, path: Path, **options) -> None:
    with pytest.raises(LeanBayesError) as caught:
        read(path, **{"target": "y", **options})
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_texts_are_classes(tmp_path: Path, separator: str) -> None:
    names = ["ill" if place % 3 else "well" for place in range(60)]
    path = csv_file(tmp_path / "a.csv", separator.join(["a", "b", "y"]), rows(names, separator))
    source = read(path, target="y")
    assert source.preparation.classes == ("ill", "well")
    assert source.preparation.features == ("a", "b")
    sets = [source.train, source.validation, source.test]
    assert [len(data) for data in sets] == [42, 9, 9]
    numbers = [int(data.inputs[place][0]) for data in sets for place in range(len(data))]
    assert sorted(numbers) == list(range(60))
    assert [int(y) for data in sets for _, y in data] == [int(place % 3 == 0) for place in numbers]
    assert sum(int(y) for _, y in source.test) == 3
    task = source.task()
    assert isinstance(task.likelihood, Categorical)
    assert task.model()(torch.zeros(4, 2)).shape == (4, 2)


def test_features_are_standardised_by_the_training_rows_alone(tmp_path: Path) -> None:
    path = csv_file(tmp_path / "a.csv", "a,b,y", rows([place % 2 for place in range(60)]))
    source = read(path, target="y")
    raw = np.asarray(source.train.inputs)
    np.testing.assert_allclose(source.preparation.mean, raw.mean(0), rtol=1e-12)
    np.testing.assert_allclose(source.preparation.std, raw.std(0), rtol=1e-12)
    whole = np.array([[place, place * place / 7] for place in range(60)])
    assert not np.allclose(source.preparation.mean, whole.mean(0), rtol=1e-6)
    x = np.stack([np.asarray(x) for x, _ in source.test])
    np.testing.assert_allclose(x, (np.asarray(source.test.inputs) - raw.mean(0)) / raw.std(0), atol=1e-6)


def test_few_integers_are_classes_and_many_or_fractions_are_numbers(tmp_path: Path) -> None:
    def kind(values: list[object], **options) -> str:
        return read(csv_file(tmp_path / "a.csv", "a,b,y", rows(values)), target="y", **options).preparation.kind

    assert kind([place % 20 for place in range(100)]) == "classes"
    assert kind([place % 21 for place in range(100)]) == "regression"
    assert kind([(place % 4) / 2 for place in range(100)]) == "regression"
    assert kind([place % 4 for place in range(100)], kind="regression") == "regression"
    assert kind([place % 21 for place in range(100)], kind="classes") == "classes"


def test_integers_are_ordered_as_numbers(tmp_path: Path) -> None:
    path = csv_file(tmp_path / "a.csv", "a,b,y", rows([(2, 10, 1)[place % 3] for place in range(60)]))
    assert read(path, target="y").preparation.classes == ("1", "2", "10")


def test_regression_keeps_the_way_back(tmp_path: Path) -> None:
    truth = (RNG.normal(size=60) * 30 + 1000).tolist()
    source = read(csv_file(tmp_path / "a.csv", "a,b,y", rows(truth)), target="y")
    plan = source.preparation
    places = [int(source.train.inputs[place][0]) for place in range(len(source.train))]
    np.testing.assert_allclose(plan.target_mean, [np.mean([truth[place] for place in places])])
    np.testing.assert_allclose(plan.target_std, [np.std([truth[place] for place in places])])
    for place, (_, y) in enumerate(source.test):
        back = float(y) * plan.target_std[0] + plan.target_mean[0]
        assert back == pytest.approx(truth[int(source.test.inputs[place][0])], abs=1e-3)
    task = source.task("mlp")
    assert isinstance(task.likelihood, Gaussian)
    x, y = (torch.stack(parts) for parts in zip(*source.train, strict=True))
    assert torch.isfinite(task.likelihood.nll(task.model()(x), y))


def test_target_may_stand_anywhere_and_quotes_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    lines = [f'"{"x, y" if place % 2 else "z"}", {place}.5 ,1e{place % 3}' for place in range(40)]
    (tmp_path / "a.csv").write_text("\n".join(["the class,a,b", *lines, "", ""]), encoding="utf-8-sig")
    source = read(tmp_path / "a.csv", target="the class")
    assert source.preparation.classes == ("x, y", "z")
    assert source.preparation.features == ("a", "b")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("nan,1,0", "line 12, column 'a' is missing ('nan'); fill it or remove the row"),
        ("1,,0", "line 12, column 'b' is missing ('')"),
        ("1,NA,0", "line 12, column 'b' is missing ('NA')"),
        ("inf,2,0", "line 12, column 'a' is inf"),
        ("1,2,", "line 12, column 'y' is missing"),
        ("1,male,0", "line 12, column 'b' is 'male', no number"),
        ("1,2", "line 12 has 2 cells, the header 3"),
        ("1,2,3,4", "line 12 has 4 cells, the header 3"),
        ("1,2,?", "line 12, column 'y' is missing"),
        ("1,2,high", "line 12, column 'y' is 'high', no number"),
        ('1,2,"0', "cannot read"),
    ],
)
def test_a_bad_cell_is_named_by_line_and_column(tmp_path: Path, line: str, message: str) -> None:
    lines = rows([place % 2 for place in range(20)])
    refused(message, csv_file(tmp_path / "a.csv", "a,b,y", [*lines[:10], line, *lines[10:]]))


def test_tables_that_cannot_be_used(tmp_path: Path) -> None:
    lines = rows([place % 2 for place in range(20)])
    path = csv_file(tmp_path / "a.csv", "a,b,y", lines)
    refused("has no column 'z'; its columns are ['a', 'b', 'y']", path, target="z")
    refused("say which column of", path, target=None)
    refused("which gives no 'pixels'", path, kind="pixels")
    refused("masks=m is for a folder of images only", path, masks="m")
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


def test_new_rows_are_prepared_alike_whatever_the_order_of_columns(tmp_path: Path) -> None:
    source = read(csv_file(tmp_path / "a.csv", "a,b,y", rows([place % 2 for place in range(60)])), target="y")
    plan = Preparation.from_json(json.loads(json.dumps(source.preparation.to_json())))
    assert plan == source.preparation
    raw = source.test.inputs.tolist()
    new = csv_file(tmp_path / "new.csv", "b,note,a", [f"{b!r},hello,{a!r}" for a, b in raw])
    found = list(plan.inputs(new))
    assert [name for name, _ in found] == [str(place) for place in range(len(raw))]
    assert all(torch.equal(x, source.test[place][0]) for place, (_, x) in enumerate(found))
    np.savez(tmp_path / "new.npz", x=np.array(raw))
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(plan.inputs(tmp_path / "new.npz"), found, strict=True))
    with pytest.raises(InputError, match="has no column 'b'"):
        plan.inputs(csv_file(tmp_path / "new.csv", "a,c", ["1,2"]))
    with pytest.raises(InputError, match="line 2, column 'b' is missing"):
        plan.inputs(csv_file(tmp_path / "new.csv", "a,b", ["1,"]))
    with pytest.raises(InputError, match=r"takes 2 features; give a .csv or an .npz"):
        plan.inputs(tmp_path)


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t", "\r", "\n", " =", " \n@"])
def test_cells_that_a_spreadsheet_would_run_are_escaped(start: str) -> None:
    assert csv_safe(f"{start}cmd|' /C calc'!A0") == f"'{start}cmd|' /C calc'!A0"


@pytest.mark.parametrize("number", ["-1.5", "+3", "-1e-7", -2, -0.25, 7, "-.5"])
def test_numbers_are_not_escaped(number: object) -> None:
    assert csv_safe(number) == str(number)
    assert is_number(csv_safe(number))


@pytest.mark.parametrize("text", ["cat", "a=b", "1+1", "", "'quoted", "x-1", "mail@home"])
def test_harmless_texts_are_not_escaped(text: str) -> None:
    assert csv_safe(text) == text


@pytest.mark.parametrize("text", ["-1-1", "-", "=", "+1+cmd", "-1.5.2"])
def test_what_only_begins_like_a_number_is_escaped(text: str) -> None:
    assert csv_safe(text) == f"'{text}"


def test_many_columns_take_no_time_that_grows_with_their_square(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(60_000)]
    table = read_csv(csv_file(tmp_path / "a.csv", ",".join(names), [",".join("1" * 60_000)]))
    assert sum(table.numbers(name)[0] for name in names) == 60_000
    with pytest.raises(InputError, match=r"has no column 'y'; its columns are \['c0', .* and 59900 more"):
        table.texts("y")
    wide = csv_file(tmp_path / "b.csv", "a," * 100_000 + "a", ["1"])
    with pytest.raises(InputError, match="has 100001 columns, more than 100000"):
        read_csv(wide)
