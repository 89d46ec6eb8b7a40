"""Balanced draws against their law, plain draws and closed forms."""

import math
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.propagate import Sample


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def linear(outputs: int = 2, **options: Any) -> lb.Bayesian:
    return lb.Bayesian(nn.Linear(3, outputs).double(), **{"posterior": lb.posteriors.Normal(0.4)} | options)


def noises(bnn: lb.Bayesian, by: Sample, count: int, seed: int = 0) -> Tensor:
    """Return the noise of ``count`` draws, one row each."""
    rows = islice(by.noises(bnn.weights(), seeded(seed)), count)
    return torch.stack([torch.cat([part.flatten() for part in row.values()]) for row in rows])


@given(group=st.integers(2, 9), groups=st.integers(1, 3), seed=st.integers(0, 2**31))
@settings(max_examples=25, deadline=None)
def test_the_noise_of_each_group_sums_to_zero(group: int, groups: int, seed: int) -> None:
    rows = noises(linear(), Sample(balanced=group), group * groups, seed)
    sums = rows.view(groups, group, -1).sum(1)
    torch.testing.assert_close(sums, torch.zeros_like(sums), rtol=0, atol=1e-12)


@pytest.mark.parametrize("group", [2, 3, 5])
def test_each_draw_is_standard_normal_and_all_pairs_correlate_alike(group: int) -> None:
    repeats = 4000
    layer = lb.Bayesian(nn.Linear(15, 1).double())
    rows = noises(layer, Sample(balanced=group), group * repeats // 16).view(-1, group, 16)
    rows = rows.movedim(2, 1).reshape(-1, group)
    truth = torch.full((group, group), -1 / (group - 1), dtype=torch.float64).fill_diagonal_(1)
    assert ((rows.mT @ rows / len(rows) - truth).abs() < 5 * math.sqrt(2 / len(rows))).all()
    assert ((rows**4).mean(0) - 3).abs().max() < 5 * math.sqrt(96 / len(rows))  # Var ξ⁴ = 96


def test_one_is_the_independent_draws_of_before() -> None:
    bnn = linear()
    assert Sample(balanced=1) == Sample()
    assert torch.equal(noises(bnn, Sample(), 3), torch.stack([n[0] for n in noises(bnn, Sample(), 3).split(1)]))
    x = torch.randn(4, 3, dtype=torch.float64)
    one, two = (lb.predict(bnn, x, by=by, samples=5, generator=seeded()) for by in ("sample", Sample(balanced=1)))
    assert torch.equal(one.mean, two.mean)


@pytest.mark.parametrize("method", ["loop", "vmap"])
@pytest.mark.parametrize("subspace", [lb.everything(), lb.random_k(0.5)])
@pytest.mark.parametrize("group", [2, 4])
def test_a_linear_model_has_an_exact_mean(group: int, subspace: Any, method: Any) -> None:
    """The first order is all there is, so it cancels; the variance has the scale of its closed form without bias."""
    bnn = linear(subspace=subspace)
    x = torch.randn(5, 3, dtype=torch.float64)
    options = {"likelihood": lb.Gaussian(0.3).double(), "method": method, "generator": seeded(3)}
    result = lb.predict(bnn, x, by=Sample(balanced=group), samples=2 * group, **options)
    torch.testing.assert_close(result.mean, bnn.model(x).detach())
    parts = [lb.predict(bnn, x, by=Sample(balanced=group), samples=group, **options).epistemic for _ in range(400)]
    law = lb.propagate.Covariance().law(bnn, x)
    found = torch.stack(parts)
    assert ((found.mean(0) - law.variance).abs() < 5 * found.std(0) / math.sqrt(len(found)) + 1e-12).all()


@pytest.mark.parametrize(("group", "samples"), [(2, 3), (4, 6), (8, 3)])
def test_the_variance_of_numbers_has_no_bias_in_groups_that_are_not_complete(group: int, samples: int) -> None:
    bnn, x, generator = linear(1), torch.randn(8, 3, dtype=torch.float64), seeded(5)
    options = {"likelihood": lb.Gaussian(0.3).double(), "generator": generator, "method": "loop"}
    parts = [lb.predict(bnn, x, by=Sample(balanced=group), samples=samples, **options).epistemic for _ in range(500)]
    found, law = torch.stack(parts), lb.propagate.Covariance().law(bnn, x)
    assert ((found.mean(0) - law.variance).abs() < 5 * found.std(0) / math.sqrt(len(found))).all()


def test_loop_vmap_and_auto_make_the_same_draws() -> None:
    bnn, x = linear(3), torch.randn(5, 3, dtype=torch.float64)
    means = [
        lb.predict(bnn, x, by=Sample(balanced=4), samples=18, method=method, generator=seeded()).mean
        for method in ("loop", "vmap", "auto")
    ]
    torch.testing.assert_close(means[0], means[1])
    torch.testing.assert_close(means[0], means[2])


def network() -> lb.Bayesian:
    model = nn.Sequential(nn.Linear(3, 16), nn.Tanh(), nn.Linear(16, 4)).double()
    return lb.Bayesian(model, posterior=lb.posteriors.Normal(0.1))


def test_classes_have_the_same_mean_with_less_error() -> None:
    """Twelve times less squared error in six passes is far below what is found; plain draws have ratio 1."""
    torch.manual_seed(0)
    bnn, x = network(), 2 * torch.randn(6, 3, dtype=torch.float64)
    truth = lb.predict(bnn, x, samples=20_000, method="vmap", generator=seeded(1)).mean

    def error(by: Sample) -> float:
        means = [lb.predict(bnn, x, by=by, samples=6, method="loop", generator=seeded(i)).mean for i in range(40)]
        return (torch.stack(means) - truth).square().mean().item()

    plain = error(Sample())
    for group in (2, 3, 6):
        assert error(Sample(balanced=group)) < plain / 4, group


def test_the_standard_error_is_that_of_groups() -> None:
    """Over repeated predictions the total spreads as each of them says, and a single group cannot tell."""
    torch.manual_seed(0)
    bnn, x, by = network(), 4 * torch.randn(5, 3, dtype=torch.float64), Sample(balanced=2)
    generator = seeded()
    results = [lb.predict(bnn, x, by=by, samples=32, method="vmap", generator=generator) for _ in range(80)]
    claimed = torch.stack([p.standard_error for p in results]).square().mean(0).sqrt()
    ratio = claimed / torch.stack([p.total for p in results]).std(0)
    assert ((ratio > 0.7) & (ratio < 1.4)).all(), ratio
    assert lb.predict(bnn, x, by=by, samples=2).standard_error.isinf().all()


@pytest.mark.parametrize(("group", "first"), [(2, 4), (3, 6), (4, 8)])
def test_automatic_numbers_of_draws_are_whole_groups(group: int, first: int) -> None:
    bnn, x = network(), torch.randn(20, 3, dtype=torch.float64) * torch.linspace(0, 6, 20).unsqueeze(1)
    for size in (None, 7):
        result = lb.predict(
            bnn, x, by=Sample(balanced=group), samples="auto", tolerance=0.003, max_samples=50, batch_size=size
        )
        assert (result.draws % group == 0).all()
        assert (result.draws >= first).all()
        assert (result.draws <= 50).all()
        assert len(result.draws.unique()) > 1


def test_what_cannot_be_balanced_is_refused() -> None:
    x = torch.zeros(2, 3, dtype=torch.float64)
    skewed, laplace = linear(posterior=lb.posteriors.LogNormal()), linear(posterior=lb.posteriors.Laplace())
    for bnn, group in ((skewed, 2), (skewed, 3), (laplace, 3)):
        with pytest.raises(lb.errors.InputError, match=r"Sample\("):
            lb.predict(bnn, x, by=Sample(balanced=group), samples=4)
    assert lb.predict(laplace, x, by=Sample(balanced=2), samples=4).mean.isfinite().all()
    with pytest.raises(lb.errors.InputError, match="smaller groups"):
        lb.predict(linear(), x, by=Sample(balanced=8), samples="auto", max_samples=12)
    for wrong in (0, -2, True, 2.0, "pairs"):
        with pytest.raises(lb.errors.InputError, match="balanced must be"):
            Sample(balanced=wrong)  # type: ignore[arg-type]
