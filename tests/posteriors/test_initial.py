import math

import pytest
import torch
import torch.nn.functional as F

from leanbayes.errors import InputError
from leanbayes.posteriors import GaussianRho, RelativeScale
from leanbayes.posteriors.initial import initial_rho, inverse_softplus
from leanbayes.posteriors.normal import Normal
from tests.oracles import mean_within_standard_errors


class TestInverseSoftplus:
    def exact(self, rho: torch.Tensor) -> torch.Tensor:
        """log(1 + e^ρ) = max(ρ, 0) + log1p(e^-|ρ|)."""
        return rho.clamp_min(0) + torch.log1p(torch.exp(-rho.abs()))

    @pytest.mark.parametrize(("low", "high"), [(1e-8, 1e-4), (1e-4, 1.0), (1.0, 19.9), (19.9, 40.0), (40.0, 1e3)])
    def test_it_is_the_inverse_in_float64(self, low, high):
        scale = torch.logspace(math.log10(low), math.log10(high), 500, dtype=torch.float64)
        torch.testing.assert_close(self.exact(inverse_softplus(scale)), scale, rtol=1e-14, atol=0)

    @pytest.mark.parametrize(("low", "high"), [(1e-8, 1e-4), (1e-4, 1.0), (1.0, 19.9), (19.9, 40.0), (40.0, 1e3)])
    def test_the_round_trip_through_the_family_in_float64(self, low, high):
        """From 20 on torch's softplus is the identity unless its threshold is raised: an error of 1e-10 in float64."""
        scale = torch.logspace(math.log10(low), math.log10(high), 500, dtype=torch.float64)
        torch.testing.assert_close(Normal().spread(inverse_softplus(scale)), scale, rtol=1e-14, atol=0)

    def test_the_round_trip_in_float32(self):
        scale = torch.logspace(-8, 3, 2000)
        torch.testing.assert_close(F.softplus(inverse_softplus(scale)), scale, rtol=3e-6, atol=0)

    def test_known_values(self):
        result = inverse_softplus(torch.tensor([math.log(2.0), math.log1p(math.e)], dtype=torch.float64))
        torch.testing.assert_close(result, torch.tensor([0.0, 1.0], dtype=torch.float64), rtol=1e-14, atol=1e-15)


class TestInitialRho:
    weights = torch.tensor([[0.0, -3.0, 1e-6], [100.0, 0.5, -0.5]], dtype=torch.float64)

    def test_a_constant(self):
        rho = initial_rho(0.02, self.weights)
        torch.testing.assert_close(F.softplus(rho), torch.full_like(self.weights, 0.02), rtol=1e-13, atol=0)

    def test_a_share_of_each_weight_and_a_floor(self):
        scale = self.exact_scale(RelativeScale(0.1, floor=0.01))
        expected = torch.tensor([[0.01, 0.3, 0.01], [10.0, 0.05, 0.05]], dtype=torch.float64)
        torch.testing.assert_close(scale, expected, rtol=1e-13, atol=0)

    def exact_scale(self, start) -> torch.Tensor:
        return F.softplus(initial_rho(start, self.weights))

    @pytest.mark.parametrize(("mean", "std"), [(-3.0, 0.1), (-6.0, 2.0), (0.5, 1.0)])
    def test_gaussian_moments(self, mean, std):
        weights = torch.zeros(100, 400, dtype=torch.float64)
        rho = initial_rho(GaussianRho(mean, std), weights, torch.Generator().manual_seed(0))
        assert rho.shape == weights.shape
        mean_within_standard_errors(rho.flatten(), mean)
        mean_within_standard_errors((rho.flatten() - mean).square(), std**2)
        assert rho.std().item() == pytest.approx(std, abs=5 * std / math.sqrt(2 * rho.numel()))

    def test_gaussian_without_spread(self):
        assert torch.equal(initial_rho(GaussianRho(-4.0, 0.0), self.weights), torch.full_like(self.weights, -4.0))

    def test_gaussian_is_reproducible_and_leaves_the_global_state(self):
        before = torch.get_rng_state()
        first, again, other = (
            initial_rho(GaussianRho(), self.weights, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)
        )
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        assert torch.equal(before, torch.get_rng_state())

    @pytest.mark.parametrize("start", [0.05, GaussianRho(), RelativeScale()], ids=["constant", "gaussian", "relative"])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
    def test_no_gradient_and_the_dtype_of_the_weights(self, start, dtype):
        rho = initial_rho(start, self.weights.to(dtype).requires_grad_())
        assert not rho.requires_grad
        assert rho.dtype == dtype
        assert torch.isfinite(rho).all()


class TestBadArguments:
    @pytest.mark.parametrize(
        ("mean", "std"), [(0.0, -0.1), (math.nan, 0.1), (0.0, math.nan), (math.inf, 0.1), (0.0, math.inf)]
    )
    def test_gaussian(self, mean, std):
        with pytest.raises(InputError, match=r"a finite mean and a std of at least 0, got GaussianRho\(mean="):
            GaussianRho(mean, std)

    @pytest.mark.parametrize(
        ("factor", "floor"),
        [(0.0, 1e-4), (-1.0, 1e-4), (0.1, 0.0), (0.1, -1.0), (math.nan, 1.0), (1.0, math.inf)],
    )
    def test_relative(self, factor, floor):
        with pytest.raises(InputError, match=r"a positive finite factor and floor, got RelativeScale\(factor="):
            RelativeScale(factor, floor)
