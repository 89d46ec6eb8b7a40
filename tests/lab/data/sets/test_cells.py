"""Generated blood cells: repeatable, balanced, learnable but not without errors, with unfamiliar images."""

import pytest
import torch
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from leanbayes.errors import InputError
from leanbayes.lab.data import load_data
from leanbayes.lab.data.sets.cells import KINDS, cells


def test_the_same_seed_draws_the_same_cells() -> None:
    one, two, other = cells(seed=3, train=50), cells(seed=3, train=50), cells(seed=4, train=50)
    assert torch.equal(one.train.inputs, two.train.inputs)
    assert not torch.equal(one.train.inputs, other.train.inputs)


def test_kinds_are_balanced_and_sets_differ() -> None:
    source = load_data("cells", None)
    assert (len(source.train), len(source.validation), len(source.test)) == (800, 400, 2000)
    assert torch.equal(torch.bincount(source.test.targets), torch.full((len(KINDS),), 400))
    assert not torch.equal(source.train.inputs[:400], source.validation.inputs)


def test_kinds_can_be_learnt_but_overlap() -> None:
    """A linear classifier of pixels is far above chance, 1/5, and far from always right."""
    source = cells(train=1000, test=1000)
    train, test = (part.flatten(1).double().numpy() for part in (source.train.inputs, source.test.inputs))
    classifier = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(train, source.train.targets.numpy())
    accuracy = classifier.score(test, source.test.targets.numpy())
    assert 0.35 < accuracy < 0.95


def test_unfamiliar_cells_reach_the_task() -> None:
    task = cells(train=50, validation=20, test=30).task()
    assert list(task.shifted) == ["clumped", "artefact"]
    image, _ = task.shifted["clumped"][0]
    assert image.shape == (1, 16, 16)


@pytest.mark.parametrize("wrong", [{"train": 2}, {"size": 12}])
def test_impossible_sizes_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InputError, match="at least"):
        cells(**wrong)
