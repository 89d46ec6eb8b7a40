"""Lesions against components by flood fill and a search over all ways to match them."""

from itertools import permutations, product

import numpy as np
import pytest
import torch

from leanbayes.errors import InputError, ShapeMismatch
from leanbayes.lab.compare.lesions import Lesions, count_lesions
from leanbayes.metrics import metric_named


def components(mask: np.ndarray) -> list[frozenset[tuple[int, ...]]]:
    """The connected components of a mask, by flood fill."""
    left = set(map(tuple, np.argwhere(mask)))
    parts = []
    while left:
        todo, part = [left.pop()], set()
        while todo:
            here = todo.pop()
            part.add(here)
            for step in product((-1, 0, 1), repeat=mask.ndim):
                there = tuple(a + b for a, b in zip(here, step, strict=True))
                if there in left:
                    left.remove(there)
                    todo.append(there)
        parts.append(frozenset(part))
    return parts


def by_hand(predicted: np.ndarray, truth: np.ndarray, overlap: float) -> Lesions:
    made, true = components(predicted), components(truth)
    few, many = sorted((made, true), key=len)
    best = (0.0, 0)
    for order in permutations(range(len(many)), len(few)):
        ious = [len(a & many[j]) / len(a | many[j]) for a, j in zip(few, order, strict=True)]
        good = [iou for iou in ious if iou > overlap]
        best = max(best, (round(sum(good), 9), len(good)))
    return Lesions(len(true), best[1], len(made) - best[1])


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("shape", [(9, 9), (5, 5, 4)])
def test_counts_are_those_of_a_search(shape: tuple[int, ...], seed: int) -> None:
    random = np.random.default_rng(seed)
    truth = (random.random(shape) < 0.15).astype(int)
    predicted = np.where(random.random(shape) < 0.9, truth, 1 - truth) if seed % 2 else np.roll(truth, 1, 0)
    if max(len(components(truth)), len(components(predicted))) > 7:
        pytest.skip("too many components to search")
    assert count_lesions(torch.from_numpy(predicted), torch.from_numpy(truth), overlap=0.1) == by_hand(
        predicted, truth, 0.1
    )


def test_one_prediction_over_two_lesions_finds_one() -> None:
    truth = torch.tensor([[1, 1, 0, 1, 1]])
    assert count_lesions(torch.ones(1, 5).long(), truth) == Lesions(2, 1, 0)
    assert count_lesions(torch.ones(1, 5).long(), truth, overlap=0.5) == Lesions(2, 0, 1)


def test_classes_are_lesions_of_their_own_and_empty_masks_have_none() -> None:
    truth = torch.tensor([[1, 2, 0, 2]])
    assert count_lesions(truth, truth, classes=3) == Lesions(3, 3, 0)
    assert count_lesions(truth * 0, truth, classes=3) == Lesions(3, 0, 0)
    assert count_lesions(truth, truth * 0, classes=3) == Lesions(0, 0, 3)
    assert count_lesions(truth * 0, truth * 0, classes=3) + Lesions(1, 0, 2) == Lesions(1, 0, 2)


def test_bad_input() -> None:
    with pytest.raises(ShapeMismatch):
        count_lesions(torch.zeros(3, 3), torch.zeros(3, 4))
    with pytest.raises(InputError, match="overlap"):
        count_lesions(torch.zeros(3, 3), torch.zeros(3, 3), overlap=1.0)


def test_the_metrics_have_records() -> None:
    assert metric_named("lesion_sensitivity").better == "high"
    assert metric_named("lesion_false_positives").better == metric_named("boundary_ece").better == "low"
