"""The pictures of the report: what is shown below and beside them."""

from pathlib import Path

import numpy as np
import pytest

from leanbayes.errors import FileError
from leanbayes.lab.report.gallery import examples, overlays
from leanbayes.lab.report.read import Arrays


def arrays(**by_key):
    return Arrays(Path("arrays"), {f"a/{key.replace('__', '/')}": np.asarray(value) for key, value in by_key.items()})


def test_cards_say_the_answer_the_truth_and_the_doubt():
    held = arrays(
        certain__image=np.zeros((2, 4, 4)), certain__label=[0.0, 5.0], certain__predicted=[0.0, 1.0],
        certain__entropy=[0.001, 0.5],
    )  # fmt: skip
    (panel,) = examples(["a", "b"], ["cat", "dog"], held).panels
    (strip,) = panel.strips
    right, wrong = strip.cards
    assert (right.answer, right.truth, right.right, right.uncertainty) == ("cat", "cat", True, "<0.01 nats")
    assert (wrong.answer, wrong.truth, wrong.right, wrong.uncertainty) == ("dog", "5", False, "0.50 nats")
    assert (panel.title, strip.title) == ("a", "most certain")


def test_overlays_share_one_scale():
    masks = {f"overlay__{key}": np.zeros((8, 4, 4)) for key in ("image", "truth", "predicted")}
    section = overlays(["a"], ["ground", "cell"], arrays(**masks, overlay__entropy=np.full((8, 4, 4), 0.25)))
    assert len(section.panels[0].overlays) == 6
    assert section.ramps[0].high == "0.25 nats, unsure"
    assert len(section.legend) == 3
    assert overlays(["b"], [], arrays()) is None


def test_pictures_of_different_sizes_are_refused():
    masks = {f"overlay__{key}": np.zeros((1, 4, 4)) for key in ("image", "predicted", "entropy")}
    with pytest.raises(FileError, match="differ in size"):
        overlays(["a"], [], arrays(**masks, overlay__truth=np.zeros((1, 5, 4))))
