"""Risks by name, and each against masks that are made one by one."""

import pytest
import torch
from scipy import ndimage
from torch import Tensor

import leanbayes as lb
from leanbayes.conformal.risks import RISKS, as_risk
from leanbayes.metrics.nested_masks import GRID, count_masks


def of_one(name: str, mask: Tensor, truth: Tensor) -> float:
    """The loss by its definition."""
    hit, size, marked = int((mask & truth).sum()), int(truth.sum()), int(mask.sum())
    if name == "false_negatives":
        return 1 - hit / size if size else 0.0
    if name == "false_positives":
        return min(1.0, (marked - hit) / max(size, 1))
    if name == "dice":
        return 1 - 2 * hit / (marked + size) if marked + size else 0.0
    numbers, count = ndimage.label(truth.numpy(), ndimage.generate_binary_structure(2, 2))
    parts = [mask[torch.from_numpy(numbers == number)].double().mean().item() for number in range(1, count + 1)]
    return sum(part < 0.5 for part in parts) / count if count else 0.0


@pytest.mark.parametrize("name", ["false_negatives", "false_positives", "dice", "missed_lesions"])
def test_losses_are_those_of_the_definition(name: str) -> None:
    source = torch.Generator().manual_seed(0)
    scores, truth = torch.rand(6, 12, 12, generator=source).double(), torch.rand(6, 12, 12, generator=source) < 0.2
    truth[0] = False
    losses = as_risk(name).losses(count_masks(scores, truth, torch.ones_like(truth)))
    for place in [*range(0, len(GRID), 73), len(GRID) - 1]:
        expected = [of_one(name, s >= GRID[place], t) for s, t in zip(scores, truth, strict=True)]
        assert losses[:, place].tolist() == pytest.approx(expected, abs=1e-12)
    trend = {"falls": 1, "rises": -1}.get(as_risk(name).as_masks_grow or "")
    assert trend is None or (trend * losses.diff(dim=1) >= 0).all()  # the grid makes masks smaller


def test_names() -> None:
    assert list(RISKS) == ["dice", "false_negatives", "false_positives", "missed_lesions"]
    with pytest.raises(lb.errors.UnknownName, match="did you mean 'false_negatives'"):
        as_risk("false_negative")
    with pytest.raises(lb.errors.InputError, match="risk must be"):
        as_risk(0.1)  # type: ignore[arg-type]
    with pytest.raises(lb.errors.InputError, match="overlap"):
        lb.conformal.MissedLesions(overlap=0)
