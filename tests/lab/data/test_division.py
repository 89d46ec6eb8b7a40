"""A validation set is divided by patient and by image, and never gives the calibration what the rest has."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import leanbayes as lb
from leanbayes.lab.data import Preparation, read
from leanbayes.lab.data.division import divide_validation, subgroup_names, subgroup_numbers
from leanbayes.lab.data.source import Cases, Examples
from leanbayes.lab.data.windows import Windows
from tests import tasks
from tests.lab.data.makers import csv_file

PLAN = Preparation("pixels", (0.0,), (1.0,), ("ground", "speck"), size=(8, 8))


def examples(count: int, patients: tuple[str, ...] = (), subgroups: tuple[str, ...] = ()) -> Examples:
    x = torch.arange(count).float()[:, None, None, None].expand(count, 1, 8, 8)
    cases = Cases(tuple(map(str, range(count))), patients, subgroups)
    return Examples(x, torch.zeros(count, 8, 8, dtype=torch.long), PLAN, cases)


def test_examples_that_stand_alone_are_drawn_one_by_one() -> None:
    division = divide_validation(tasks.classes(), 0.4)
    calibration, rest = set(division.calibration.indices), set(division.rest.indices)
    assert not calibration & rest
    assert len(calibration) == round(0.4 * division.total)
    assert len(calibration | rest) == division.total == len(tasks.classes().validation)
    assert (division.patients, division.subgroups, division.names) == (None, None, ())


def test_no_patient_is_in_both_parts() -> None:
    patients = tuple(f"p{number // 3}" for number in range(30))
    task = replace(tasks.pixels(), validation=examples(30, patients))
    division = divide_validation(task, 0.5)
    calibration = {patients[row] for row in division.rows}
    rest = {patients[index] for index in division.rest.indices}
    assert calibration
    assert rest
    assert not calibration & rest
    assert calibration | rest == set(patients)
    assert len(division.rows) == 15
    assert division.patients == tuple(patients[row] for row in division.rows)


@pytest.mark.parametrize("patients", [(), tuple("aabbccddeeff")])
def test_windows_of_one_image_stay_together_and_calibration_has_whole_images(patients: tuple[str, ...]) -> None:
    plan = replace(PLAN, size=(4, 4), window=(4, 4))
    windows = Windows(examples(12, patients), plan, 3, seed=0)
    division = divide_validation(replace(tasks.pixels(), validation=windows), 0.5)
    rest = {index // 3 for index in division.rest.indices}
    assert not rest & set(division.rows)
    assert len(rest) + len(division.rows) == 12
    assert len(division.calibration) == len(division.rows) == 6
    assert division.calibration[0][0].shape == (1, 8, 8)
    assert division.rest[0][0].shape == (1, 4, 4)


def test_one_patient_cannot_be_divided() -> None:
    task = replace(tasks.pixels(), validation=examples(5, ("anna",) * 5))
    with pytest.raises(lb.errors.InputError, match="cannot be divided"):
        divide_validation(task, 0.5)
    big = replace(tasks.pixels(), validation=examples(5, ("anna",) * 4 + ("bert",)))
    assert set(divide_validation(big, 0.9).patients or ()) in ({"anna"}, {"bert"})  # one patient is left


def test_subgroups_have_the_same_numbers_in_every_set() -> None:
    task = replace(tasks.pixels(), validation=examples(4, (), tuple("baba")), test=examples(3, (), ("c", "a", "b")))
    assert subgroup_names(task) == ("a", "b", "c")
    assert subgroup_numbers(task, task.validation) == [1, 0, 1, 0]
    assert subgroup_numbers(task, task.test) == [2, 0, 1]
    assert subgroup_numbers(task, task.train) is None


def test_a_table_has_a_column_of_subgroups_that_is_no_feature(tmp_path: Path) -> None:
    rows = [f"{i % 7},{i % 5},clinic {'AB'[i % 2]},{i % 3}" for i in range(60)]
    source = read(csv_file(tmp_path / "t.csv", "a,b,clinic,y", rows), target="y", subgroups="clinic")
    assert source.preparation.features == ("a", "b")
    for part in (source.train, source.validation, source.test):
        for name, subgroup in zip(part.cases.names, part.cases.subgroups, strict=True):
            assert subgroup == f"clinic {'AB'[int(name) % 2]}"


def test_arrays_may_hold_subgroups_or_have_a_table_of_them(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 2
    np.savez(tmp_path / "a.npz", x=x, y=y, subgroup=np.arange(40) % 4)
    source = read(tmp_path / "a.npz")
    assert source.test.cases.subgroups == tuple(str(int(name) % 4) for name in source.test.cases.names)
    table = csv_file(tmp_path / "s.csv", "name,subgroup", [f"{i},g{i % 5}" for i in range(40)])
    source = read(tmp_path / "a.npz", subgroups=str(table))
    assert source.test.cases.subgroups == tuple(f"g{int(name) % 5}" for name in source.test.cases.names)
    np.savez(tmp_path / "b.npz", x=x, y=y, subgroup=np.arange(39))
    with pytest.raises(lb.errors.InputError, match="subgroups of shape"):
        read(tmp_path / "b.npz")
    with pytest.raises(lb.errors.InputError, match="for subgroups=; give a CSV file"):
        read(tmp_path / "a.npz", subgroups=str(tmp_path / "none.csv"))
