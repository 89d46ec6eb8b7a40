"""What the studies of VDP++ measure: pruning and noise against closed forms."""

import pytest
import torch
from torch import nn

from leanbayes.bayesian import Bayesian
from leanbayes.posteriors import Normal
from leanbayes.subspace import everything
from leanbayes_papers import Job, Results
from leanbayes_papers.noise import SNRS
from leanbayes_papers.vdp_measures import by_noise, under_noise, when_pruned
from tests.papers.made_up import curve


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
        metrics = when_pruned(ten_of_a_hundred(uncertain=uncertain), x, y, 64, [0.0, 0.9, 1.0])
        assert metrics["accuracy@0 % pruned"] > 0.98
        assert metrics["accuracy@90 % pruned"] == pytest.approx(1, abs=0.02)
        assert metrics["lost at 90 %"] == metrics["accuracy@0 % pruned"] - metrics["accuracy@90 % pruned"]
        assert metrics["accuracy@100 % pruned"] == pytest.approx((y == 0).float().mean().item())
        by_ratio = metrics["accuracy@90 % pruned by ratio"]
        assert by_ratio < 0.7 if uncertain else by_ratio > 0.98
    plain = when_pruned(ten_of_a_hundred(uncertain=False).model, x, y, 1, [0.0, 0.9])
    assert not any("ratio" in name for name in plain)


def test_noise_of_a_sure_network_has_no_variance_and_hardly_changes_what_is_clear() -> None:
    x = 10 * torch.eye(3).repeat(20, 1)
    metrics = under_noise(nn.Identity(), x, x.argmax(1), 4, " here")
    assert metrics["accuracy here@40 dB"] == 1
    assert metrics["accuracy here@-6 dB"] < 0.9
    assert {value for name, value in metrics.items() if name.startswith("variance")} == {0.0}


def test_variances_are_drawn_relative_to_the_lowest_ratio_and_only_of_what_has_them() -> None:
    wanted = curve("variance", "vdp") | {(f"variance@{snr:g} dB", "deterministic"): 0.0 for snr in SNRS}
    runs = []
    for method in ("deterministic", "vdp"):
        for seed, times in ((0, 1.0), (1, 3.0)):
            metrics = {measure: times * value for (measure, of), value in wanted.items() if of == method}
            runs.append((Job(method, "vi", "mnist", seed), {"metrics": metrics}))
    series = by_noise(Results(runs), "variance")
    assert list(series) == ["vdp"]
    assert series["vdp"][-6.0] == [0.5, 1.5]
    assert series["vdp"][40.0] == pytest.approx([0.2, 0.6])
