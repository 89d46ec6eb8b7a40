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
from leanbayes_papers import STUDIES, Claim, Results, vdp_measures
from leanbayes_papers.noise import SNRS
from leanbayes_papers.studies import vdp_mnist as mnist
from tests.papers.made_up import Metrics, curve, made_up

PLAIN, VI, VDP = "deterministic", "vi, KL 0.3", "vdp, KL 0.3"
WORST = "accuracy@-6 dB"


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
    answers = made_up("vdp-mnist", "cpu", given)
    assert {text for text, answer in answers.items() if answer == "holds"} == {claim.text for claim in right}
    assert set(answers.values()) <= {"holds", "does not hold"}


def conclude(seeds: range, given: dict[tuple[str, str], float]) -> dict[str, Any]:
    size = STUDIES["vdp-mnist"].sizes["cpu"]
    jobs = STUDIES["vdp-mnist"].jobs(size, seeds)
    results = Results([(job, {"metrics": Metrics(job, given)}) for job in jobs])
    return {verdict.claim.text: verdict for verdict in mnist._conclude(results, size).verdicts}


@pytest.mark.usefixtures("verdicts_only")
def test_a_verdict_tells_of_both_weights_and_is_that_of_the_larger() -> None:
    verdict = conclude(range(3), {("lost at 90 %", "vdp"): 0.0})[mnist.PRUNES.text]
    assert verdict.answer == "does not hold"
    assert verdict.why.index("With a KL weight of 0.3: vdp, KL 0.3") < verdict.why.index(
        "With 0.003 the claim holds: vdp: "
    )


@pytest.mark.usefixtures("verdicts_only")
def test_one_seed_decides_only_what_needs_no_spread() -> None:
    verdicts = conclude(range(1), curve("variance", VDP) | curve(FULL, VDP) | curve(DIAGONAL, VDP))
    assert {text for text, verdict in verdicts.items() if verdict.answer != "not testable here"} == {
        mnist.FALLS.text,
        mnist.SAME.text,
    }


@pytest.mark.usefixtures("verdicts_only")
def test_without_results_nothing_is_decided() -> None:
    size = STUDIES["vdp-mnist"].sizes["cpu"]
    assert {verdict.answer for verdict in mnist._conclude(Results([]), size).verdicts} == {"not testable here"}


def test_the_full_covariance_and_its_diagonal_agree_where_nothing_is_shared_and_only_there() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(6, 5), torch.zeros(6, dtype=torch.long)
    one = Bayesian(nn.Linear(5, 3), subspace=everything(), posterior=Normal(0.3), propagate="moments")
    metrics = mnist._propagated(one, x, y, 1)
    assert one.predict_by == Moments()
    for snr in SNRS:
        assert metrics[f"{FULL}@{snr:g} dB"] == pytest.approx(metrics[f"{DIAGONAL}@{snr:g} dB"], rel=1e-4)
        assert metrics[f"variance of a few images by sample@{snr:g} dB"] > 0
    net = nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3))
    two = Bayesian(net, subspace=everything(), posterior=Normal(0.3), propagate="moments")
    metrics = mnist._propagated(two, x, y, 1)
    assert metrics[f"{FULL}@40 dB"] != pytest.approx(metrics[f"{DIAGONAL}@40 dB"], rel=1e-2)


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


def test_jobs_repeat_bit_for_bit_for_any_seed() -> None:
    study = STUDIES["vdp-mnist"]
    size = replace(study.sizes["smoke"], samples=2)
    for job in study.jobs(size, [1003]):
        if job.method != PLAIN:
            first, again = (study.run(job, size, None)["metrics"] for _ in range(2))
            assert first == again
            assert {"accuracy@-6 dB", "lost at 90 %", "infidelity"} <= first.keys()


def test_the_settings_name_the_methods_that_are_judged() -> None:
    for size in ("cpu", "paper"):
        chosen = STUDIES["vdp-mnist"].sizes[size]
        assert set(chosen.methods) == {PLAIN, "vi", VI, "vdp", VDP}
        assert {0.0, 0.9, 0.95} <= set(chosen.options["fractions"])
    assert pytest.approx(0.05 / 0.01) == vdp_measures.TESTS
