"""The Radial posterior: w = μ + σ∘u·r, a direction u on the sphere and a radius r, one of each a tensor and draw."""

import math
from collections.abc import Set
from dataclasses import dataclass

import torch
from torch import Tensor

from leanbayes.posteriors.location_scale import LocationScale
from leanbayes.posteriors.noise import standard_normal
from leanbayes.posteriors.normal import normal_moment
from leanbayes.posteriors.special import normal_and_gamma
from leanbayes.posteriors.terms import Statistics, Term, power

__all__ = ["Radial"]

_LOG_RADIUS = -0.5 * (0.57721566490153286061 + math.log(2))  # E log|r|, r ~ N(0, 1)


@dataclass(frozen=True)
class Radial(LocationScale):
    """w = μ + σ∘ξ with ξ = r·z/‖z‖, z ~ N(0, I), r = |N(0, 1)| (Farquhar et al. 2020; 003, section 5).

    Direction and radius belong to one weight tensor and one draw. Of n coordinates each has variance σ²/n: the
    whole tensor is as far from its mean as one coordinate of a Normal would be. Densities are joint.

    >>> Radial().variance(torch.ones(4))
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """

    joint = True
    sampled_exactly = False

    def noise(self, like: Tensor, samples: int | None, generator: torch.Generator | None) -> Tensor:
        """ξ = r·z/‖z‖, with its own r and ‖z‖ for each draw."""
        draws = 1 if samples is None else samples
        with torch.no_grad():
            z = standard_normal((draws, *like.shape), like, generator)
            norm = torch.linalg.vector_norm(z.view(draws, -1), dim=1)
            z[norm == 0], norm[norm == 0] = 1, math.sqrt(like.numel())  # a single weight may draw 0, no direction
            radius = _radii(draws, like, generator) / norm
            z.mul_(radius.view(-1, *[1] * like.dim()))
        return z[0] if samples is None else z

    def log_noise(self, noise: Tensor) -> Tensor:
        """Of each draw: −½r² + ½ log(2/π) − (n−1) log r − log(2π^{n/2}/Γ(n/2))."""
        points = noise.reshape(len(noise), -1)
        radius = torch.linalg.vector_norm(points, dim=1)
        return _log_radius_density(radius, points.shape[1])

    def expected(self, term: Term, count: int) -> float:
        """E r^k E u^k = (k−1)!! (k−1)!!/(n(n+2)…(n+k−2)) for even k."""
        moment = normal_moment(term)
        return moment if moment in (0.0, math.inf) else moment**2 / math.prod(range(count, count + int(term.order), 2))

    def noise_entropy(self, count: int) -> float:
        """Of all n coordinates together."""
        return 0.5 - 0.5 * math.log(2 / math.pi) + (count - 1) * _LOG_RADIUS + _log_sphere(count)

    def sampled(
        self, wanted: Set[Term], samples: int, like: Tensor, generator: torch.Generator | None
    ) -> Statistics | None:
        """Means of ξ and ξ² over M draws: the radii exactly, the directions as for large n.

        Given the radii, ξⱼ ≈ aᵢz with aᵢ = rᵢ/√n, so Σaᵢzᵢ = ‖a‖g, and Σaᵢ²zᵢ² = κ(g² + 2γ) with κ = Σa⁴/Σa² and γ of
        Gamma((m − 1)/2), m = Σa²/κ, which has the right mean and variance: as of m Normal draws. Σⱼ of it is Σr², as on
        the sphere. First and second moments are right but for O(1/n), and so are the laws of all sums and of the mean
        of ξ; that of one coordinate's mean of ξ² is not the very law for a few draws: at M = 3 it is off by 0.03 in
        probability.
        """
        if not wanted <= {power(1), power(2)}:
            return None
        n = like.numel()
        with torch.no_grad():
            radii = _radii(samples, like, generator)
            squares = radii.square() / n
            total, fourth = torch.stack([squares.sum(), squares.square().sum()]).tolist()
            kappa = fourth / total
            many = total / kappa if samples > 1 else 1.0
            law = ((many - 1) / 2, math.sqrt(total) / samples, kappa, 2 * kappa)
            first, second = normal_and_gamma(law, like, generator)
            second *= n * total / (samples * second.sum())
            log_density = _log_radius_density(radii, n).mean()
        return Statistics({power(1): first, power(2): second}, log_density)

    def output_noise(self, variance: Tensor, axis: int, count: int, generator: torch.Generator | None) -> Tensor:
        """Standardised outputs of one weight draw for each example: √n·r·ζ/‖z‖.

        Outputs along ``axis`` have weights of their own, so they see orthogonal directions: their ζ are coordinates of
        z, and the rest of ‖z‖² is χ² with what remains of n. The radius is one for each example, never one for the
        batch, nor one for each output (003's code normalises over the whole batch).
        """
        moved = variance.detach().movedim(axis, -1)
        like = moved.float() if moved.dtype.itemsize < 4 else moved
        with torch.no_grad():
            zeta = torch.randn(like.shape, dtype=like.dtype, device=like.device, generator=generator) * (like > 0)
            others = (count - (like > 0).sum(-1, keepdim=True)).to(like.dtype)
            norm = zeta.square().sum(-1, keepdim=True) + 2 * torch._standard_gamma(others / 2, generator)
            examples = [like.shape[0] if like.dim() > 1 and axis != 0 else 1, *[1] * (like.dim() - 1)]
            radius = torch.randn(examples, dtype=like.dtype, device=like.device, generator=generator).abs_()
            noise = zeta * (radius * (count / norm.clamp_min(torch.finfo(like.dtype).tiny)).sqrt())
        return noise.movedim(-1, axis).to(variance.dtype)


def _radii(count: int, like: Tensor, generator: torch.Generator | None) -> Tensor:
    """|N(0, 1)|. Of torch's numbers one in ten million is 0, by rounding, where the density is infinite."""
    return standard_normal((count,), like, generator).abs_().clamp_min_(torch.finfo(like.dtype).eps)


def _log_radius_density(radius: Tensor, count: int) -> Tensor:
    tail = -0.5 * radius.square() + 0.5 * math.log(2 / math.pi)
    return tail - (count - 1) * radius.log() - _log_sphere(count)


def _log_sphere(count: int) -> float:
    """log of the surface 2π^{n/2}/Γ(n/2)."""
    return math.log(2) + 0.5 * count * math.log(math.pi) - math.lgamma(0.5 * count)
