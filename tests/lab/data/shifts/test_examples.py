from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from leanbayes.errors import InputError, ShapeMismatch, UnknownName
from leanbayes.lab.data import Source, read
from leanbayes.lab.data.shifts import corrupt, hold_out, rotate, shift

from ..makers import CLASSES, class_tree, csv_file

RNG = np.random.default_rng(0)
LABELS = np.arange(80) % 4
IMAGES = (RNG.integers(0, 100, (80, 9, 8)) + 40 * LABELS[:, None, None]).astype(np.uint8)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    np.savez(tmp_path / "four.npz", x=IMAGES, y=LABELS)
    return read(tmp_path / "four.npz")


def pairs(data) -> list[tuple[bytes, int]]:
    """Raw images with their labels."""
    plan = data.preparation
    raw = [(x.double() * plan.std[0] + plan.mean[0]) * 255 for x, _ in (data[i] for i in range(len(data)))]
    return [(x.round().byte().numpy().tobytes(), int(data[i][1])) for i, x in enumerate(raw)]


def test_held_out_classes_are_gone_from_all_sets_and_the_rest_are_numbered_anew(source: Source) -> None:
    known, unseen = hold_out(source, ["1", "3"])
    assert known.preparation.classes == ("0", "2")
    assert known.preparation.outputs == 2
    new = {0: 0, 2: 1}
    for name in ("train", "validation", "test"):
        expected = [(x, new[y]) for x, y in pairs(getattr(source, name)) if y in new]
        assert pairs(getattr(known, name)) == expected
    later = {1: 2, 3: 3}
    assert pairs(unseen) == [(x, later[y]) for x, y in pairs(source.test) if y in later]
    assert len(known.test) + len(unseen) == len(source.test)


def test_inputs_are_standardised_by_what_is_left(source: Source) -> None:
    known, unseen = hold_out(source, [3, 0, 3])
    raw = np.stack([np.asarray(known.train.inputs[i]) for i in range(len(known.train))]) / 255
    np.testing.assert_allclose(known.preparation.mean, [raw.mean()], rtol=1e-6)
    np.testing.assert_allclose(known.preparation.std, [raw.std()], rtol=1e-6)
    assert unseen.preparation == known.preparation == known.test.preparation
    assert known.preparation != source.preparation


def test_what_is_left_makes_a_task_with_the_unseen_beside_it(source: Source) -> None:
    known, unseen = hold_out(source, ["3"])
    task = replace(known.task(), shifted={"unseen": unseen})
    assert task.classes == ("0", "1", "2")
    assert task.model()(task.test[0][0][None]).shape == (1, 3)
    assert len(task.shifted["unseen"]) > 0


def test_classes_of_files_can_be_held_out(tmp_path: Path) -> None:
    source = read(class_tree(tmp_path / "animals"))
    known, unseen = hold_out(source, ["dog"])
    assert known.preparation.classes == tuple(name for name in CLASSES if name != "dog")
    assert {int(y) for _, y in (unseen[i] for i in range(len(unseen)))} == {2}
    assert unseen[0][0].shape == source.test[0][0].shape


@pytest.mark.parametrize(
    ("classes", "message"),
    [([], "at least one"), (["0", "1", "2"], "leave at least two"), (["7"], "'7'"), ("01", "give a list")],
)
def test_bad_choices_are_refused(source: Source, classes: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        hold_out(source, classes)


def test_a_regression_has_no_classes(tmp_path: Path) -> None:
    rows = [f"{i},{i * 0.37}" for i in range(30)]
    with pytest.raises(InputError, match="regression"):
        hold_out(read(csv_file(tmp_path / "a.csv", "x,y", rows), target="y"), ["0"])


def test_unknown_class_names_the_classes(source: Source) -> None:
    with pytest.raises(UnknownName, match="'0', '1', '2', '3'"):
        hold_out(source, ["nought"])


def test_a_set_is_shifted_before_it_is_standardised(source: Source, tmp_path: Path) -> None:
    raw = torch.stack([source.test.inputs[i] for i in range(len(source.test))]).float() / 255
    for change in (partial(corrupt, name="contrast", severity=5), partial(rotate, degrees=30)):
        shifted = shift(source.test, change)
        truth = source.preparation.standardise(change(raw))
        torch.testing.assert_close(torch.stack([x for x, _ in (shifted[i] for i in range(len(shifted)))]), truth)
        assert torch.equal(torch.as_tensor(shifted.targets), torch.as_tensor(source.test.targets))
    files = read(class_tree(tmp_path / "animals"))
    assert torch.allclose(shift(files.test, lambda x: x)[1][0], files.test[1][0])
    unseen = hold_out(source, ["3"]).unseen
    assert len(shift(unseen, partial(corrupt, name="fog", severity=1))) == len(unseen)


def test_a_change_must_keep_the_shape(source: Source) -> None:
    with pytest.raises(ShapeMismatch, match="shape"):
        shift(source.test, lambda x: x[:1])
