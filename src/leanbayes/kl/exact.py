"""The exact KL divergence, for every pair whose closed form torch or this library knows."""

import math
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.distributions import Distribution, kl_divergence
from torch.distributions import Normal as TorchNormal

from leanbayes.errors import NoClosedForm
from leanbayes.kl.monte_carlo import from_statistics
from leanbayes.kl.pair import resolve
from leanbayes.kl.statistics import expected
from leanbayes.posteriors import RandomWeight

__all__ = ["Exact"]


@dataclass(frozen=True)
class Exact:
    """KL(q‖p) = E_q[log q − log p] in closed form, summed over the random coordinates.

    A closed form is known for two Normals, for every pair in `torch.distributions`, and for every pair whose log p is
    made of terms with known expectations (docs/posteriors.md lists them). For other pairs it raises `NoClosedForm`.
    """

    def __call__(self, weight: RandomWeight, prior: Distribution, generator: torch.Generator | None = None) -> Tensor:  # noqa: ARG002
        """Compute the divergence of one tensor in nats; half precision is summed in float32.

        Args:
            weight: the random tensor.
            prior: the prior of its random coordinates.
            generator: not used; other estimators draw from it.
        """
        if weight.sums is not None and _is_simple(prior) and not prior.loc.dim():
            return _from_sums(weight.sums, weight.mean.numel(), prior).to(weight.mean.dtype)
        posterior = weight.widened().distribution()
        if isinstance(posterior, TorchNormal) and _is_simple(prior):
            given = (posterior.loc, posterior.scale, prior.loc, prior.scale.to(posterior.scale))
            if torch.compiler.is_compiling():  # a compiler finds the sweeps over memory itself
                return _NormalKL.forward(*given)
            value: Tensor = _NormalKL.apply(*given)
            return value
        try:
            return kl_divergence(posterior, prior).sum()
        except NotImplementedError:
            divergence = _by_expectations(weight.widened(), prior)
            if divergence is not None:
                return divergence
            raise NoClosedForm(
                f"no exact KL is known for a {type(posterior).__name__} posterior and a {type(prior).__name__} prior "
                f"({weight.name}); estimate it: Bayesian(..., kl=leanbayes.MonteCarlo(1000))"
            ) from None


def _by_expectations(weight: RandomWeight, prior: Distribution) -> Tensor | None:
    """Put the statistics of Nazarovs et al. 2021 at their expectations: Monte Carlo with infinitely many draws.

    Against a Normal prior the moments of the posterior are enough, because E (w−m)² = Var w + (E w − m)².
    """
    family, spread = weight.family, weight.spread
    pair = resolve(family, prior, spread.numel())
    if pair.infinite is not None:
        return None
    if pair.terms is not None:
        statistics = expected(family, pair.wanted, spread.numel())
        form = family.form(weight.random_mean, spread, pair.part)
        return from_statistics(pair, form, statistics).to(spread.dtype)
    if not isinstance(prior, TorchNormal):
        return None
    law = weight.distribution()
    distances = (law.variance + (law.mean - prior.loc).square()) / (2 * prior.scale.square())
    return (distances + prior.scale.log() + 0.5 * math.log(2 * math.pi)).sum() - law.entropy().sum()


def _from_sums(sums: Tensor, count: int, prior: TorchNormal) -> Tensor:
    """Return Σ log(s/σ) + (σ² + (μ−m)²)/2s² − ½ = n(log s − ½) − Σ log σ + (Σσ² + Σμ² − 2mΣμ + nm²)/2s²."""
    means, squares, scales, logarithms = sums.unbind()
    m, s = prior.loc.to(sums), prior.scale.to(sums)
    distances = scales + squares - 2 * m * means + count * m.square()
    return count * (s.log() - 0.5) - logarithms + distances / (2 * s.square())


def _is_simple(prior: Distribution) -> TypeGuard[TorchNormal]:
    """Return whether the prior is a Normal with one scale, and none of its parameters is learned."""
    if not isinstance(prior, TorchNormal) or prior.scale.dim():
        return False
    return not (prior.loc.requires_grad or prior.scale.requires_grad)


class _NormalKL(torch.autograd.Function):
    """Σ log(s/σ) + (σ² + (μ−m)²)/2s² − ½, with one temporary tensor forward and two sweeps over memory backward."""

    @staticmethod
    def forward(mean: Tensor, scale: Tensor, loc: Tensor, prior_scale: Tensor) -> Tensor:
        """Compute the sums of squares by norms, which store no squares."""
        squares: Tensor = torch.linalg.vector_norm(_from(loc, mean)).square() + torch.linalg.vector_norm(scale).square()
        logs: Tensor = scale.log().sum()
        return squares / (2 * prior_scale.square()) - logs + scale.numel() * (prior_scale.log() - 0.5)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:  # noqa: ARG004
        """Save the inputs."""
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        """Return (μ−m)/s² and σ/s² − 1/σ."""
        mean, scale, loc, prior_scale = ctx.saved_tensors
        factor = gradient / prior_scale.square()
        return _from(loc, mean) * factor, torch.addcdiv(scale * factor, -gradient, scale), None, None


def _from(loc: Tensor, mean: Tensor) -> Tensor:
    """Return μ − m, without a copy where m is 0."""
    readable = loc.device.type == "cpu" and loc.dim() == 0 and not torch.compiler.is_compiling()
    zero = readable and loc.item() == 0
    return mean if zero else mean - loc
