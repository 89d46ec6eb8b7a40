"""Whose each example is: from a CSV file, from a pattern, and what a division by patients must not do."""

from pathlib import Path

import numpy as np
import pytest

from leanbayes.errors import InputError
from leanbayes.lab.data import read
from leanbayes.lab.data.patients import one_case_each, patients_from
from leanbayes.lab.data.splits import line_up
from tests.lab.data.makers import class_tree, csv_file, mask_tree


def test_a_table_may_name_files_in_any_usual_way(tmp_path: Path) -> None:
    table = csv_file(tmp_path / "p.csv", "file,age,patient", ["a/1.png,5,anna", "2,6,bert", "3.nii.gz,7,carl"])
    patient = patients_from(str(table))
    assert [patient(name) for name in ("a/1.png", "b/2.png", "3.nii.gz", "c/3.nii.gz")] == [
        "anna",
        "bert",
        "carl",
        "carl",
    ]
    with pytest.raises(InputError, match=r"p\.csv gives no patient for 4\.png; add a row"):
        patient("4.png")


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [(["a.png,anna", "a.png,bert"], "a.png two patients, anna and bert"), (["a.png,"], "is missing")],
)
def test_a_table_that_contradicts_itself(tmp_path: Path, rows: list[str], complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        patients_from(str(csv_file(tmp_path / "p.csv", "name,patient", rows)))


def test_patterns(tmp_path: Path) -> None:
    assert patients_from(r"(P\d+)_")("x/P07_2.png") == "P07"
    assert patients_from(r"P\d+")("x/P07_2.png") == "P07"
    with pytest.raises(InputError, match=r"gives no patient for q\.png"):
        patients_from(r"(P\d+)_")("q.png")
    with pytest.raises(InputError, match="2 groups in parentheses"):
        patients_from(r"(P)(\d+)_")
    with pytest.raises(InputError, match=r"neither a \.csv file nor a pattern"):
        patients_from("(")
    with pytest.raises(InputError, match="there is no file"):
        patients_from(str(tmp_path / "none.csv"))


def people(source) -> list[set[str]]:
    return [set(part.cases.patients) for part in (source.train, source.validation, source.test)]


def test_no_patient_is_in_two_sets(tmp_path: Path) -> None:
    masks = read(mask_tree(tmp_path / "m", 30), groups=r"i(\d)\d*\.png")
    sets = people(masks)
    assert sorted(set.union(*sets)) == list("0123456789")
    assert sum(map(len, sets)) == 10
    assert masks.remarks == ()
    assert masks.test.cases is not None
    assert all(
        name.startswith(f"images/i{who}")
        for name, who in zip(masks.test.cases.names, masks.test.cases.patients, strict=True)
    )
    classes = read(class_tree(tmp_path / "c"), groups=r"/(\d)\d*\.png")
    assert sum(map(len, people(classes))) == 10
    x = np.random.default_rng(0).normal(size=(60, 3))
    np.savez(tmp_path / "a.npz", x=x, y=np.arange(60) % 2, patient=np.arange(60) // 5)
    assert sum(map(len, people(read(tmp_path / "a.npz")))) == 12
    rows = [f"{a},{i % 2},p{i // 4}" for i, a in enumerate(x[:, 0])]
    table = read(csv_file(tmp_path / "t.csv", "dose,out,who", rows), target="out", groups="who")
    assert table.preparation.features == ("dose",)
    assert sum(map(len, people(table))) == 15


def test_what_groups_cannot_do_is_said_before_training(tmp_path: Path) -> None:
    top = mask_tree(tmp_path / "m", 30)
    with pytest.raises(InputError, match=r"too few patients \(1\)"):
        read(top, groups="(images)")
    alone = read(top, groups=r"i(\d+)\.png")
    assert "each of the 30 patients has one case only" in alone.remarks[0]
    np.savez(tmp_path / "b.npz", x_train=np.zeros((9, 2)), y_train=np.arange(9) % 2, x_test=np.ones((2, 2)),
             y_test=np.arange(2), patient_train=np.arange(9), patient_test=np.array([3, 20]))  # fmt: skip
    with pytest.raises(InputError, match="patient 3 is in the train set and in the test set"):
        read(tmp_path / "b.npz")
    classes = class_tree(tmp_path / "c", counts=(9, 9))
    seed = next(seed for seed in range(20) if line_up(["cat"] * 9 + list("01234dddd"), seed)[0] < 0.4)
    with pytest.raises(InputError, match="no patient with the class 0 is left for training"):
        read(classes, groups=r"(cat|dog/[0-4]|dog)", seed=seed)


def test_the_remark_about_one_case_each() -> None:
    assert one_case_each(["a", "b", "a"]) is None
    assert "2 patients" in (one_case_each(["a", "b"]) or "")
