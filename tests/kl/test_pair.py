"""Every pair of posterior and prior: against the direct estimate, against quadrature, and by the size of its graph."""

import math

import pytest
import torch
from torch import Tensor, distributions

from leanbayes.errors import InputError
from leanbayes.kl import Exact, MonteCarlo
from leanbayes.kl.pair import resolve
from leanbayes.kl.table import table
from leanbayes.posteriors import RandomWeight
from tests.kl.pairs import FAMILIES, FINITE, MEANS, PRIORS, SCALES, number, quadrature, weight

ROWS = {(row.posterior, row.prior): row for row in table(FAMILIES, PRIORS)}
GROUPS = {name: [prior for family, prior in FINITE if family == name] for name in FAMILIES}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def truth(name: str, prior: str, count: int) -> float:
    """The divergence of the three coordinates, or for a joint law of ``count`` of them, by quadrature."""
    family = FAMILIES[name]
    total = sum(quadrature(name, prior, m, s, count) for m, s in zip(MEANS, SCALES, strict=True)) * (count / 3)
    if family.joint:
        total -= family.noise_entropy(count) + sum(math.log(s) for s in SCALES) * (count / 3)
    return total


@pytest.mark.parametrize("name", FAMILIES)
def test_the_estimate_is_the_direct_one_on_the_same_noise(name):
    for prior in GROUPS[name]:
        results = []
        for estimator in (MonteCarlo(9, statistics="accumulated"), MonteCarlo(9, direct=True)):
            one = weight(FAMILIES[name])
            value = estimator(one, PRIORS[prior], generator())
            gradients = torch.autograd.grad(value, (one.mean, one.spread), allow_unused=True, materialize_grads=True)
            results.append((value.detach(), *gradients))
        for result, expected in zip(*results, strict=True):
            assert expected.isfinite().all(), prior
            torch.testing.assert_close(
                result, expected, rtol=1e-11, atol=1e-11, msg=lambda m, prior=prior: f"{prior}: {m}"
            )


@pytest.mark.parametrize("name", FAMILIES)
def test_its_mean_is_the_divergence_and_its_standard_error_is_honest(name):
    for prior in GROUPS[name]:
        if prior == "Radial":  # of one coordinate it is a Normal prior, which quadrature knows
            mean, scale = (number(values[0])[None] for values in (MEANS, SCALES))
            many, samples, copies = RandomWeight("w", mean, None, scale, FAMILIES[name]), 400, 1
            expected = quadrature(name if name != "Radial" else "Normal", prior, MEANS[0], SCALES[0])
        else:
            copies = 2 if FAMILIES[name].joint else 400
            many, samples = weight(FAMILIES[name], copies), 2000 if FAMILIES[name].joint else 64
            expected = truth(name, prior, 3 * copies) if FAMILIES[name].joint else copies * truth(name, prior, 3)
        result = MonteCarlo(samples).estimate(many, PRIORS[prior], generator(1))
        assert result.value == pytest.approx(expected, abs=4 * result.standard_error + 1e-9 * abs(expected)), prior
        assert 0 < result.standard_error < 0.2 * abs(expected) + 0.2 * copies, prior
        assert result.method == ROWS[name, prior].method.split()[-1]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_tuple_has_an_exact_divergence(name):
    """With expectations in place of means over draws: against quadrature, and against torch where it knows."""
    for prior in GROUPS[name]:
        if resolve(FAMILIES[name], PRIORS[prior]).terms is None:
            continue
        one = weight(FAMILIES[name])
        result = Exact()(one, PRIORS[prior])
        assert result.item() == pytest.approx(truth(name, prior, 3), rel=2e-5 if name == "Radial" else 1e-6), prior
        result.backward()
        assert one.spread.grad.isfinite().all()


@pytest.mark.parametrize(
    ("name", "prior", "law"),
    [
        ("Exponential", "Gamma", lambda s: distributions.Exponential(1 / s)),
        ("Gamma", "Exponential", lambda s: distributions.Gamma(number(2.4), 1 / s)),
        ("Gamma", "Gamma", lambda s: distributions.Gamma(number(2.4), 1 / s)),
        ("Erlang", "Chi-squared", lambda s: distributions.Gamma(number(3.0), 1 / s)),
    ],
)
def test_the_positive_part_has_the_divergences_that_torch_knows(name, prior, law):
    expected = distributions.kl_divergence(law(number(0.0) + torch.tensor(SCALES, dtype=torch.float64)), PRIORS[prior])
    assert Exact()(weight(FAMILIES[name]), PRIORS[prior]).item() == pytest.approx(expected.sum().item(), rel=1e-10)


def test_a_log_normal_posterior_and_normal_prior_have_a_closed_form():
    result = Exact()(weight(FAMILIES["LogNormal"]), PRIORS["Normal"]).item()
    assert result == pytest.approx(truth("LogNormal", "Normal", 3), rel=1e-6)


def test_the_divergence_of_two_radial_laws_is_that_of_their_radii():
    scale = torch.full((7,), 0.5, dtype=torch.float64)
    one = RandomWeight("w", torch.zeros(7, dtype=torch.float64), None, scale, FAMILIES["Radial"])
    expected = math.log(1.4 / 0.5) + 0.5 * (0.5 / 1.4) ** 2 - 0.5
    result = MonteCarlo(2000).estimate(one, PRIORS["Radial"], generator())
    assert result.value == pytest.approx(expected, abs=4 * result.standard_error)


class TestInfinitePairs:
    @pytest.mark.parametrize("name", FAMILIES)
    def test_they_are_refused_with_a_reason_and_the_pairs_that_can_be_had(self, name):
        for prior in [prior for prior in PRIORS if prior not in GROUPS[name]]:
            with pytest.raises(InputError, match=r"is infinite: .* a .* posterior can have the priors \[") as caught:
                MonteCarlo(2)(weight(FAMILIES[name]), PRIORS[prior])
            assert str(GROUPS[name]) in str(caught.value)
            with pytest.raises(InputError, match="is infinite"):
                MonteCarlo(2).method(FAMILIES[name], PRIORS[prior])

    def test_what_nazarovs_pairs_and_cannot_be(self):
        assert GROUPS["Horseshoe"] == ["Horseshoe"]
        for name in GROUPS:
            assert not {"Pareto", "Dirichlet"} & set(GROUPS[name])
        for prior in ("Inverse-Gamma", "Standard Wald", "Inverse-Gaussian"):
            assert "mean of x^-1" in resolve(FAMILIES["Exponential"], PRIORS[prior]).infinite

    @pytest.mark.parametrize(("name", "prior"), [("Horseshoe", "Normal"), ("Exponential", "Inverse-Gamma")])
    def test_means_over_more_draws_only_grow(self, name, prior):
        """The mean of log p of such a pair does not settle: what a single draw in a million adds is not small."""
        noise = FAMILIES[name].noise(torch.zeros(1_000_000, dtype=torch.float64), None, generator())
        x = SCALES[0] * noise
        log_p = PRIORS[prior].log_prob(x)
        assert log_p.min().item() / len(x) < -0.02 * abs(log_p.median().item())


def nodes_of(value: Tensor) -> int:
    """Nodes of the graph behind a value."""
    seen, waiting = set(), [value.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in seen:
            seen.add(node)
            waiting += [following for following, _ in node.next_functions]
    return len(seen)


class TestGraph:
    @pytest.mark.parametrize("name", FAMILIES)
    def test_it_does_not_grow_with_the_draws(self, name):
        for prior in GROUPS[name]:
            row = ROWS[name, prior]
            large = 50 if prior == "Radial" else 1000  # a joint prior is asked draw by draw
            variants = [MonteCarlo(1)] if row.taylor_d_p is None else [MonteCarlo(1), MonteCarlo(1, taylor=3)]
            for variant in variants:
                counts = []
                for samples in (1, 10, large):
                    estimator = MonteCarlo(samples, taylor=variant.taylor)
                    one = weight(FAMILIES[name])
                    counts.append(nodes_of(estimator(one, PRIORS[prior], generator())))
                    method = estimator.method(FAMILIES[name], PRIORS[prior])
                    assert method in row.method if variant.taylor is None else method == "taylor"
                assert counts[0] == counts[1] == counts[2], (prior, counts)

    def test_the_direct_one_does(self):
        counts = [
            nodes_of(MonteCarlo(m, direct=True)(weight(FAMILIES["Normal"]), PRIORS["Normal"])) for m in (1, 10, 1000)
        ]
        assert counts[1] - counts[0] == pytest.approx(9 * (counts[0] - 4), rel=0.5)
        assert counts[2] > 900 * (counts[1] - counts[0]) / 9
        assert MonteCarlo(3, direct=True).method(FAMILIES["Normal"], PRIORS["Normal"]) == "direct"

    def test_nor_does_what_is_kept_for_the_backward_pass(self):
        kept = {}
        for samples in (1, 1000):
            tensors: list[Tensor] = []

            def pack(tensor: Tensor, tensors: list[Tensor] = tensors) -> Tensor:
                tensors.append(tensor)
                return tensor

            estimator = MonteCarlo(samples, statistics="accumulated")
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                assert estimator(weight(FAMILIES["Laplace"], 50), PRIORS["Normal"]).requires_grad
            kept[samples] = sum(tensor.numel() for tensor in tensors)
            streamed = estimator(weight(FAMILIES["Laplace"], 50), PRIORS["Laplace"])
            assert [tensor.numel() for tensor in streamed.grad_fn.saved_tensors] == [150, 150]
        assert kept[1] == kept[1000] > 0
