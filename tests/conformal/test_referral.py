"""What the machine decides alone is wrong at most as often as promised, with the confidence that was asked."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.conformal import Referral


def data(count: int, seed: int = 0, width: float = 4.0) -> tuple[Tensor, Tensor]:
    logits = width * torch.randn(count, 3, generator=torch.Generator().manual_seed(seed))
    y = torch.multinomial(torch.softmax(0.7 * logits, 1), 1, generator=torch.Generator().manual_seed(seed + 1))[:, 0]
    return logits, y


@pytest.mark.parametrize("by", ["confidence", "total"])
def test_the_error_is_at_most_as_promised(by: Any) -> None:
    """Of 60 calibrations at confidence 0.9 about 6 may break the promise; 15 would have probability 5e-4."""
    x, y = data(20_000, seed=1000)
    wrong, broken, shares = x.argmax(1) != y, 0, []
    for split in range(60):
        rule = Referral(nn.Identity(), error=0.1, confidence=0.9, by=by).calibrate([data(400, seed=2 * split)])
        refers = rule.refers(x)
        broken += int(wrong[~refers].double().mean() > 0.1)
        shares.append(refers.double().mean())
    assert broken < 15
    assert torch.stack(shares).mean() < 0.9  # it decides some alone
    low, high = rule.share_interval(0.9999)
    assert low <= rule.share_referred <= high
    assert low < shares[-1] < high


def test_more_errors_are_allowed_more_is_decided() -> None:
    shares = [Referral(nn.Identity(), error=error).calibrate([data(3000)]).share_referred for error in (0.02, 0.1, 0.3)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > shares[2]


def test_a_network_that_knows_nothing_refers_everything() -> None:
    x = torch.randn(600, 3)
    rule = Referral(nn.Identity()).calibrate([(x, torch.randint(0, 3, (600,)))])
    assert rule.share_referred == 1
    assert rule.refers(x).all()
    assert rule.threshold == -1


def test_a_network_that_is_never_wrong_refers_nothing() -> None:
    x = torch.randn(600, 3)
    rule = Referral(nn.Identity()).calibrate([(x, x.argmax(1))])
    assert rule.share_referred == 0
    assert not rule.refers(x).any()


BAD: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "too few": (lambda: Referral(nn.Identity()).calibrate([data(100)]), lb.errors.InputError, "at least 139 .*got 100"),
    "error": (lambda: Referral(nn.Identity(), error=5), lb.errors.InputError, "error must be"),
    "confidence": (lambda: Referral(nn.Identity(), confidence=1), lb.errors.InputError, "confidence must be"),
    "by": (lambda: Referral(nn.Identity(), by="doubt"), lb.errors.UnknownName, "total"),  # type: ignore[arg-type]
    "pixels": (
        lambda: Referral(nn.Identity()).calibrate([(torch.randn(9, 2, 4, 4), torch.zeros(9, 4, 4).long())]),
        lb.errors.ShapeMismatch,
        "classes",
    ),
    "NaN": (
        lambda: Referral(nn.Identity()).calibrate([(torch.full((200, 3), torch.nan), torch.zeros(200).long())]),
        lb.errors.NonFinite,
        "NaN",
    ),
    "NaN later": (
        lambda: Referral(nn.Identity()).calibrate([data(300)]).refers(torch.full((2, 4), torch.nan)),
        lb.errors.NonFinite,
        "NaN",
    ),
    "a class that is none": (
        lambda: Referral(nn.Identity()).calibrate([(data(200)[0], torch.full((200,), 3))]),
        lb.errors.InputError,
        "between 0 and 2, and one is 3",
    ),
    "one class": (
        lambda: Referral(nn.Identity(), by="total").calibrate([(torch.randn(200, 1), torch.zeros(200).long())]),
        lb.errors.ShapeMismatch,
        "two classes",
    ),
    "not calibrated": (lambda: Referral(nn.Identity()).refers(torch.randn(2, 3)), lb.errors.InputError, "calibrate"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused(name: str) -> None:
    action, error, words = BAD[name]
    with pytest.raises(error, match=words):
        action()


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    model = nn.Linear(3, 3)
    with torch.no_grad():
        model.weight.copy_(2 * torch.eye(3))
    x, y = data(900)
    rule = Referral(lb.baselines.Temperature(model), 0.15, by="total").calibrate([(x, y)])
    lb.save(rule, tmp_path / "x.lb")
    again = lb.load(tmp_path / "x.lb", nn.Linear(3, 3))
    assert torch.equal(again.refers(x), rule.refers(x))
    assert again.share_referred == rule.share_referred < 1
    again.model.log_temperature.fill_(1.0)
    with pytest.raises(lb.errors.InputError, match="changed"):
        again.refers(x)


def test_a_changed_predictor_is_refused() -> None:
    x, y = data(300)
    model = nn.Linear(x.shape[1], x.shape[1])
    rule = Referral(model, error=0.9).calibrate([(x, y)])
    rule.refers(x)
    with torch.no_grad():
        model.bias += 0.01
    with pytest.raises(lb.errors.InputError, match="has changed since it was calibrated"):
        rule.refers(x)
