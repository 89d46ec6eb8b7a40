"""How far the scales of the random weights have moved, and the warning if they have not.

The KL divergence moves log σ by at most β/n in a step. An optimizer that does not rescale its gradients, as SGD, leaves
the scales where they began, and the uncertainty of the model is then that of its initial scales.
"""

import warnings

import torch
from torch import Tensor, nn

from leanbayes._sharding import whole
from leanbayes.bayesian import Bayesian
from leanbayes.errors import ScalesDidNotMove
from leanbayes.train.history import Scales

__all__ = ["FEWEST_STEPS", "LEAST", "log_scales", "movement", "warn_if_still"]

LEAST = 0.01  # the median of |log σ − log σ₀| below which the scales count as still
FEWEST_STEPS = 20  # shorter trainings are trials that nobody reads scales from
_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
_MOST = 100_000  # coordinates that are looked at


@torch.no_grad()
def log_scales(model: nn.Module) -> Tensor | None:
    """Return log σ of the random coordinates whose scales are trained, or of evenly spaced ones if there are many."""
    if not isinstance(model, Bayesian):
        return None
    trained = [parts.rho for _, parts in model.parts() if parts.rho.requires_grad and parts.rho.numel()]
    if not trained:
        return None
    stride = -(-sum(rho.numel() for rho in trained) // _MOST)
    scales = [model.posterior.spread(whole(rho)).flatten()[::stride].double() for rho in trained]
    return torch.cat(scales).clamp_min(torch.finfo(torch.float64).tiny).log()


def movement(start: Tensor, end: Tensor, steps: int) -> Scales:
    """Compare log σ at the start and at the end."""
    start = start.to(end.device)
    levels = torch.tensor(_LEVELS, dtype=end.dtype, device=end.device)
    quantiles = [tuple(torch.quantile(logs, levels).exp().tolist()) for logs in (start, end)]
    return Scales(quantiles[0], quantiles[1], float((end - start).abs().median()), steps)


def warn_if_still(scales: Scales, owned: bool = False) -> None:
    """Warn if the scales ended where they began, after more than a few steps.

    Args:
        scales: how the scales moved.
        owned: whether the optimizer owned them, so that they have no learning rate but follow the curvature.
    """
    if scales.steps < FEWEST_STEPS or scales.moved >= LEAST:
        return
    advice = (
        "The optimizer makes the scales from the curvature of the loss, so let the curvature move faster by a lower "
        "beta2, train for longer, or start from another scale: leanbayes.optim.NaturalGradients(initial_scale=...)"
        if owned
        else 'Choose the optimizer by its name ("adam", "sgd" or "ivon"), so that fit trains the scales; raise '
        "Optimization(scale_lr=...); or train for longer"
    )
    warnings.warn(
        f"after {scales.steps} steps half of the scales are within {scales.moved:.2%} of where they began (the median "
        f"was {scales.start[2]:.3g} and is {scales.end[2]:.3g}), so the model is as uncertain as it was initialised. "
        f"{advice}",
        ScalesDidNotMove,
        stacklevel=4,
    )
