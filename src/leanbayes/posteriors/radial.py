"""The radial posterior, w = μ + σ∘u·r: each draw of a tensor has one direction u on the sphere and one radius r."""

import math
from collections.abc import Set
from dataclasses import dataclass

import torch
from torch import Tensor

from leanbayes.posteriors._noise import standard_normal
from leanbayes.posteriors._special import normal_and_gamma
from leanbayes.posteriors.location_scale import LocationScale
from leanbayes.posteriors.normal import normal_moment
from leanbayes.posteriors.terms import Statistics, Term, power

__all__ = ["Radial"]

_CHUNK = 2**18  # radii that are drawn at a time
_LOG_RADIUS = -0.5 * (0.57721566490153286061 + math.log(2))  # E log|r|, r ~ N(0, 1)


@dataclass(frozen=True)
class Radial(LocationScale):
    """The weight is w = μ + σ∘ξ with ξ = r·z/‖z‖, z ~ N(0, I) and r = |N(0, 1)| (Farquhar et al. 2020).

    Direction and radius belong to one weight tensor and one draw. Each of n coordinates has the variance σ²/n, so the
    whole tensor is as far from its mean as one coordinate of a Normal would be. All coordinates have one density
    together. Nazarovs et al. 2021 use this family in their section 5.

    Args:
        init_scale: where σ starts; see `Normal`.

    >>> Radial().variance(torch.ones(4))
    tensor([0.2500, 0.2500, 0.2500, 0.2500])
    """

    joint = True
    sampled_exactly = False

    def noise(self, like: Tensor, samples: int | None, generator: torch.Generator | None) -> Tensor:
        """Draw ξ = r·z/‖z‖; each draw has its own r and ‖z‖."""
        draws = 1 if samples is None else samples
        with torch.no_grad():
            z = standard_normal((draws, *like.shape), like, generator)
            norm = torch.linalg.vector_norm(z.view(draws, -1), dim=1)
            z[norm == 0], norm[norm == 0] = (
                1,
                math.sqrt(like.numel()),
            )  # a single weight may draw 0, which has no direction
            radius = _radii(draws, like, generator) / norm
            z.mul_(radius.view(-1, *[1] * like.dim()))
        return z[0] if samples is None else z

    def log_noise(self, noise: Tensor) -> Tensor:
        """Return −½r² + ½ log(2/π) − (n−1) log r − log(2π^{n/2}/Γ(n/2)) for each draw."""
        points = noise.reshape(len(noise), -1)
        radius = torch.linalg.vector_norm(points, dim=1)
        return _log_radius_density(radius, points.shape[1])

    def expected(self, term: Term, count: int) -> float:
        """Return E r^k E u^k = (k−1)!! (k−1)!!/(n(n+2)…(n+k−2)) for even k, and 0 for odd k."""
        moment = normal_moment(term)
        return moment if moment in (0.0, math.inf) else moment**2 / math.prod(range(count, count + int(term.order), 2))

    def noise_entropy(self, count: int) -> float:
        """Return the entropy of all n coordinates together."""
        return 0.5 - 0.5 * math.log(2 / math.pi) + (count - 1) * _LOG_RADIUS + _log_sphere(count)

    def sampled(
        self, wanted: Set[Term], samples: int, like: Tensor, generator: torch.Generator | None
    ) -> Statistics | None:
        """Draw the means of ξ and ξ² over M draws: the radii exactly, the directions as for large n.

        Given the radii, ξⱼ ≈ aᵢz with aᵢ = rᵢ/√n, so Σaᵢzᵢ = ‖a‖g. Then Σaᵢ²zᵢ² = κ(g² + 2γ) with κ = Σa⁴/Σa²,
        γ ~ Gamma((m − 1)/2) and m = Σa²/κ has the right mean and variance, those of m Normal draws. Its sum over the
        coordinates is Σr², as on the sphere. The first and second moments are right up to O(1/n), and so are the laws
        of all sums and of the mean of ξ. The law of one coordinate's mean of ξ² is approximate for a few draws: at
        M = 3 it is off by 0.03 in probability.
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

    def integrated(
        self, wanted: Set[Term], samples: int, like: Tensor, generator: torch.Generator | None
    ) -> Statistics | None:
        """Draw M radii, and integrate the directions out: O(n + M) numbers where M draws have O(nM).

        A uniform direction does not depend on the radius, so the mean of ξ^k given the radii is mean r^k · E u^k, with
        E u^k = (k−1)!!/(n(n+2)…(n+k−2)) for even k and 0 for odd k. The density of ξ depends on the radius alone.
        """
        if any(term.kind == "log" or term.order != int(term.order) or term.order < 1 for term in wanted):
            return None
        n = like.numel()
        of_direction = {term: self.expected(term, n) / (normal_moment(term) or 1.0) for term in wanted}  # E u^k
        with torch.no_grad():
            totals = like.new_zeros(1 + len(wanted))
            for start in range(0, samples, _CHUNK):  # so that memory does not grow with M
                radii = _radii(min(_CHUNK, samples - start), like, generator)
                powers = [radii.pow(term.order).sum() for term in of_direction]
                totals += torch.stack([_log_radius_density(radii, n).sum(), *powers])
            log_density, *powers = (totals / samples).unbind()
            means = {
                term: (mean * u).expand_as(like) for mean, (term, u) in zip(powers, of_direction.items(), strict=True)
            }
        return Statistics(means, log_density)

    def output_noise(self, variance: Tensor, axis: int, count: int, generator: torch.Generator | None) -> Tensor:
        """Draw the standardised outputs of one weight draw for each example, √n·r·ζ/‖z‖.

        Outputs along ``axis`` have weights of their own, so they see orthogonal directions: their ζ are coordinates of
        z, and the remainder of ‖z‖² is χ² with the remaining degrees of freedom. Each example has one radius; the code
        of Nazarovs et al. 2021 normalises over the whole batch instead.
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
    """Draw |N(0, 1)|. One in ten million numbers of torch is rounded to 0, where the density is infinite."""
    return standard_normal((count,), like, generator).abs_().clamp_min_(torch.finfo(like.dtype).eps)


def _log_radius_density(radius: Tensor, count: int) -> Tensor:
    tail = -0.5 * radius.square() + 0.5 * math.log(2 / math.pi)
    return tail - (count - 1) * radius.log() - _log_sphere(count)


def _log_sphere(count: int) -> float:
    """Return the logarithm of the surface 2π^{n/2}/Γ(n/2)."""
    return math.log(2) + 0.5 * count * math.log(math.pi) - math.lgamma(0.5 * count)
