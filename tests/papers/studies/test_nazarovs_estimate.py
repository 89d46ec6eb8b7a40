from typing import Any

import pytest
import torch
from torch import nn
from torch.distributions import Normal as NormalLaw

from leanbayes.bayesian import Bayesian
from leanbayes.kl import MonteCarlo
from leanbayes.posteriors import Normal
from leanbayes_papers import STUDIES, Job
from leanbayes_papers.studies import nazarovs_estimate as estimate
from tests.papers.made_up import made_up

NAME, WAYS = "nazarovs-estimate", list(estimate._WAYS)
OURS = list(estimate._OURS)
ERRORS = {sigma: f"error@σ={sigma:g}, M=1" for sigma in (0.01, 0.1, 0.5, 1.0, 2.0)}


@pytest.mark.parametrize(
    ("claim", "good", "bad"),
    [
        (estimate.FALLS, {("slope", way): -0.5 for way in WAYS}, {("slope", way): -0.5 for way in WAYS[:2]}),
        (estimate.SMALLER, {(name, OURS[1]): sigma for sigma, name in ERRORS.items()}, {}),
        (estimate.SAME, {("error to known", w): 1.0 for w in WAYS}, {("error to known", w): 1.0 for w in WAYS[1:]}),
        (estimate.LINEAR, {("evenness", "direct"): 1.0}, {("evenness", "direct"): 1.2}),
        (estimate.CONSTANT, {("growth", way): 1.0 for way in OURS}, {("growth", OURS[0]): 1.0}),
        (estimate.MEMORY, {("bytes", "direct"): 3.0}, {("bytes", "direct"): 1.0}),
    ],
)
@pytest.mark.usefixtures("no_figures")
def test_verdicts_follow_the_numbers(claim: Any, good: Any, bad: Any) -> None:
    assert made_up(NAME, "cpu", good)[claim.text] == "holds"
    assert made_up(NAME, "cpu", bad)[claim.text] == "does not hold"


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimate, "lines", lambda *arguments, **options: None)
    monkeypatch.setattr(estimate, "_logs", lambda values: values)


@pytest.mark.parametrize("sigma", [0.01, 0.3, 1.0, 2.0])
def test_the_known_deviation_is_that_of_many_draws(sigma: float) -> None:
    noise = torch.randn(400_000, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    law = NormalLaw(torch.tensor(0.5, dtype=torch.float64), sigma)
    w = 0.5 + sigma * noise
    each = law.log_prob(w) - NormalLaw(0.0, 1.0).log_prob(w)
    assert each.std().item() == pytest.approx(estimate.known_deviation(sigma), rel=0.01)


def test_all_ways_err_as_much_as_independent_draws_do() -> None:
    size = STUDIES[NAME].sizes["smoke"]
    wanted = type(size)(**{**vars(size), "options": {**size.options, "repeats": 150}})
    for way in WAYS:
        metrics = estimate._run(Job(way, "vi", "one weight", 3), wanted, None)["metrics"]
        assert metrics["error to known"] == pytest.approx(1, abs=0.1)  # 600 estimates: 1/√1200 is a deviation
        assert metrics["slope"] == pytest.approx(-0.5, abs=0.1)


def test_only_the_direct_graph_grows_and_it_does_so_evenly() -> None:
    size = STUDIES[NAME].sizes["smoke"]
    metrics = {w: estimate._run(Job(w, "vi", "one weight", 0), size, None)["metrics"] for w in WAYS}
    assert metrics["direct"]["evenness"] == 1
    assert metrics["direct"]["nodes per draw"] > 5
    assert [metrics[way]["growth"] for way in OURS] == [1, 1]
    assert all(metrics[way]["bytes"] < metrics["direct"]["bytes"] for way in OURS)


def test_nodes_and_bytes_are_counted_once() -> None:
    a = torch.ones(4, requires_grad=True)
    b = a * 2
    assert estimate.graph_size(b + b) == 3  # the leaf, the product, the sum
    assert estimate.graph_size(torch.ones(1)) == 0

    model = nn.Linear(3, 2, bias=False)
    bnn = Bayesian(model, posterior=Normal(0.1), kl=MonteCarlo(1, statistics="sampled"))
    x, y = torch.randn(50, 3), torch.zeros(50, dtype=torch.long)
    one, two = (estimate.kept_bytes(bnn, x.repeat(n, 1), y.repeat(n), torch.Generator().manual_seed(0)) for n in (1, 2))
    # another 50 rows: the inputs (3 floats), their log-probabilities (2 floats) and the targets (8 bytes)
    assert two - one == 50 * (3 * 4 + 2 * 4 + 8)
