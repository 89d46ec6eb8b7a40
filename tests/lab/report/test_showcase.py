"""Which cases the page shows for every method, on which scale, and with which outlines."""

from pathlib import Path

import numpy as np
import pytest

from leanbayes.errors import FileError
from leanbayes.lab.report.outlines import outline
from leanbayes.lab.report.read import Arrays
from leanbayes.lab.report.showcase import PREDICTED, TRUE, showcase
from tests.lab.report.fixtures import SHOWN, shown_arrays

CASES = [{"case": number, "name": name} for number, name in SHOWN.items()]


def kept(*methods: str, **changes) -> Arrays:
    by_key = {key: array for index, name in enumerate(methods) for key, array in shown_arrays(name, index).items()}
    return Arrays(Path("arrays"), by_key | changes)


def test_the_worst_the_median_the_best_and_what_surprises() -> None:
    section = showcase(["a", "b"], CASES, kept("a", "b"))
    assert [panel.title for panel in section.panels] == [
        "Worst case: scan0.nii.gz",
        "Median case: scan4.nii.gz",
        "Best case: scan9.nii.gz",
        "Surprising case: b was sure and wrong: <b>scan3</b>",
    ]
    assert section.first
    assert [[portrait.title for portrait in panel.portraits] for panel in section.panels] == [["a", "b"]] * 4
    assert "slice 12 of 24" in section.panels[0].note


def test_a_method_that_is_unsure_of_its_failures_does_not_surprise() -> None:
    arrays = kept("a")
    for number, doubt in zip(SHOWN, (0.9, 0.8, 0.7, 0.2, 0.1), strict=True):
        arrays.by_key[f"a/shown/{number}/facts"][1] = doubt
    titles = [panel.title for panel in showcase(["a"], CASES, arrays).panels]
    assert [title.partition(":")[0] for title in titles] == ["Worst case", "Median case", "Best case"]


def test_outlines_and_scales() -> None:
    arrays = kept("a")
    section = showcase(["a"], CASES, arrays)
    portrait = section.panels[0].portraits[0]
    by_colour = {line.colour: line.path for line in portrait.outlines if line.style == ""}
    assert by_colour[TRUE] == outline(arrays.by_key["a/shown/0/truth"] > 0)
    assert by_colour[PREDICTED] == outline(arrays.by_key["a/shown/0/predicted"] > 0)
    assert [line.style for line in portrait.outlines] == ["thin", "thin", "", ""]
    assert (portrait.width, portrait.height, portrait.stretch) == (30, 60, 1.5)
    assert [ramp.high for ramp in section.ramps] == ["0.35 nats", "0.12 nats"]
    assert [entry.words for entry in section.legend] == ["predicted", "true", "other raters"]


def test_few_cases_missing_methods_and_none() -> None:
    one = showcase(["a"], CASES[:1], kept("a"))
    assert [panel.title for panel in one.panels] == ["Worst case: scan0.nii.gz"]
    arrays = kept("a", "b")
    del arrays.by_key["b/shown/0/total"]
    assert len(showcase(["a", "b"], CASES, arrays).panels[0].portraits) == 1
    assert showcase(["c"], CASES, arrays) is None
    assert showcase(["a"], [], arrays) is None


def test_a_sample_of_a_large_set_says_so() -> None:
    words = "random cases are looked at"
    assert words not in showcase(["a"], CASES, kept("a")).caption
    assert words in showcase(["a"], CASES, kept("a", **{"a/case/dice": np.zeros(900)})).caption


@pytest.mark.parametrize(
    ("key", "array"),
    [
        ("truth", np.zeros((3, 3))),
        ("image", np.zeros((40, 30))),
        ("facts", np.zeros(2)),
        ("raters", np.zeros((2, 3, 3))),
    ],
)
def test_arrays_that_do_not_fit_are_refused(key: str, array: np.ndarray) -> None:
    with pytest.raises(FileError, match="compare again"):
        showcase(["a"], CASES, kept("a", **{f"a/shown/0/{key}": array}))


def test_rounding_errors_have_no_scale_of_their_own() -> None:
    arrays = kept("a")
    for key in [key for key in arrays.by_key if key.endswith("/epistemic")]:
        arrays.by_key[key] = arrays.by_key[key] * 0 + 1e-7
    assert [ramp.high for ramp in showcase(["a"], CASES, arrays).ramps] == ["0.35 nats", "0.0035 nats"]
