"""Statistics against closed forms, sums of squares, counted permutations and simulation."""

import json
import math
from dataclasses import asdict
from itertools import combinations, permutations

import numpy as np
import pytest
import torch
from scipy import special
from torch import nn

import leanbayes as lb
from leanbayes.errors import InputError, NonFinite, ShapeMismatch
from leanbayes.lab.statistics import (
    anova,
    holm,
    interval,
    interval_over_groups,
    paired_t,
    paired_tests,
    seed_tests,
    spearman,
    spearman_over_groups,
    weight_distance,
    weights_of,
)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape)


def phi(x: float) -> float:
    return 0.5 * math.erfc(-x / math.sqrt(2))


@pytest.mark.parametrize("level", [0.5, 0.9, 0.95, 0.999])
def test_intervals_of_two_and_three_values_by_closed_quantiles(level: float) -> None:
    two = interval([0.2, 0.8], level)
    t_1 = math.tan(math.pi * level / 2)  # Cauchy
    assert two.mean == pytest.approx(0.5)
    assert two.high - two.mean == pytest.approx(t_1 * 0.3, rel=1e-9)
    assert two.mean - two.low == pytest.approx(t_1 * 0.3, rel=1e-9)
    three = interval([1.0, 2.0, 6.0], level)
    t_2 = level * math.sqrt(2 / (1 - level**2))
    assert three.deviation == pytest.approx(math.sqrt(7))
    assert three.high == pytest.approx(3 + t_2 * math.sqrt(7 / 3), rel=1e-9)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    inside = [result.low <= 3.0 <= result.high for result in (interval(row, 0.8) for row in 3 + normal(3000, 4))]
    assert abs(np.mean(inside) - 0.8) < 4 * math.sqrt(0.8 * 0.2 / 3000)


def test_one_run_has_no_interval_and_equal_runs_a_narrow_one() -> None:
    one = interval([0.75])
    assert (one.mean, one.deviation, one.low, one.high, one.n) == (0.75, None, None, None, 1)
    same = interval([0.5] * 4)
    assert (same.low, same.high, same.deviation) == (0.5, 0.5, 0.0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64])
def test_tensors_of_any_kind_are_values(dtype: torch.dtype) -> None:
    values = torch.tensor([1, 2, 4], dtype=dtype)
    assert interval(values) == interval([1.0, 2.0, 4.0]) == interval(np.array([1, 2, 4], dtype=np.float16))
    assert interval(values.double().requires_grad_()) == interval([1.0, 2.0, 4.0])


def test_anova_by_sums_of_squares() -> None:
    groups = {"a": normal(4, seed=1), "b": normal(7, seed=2) + 0.5, "c": normal(1, seed=3), "d": normal(5, seed=4)}
    everything = np.concatenate(list(groups.values()))
    between = sum(len(g) * (g.mean() - everything.mean()) ** 2 for g in groups.values()) / 3
    within = sum(((g - g.mean()) ** 2).sum() for g in groups.values()) / 13
    result = anova(groups)
    assert (result.between, result.within) == (3, 13)
    assert math.isclose(result.F, between / within, rel_tol=1e-10)
    assert result.p == pytest.approx(special.betainc(13 / 2, 3 / 2, 13 / (13 + 3 * result.F)), rel=1e-9)
    assert anova(list(groups.values())) == result


def test_anova_of_equal_groups_rejects_as_often_as_it_says() -> None:
    p = np.array([anova(rows).p for rows in normal(500, 3, 4)])
    for level in (0.05, 0.3):
        assert abs((p < level).mean() - level) < 4 * math.sqrt(level * (1 - level) / len(p))


def test_anova_agrees_with_shuffled_labels() -> None:
    rng, groups = np.random.default_rng(5), normal(3, 15, seed=6) + np.array([[0.0], [0.3], [0.6]])

    def ratio(values: np.ndarray) -> np.ndarray:
        parts = values.reshape(-1, 3, 15)
        between = parts.mean(2).var(1)  # F is a growing function of this share, the total being fixed
        return between / values.reshape(-1, 45).var(1)

    shuffled = ratio(rng.permuted(np.tile(groups.ravel(), (20000, 1)), axis=1))
    p = (shuffled >= ratio(groups.ravel())).mean()
    assert 0.02 < p < 0.9
    assert anova(groups).p == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / 20000) + 0.01)


def test_paired_t_by_closed_forms() -> None:
    two = paired_t([1.0, 3.0], [0.0, 1.5])
    t = 1.25 / 0.25
    assert (two.difference, two.n) == (1.25, 2)
    assert two.t == pytest.approx(t)
    assert two.p == pytest.approx(1 - 2 / math.pi * math.atan(t), rel=1e-9)
    three = paired_t([0.9, 0.8, 0.7], [0.85, 0.82, 0.6])
    d = np.array([0.05, -0.02, 0.1])
    t = d.mean() / math.sqrt(((d - d.mean()) ** 2).sum() / 2 / 3)
    assert three.t == pytest.approx(t, rel=1e-9)
    assert three.p == pytest.approx(1 - t / math.sqrt(2 + t**2), rel=1e-9)
    assert three.corrected == three.p


def test_paired_t_is_signed_and_symmetric() -> None:
    a, b = normal(2, 6)
    one, other = paired_t(a, b), paired_t(b, a)
    assert (one.t, one.p, one.difference) == pytest.approx((-other.t, other.p, -other.difference))


def test_paired_t_agrees_with_all_flips_of_sign() -> None:
    a, b = normal(2, 14, seed=8)
    a = a + 0.4
    signs = 1 - 2 * ((np.arange(2**14)[:, None] >> np.arange(14)) & 1)
    flipped = (signs * (a - b)).mean(1)
    p = (np.abs(flipped) >= abs((a - b).mean()) - 1e-12).mean()
    assert paired_t(a, b).p == pytest.approx(p, abs=0.01)


def test_differences_that_only_round_are_no_spread() -> None:
    a = np.array([0.1, 0.2, 0.3, 0.7])
    assert np.ptp(a + 0.1 - a) > 0
    with pytest.raises(InputError, match=r"differs by 0.1.*seeds"):
        paired_t(a + 0.1, a)
    with pytest.raises(InputError, match="differs by 0,"):
        paired_t(a, a)


def closed_testing(p: list[float]) -> list[float]:
    """Holm's corrected p is the largest Bonferroni p of any set of hypotheses with this one in it."""
    everyone = range(len(p))
    sets = [chosen for size in everyone for chosen in combinations(everyone, size + 1)]
    return [max(min(1.0, len(s) * min(p[j] for j in s)) for s in sets if i in s) for i in everyone]


@pytest.mark.parametrize("seed", range(5))
def test_holm_is_closed_testing(seed: int) -> None:
    p = (np.random.default_rng(seed).uniform(size=6) ** 3).round(3).tolist()
    p[4] = p[1]  # a tie
    assert holm(p) == pytest.approx(closed_testing(p), rel=1e-12)


def test_holm_of_none_and_of_no_probability() -> None:
    assert holm([]) == []
    assert holm([0.2]) == [0.2]
    for wrong in (1.1, -0.1, math.nan):
        with pytest.raises(InputError, match="from 0 to 1"):
            holm([0.5, wrong])


def test_every_pair_is_tested_and_corrected_together() -> None:
    table = {"plain": normal(5, seed=1), "vi": normal(5, seed=2) + 1, "partial": normal(5, seed=3) + 5}
    result = paired_tests(table)
    assert list(result) == ["plain vs vi", "plain vs partial", "vi vs partial"]
    alone = [paired_t(table["plain"], table["vi"]), paired_t(table["plain"], table["partial"])]
    assert [(result[name].t, result[name].p) for name in list(result)[:2]] == [(test.t, test.p) for test in alone]
    assert [t.corrected for t in result.values()] == pytest.approx(closed_testing([t.p for t in result.values()]))


def test_a_pair_without_spread_loses_no_other_pair() -> None:
    result = paired_tests({"a": [0.5, 0.6, 0.9], "b": [0.5, 0.6, 0.9], "c": [0.1, 0.5, 0.6]})
    same = result["a vs b"]
    assert (same.difference, same.t, same.p, same.corrected) == (0.0, None, None, None)
    assert result["a vs c"].corrected == pytest.approx(min(1, 2 * result["a vs c"].p))  # two tests, not three


def test_rejecting_any_true_hypothesis_is_as_rare_as_said() -> None:
    tables = normal(200, 4, 5)
    wrong = [min(t.corrected for t in paired_tests(dict(zip("abcd", rows, strict=True))).values()) for rows in tables]
    assert np.mean(np.array(wrong) < 0.1) < 0.1 + 4 * math.sqrt(0.1 * 0.9 / 200)


def test_a_comparison_is_tested_seed_by_seed() -> None:
    a, b, c = normal(3, 4, seed=9)
    rows = {name: dict(enumerate(x.tolist())) for name, x in (("a", a), ("b", b), ("c", c))}
    mixed = {"c": rows["c"], "a": rows["a"], "b": dict(reversed(rows["b"].items()))}  # the order of runs is no matter
    result = seed_tests({"nll": mixed})
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    assert result["anova"]["nll"] == pytest.approx(asdict(anova([a, b, c])))
    expected = {name: asdict(test) for name, test in paired_tests({"c": c, "a": a, "b": b}).items()}
    assert result["paired"]["nll"] == expected


def test_what_a_comparison_lacks_is_left_out_and_loses_no_other() -> None:
    a, b = normal(2, 4, seed=9)
    whole = {name: dict(enumerate(x.tolist())) for name, x in (("a", a), ("b", b))}
    broken = {"none": {}, "nan": {0: 1.0, 1: math.nan, 2: 3.0}, "gap": {0: 1.0, 1: None}, "one": {3: 0.5}}
    result = seed_tests({"nll": whole | broken, "same": {"a": {0: 1.0, 1: 1.0}, "b": {0: 1.0, 1: 1.0}}, "empty": {}})
    assert list(result["anova"]) == ["nll"]
    assert result["anova"]["nll"] == pytest.approx(asdict(anova([a, b, [0.5]])))
    assert result["paired"] == {"nll": {"a vs b": asdict(paired_t(a, b))}}
    later = {"a": whole["a"], "b": {seed + 2: value for seed, value in whole["b"].items()}}
    assert seed_tests({"nll": later})["paired"]["nll"]["a vs b"] == asdict(paired_t(a[2:], b[:2]))


def counted(a: list[float], b: list[float]) -> tuple[float, float]:
    """ρ and its p from all orders, with ranks by comparing each with each."""

    def ranks(x: list[float]) -> np.ndarray:
        return np.array([sum(other < one for other in x) + (sum(other == one for other in x) + 1) / 2 for one in x])

    x, y = ranks(a) - (len(a) + 1) / 2, ranks(b) - (len(a) + 1) / 2
    every = np.array([x[list(order)] @ y for order in permutations(range(len(a)))])
    above, below = (every >= x @ y - 1e-9).mean(), (every <= x @ y + 1e-9).mean()
    return x @ y / math.sqrt((x @ x) * (y @ y)), min(1.0, 2 * min(above, below))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ([1, 2, 3], [1, 2, 3]),
        ([1, 2, 3, 4], [4, 3, 2, 1]),
        ([3, 1, 4, 1.5, 5, 9, 2], [2, 7, 1, 8, 2.5, 8.1, 3]),
        ([1, 1, 2, 2, 3, 3], [1, 2, 2, 3, 3, 3]),
        ([0, 0, 0, 1], [5, 6, 7, 7]),
    ],
)
def test_spearman_of_few_pairs_counts_every_order(a: list[float], b: list[float]) -> None:
    rho, p = counted(a, b)
    result = spearman(a, b)
    assert result.exact
    assert (result.rho, result.p) == pytest.approx((rho, p), rel=1e-9)


def test_spearman_of_eight_and_of_nine() -> None:
    a, b = normal(2, 8, seed=3)
    assert spearman(a, b).exact
    assert spearman(a, b).p == pytest.approx(counted(a.tolist(), b.tolist())[1], rel=1e-9)
    assert not spearman(*normal(2, 9)).exact


def test_spearman_of_many_pairs() -> None:
    a, b = normal(2, 40, seed=4)
    b = b + 0.3 * a
    d = a.argsort().argsort() - b.argsort().argsort()
    rho = 1 - 6 * (d**2).sum() / (40 * (40**2 - 1))
    result = spearman(a, b)
    assert result.rho == pytest.approx(rho, rel=1e-9)
    t_squared = rho**2 * 38 / (1 - rho**2)
    assert result.p == pytest.approx(special.betainc(19, 0.5, 38 / (38 + t_squared)), rel=1e-9)
    ranks = np.random.default_rng(0).permuted(np.tile(np.arange(40), (20000, 1)), axis=1)
    shuffled = 1 - 6 * ((ranks - np.arange(40)) ** 2).sum(1) / (40 * (40**2 - 1))
    p = (np.abs(shuffled) >= abs(rho)).mean()
    assert result.p == pytest.approx(p, abs=4 * math.sqrt(p * (1 - p) / 20000) + 0.002)


def test_the_interval_of_spearman_counts_groups_and_not_pairs() -> None:
    """For independent Normal pairs, Fisher's z has the error 1.03/√(n − 3). Copies of a pair in a group add nothing."""
    random = np.random.default_rng(3)
    a = random.normal(size=150)
    b = -0.6 * a + 0.8 * random.normal(size=150)
    alone = spearman_over_groups(a, b, range(150))
    fisher = np.tanh(np.arctanh(alone.mean) + np.array([-1, 1]) * 1.96 * 1.03 / 147**0.5)
    assert (alone.low, alone.high) == pytest.approx(tuple(fisher), abs=0.05)
    thrice = spearman_over_groups(np.repeat(a, 3), np.repeat(b, 3), np.repeat(np.arange(150), 3).tolist())
    assert (thrice.mean, thrice.low, thrice.high) == pytest.approx((alone.mean, alone.low, alone.high), abs=1e-9)
    assert spearman_over_groups(a, b, [index % 4 for index in range(150)]).low is None
    with pytest.raises(lb.errors.ShapeMismatch, match="one group for each pair"):
        spearman_over_groups(a, b, [0])


def test_spearman_feels_only_the_order() -> None:
    a, b = normal(2, 30)
    assert spearman(np.exp(5 * a), -(b**3)).rho == pytest.approx(-spearman(a, b).rho)


@pytest.mark.parametrize("test", [paired_t, spearman])
def test_pairs_that_cannot_be_tested_are_named(test: object) -> None:
    with pytest.raises(ShapeMismatch, match="3 and 4"):
        test([1.0, 2.0, 4.0], [1.0, 2.0, 3.0, 5.0])  # type: ignore[operator]
    with pytest.raises(InputError, match=r"a has 1 values.*seeds"):
        test([1.0], [2.0])  # type: ignore[operator]
    with pytest.raises(NonFinite, match=r"b has NaN.*\[1\]"):
        test([1.0, 2.0, 4.0], [1.0, math.nan, 3.0])  # type: ignore[operator]


def test_what_cannot_be_judged_is_said() -> None:
    with pytest.raises(InputError, match="constant"):
        spearman([1.0, 1.0, 1.0], [1.0, 2.0, 3.0])
    with pytest.raises(InputError, match="at least 3"):
        spearman([1.0, 2.0], [1.0, 2.0])
    with pytest.raises(InputError, match="level"):
        interval([1.0, 2.0], 1.0)
    with pytest.raises(InputError, match="0 values"):
        interval([])
    with pytest.raises(NonFinite, match="values has NaN or infinite"):
        interval([1.0, math.inf])
    with pytest.raises(NonFinite):
        interval([1.0, None])  # type: ignore[list-item]
    with pytest.raises(InputError, match="list of numbers"):
        interval(["high", "low"])  # type: ignore[list-item]
    with pytest.raises(InputError, match="list of numbers"):
        interval(0.5)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="list of numbers"):
        interval([[1.0, 2.0], [3.0]])  # type: ignore[list-item]
    with pytest.raises(InputError, match="two groups"):
        anova({"a": [1.0, 2.0]})
    with pytest.raises(InputError, match="more values than groups"):
        anova({"a": [1.0], "b": [2.0]})
    with pytest.raises(InputError, match="'b' has 0 values"):
        anova({"a": [1.0, 2.0], "b": []})
    with pytest.raises(InputError, match="do not vary"):
        anova({"a": [0.1, 0.1, 0.1], "b": [0.3, 0.1 + 0.2]})
    with pytest.raises(InputError, match="at least two rows"):
        paired_tests({"a": [1.0, 2.0]})
    with pytest.raises(ShapeMismatch, match="'b': 3"):
        paired_tests({"a": [1.0, 2.0], "b": [1.0, 2.0, 3.0]})


def gaussian_distance(a: np.ndarray, b: np.ndarray) -> float:
    """sup |Φ_a − Φ_b| is met where the densities cross, the roots of a quadratic."""
    (m, s), (n, r) = ((x.mean(), x.std()) for x in (a, b))
    roots = np.roots([1 / s**2 - 1 / r**2, -2 * (m / s**2 - n / r**2), m**2 / s**2 - n**2 / r**2 + 2 * math.log(s / r)])
    return max(abs(phi((x - m) / s) - phi((x - n) / r)) for x in roots.real)


@pytest.mark.parametrize(("shift", "scale"), [(0.5, 1.1), (0.0, 2.0), (3.0, 0.2), (0.01, 1.001)])
@pytest.mark.parametrize("unit", [1.0, 1e-4, 1e5])
def test_distance_of_two_gaussians_in_closed_form(shift: float, scale: float, unit: float) -> None:
    a, b = normal(300, seed=1) * unit, (normal(500, seed=2) * scale + shift) * unit
    result = weight_distance(a, b, components=1)
    assert result.statistic == pytest.approx(gaussian_distance(a, b), abs=2e-5)
    assert (result.n_a, result.n_b) == (300, 500)
    root = result.statistic * math.sqrt(300 * 500 / 800)
    series = 2 * sum((-1) ** (k - 1) * math.exp(-2 * k**2 * root**2) for k in range(1, 200))
    if root > 0.3:
        assert result.p == pytest.approx(series, rel=1e-6, abs=1e-12)


def test_distance_of_mixtures_near_the_truth_and_near_the_weights_own() -> None:
    rng = np.random.default_rng(0)
    narrow = np.where(rng.uniform(size=40000) < 0.3, rng.normal(-2, 0.5, 40000), rng.normal(1, 1, 40000))
    wide = np.where(rng.uniform(size=40000) < 0.6, rng.normal(-2, 0.5, 40000), rng.normal(1, 1, 40000))
    x = np.linspace(-6, 6, 4001)
    truth = np.abs([0.3 * (phi((v + 2) / 0.5) - phi(v - 1)) for v in x]).max()
    result = weight_distance(narrow, wide, components=2)
    error = 4 * math.sqrt(0.25 / 40000) * math.sqrt(2)
    assert result.statistic == pytest.approx(truth, abs=error)
    xs = np.sort(np.concatenate([narrow, wide]))
    shares = [np.searchsorted(np.sort(s), xs, side="right") / 40000 for s in (narrow, wide)]
    assert result.empirical == pytest.approx(np.abs(shares[0] - shares[1]).max(), abs=1e-12)
    assert result.p < 1e-10


def test_one_gaussian_for_what_is_none_shows_in_the_empirical_distance() -> None:
    two_peaks = torch.cat([torch.from_numpy(normal(3000)) - 4, torch.from_numpy(normal(3000, seed=1)) + 4])
    one_peak = torch.from_numpy(normal(6000, seed=2)) * two_peaks.std() + two_peaks.mean()
    blind, seeing = (weight_distance(two_peaks, one_peak, components=k) for k in (1, 3))
    assert blind.statistic < 0.05 < 0.2 < blind.empirical
    assert seeing.statistic == pytest.approx(seeing.empirical, abs=0.03)


def test_a_distance_is_zero_to_itself_symmetric_and_repeats() -> None:
    a, b = torch.from_numpy(normal(2000)), torch.from_numpy(normal(2000, seed=1) * 1.3)
    own = weight_distance(a, a)
    assert (own.statistic, own.p, own.empirical) == (0.0, 1.0, 0.0)
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002
    one = weight_distance(a, b)
    torch.manual_seed(2)
    np.random.seed(2)  # noqa: NPY002
    assert weight_distance(a, b) == one
    assert weight_distance(b, a).statistic == pytest.approx(one.statistic, abs=1e-9)
    assert weight_distance(a.bfloat16(), b.bfloat16()).statistic == pytest.approx(one.statistic, abs=0.01)


def test_many_weights_are_thinned_without_order() -> None:
    a = torch.linspace(-1, 1, 50_000)  # in order: the first thousand alone would be far off
    result = weight_distance(a.view(100, 500), a.flip(0), components=3, most=2000)
    assert (result.n_a, result.n_b) == (2000, 2000)
    assert result.statistic < 0.06
    assert weight_distance(a, a, most=2000, seed=1).statistic == 0


def test_weights_that_are_no_distribution_are_refused() -> None:
    subset = torch.from_numpy(normal(100))
    for wrong, error, message in (
        (torch.zeros(100), InputError, "b are all 0"),
        (torch.full((100,), math.nan), NonFinite, "b has NaN"),
        (torch.ones(2), InputError, "at least 5"),
        (torch.ones(0), InputError, "0 values"),
    ):
        with pytest.raises(error, match=message):
            weight_distance(subset, wrong)
    with pytest.raises(InputError, match="components"):
        weight_distance(subset, subset, components=0)


def test_few_distinct_weights_are_no_error() -> None:
    signs = torch.tensor([-1.0, 1.0]).repeat(50)
    assert 0 <= weight_distance(signs, torch.from_numpy(normal(100))).statistic <= 1


def test_weights_of_a_bayesian_are_one_draw_and_of_others_their_own() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    model[1].bias = model[0].bias  # tied: once
    plain = torch.cat([p.detach().flatten() for p in model.parameters()])
    assert torch.equal(weights_of(model), plain)
    bnn = lb.Bayesian(model, subspace=lb.layers("1"))
    drawn = weights_of(bnn, generator=torch.Generator().manual_seed(3))
    again = bnn.draw(generator=torch.Generator().manual_seed(3))
    expected = [again.get(name, p).detach().flatten() for name, p in model.named_parameters()]
    assert torch.equal(drawn, torch.cat(expected))
    assert len(drawn) == len(plain) == 12
    assert not drawn.requires_grad
    assert not torch.equal(drawn, plain)
    with pytest.raises(InputError, match="ReLU"):
        weights_of(nn.ReLU())


def test_results_are_json() -> None:
    a, b = normal(2, 5).tolist()
    groups = {"a": a, "b": b}
    result = [interval(a), interval([1.0]), anova(groups), *paired_tests(groups).values(), spearman(a, b)]
    result += [weight_distance(a, b, components=1)]
    for record in result:
        assert type(record)(**json.loads(json.dumps(asdict(record), allow_nan=False))) == record


def test_groups_of_one_size_have_the_interval_of_their_means() -> None:
    values = np.random.default_rng(0).normal(size=(7, 4)) + np.arange(7)[:, None]
    over_groups = interval_over_groups(values.ravel(), np.repeat(list("abcdefg"), 4).tolist())
    of_means = interval(values.mean(1))
    assert (over_groups.n, over_groups.mean) == (7, pytest.approx(of_means.mean))
    assert (over_groups.low, over_groups.high) == (pytest.approx(of_means.low), pytest.approx(of_means.high))
    assert over_groups.deviation == pytest.approx(of_means.deviation)
    alone = interval(values.ravel())
    assert over_groups.high - over_groups.low > 1.5 * (alone.high - alone.low)
    assert interval_over_groups([1.0, 2.0], ["a", "a"]).low is None
    with pytest.raises(ShapeMismatch, match="2 groups and 3 values"):
        interval_over_groups([1.0, 2.0, 3.0], ["a", "b"])
