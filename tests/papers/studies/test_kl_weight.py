"""The weight of the KL: each claim follows its numbers."""

import math

import pytest
from torch import nn

from leanbayes.bayesian import Bayesian
from leanbayes.posteriors import Normal
from leanbayes_papers.studies.kl_weight import median_scale
from tests.papers.made_up import made_up

METHODS = ("partial 1 %", "last layer", "vi", "vdp")


def answer(given: dict[tuple[str, str], float], part: str) -> str:
    (verdict,) = [value for name, value in made_up("kl-weight", "cpu", given).items() if part in name]
    return verdict


@pytest.mark.parametrize(
    ("measure", "gain", "part"),
    [
        ("ece", -0.1, "better calibrated"),
        ("ood/unseen/auroc", 0.1, "detect unseen"),
        ("nll", -0.1, "no worse than with"),
    ],
)
def test_all_four_must_gain(measure: str, gain: float, part: str) -> None:
    better = {(measure, method): 0.5 + gain for method in METHODS}
    assert answer(better, part) == "holds"
    assert answer(better | {(measure, "vdp"): 0.5 - gain}, part) == "does not hold"


@pytest.mark.parametrize("scale", ["0.001", "0.1"])
def test_a_start_that_is_better_speaks_against_ours(scale: str) -> None:
    assert answer({}, "scales that start") == "holds"
    assert answer({("nll", f"partial 1 %, σ from {scale}"): 0.4}, "scales that start") == "does not hold"


def test_the_median_scale_is_that_of_all_weights() -> None:
    bnn = Bayesian(nn.Linear(3, 2), posterior=Normal(0.05))
    bnn_scales = dict(bnn.parts())
    bnn_scales["bias"].rho.data.fill_(math.log(math.expm1(0.5)))  # two of eight: no matter to the median
    assert median_scale(bnn) == pytest.approx(0.05)
