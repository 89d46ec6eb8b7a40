"""The sweeps against the formulas in float64, and cut into pieces against whole tensors."""

import pytest
import torch
from torch import Tensor

from leanbayes.optim import sweeps
from leanbayes.optim.sweeps import (
    AdamRule,
    FusedRow,
    NaturalRule,
    adam_sweep,
    by_kernel,
    fused_sweep,
    fuses,
    in_pieces,
    natural_sweep,
    write_scales,
)

RULE = NaturalRule(
    size=300.0, decay=2e-3, centre=0.3, start=0.1, lr=0.2, beta1=0.9, forget=0.05, correction=0.19, clip=None
)


def tensors(dtype: torch.dtype, count: int = 2000) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    normal = {name: torch.randn(count, generator=generator, dtype=torch.float64) for name in "mgGRr"}
    values = {
        "mean": normal["m"],
        "momentum": 0.1 * normal["g"],
        "gradient": 0.1 * normal["G"],
        "rho": -3 + 2 * normal["r"],
        "rho_gradient": 0.01 * normal["R"],
        "curvature": torch.rand(count, generator=generator, dtype=torch.float64) - 1e-3,
    }
    return {name: value.to(dtype) for name, value in values.items()}


def step(rule: NaturalRule, t: dict[str, Tensor], centre: Tensor | None = None) -> None:
    natural_sweep(
        rule,
        [t["curvature"]],
        [t["rho"]],
        [t["rho_gradient"]],
        ([t["mean"]], [t["gradient"]], [t["momentum"]]),
        None if centre is None else [centre],
    )


@pytest.mark.parametrize("clip", [None, 0.05])
@pytest.mark.parametrize("centred", [False, True])
def test_a_natural_step_is_the_formula(clip: float | None, centred: bool) -> None:
    """The formulas of the paper in float64; float32 must keep about six digits."""
    exact = tensors(torch.float64)
    scale = torch.log1p(exact["rho"].exp())
    estimate = exact["rho_gradient"] / torch.sigmoid(exact["rho"]) / scale
    h, rule = exact["curvature"], NaturalRule(**(vars(RULE) | {"clip": clip}))
    change = rule.forget * (estimate - h)
    curvature = h + change + change.square() / (2 * (h + rule.decay))
    momentum = 0.9 * exact["momentum"] + 0.1 * exact["gradient"]
    centre = torch.linspace(-1, 1, len(h), dtype=torch.float64) if centred else torch.full_like(h, 0.3)
    direction = (rule.start + rule.decay) * (momentum / rule.correction + rule.decay * (exact["mean"] - centre))
    direction /= curvature + rule.decay
    if clip is not None:
        direction = direction.clamp(-clip, clip)
    expected = {
        "curvature": curvature,
        "momentum": momentum,
        "mean": exact["mean"] - rule.lr * direction,
        "rho": torch.log(torch.expm1((rule.size * (curvature + rule.decay)).rsqrt())),
    }
    for dtype, tolerance in ((torch.float64, 1e-11), (torch.float32, 2e-5)):
        values = tensors(dtype)
        step(rule, values, centre.to(dtype) if centred else None)
        for name, value in expected.items():
            torch.testing.assert_close(values[name].double(), value, rtol=tolerance, atol=tolerance / 10)


@pytest.mark.parametrize("clip", [None, 0.05])
def test_the_kernel_makes_the_same_step(clip: float | None) -> None:
    """Both are compared with the step in float64, on tensors that are large enough for a kernel."""
    pytest.importorskip("numba")
    rule, count = NaturalRule(**(vars(RULE) | {"clip": clip})), 2**17 + 1000
    names = ("curvature", "rho", "rho_gradient", "mean", "gradient", "momentum")
    exact, values = (tensors(dtype, count) for dtype in (torch.float64, torch.float32))
    before = {name: values[name].clone() for name in ("gradient", "rho_gradient")}
    step(rule, exact)
    assert by_kernel(rule, [values[name] for name in names])
    assert all(torch.equal(value, values[name]) for name, value in before.items())
    for name in names:
        torch.testing.assert_close(values[name].double(), exact[name], rtol=2e-5, atol=2e-6)
    assert not by_kernel(rule, [exact[name] for name in names])
    assert not by_kernel(rule, [values[name][:100] for name in names])


def test_the_kernel_knows_the_limits_of_its_numbers() -> None:
    """Scales from 10⁻⁷ to 30, a curvature that has fallen to −δ, and scales that underflow."""
    pytest.importorskip("numba")
    count = 2**17
    scale = torch.logspace(-7, 1.5, count, dtype=torch.float64)
    rule = NaturalRule(**(vars(RULE) | {"forget": 0.0, "size": 1.0, "decay": 1e-4}))
    exact, values = (tensors(dtype, count) for dtype in (torch.float64, torch.float32))
    exact["curvature"].copy_(scale**-2 - rule.decay)
    values["curvature"].copy_(exact["curvature"])
    names = ("curvature", "rho", "rho_gradient", "mean", "gradient", "momentum")
    assert by_kernel(rule, [values[name] for name in names])
    written = torch.nn.functional.softplus(values["rho"].double(), threshold=40)
    torch.testing.assert_close(written, scale, rtol=2e-5, atol=0)
    values["curvature"].fill_(-rule.decay)
    values["rho"].fill_(-2000.0)
    values["rho_gradient"].zero_()
    values["gradient"].fill_(1e-3)
    assert by_kernel(NaturalRule(**(vars(rule) | {"clip": 1.0})), [values[name] for name in names])
    assert all(torch.isfinite(value).all() for value in values.values())


def test_pieces_give_the_same_numbers_as_whole_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = []
    for limit in (2**30, 96):
        monkeypatch.setattr(sweeps, "_CACHED", limit)
        parts = [tensors(torch.float32, count) for count in (7, 250, 1, 90)]
        names = list(parts[0])
        groups = 0
        for columns in in_pieces([[part[name] for name in names] for part in parts]):
            t = dict(zip(names, columns, strict=True))
            assert sum(piece.numel() for piece in t["mean"]) <= limit
            means = (t["mean"], t["gradient"], t["momentum"])
            natural_sweep(RULE, t["curvature"], t["rho"], t["rho_gradient"], means)
            groups += 1
        ends.append(parts)
        assert groups == (1 if limit > 1000 else 5)
    for whole, cut in zip(*ends, strict=True):
        for name, value in whole.items():
            torch.testing.assert_close(value, cut[name], rtol=1e-6, atol=1e-8)


def test_tensors_that_are_empty_or_in_another_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweeps, "_CACHED", 4)
    grid = torch.arange(6.0).view(2, 3)
    (group,) = in_pieces([(torch.zeros(0), torch.zeros(0)), (grid.T, torch.zeros(3, 2))])
    assert group[0][0].shape == (3, 2)
    assert [len(column) for column in group] == [1, 1]


def test_a_step_without_scales_or_without_means() -> None:
    before, values = tensors(torch.float64), tensors(torch.float64)
    natural_sweep(RULE, [values["curvature"]], [values["rho"]], [values["rho_gradient"]], None)
    assert torch.equal(values["mean"], before["mean"])
    assert torch.equal(values["momentum"], before["momentum"])
    assert not torch.equal(values["curvature"], before["curvature"])
    values = tensors(torch.float64)
    means = ([values["mean"]], [values["gradient"]], [values["momentum"]])
    natural_sweep(RULE, [values["curvature"]], [values["rho"]], None, means)
    assert torch.equal(values["curvature"], before["curvature"])
    assert not torch.equal(values["mean"], before["mean"])


def test_scales_that_underflow_give_no_nan() -> None:
    values = tensors(torch.float32, 3)
    values["rho"].fill_(-2000.0)
    values["rho_gradient"].zero_()
    step(RULE, values)
    assert all(torch.isfinite(value).all() for value in values.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scales_are_written_as_they_are(dtype: torch.dtype) -> None:
    scale = torch.logspace(-7, 2, 50, dtype=dtype)
    rho = torch.empty_like(scale)
    write_scales([rho], [scale.clone()])
    torch.testing.assert_close(torch.nn.functional.softplus(rho), scale, rtol=2e-6, atol=0)


def test_an_adam_step_is_that_of_torch() -> None:
    generator = torch.Generator().manual_seed(1)
    ours = torch.randn(50, generator=generator, dtype=torch.float64)
    theirs = torch.nn.Parameter(ours.clone())
    first, second = torch.zeros_like(ours), torch.zeros_like(ours)
    adam = torch.optim.Adam([theirs], lr=0.01)
    for count in range(1, 6):
        gradient = torch.randn(50, generator=generator, dtype=torch.float64)
        theirs.grad = gradient.clone()
        adam.step()
        adam_sweep(
            AdamRule(0.01, (0.9, 0.999), 1e-8, (1 - 0.9**count, 1 - 0.999**count)),
            [ours],
            [gradient],
            [first],
            [second],
        )
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("averages", [False, True])
def test_the_fused_kernel_makes_the_steps_of_curvature_adam_and_average(averages: bool) -> None:
    """One small and one large tensor, against the separate sweeps in float64."""
    pytest.importorskip("numba")
    adam = AdamRule(0.01, (0.9, 0.999), 1e-8, (0.271, 0.002997))
    for count in (1000, 2**17 + 1000):
        exact, values = (tensors(dtype, count) for dtype in (torch.float64, torch.float32))
        for given in (exact, values):
            given["second"] = given["momentum"].square() + 1e-4
            given["average"] = given["mean"] + 0.1
        natural_sweep(RULE, [exact["curvature"]], [exact["rho"]], [exact["rho_gradient"]], None)
        gradient = exact["gradient"] + RULE.decay * (exact["mean"] - RULE.centre)
        adam_sweep(adam, [exact["mean"]], [gradient], [exact["momentum"]], [exact["second"]])
        names = ("curvature", "rho", "rho_gradient", "mean", "gradient", "momentum", "second")
        assert fuses([values[name] for name in names])
        row = tuple(values[name] for name in names)
        fused_sweep([FusedRow(row, values["average"] if averages else None, 0.25, RULE, adam)])
        if averages:
            exact["average"].lerp_(exact["mean"], 0.25)
        for name, value in values.items():
            torch.testing.assert_close(value.double(), exact[name], rtol=2e-5, atol=2e-6)
