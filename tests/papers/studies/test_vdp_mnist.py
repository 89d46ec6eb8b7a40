"""VDP++ on MNIST: verdicts, and measures against closed forms."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from leanbayes.bayesian import Bayesian
from leanbayes.posteriors import Normal
from leanbayes.propagate import Moments
from leanbayes.subspace import everything
from leanbayes_papers import STUDIES, Claim, Job, Results, vdp_measures
from leanbayes_papers.noise import SNRS
from leanbayes_papers.studies import vdp_mnist as mnist
from leanbayes_papers.vdp_measures import by_noise, under_noise, when_pruned
from tests.papers.test_experiments import Metrics, made_up

PLAIN, VI, VDP = "deterministic", "vi, KL 0.3", "vdp, KL 0.3"
WORST = "accuracy@-6 dB"


def curve(measure: str, method: str, *, rising: bool = False) -> dict[tuple[str, str], float]:
    """A measure that falls, or rises, as the SNR rises."""
    values = [1.0, 0.8, 0.6, 0.5, 0.45, 0.41, 0.4]
    return {
        (f"{measure}@{snr:g} dB", method): value
        for snr, value in zip(SNRS, values[:: -1 if rising else 1], strict=True)
    }


FULL, DIAGONAL = "variance of a few images by covariance", "variance of a few images by moments"
JUDGED_TWICE = {
    mnist.EQUAL, mnist.ROBUST, mnist.FALLS, mnist.SAME, mnist.PRUNES, mnist.BETTER, mnist.LACKS, mnist.DIFFER,
    mnist.SENSITIVITY, mnist.INFIDELITY, mnist.BY_RATIO,
}  # fmt: skip
AS_IN_THE_PAPER = {
    (WORST, VI): 0.9, (WORST, VDP): 0.9, **curve("variance", VDP), **curve(FULL, VDP), **curve(DIAGONAL, VDP),
    ("lost at 90 %", VDP): 0.005, ("accuracy@90 % pruned", VDP): 0.9, ("accuracy@95 % pruned", VDP): 0.8,
    ("accuracy@90 % pruned by ratio", VDP): 0.95, ("sensitivity max", PLAIN): 0.48, ("sensitivity max", VI): 0.6,
    ("infidelity", VDP): 0.4, ("infidelity", VI): 0.6,
}  # fmt: skip
HALF = {  # one part of each claim that has several, and the contrary of the others
    (WORST, VI): 0.9, **curve("variance", VDP, rising=True), **curve(FULL, VDP), **curve(DIAGONAL, VDP, rising=True),
    ("lost at 90 %", PLAIN): 0.9, ("lost at 90 %", VDP): 0.1, ("accuracy@90 % pruned", VDP): 0.6,
    ("accuracy@90 % pruned by ratio", VDP): 0.4, ("sensitivity max", VDP): 0.48, ("sensitivity max", VI): 0.6,
    ("infidelity", VDP): 0.4, ("infidelity", VI): 0.4, ("accuracy", VI): 0.4,
}  # fmt: skip
WEAK = {(measure, method.removesuffix(", KL 0.3")): value for (measure, method), value in AS_IN_THE_PAPER.items()}
WEAK |= {("sensitivity max", PLAIN): 0.5}
WORLDS: dict[str, tuple[dict[tuple[str, str], float], set[Claim]]] = {
    "as in the paper": (AS_IN_THE_PAPER, JUDGED_TWICE | {mnist.BALANCE}),
    "compressed at a cost": (
        AS_IN_THE_PAPER | {("accuracy", VDP): 0.4},
        JUDGED_TWICE - {mnist.EQUAL} | {mnist.BALANCE, mnist.COST},
    ),
    "all alike": ({}, {mnist.EQUAL, mnist.LACKS}),
    "by half": (HALF, set()),
    "only with the small weight": (WEAK, {mnist.EQUAL, mnist.LACKS}),
}


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.usefixtures("verdicts_only")
def test_verdicts_follow_the_numbers(world: str) -> None:
    given, right = WORLDS[world]
    found = made_up("vdp-mnist", "cpu", given)
    assert {text for text, answer in found.items() if answer == "holds"} == {claim.text for claim in right}
    assert set(found.values()) <= {"holds", "does not hold"}


@pytest.fixture
def verdicts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lines", "summary"):
        monkeypatch.setattr(mnist, name, lambda *arguments, **options: None)


def conclude(seeds: range, given: dict[tuple[str, str], float]) -> dict[str, Any]:
    size = STUDIES["vdp-mnist"].sizes["cpu"]
    jobs = STUDIES["vdp-mnist"].jobs(size, seeds)
    results = Results([(job, {"metrics": Metrics(job, given)}) for job in jobs])
    return {verdict.claim.text: verdict for verdict in mnist._conclude(results, size).verdicts}


@pytest.mark.usefixtures("verdicts_only")
def test_a_verdict_tells_of_both_weights_and_is_that_of_the_larger() -> None:
    found = conclude(range(3), {("lost at 90 %", "vdp"): 0.0})[mnist.PRUNES.text]
    assert found.answer == "does not hold"
    assert found.why.index("With a KL weight of 0.3: vdp, KL 0.3") < found.why.index(
        "With 0.003 the claim holds: vdp: "
    )


@pytest.mark.usefixtures("verdicts_only")
def test_one_seed_decides_only_what_needs_no_spread() -> None:
    found = conclude(range(1), curve("variance", VDP) | curve(FULL, VDP) | curve(DIAGONAL, VDP))
    assert {text for text, verdict in found.items() if verdict.answer != "not testable here"} == {
        mnist.FALLS.text,
        mnist.SAME.text,
    }


@pytest.mark.usefixtures("verdicts_only")
def test_without_results_nothing_is_decided() -> None:
    size = STUDIES["vdp-mnist"].sizes["cpu"]
    assert {verdict.answer for verdict in mnist._conclude(Results([]), size).verdicts} == {"not testable here"}


def ten_of_a_hundred(*, uncertain: bool) -> Bayesian:
    """A linear layer of 2x50, in which ten weights tell the classes by the first five inputs; those may be unsure."""
    model = nn.Linear(50, 2, bias=False)
    with torch.no_grad():
        model.weight.fill_(1e-3)
        model.weight[:, :5] = torch.tensor([[1.0], [-1.0]])
    bnn = Bayesian(model, subspace=everything(), posterior=Normal(1e-4), propagate="moments")
    (_, part), *_ = bnn.parts()
    scale = torch.full((2, 50), 1e-6)
    scale[:, :5] = 0.5 if uncertain else 1e-4
    with torch.no_grad():
        part.rho.copy_(scale.expm1().log().view_as(part.rho))
    torch.testing.assert_close(next(iter(bnn.weights().values())).variance().sqrt(), scale, rtol=1e-2, atol=1e-8)
    return bnn


def test_pruning_to_the_weights_that_matter_loses_nothing_and_by_the_ratio_only_if_they_are_sure() -> None:
    x = torch.randn(400, 50, generator=torch.Generator().manual_seed(0))
    y = (x[:, :5].sum(1) < 0).long()
    for uncertain in (False, True):
        found = when_pruned(ten_of_a_hundred(uncertain=uncertain), x, y, 64, [0.0, 0.9, 1.0])
        assert found["accuracy@0 % pruned"] > 0.98
        assert found["accuracy@90 % pruned"] == pytest.approx(1, abs=0.02)
        assert found["lost at 90 %"] == found["accuracy@0 % pruned"] - found["accuracy@90 % pruned"]
        assert found["accuracy@100 % pruned"] == pytest.approx((y == 0).float().mean().item())
        by_ratio = found["accuracy@90 % pruned by ratio"]
        assert by_ratio < 0.7 if uncertain else by_ratio > 0.98
    plain = when_pruned(ten_of_a_hundred(uncertain=False).model, x, y, 1, [0.0, 0.9])
    assert not any("ratio" in name for name in plain)


def test_the_full_covariance_and_its_diagonal_agree_where_nothing_is_shared_and_only_there() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(6, 5), torch.zeros(6, dtype=torch.long)
    one = Bayesian(nn.Linear(5, 3), subspace=everything(), posterior=Normal(0.3), propagate="moments")
    found = mnist._propagated(one, x, y, 1)
    assert one.predict_by == Moments()
    for snr in SNRS:
        assert found[f"{FULL}@{snr:g} dB"] == pytest.approx(found[f"{DIAGONAL}@{snr:g} dB"], rel=1e-4)
        assert found[f"variance of a few images by sample@{snr:g} dB"] > 0
    net = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    two = Bayesian(net, subspace=everything(), posterior=Normal(0.3), propagate="moments")
    found = mnist._propagated(two, x, y, 1)
    assert found[f"{FULL}@40 dB"] != pytest.approx(found[f"{DIAGONAL}@40 dB"], rel=1e-2)


class Scaled(nn.Module):
    """A network of pixels in [0, 1], given standardised ones."""

    def __init__(self, net: nn.Module, unit: float) -> None:
        super().__init__()
        self.net, self.unit = net, unit

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x * self.unit)  # type: ignore[no-any-return]


def test_explanations_are_measured_in_pixels_of_0_to_1() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    x, y = torch.rand(20, 6), torch.randint(3, (20,))
    raw, standard = (
        mnist._explained(model, x / unit, y, 1, unit) for model, unit in ((net, 1.0), (Scaled(net, 0.3), 0.3))
    )
    assert standard == pytest.approx(raw, rel=1e-4)
    assert raw != pytest.approx(mnist._explained(net, x, y, 1, 0.3), rel=0.05)


def test_variances_are_drawn_relative_to_the_lowest_ratio_and_only_of_what_has_them() -> None:
    wanted = curve("variance", "vdp") | {(f"variance@{snr:g} dB", "deterministic"): 0.0 for snr in SNRS}
    found = []
    for method in ("deterministic", "vdp"):
        for seed, times in ((0, 1.0), (1, 3.0)):
            metrics = {measure: times * value for (measure, of), value in wanted.items() if of == method}
            found.append((Job(method, "vi", "mnist", seed), {"metrics": metrics}))
    series = by_noise(Results(found), "variance")
    assert list(series) == ["vdp"]
    assert series["vdp"][-6.0] == [0.5, 1.5]
    assert series["vdp"][40.0] == pytest.approx([0.2, 0.6])


def test_jobs_repeat_bit_for_bit_for_any_seed() -> None:
    experiment = STUDIES["vdp-mnist"]
    size = replace(experiment.sizes["smoke"], samples=2)
    for job in experiment.jobs(size, [1003]):
        if job.method != PLAIN:
            first, again = (experiment.run(job, size, None)["metrics"] for _ in range(2))
            assert first == again
            assert {"accuracy@-6 dB", "lost at 90 %", "infidelity"} <= first.keys()


def test_noise_of_a_sure_network_has_no_variance_and_hardly_changes_what_is_clear() -> None:
    x = 10 * torch.eye(3).repeat(20, 1)
    found = under_noise(nn.Identity(), x, x.argmax(1), 4, " here")
    assert found["accuracy here@40 dB"] == 1
    assert found["accuracy here@-6 dB"] < 0.9
    assert {value for name, value in found.items() if name.startswith("variance")} == {0.0}


def test_the_settings_name_the_methods_that_are_judged() -> None:
    for size in ("cpu", "paper"):
        chosen = STUDIES["vdp-mnist"].sizes[size]
        assert set(chosen.methods) == {PLAIN, "vi", VI, "vdp", VDP}
        assert {0.0, 0.9, 0.95} <= set(chosen.options["fractions"])
    assert pytest.approx(0.05 / 0.01) == vdp_measures.TESTS
