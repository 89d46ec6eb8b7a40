import math

import pytest
import torch
from torch import nn

from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError
from leanbayes.kl import MonteCarlo
from leanbayes.posteriors import (
    FAMILIES,
    Erlang,
    Gamma,
    GeneralisedError,
    Horseshoe,
    InverseGamma,
    Laplace,
    LogGamma,
    LogNormal,
    RelativeScale,
    Wald,
    Weibull,
)
from leanbayes.priors import HorseshoeLaw
from leanbayes.subspace import layers
from tests.posteriors.conformance import CASES, CHECKS


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_conformance(case, check):
    check(case)


@pytest.mark.parametrize("family", [Gamma, Weibull, Wald, GeneralisedError, LogGamma])
@pytest.mark.parametrize("shape", [0.0, -1.0, math.nan, math.inf, "2", None])
def test_bad_shapes(family, shape):
    with pytest.raises(InputError, match=f"{family.__name__} needs a finite shape above 0, got"):
        family(shape=shape)


def test_shapes_that_have_no_mean_or_are_not_whole():
    with pytest.raises(InputError, match=r"InverseGamma needs a finite shape above 1, got 1\.0"):
        InverseGamma(shape=1.0)
    with pytest.raises(InputError, match=r"Erlang needs a whole shape of at least 1, got 2\.5"):
        Erlang(shape=2.5)
    with pytest.raises(InputError, match=r"InverseGamma.* has no variance"):
        InverseGamma(shape=2.0).variance(torch.ones(2))
    assert InverseGamma(shape=2.01).variance(torch.ones(2)).isfinite().all()


@pytest.mark.parametrize("family", FAMILIES.values())
def test_every_family_checks_its_initial_scale(family):
    with pytest.raises(InputError, match="init_scale must be a positive finite number"):
        family(init_scale=0.0)
    assert family(init_scale=RelativeScale(0.1)).init_scale == RelativeScale(0.1)


@pytest.mark.parametrize("case", [case for case in CASES if case.family.positive], ids=str)
def test_the_positive_part(case):
    """v = σξ, or |w|: positive, and w is v shifted, or v with a sign."""
    weight = case.weight(None)
    noise = weight.noise(torch.Generator().manual_seed(0), 1000)
    form = case.family.form(weight.mean, weight.spread, part=True)
    part, drawn = form.variable(form.base(noise)), weight.sample(noise)
    assert (part > 0).all()
    if case.family.relative:
        torch.testing.assert_close(drawn.abs(), part)
        assert (drawn.sign() == weight.mean.sign()).all()
    else:
        torch.testing.assert_close(drawn - drawn.min(0).values, part - part.min(0).values)


@pytest.mark.parametrize("case", [case for case in CASES if not case.family.positive], ids=str)
def test_families_on_the_whole_line_have_no_positive_part(case):
    with pytest.raises(InputError, match="has no positive part"):
        case.family.form(torch.zeros(1), torch.ones(1), part=True)


def test_a_log_normal_weight_is_never_zero():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    nn.init.zeros_(model[0].bias)
    with pytest.raises(InputError, match="can neither be nor become 0, and some of the weights are 0; leave them out"):
        Bayesian(model, posterior=LogNormal())
    bnn = Bayesian(model, posterior=LogNormal(), subspace=layers("1"))
    assert bnn.kl().isfinite()


@pytest.mark.parametrize("case", [case for case in CASES if not case.family.symmetric], ids=str)
def test_flipout_needs_symmetric_noise(case):
    bnn = Bayesian(nn.Linear(3, 2), posterior=case.family, propagate="flipout")
    with pytest.raises(InputError, match="flipout needs noise that is symmetric about 0"):
        bnn(torch.ones(4, 3))


@pytest.mark.parametrize("case", [case for case in CASES if case.has_variance], ids=str)
def test_local_reparameterization_has_the_mean_and_variance_of_sampled_weights(case):
    torch.manual_seed(0)
    model = nn.Linear(3, 2).double()
    bnn = Bayesian(model, posterior=type(case.family)(init_scale=0.3))
    x = torch.tensor([1.0, -2.0, 0.5], dtype=torch.float64).expand(40_000, 3)
    source = torch.Generator().manual_seed(1)
    weights = bnn.draw(40_000, generator=source)
    by_sample = torch.einsum("soi,si->so", weights["weight"].detach(), x) + weights["bias"].detach()
    with torch.no_grad():
        by_local = bnn.call(bnn.weights(), (x,), {}, propagate="local", generator=source)
    for draws in (by_sample, by_local):
        assert ((draws.mean(0) - model(x[0])).abs() < 5 * draws.std(0) / 200).all()
    difference = (by_sample - model(x[0])).square() - (by_local - model(x[0])).square()
    assert (difference.mean(0).abs() < 5 * difference.std(0) / 200).all()


def test_what_has_no_variance_cannot_be_carried_by_local():
    bnn = Bayesian(nn.Linear(3, 2), posterior=Horseshoe(), prior=HorseshoeLaw(0.0, 1.0), kl=MonteCarlo(2))
    with pytest.raises(InputError, match=r'Horseshoe.* has no variance.*use propagate="sample"'):
        bnn.call(bnn.weights(), (torch.ones(1, 3),), {}, propagate="local")
    assert bnn.call(bnn.weights(), (torch.ones(1, 3),), {}, propagate="flipout").isfinite().all()


def test_half_precision_and_large_tensors():
    for family in FAMILIES.values():
        noise = family().noise(torch.zeros(70_000, dtype=torch.bfloat16), None, torch.Generator().manual_seed(0))
        assert noise.isfinite().all(), family
        assert family is Laplace or (noise > 0).all() or not family.positive or family is LogNormal
