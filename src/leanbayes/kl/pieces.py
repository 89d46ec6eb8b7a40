"""The divergence of weights of which each process holds a piece.

A divergence is a sum over coordinates, so each process computes the terms of its own piece, and the sums are added up.
Gradients reach the piece directly, which needs no communication at all.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Distribution

from leanbayes._sharding import gathered_entries, is_piece, local, piece_like, sum_over_pieces
from leanbayes.errors import InputError
from leanbayes.posteriors import RandomWeight
from leanbayes.priors import CentredPrior, FixedPrior, Prior

__all__ = ["sum_of_terms"]

Term = Callable[[RandomWeight, Distribution], Tensor]
"""A sum over the coordinates of a weight with its prior, such as the divergence."""


def sum_of_terms(weight: RandomWeight, prior: Prior, memory: Tensor | None, term: Term, *, exact: bool) -> Tensor:
    """Return the sum of ``term`` over all coordinates of a weight that is cut into pieces, the same on every process.

    Args:
        weight: the random weight; its mean is a DTensor.
        prior: its prior.
        memory: what the prior remembers of the first values of the weight.
        term: sums over the coordinates of a weight.
        exact: whether ``term`` is computed without draws.
    """
    assert weight.rho is not None
    if weight.index is not None:  # few coordinates, which every process gets
        rho = weight.rho.full_tensor() if is_piece(weight.rho) else weight.rho  # type: ignore[attr-defined]
        few = RandomWeight(weight.name, gathered_entries(weight.mean, weight.index), None, None, weight.family, rho)
        return term(few, prior.distribution(few, memory))
    if not exact or weight.family.joint or not isinstance(prior, FixedPrior | CentredPrior):
        raise InputError(
            f"{weight.name!r} is sharded, and its KL is no sum over single weights for {weight.family}, {prior} and "
            "this estimator; use posterior=lb.posteriors.Normal(), prior=torch.distributions.Normal(0, s) and "
            "kl=lb.Exact(), or shard the loss as one module, fully_shard(lb.Objective(...)), and none of its parts"
        )
    rho = _piece(weight.rho, weight.mean)
    piece = RandomWeight(weight.name, local(weight.mean), None, None, weight.family, rho)
    remembered = None if memory is None else _piece(memory, weight.mean)
    if piece.mean.numel():
        value = term(piece, prior.distribution(piece, remembered))
    else:  # there are more processes than rows
        value = torch.zeros((), dtype=weight.mean.dtype, device=weight.mean.device)
    return sum_over_pieces(value, weight.mean)


def _piece(tensor: Tensor, mean: Tensor) -> Tensor:
    """Return the piece of a tensor that belongs to this process's piece of the mean."""
    if not is_piece(tensor):
        return piece_like(tensor, mean)
    piece: Tensor = local(tensor)
    expected = local(mean).shape
    if piece.dim() != len(expected) or any(n not in (1, m) for n, m in zip(piece.shape, expected, strict=True)):
        raise InputError(
            f"the scales of a weight are cut into pieces of {tuple(piece.shape)}, and the weight into pieces of "
            f"{tuple(expected)}; shard both together: fully_shard([part, *bnn.scales_of(part)])"
        )
    return piece
