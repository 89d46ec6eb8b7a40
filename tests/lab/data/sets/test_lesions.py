import pytest
import torch

from leanbayes.errors import InputError
from leanbayes.lab.data import lesions
from leanbayes.metrics import rater_entropy


def test_lesions_repeat_by_seed() -> None:
    first, same, other = lesions(seed=3, patients=12), lesions(seed=3, patients=12), lesions(seed=4, patients=12)
    assert torch.equal(first.train.inputs, same.train.inputs)
    assert torch.equal(first.train.targets.masks, same.train.targets.masks)
    assert first.train.inputs.shape != other.train.inputs.shape or not torch.equal(
        first.train.inputs, other.train.inputs
    )


def test_raters_of_lesions_disagree_at_edges_and_somebody_always_marks() -> None:
    source = lesions(seed=0)
    for part in (source.train, source.validation, source.test):
        marked = part.targets.by_rater().flatten(2).any(2)
        assert marked.any(0).all()
    raters = source.train.targets.by_rater()
    area = raters.float().mean((1, 2, 3))
    assert (area.diff() < 0).all()  # each is stricter than the one before
    assert 0.02 < (~raters.flatten(2).any(2)).float().mean() < 0.2
    union, all_of_them = raters.amax(0), raters.amin(0)
    assert ((rater_entropy(raters) > 0) == (union != all_of_them)).all()
    images = source.train.inputs[:, 0].float()
    inside, outside = (all_of_them == 1), (union == 0)
    agreed = inside.flatten(1).any(1)
    light = (images * inside).sum((1, 2)) / inside.sum((1, 2)).clamp_min(1)
    dark = (images * outside).sum((1, 2)) / outside.sum((1, 2))
    assert ((light > dark)[agreed]).float().mean() > 0.99


@pytest.mark.parametrize("options", [{"patients": 0}, {"raters": 0}, {"size": 8}])
def test_lesions_that_cannot_be(options) -> None:
    with pytest.raises(InputError, match="patients and raters must be at least 1 and size at least 16"):
        lesions(**options)
