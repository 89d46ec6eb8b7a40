import itertools
import math
from collections.abc import Callable

import mpmath as mp
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from leanbayes.errors import InputError, NonFinite, ShapeMismatch, UnknownName
from leanbayes.subspace.removal import REMOVAL, overlap, removal_scores, removed

RATIOS = [0, 1e-6, 1e-3, 0.1, 0.5, 1, 1.499, 1.501, 2, 5, 10, 37, 100, 1e3, 1e4, 1e6]
SCALES = [1e-4, 1e-3, 0.1, 0.3999, 0.4001, 10]
RATES = [0.05, 1.0, 20.0]
BOUNDS = {  # what the docstring of removal_scores promises, and more where more holds
    ("magnitude", torch.float32): 0,
    ("magnitude", torch.float64): 0,
    ("snr", torch.float32): 1e-7,
    ("snr", torch.float64): 1.2e-16,
    ("expected_magnitude", torch.float32): 3e-7,
    ("expected_magnitude", torch.float64): 1e-15,
    ("snr_magnitude", torch.float32): 2e-6,
    ("snr_magnitude", torch.float64): 4e-15,
    ("expected_exponential", torch.float32): 5e-7,
    ("expected_exponential", torch.float64): 2e-14,
    ("snr_exponential", torch.float32): 2e-6,
    ("snr_exponential", torch.float64): 2e-11,
}


def exact(name: str, mean: float, scale: float, rate: float) -> mp.mpf:
    """The score by the formulas of Li et al. 2024, with digits to spare for what they cancel."""
    mu, sigma, lam = abs(mp.mpf(mean)), mp.mpf(scale), mp.mpf(rate)
    r, t = mu / sigma, lam * sigma
    first = sigma * (r * mp.erf(r / mp.sqrt(2)) + 2 * mp.npdf(r))

    def log_expected(s: mp.mpf) -> mp.mpf:
        return s * r + s**2 / 2 + mp.log(mp.ncdf(r + s) + mp.exp(-2 * s * r) * mp.ncdf(s - r))

    formulas: dict[str, Callable[[], mp.mpf]] = {
        "magnitude": lambda: mu,
        "snr": lambda: r,
        "expected_magnitude": lambda: first,
        "snr_magnitude": lambda: first / mp.sqrt(sigma**2 + mu**2 - first**2) - mp.sqrt(2 / (mp.pi - 2)),
        "expected_exponential": lambda: log_expected(t),
        "snr_exponential": lambda: -mp.sqrt(log_expected(2 * t) - 2 * log_expected(t)),
    }
    return formulas[name]()


def random_weights(n: int, seed: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scale = 10 ** (2 * torch.rand(n, generator=generator, dtype=torch.float64) - 3)
    mean = 0.05 * torch.randn(n, generator=generator, dtype=torch.float64)
    return mean.to(dtype), scale.to(dtype)


class TestAgainstTruth:
    @pytest.mark.parametrize(("name", "dtype"), BOUNDS, ids=lambda value: str(value).removeprefix("torch."))
    def test_equals_many_digits_for_every_ratio_of_mean_to_scale(self, name, dtype):
        scale = torch.tensor(SCALES, dtype=torch.float64).repeat(len(RATIOS))
        mean = torch.tensor(RATIOS, dtype=torch.float64).repeat_interleave(len(SCALES)) * scale
        mean[::2] *= -1
        mean, scale = mean.to(dtype), scale.to(dtype)
        for rate in RATES if name.endswith("exponential") else RATES[:1]:
            scores = removal_scores(name, mean, scale, rate=rate)
            assert scores.dtype == dtype
            with mp.workdps(60):
                for mu, sigma, score in zip(mean.tolist(), scale.tolist(), scores.tolist(), strict=True):
                    truth = exact(name, mu, sigma, rate)
                    allowed = BOUNDS[name, dtype] * abs(truth) + mp.mpf(10) ** -50
                    assert abs(score - truth) <= allowed, (mu, sigma, rate, score, mp.nstr(truth, 18))

    @pytest.mark.parametrize(("mean", "scale", "rate"), [(0.0, 0.5, 1.0), (0.3, 0.2, 0.7), (-1.0, 0.7, 2.0)])
    def test_equals_the_definitions_by_integration(self, mean, scale, rate):
        def expected(function: Callable[[mp.mpf], mp.mpf]) -> mp.mpf:
            places = sorted([mean - 20 * scale, 0.0, mean, mean + 5 * scale, mean + 20 * scale])
            return mp.quad(lambda theta: function(theta) * mp.npdf(theta, mean, scale), places)

        def ratio(function: Callable[[mp.mpf], mp.mpf]) -> mp.mpf:
            first = expected(function)
            return first / mp.sqrt(expected(lambda theta: function(theta) ** 2) - first**2)

        def exponential(theta: mp.mpf) -> mp.mpf:
            return mp.exp(rate * abs(theta))

        truth = {
            "snr": ratio(lambda theta: theta),
            "expected_magnitude": expected(abs),
            "snr_magnitude": ratio(abs) - mp.sqrt(2 / (mp.pi - 2)),
            "expected_exponential": mp.log(expected(exponential)),
            "snr_exponential": -mp.sqrt(mp.log(1 + ratio(exponential) ** -2)),
        }
        for name, value in truth.items():
            score = removal_scores(name, *torch.tensor([mean, scale], dtype=torch.float64), rate=rate)
            assert score.item() == pytest.approx(float(abs(value) if name == "snr" else value), rel=1e-9, abs=1e-12)

    def test_a_small_rate_gives_moments_of_the_magnitude(self):
        mean, scale = random_weights(100, 0)
        first = removal_scores("expected_magnitude", mean, scale)
        spread = (scale**2 + mean**2 - first**2).sqrt()
        small = 1e-9
        torch.testing.assert_close(removal_scores("expected_exponential", mean, scale, rate=small) / small, first)
        torch.testing.assert_close(removal_scores("snr_exponential", mean, scale, rate=small) / small, -spread)


class TestOrder:
    """What grows with what: the table of the module, and where Li et al. 2024 are wrong."""

    @pytest.mark.parametrize("name", REMOVAL)
    @pytest.mark.parametrize("rate", [0.01, 1.0, 3.0])
    def test_with_the_mean_at_one_scale(self, name, rate):
        mean = torch.logspace(-3, 0.6, 400, dtype=torch.float64)
        scores = torch.stack([removal_scores(name, mean, torch.full_like(mean, s), rate=rate) for s in (0.3, 0.8, 2.0)])
        rises = scores.diff(dim=1)
        if name == "snr_exponential":  # constant up to rounding where a second sign has no probability left
            assert (rises <= 1e-13).all()
            assert (rises[:, :200] < 0).all()
        else:
            assert (rises > 0).all()

    @pytest.mark.parametrize(
        ("name", "sign"),
        [
            ("magnitude", 0),
            ("snr", -1),
            ("expected_magnitude", 1),
            ("snr_magnitude", -1),
            ("expected_exponential", 1),
            ("snr_exponential", -1),
        ],
    )
    @pytest.mark.parametrize("rate", [0.01, 1.0, 3.0])
    def test_with_the_scale_at_one_mean(self, name, sign, rate):
        scale = torch.logspace(-0.7, 1.5, 400, dtype=torch.float64)
        for mean in (0.1, 0.5, 1.0):  # at most 5 scales from 0: beyond, E|θ| − |μ| is less than rounding
            rises = removal_scores(name, torch.full_like(scale, mean), scale, rate=rate).diff()
            assert (rises.sign() == sign).all(), mean

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_snr_of_the_magnitude_grows_with_the_ratio_alone(self, dtype):
        ratio = torch.logspace(-6, 6, 20_000, dtype=dtype)
        ratio = torch.cat([ratio.new_zeros(1), ratio])
        assert (removal_scores("snr_magnitude", ratio, torch.ones_like(ratio)).diff() > 0).all()
        half = torch.full_like(ratio, 2.0**-9)
        torch.testing.assert_close(
            removal_scores("snr_magnitude", ratio * half, half),
            removal_scores("snr_magnitude", ratio, torch.ones_like(ratio)),
            rtol=0,
            atol=0,
        )

    def test_the_derivative_of_its_square_is_a_probability(self):
        ratio = torch.linspace(0.01, 8, 500, dtype=torch.float64)
        first = removal_scores("expected_magnitude", ratio, torch.ones_like(ratio))
        slope = torch.special.erf(ratio / math.sqrt(2))
        sign = slope * (1 + ratio**2) - first * ratio
        truth = torch.from_numpy(stats.chi2(3).cdf(ratio.square().tolist()))
        torch.testing.assert_close(sign, truth, rtol=1e-9, atol=1e-14)

    @pytest.mark.parametrize("seed", range(3))
    def test_so_snr_and_snr_of_the_magnitude_remove_the_same_weights(self, seed):
        mean, scale = random_weights(20_000, seed)
        one, other = (removal_scores(name, mean, scale) for name in ("snr", "snr_magnitude"))
        assert torch.equal(one.argsort(), other.argsort())
        for count in (1, 37, 1000, 6000, 19_999):
            assert overlap(one, other, count) == 1.0

    def test_even_where_equation_7_in_float32_has_lost_the_order(self):
        scale = torch.full((2000,), 0.01)
        mean = scale * torch.linspace(0, 0.02, 2000)[torch.randperm(2000, generator=torch.Generator().manual_seed(0))]
        first = (
            mean * torch.erf(mean / scale / 2**0.5) + scale * (2 / math.pi) ** 0.5 * (-((mean / scale) ** 2) / 2).exp()
        )
        as_written = first / (scale**2 + mean**2 - first**2).sqrt()
        ratio = removal_scores("snr", mean, scale)
        assert overlap(as_written, ratio, 500) < 0.5
        assert overlap(removal_scores("snr_magnitude", mean, scale), ratio, 500) == 1.0

    def test_snr_of_the_exponential_removes_the_largest_means(self):
        mean, _ = random_weights(1000, 0)
        scores = removal_scores("snr_exponential", mean, torch.full_like(mean, 0.05))
        assert torch.equal(removed(scores, 100), removed(-mean.abs(), 100))
        assert overlap(scores, mean.abs(), 100) == 0.0

    def test_snr_of_the_exponential_of_a_sure_weight_is_that_of_a_log_normal(self):
        scale = torch.tensor([1e-3, 0.1, 0.5, 3.0], dtype=torch.float64)
        torch.testing.assert_close(removal_scores("snr_exponential", 50 * scale, scale, rate=2.0), -2 * scale)


class TestExtremes:
    @pytest.mark.parametrize("name", REMOVAL)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_no_input_gives_nan(self, name, dtype):
        info = torch.finfo(dtype)
        numbers = [info.smallest_normal / 8, info.tiny, info.eps, 1e-3, 0.4, 1.0, 40.0, 1e9, info.max]
        pairs = torch.tensor(list(itertools.product([0.0, *numbers], numbers)), dtype=dtype)
        for rate in (1e-30, 1e-3, 1.0, 1e3, 1e30):
            assert not removal_scores(name, pairs[:, 0], pairs[:, 1], rate=rate).isnan().any()

    @pytest.mark.parametrize("name", ["expected_exponential", "snr_exponential"])
    def test_the_order_is_kept_where_the_exponential_overflows(self, name):
        scale = torch.tensor([10.0, 20.0, 30.0, 40.0])
        scores = removal_scores(name, torch.zeros(4), scale, rate=1000.0)
        assert scores.isfinite().all()
        assert (scores.diff().sign() == (1 if name == "expected_exponential" else -1)).all()
        assert (removal_scores(name, torch.tensor([1.0, 2.0, 3.0]), torch.full((3,), 1e-20)).isfinite()).all()

    @pytest.mark.parametrize("name", REMOVAL)
    def test_the_sign_of_the_mean_does_not_matter(self, name):
        mean, scale = random_weights(100, 3)
        assert torch.equal(removal_scores(name, mean, scale), removal_scores(name, -mean, scale))

    @pytest.mark.parametrize("name", REMOVAL)
    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
    def test_half_precision_is_scored_in_float32(self, name, dtype):
        mean, scale = random_weights(100, 4, dtype)
        scores = removal_scores(name, mean, scale)
        assert scores.dtype == torch.float32
        assert torch.equal(scores, removal_scores(name, mean.float(), scale.float()))

    @pytest.mark.parametrize("name", REMOVAL)
    def test_shapes_are_kept_nothing_is_recorded_and_nothing_is_changed(self, name):
        mean, scale = (part.view(4, 5, 5).transpose(0, 1) for part in random_weights(100, 5, torch.float32))
        before = mean.clone(), scale.clone()
        scores = removal_scores(name, mean.requires_grad_(), scale.requires_grad_())
        assert scores.shape == (5, 4, 5)
        assert not scores.requires_grad
        assert torch.equal(mean, before[0])
        assert torch.equal(scale, before[1])
        assert removal_scores(name, torch.zeros(0, 3), torch.ones(0, 3)).shape == (0, 3)
        assert removal_scores(name, torch.tensor(0.5), torch.tensor(0.5)).shape == ()
        assert removal_scores(name, torch.ones(2), torch.ones(2, dtype=torch.float64)).dtype == torch.float64


class TestRefusals:
    @pytest.mark.parametrize("name", ["SNR", "", "mean"])
    def test_an_unknown_criterion(self, name):
        with pytest.raises(UnknownName, match=r"removal criterion.*expected_exponential.*snr_magnitude"):
            removal_scores(name, torch.ones(2), torch.ones(2))

    @pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
    def test_a_rate_that_is_not_above_0(self, rate):
        with pytest.raises(InputError, match="rate"):
            removal_scores("snr_exponential", torch.ones(2), torch.ones(2), rate=rate)

    @pytest.mark.parametrize("name", [name for name in REMOVAL if name != "magnitude"])
    def test_a_deterministic_weight_has_only_a_magnitude(self, name):
        mean = torch.tensor([-2.0, 1.0])
        with pytest.raises(InputError, match="without scales choose 'magnitude'"):
            removal_scores(name, mean, None)
        for scale in (0.0, -0.1):
            with pytest.raises(InputError, match="1 of 2 scales are not above 0"):
                removal_scores(name, mean, torch.tensor([scale, 1.0]))
        assert removal_scores("magnitude", mean, None).tolist() == [2.0, 1.0]
        assert removal_scores("magnitude", mean, torch.zeros(2)).tolist() == [2.0, 1.0]

    @pytest.mark.parametrize("name", REMOVAL)
    def test_shapes_that_do_not_fit(self, name):
        with pytest.raises(ShapeMismatch, match=r"\(2, 3\).*\(3,\)"):
            removal_scores(name, torch.ones(2, 3), torch.ones(3))

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_numbers_that_are_none(self, bad):
        with pytest.raises(NonFinite, match="1 of 2 means"):
            removal_scores("magnitude", torch.tensor([bad, 1.0]), None)
        with pytest.raises(NonFinite, match="1 of 2 scales"):
            removal_scores("snr", torch.ones(2), torch.tensor([bad, 1.0]))
        with pytest.raises(InputError, match=r"means.*int64"):
            removal_scores("magnitude", torch.ones(2, dtype=torch.int64), None)
        with pytest.raises(InputError, match=r"scales.*int64"):
            removal_scores("snr", torch.ones(2), torch.ones(2, dtype=torch.int64))


class TestRemoved:
    @settings(max_examples=60, deadline=None)
    @given(st.lists(st.sampled_from([-math.inf, -1.0, -0.0, 0.0, 0.5, 2.0, math.inf]), max_size=40), st.data())
    def test_the_lowest_and_of_equal_ones_the_first(self, values, data):
        count = data.draw(st.integers(0, len(values)))
        ranked = sorted(range(len(values)), key=lambda place: (values[place], place))
        assert removed(torch.tensor(values), count).tolist() == sorted(ranked[:count])

    def test_positions_are_flat_in_the_order_of_the_indices(self):
        scores = torch.arange(12.0).view(3, 4).T  # not contiguous
        assert removed(scores, 3).tolist() == [0, 3, 6]

    def test_many_ties(self):
        scores = torch.randint(0, 3, (5000,), generator=torch.Generator().manual_seed(0)).float()
        result = removed(scores, 2500)
        lowest = (scores == 0).nonzero().flatten().tolist()
        next_ones = (scores == 1).nonzero().flatten().tolist()
        assert result.tolist() == sorted(lowest + next_ones[: 2500 - len(lowest)])

    @pytest.mark.parametrize("count", [-1, 4])
    def test_counts_that_are_not_there(self, count):
        with pytest.raises(InputError, match=f"cannot remove {count} of 3"):
            removed(torch.ones(3), count)

    def test_nan_has_no_place(self):
        with pytest.raises(NonFinite, match="1 of 2 scores"):
            removed(torch.tensor([math.nan, 1.0]), 1)


class TestOverlap:
    def test_is_intersection_over_union(self):
        generator = torch.Generator().manual_seed(1)
        first, second = torch.randint(0, 50, (2, 300), generator=generator)
        for count in (1, 40, 150, 299, 300):
            one, other = (set(removed(scores, count).tolist()) for scores in (first, second))
            assert overlap(first, second, count) == len(one & other) / len(one | other)
            assert overlap(second, first, count) == overlap(first, second, count)

    def test_ends(self):
        scores = torch.arange(6.0)
        assert overlap(scores, scores, 3) == 1.0
        assert overlap(scores, -scores, 3) == 0.0
        assert overlap(scores, -scores, 6) == 1.0
        assert overlap(scores, -scores, 0) == 1.0
        assert overlap(torch.zeros(6), torch.ones(6), 2) == 1.0  # ties go by position

    def test_scores_of_other_weights(self):
        with pytest.raises(ShapeMismatch, match=r"\(6,\) and \(2, 3\)"):
            overlap(torch.ones(6), torch.ones(2, 3), 1)
