"""The expected loss of new cases is at most the level, for every risk and threshold; bad input is refused."""

import resource
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.conformal import Risk, RiskControl
from leanbayes.metrics.nested_masks import GRID, Masks


def cases(count: int, seed: int = 0, size: int = 12) -> tuple[Tensor, Tensor]:
    """Logits of two classes, and discs that they show through much noise; every eighth case has none."""
    source = torch.Generator().manual_seed(seed)
    row, column = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")
    centre = torch.rand(count, 2, 1, 1, generator=source) * size
    radius = 1 + 2.5 * torch.rand(count, 1, 1, generator=source)
    truth = (row - centre[:, 0]) ** 2 + (column - centre[:, 1]) ** 2 < radius**2
    truth[::8] = False
    hard = 0.5 + 2 * torch.rand(count, 1, 1, generator=source)
    lesion = (truth * 3.0 - 1.5) * hard + torch.randn(count, size, size, generator=source)
    return torch.stack([torch.zeros_like(lesion), lesion], 1), truth.long()


@pytest.mark.parametrize("risk", ["false_negatives", "false_positives", "missed_lesions"])
@pytest.mark.parametrize("by", ["probability", "total"])
def test_the_risk_is_at_most_the_level(risk: str, by: Any) -> None:
    new, means = cases(300, seed=1000), []
    for split in range(8):
        control = RiskControl(nn.Identity(), risk, 0.15, by=by).calibrate([cases(60, seed=split)])
        means.append(control.losses(*new).mean())
    mean, error = torch.stack(means).mean(), torch.stack(means).std() / 8**0.5
    assert mean < 0.15 + 4 * error + 0.02  # the new cases are the same in all calibrations
    if by == "probability":  # which uses what it may: the bound is not met by marking everything
        assert mean > 0.05


def test_the_threshold_is_that_of_the_definition() -> None:
    x, y = cases(40)
    control = RiskControl(nn.Identity(), level=0.2).calibrate([(x[:17], y[:17]), (x[17:], y[17:])])
    p = torch.softmax(x, 1).double()[:, 1]

    def risk(threshold: float) -> float:
        missed = [(p[i][y[i] == 1] < threshold).double().mean().item() if y[i].any() else 0.0 for i in range(40)]
        return (sum(missed) + 1) / 41

    place = GRID.tolist().index(control.threshold)
    assert all(risk(t) <= 0.2 + 1e-12 for t in GRID.tolist()[: place + 1 : 20])
    assert risk(control.threshold) <= 0.2 < risk(GRID[place + 1].item())
    assert torch.equal(control.masks(x), p >= control.threshold)


def test_dice_is_controlled_with_confidence() -> None:
    new, broken = cases(600, seed=1000), 0
    for split in range(10):
        control = RiskControl(nn.Identity(), "dice", 0.5, confidence=0.9).calibrate([cases(200, seed=split)])
        broken += int(control.losses(*new).mean() > 0.5)
    assert broken <= 4  # at most one in ten may be, and 5 or more of 10 would have probability 0.002
    with pytest.raises(lb.errors.InputError, match=r"no threshold has an expected loss 'dice'.*lowest mean"):
        RiskControl(nn.Identity(), "dice", 0.05, confidence=0.9).calibrate([cases(60)])
    with pytest.raises(lb.errors.InputError, match=r"give confidence=0\.9"):
        RiskControl(nn.Identity(), "dice", 0.5)


@pytest.mark.parametrize("risk", ["false_negatives", "false_positives"])
def test_with_confidence_few_calibrations_exceed_the_level(risk: str) -> None:
    """Of 30 calibrations at confidence 0.8 about 6 may; 14 or more would have probability 1e-3."""
    new = cases(300, seed=1000)
    made = [RiskControl(nn.Identity(), risk, 0.2, confidence=0.8) for _ in range(30)]
    risks = [control.calibrate([cases(60, seed=i)]).losses(*new).mean().item() for i, control in enumerate(made)]
    assert sum(value > 0.2 for value in risks) < 14
    assert max(risks) > 0.1
    expected = RiskControl(nn.Identity(), risk, 0.2).calibrate([cases(60)])
    assert (expected.threshold > made[0].threshold) == (risk == "false_negatives")  # in expectation is less cautious
    with pytest.raises(lb.errors.InputError, match="needs at least 8 calibration cases"):
        RiskControl(nn.Identity(), risk, 0.2, confidence=0.8).calibrate([cases(5)])


def test_patients_are_the_units() -> None:
    """A patient with many alike images counts once: images copied ten times change nothing but the weights."""
    x, y = cases(30)
    copies = torch.arange(30).repeat_interleave(10)
    plain = RiskControl(nn.Identity(), level=0.15).calibrate([(x, y)])
    by_patient = RiskControl(nn.Identity(), level=0.15)
    by_patient.calibrate([(x[copies], y[copies])], patients=[f"patient {i}" for i in copies.tolist()])
    assert by_patient.threshold == plain.threshold
    assert by_patient.cases == 30
    as_tensor = RiskControl(nn.Identity(), level=0.15).calibrate([(x[copies], y[copies])], patients=copies)
    assert as_tensor.threshold == plain.threshold
    assert as_tensor.cases == 30  # entries of a tensor equal nothing but themselves
    as_images = RiskControl(nn.Identity(), level=0.15).calibrate([(x[copies], y[copies])])
    assert as_images.threshold >= plain.threshold
    with pytest.raises(lb.errors.ShapeMismatch, match="one patient for each of 30"):
        RiskControl(nn.Identity()).calibrate([(x, y)], patients=[1, 2])
    with pytest.raises(lb.errors.InputError, match=r"at least 9 calibration cases.*got 3"):
        RiskControl(nn.Identity()).calibrate([(x, y)], patients=[i % 3 for i in range(30)])


def test_inner_masks_lie_in_outer_ones() -> None:
    control = RiskControl(nn.Identity(), level=0.1, inner=0.2).calibrate([cases(300)])
    x, y = cases(500, seed=7)
    inner, outer = control.nested(x)
    assert not (inner & ~outer).any()
    assert inner.any()
    assert (outer & ~inner).any()
    assert torch.equal(outer, control.masks(x))
    some = y.flatten(1).any(1)
    spill = (inner & (y == 0)).flatten(1).sum(1)[some] / y.flatten(1).sum(1)[some]
    assert spill.clamp_max(1).mean() < 0.2


def test_labels() -> None:
    source = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(400, 6, generator=source)
    labels = torch.bernoulli(logits.sigmoid(), generator=source)
    control = RiskControl(nn.Identity(), likelihood=lb.Bernoulli()).calibrate([(logits[:200], labels[:200])])
    assert control.masks(logits).shape == (400, 6)
    assert 0.03 < control.losses(logits[200:], labels[200:]).mean() < 0.14


def test_one_class_of_several_and_pixels_that_do_not_count() -> None:
    source = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(60, 3, 8, 8, generator=source)
    y = torch.distributions.Categorical(logits=logits.movedim(1, -1)).sample()
    control = RiskControl(nn.Identity(), foreground=2, level=0.2).calibrate([(logits, y)])
    assert control.losses(logits, y).mean() <= 0.2
    p = torch.softmax(logits, 1)[:, 2]
    assert torch.equal(control.masks(logits), p.double() >= control.threshold)
    void = torch.where(p > 0.5, y, -100)
    easier = RiskControl(nn.Identity(), foreground=2, level=0.2).calibrate([(logits, void)])
    assert easier.threshold > control.threshold
    with pytest.raises(lb.errors.InputError, match="foreground must be a class from 0 to 2"):
        RiskControl(nn.Identity(), foreground=3).calibrate([(logits, y)])


@dataclass(frozen=True)
class _Always(Risk):
    """A loss that larger masks do not lower."""

    name: ClassVar[str] = "always"
    as_masks_grow: ClassVar[Literal["falls", "rises"] | None] = "falls"

    def losses(self, masks: Masks) -> Tensor:
        return torch.full((len(masks.reached), len(GRID)), 0.5, dtype=torch.float64)


BAD: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "too few": (lambda: RiskControl(nn.Identity()).calibrate([cases(8)]), lb.errors.InputError, "at least 9.*got 8"),
    "level": (lambda: RiskControl(nn.Identity(), level=1), lb.errors.InputError, "between 0 and 1"),
    "by": (lambda: RiskControl(nn.Identity(), by="entropy"), lb.errors.UnknownName, "total"),  # type: ignore[arg-type]
    "numbers": (lambda: RiskControl(nn.Identity(), likelihood=lb.Gaussian()), lb.errors.InputError, "or labels"),
    "classes": (
        lambda: RiskControl(nn.Identity()).calibrate([(torch.randn(20, 3), torch.zeros(20).long())]),
        lb.errors.ShapeMismatch,
        "use Sets",
    ),
    "float masks": (
        lambda: RiskControl(nn.Identity()).calibrate([(cases(20)[0], cases(20)[1].float())]),
        lb.errors.ShapeMismatch,
        "integers",
    ),
    "inner": (lambda: RiskControl(nn.Identity(), "false_positives", inner=0.1), lb.errors.InputError, "inner masks"),
    "no inner": (
        lambda: RiskControl(nn.Identity()).calibrate([cases(20)]).nested(cases(2)[0]),
        lb.errors.InputError,
        "inner=0.1",
    ),
    "NaN": (
        lambda: RiskControl(nn.Identity()).calibrate([(torch.full_like(cases(20)[0], torch.nan), cases(20)[1])]),
        lb.errors.NonFinite,
        "NaN",
    ),
    "NaN later": (
        lambda: RiskControl(nn.Identity()).calibrate([cases(20)]).masks(torch.full_like(cases(2)[0], torch.nan)),
        lb.errors.NonFinite,
        "NaN",
    ),
    "a mask of 0 and 255": (
        lambda: RiskControl(nn.Identity(), foreground=1).calibrate([(cases(20)[0], 255 * cases(20)[1])]),
        lb.errors.InputError,
        "between 0 and 1, and one is 255",
    ),
    "a risk that no mask keeps": (
        lambda: RiskControl(nn.Identity(), _Always()).calibrate([cases(20)]),
        lb.errors.InputError,
        "every pixel have a mean loss 'always' of 0.500",
    ),
    "a risk that no mask keeps, with confidence": (
        lambda: RiskControl(nn.Identity(), _Always(), confidence=0.9).calibrate([cases(40)]),
        lb.errors.InputError,
        "every pixel have a mean loss 'always' of 0.500",
    ),
    "not calibrated": (lambda: RiskControl(nn.Identity()).masks(cases(2)[0]), lb.errors.InputError, "calibrate"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused(name: str) -> None:
    action, error, words = BAD[name]
    with pytest.raises(error, match=words):
        action()


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 2, 1))

    x, y = cases(30)
    risk = lb.conformal.MissedLesions(overlap=0.3)
    control = RiskControl(lb.Bayesian(net()), risk, 0.3, by="epistemic", inner=0.4, samples=3).calibrate([(x, y)])
    lb.save(control, tmp_path / "x.lb")
    blank = net()
    again = lb.load(tmp_path / "x.lb", blank)
    assert (again.risk, again.by, again.cases, again.inner) == (risk, "epistemic", 30, 0.4)
    for one, two in zip(control.nested(x), again.nested(x), strict=True):
        assert torch.equal(one, two)
    with torch.no_grad():
        next(blank.parameters()).add_(0.01)
    with pytest.raises(lb.errors.InputError, match="changed"):
        again.masks(x)


def test_a_changed_predictor_is_refused() -> None:
    model = nn.Conv2d(2, 2, 1)
    x, y = cases(30)
    control = RiskControl(model, level=0.2).calibrate([(x, y)])
    control.masks(x[:2])
    with torch.no_grad():
        model.bias += 0.01  # type: ignore[operator, misc]
    for question in (control.masks, lambda x: control.losses(x, y[:2])):
        with pytest.raises(lb.errors.InputError, match="has changed since it was calibrated"):
            question(x[:2])


def test_pixels_are_streamed_in_bounded_memory() -> None:
    """20 million pixels in 80 batches: the peak must stay that of one batch, far below what all scores would take."""
    batch = cases(64)[0].repeat(1, 1, 4, 4), cases(64)[1].repeat(1, 4, 4)
    pixels = batch[1].numel()
    number = -(-20_000_000 // pixels)
    RiskControl(nn.Identity(), level=0.2).calibrate([batch])  # what the first call alone allocates
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    control = RiskControl(nn.Identity(), level=0.2).calibrate(batch for _ in range(number))
    grown = 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    assert control.cases == 64 * number
    assert grown < 8 * pixels * number / 8  # an eighth of the scores in float64
