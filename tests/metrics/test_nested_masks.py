"""Counts of nested masks equal those of masks made one by one, and lesions equal scipy's."""

import pytest
import torch
from scipy import ndimage

import leanbayes as lb
from leanbayes.metrics.nested_masks import GRID, count_masks, lesions


def test_counts_are_those_of_each_mask() -> None:
    source = torch.Generator().manual_seed(0)
    scores, truth = torch.rand(3, 6, 5, generator=source), torch.rand(3, 6, 5, generator=source) < 0.3
    scores[0, 0, :2] = torch.tensor([0.0, 1.0])
    counted = torch.rand(3, 6, 5, generator=source) < 0.9
    masks = count_masks(scores, truth, counted)
    for place in range(0, len(GRID), 50):
        mask = (scores.double() >= GRID[place]) & counted
        assert torch.equal(masks.right[:, place], (mask & truth).flatten(1).sum(1))
        assert torch.equal(masks.wrong[:, place], (mask & ~truth).flatten(1).sum(1))
    assert torch.equal(masks.positives, (truth & counted).flatten(1).sum(1))


def test_the_grid_goes_from_everything_to_nothing() -> None:
    assert (GRID.diff() > 0).all()
    masks = count_masks(torch.rand(2, 9), torch.ones(2, 9).bool(), torch.ones(2, 9).bool())
    assert masks.right[:, 0].tolist() == [9, 9]
    assert masks.right[:, -1].tolist() == [0, 0]
    with pytest.raises(lb.errors.ShapeMismatch):
        count_masks(torch.rand(2, 9), torch.ones(2, 8).bool(), torch.ones(2, 8).bool())


@pytest.mark.parametrize("shape", [(4, 30), (4, 20, 20), (3, 8, 8, 8)])
def test_lesions_are_those_of_scipy(shape: tuple[int, ...]) -> None:
    truth = torch.rand(shape, generator=torch.Generator().manual_seed(0)) < 0.25
    ours = lesions(truth)
    for case, numbers in zip(truth, ours, strict=True):
        theirs, count = ndimage.label(case.numpy(), ndimage.generate_binary_structure(case.dim(), case.dim()))
        pairs = {(int(a), int(b)) for a, b in zip(theirs.flatten(), numbers.flatten().tolist(), strict=True)}
        assert len(pairs) == count + 1  # the two numberings correspond one to one
    with pytest.raises(lb.errors.ShapeMismatch):
        lesions(torch.ones(1, 2, 2, 2, 2).bool())
