"""Sparse variational dropout (Molchanov et al. 2017): a log-uniform prior makes weights noise, which are then cut."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError, UnknownName
from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes.base import Run, option
from leanbayes.lab.recipes.variational import Variational
from leanbayes.objective import Schedule, warm_up
from leanbayes.priors import LogUniformLaw, PriorLike
from leanbayes.subspace import Subspace, dense_name, densify, everything, not_norm
from leanbayes.subspace.sparse_subspace import layers_of
from leanbayes.subspace.storage import keep_layout, sparsify

__all__ = ["VariationalDropout", "cut"]


@dataclass(frozen=True)
class VariationalDropout(Variational):
    """Every weight is random under a log-uniform prior, and weights that turn out to be noise are cut.

    Table 2 of SSVI (Li et al. 2024) compares itself with this method.
    """

    name = "variational_dropout"
    threshold: float = option(3.0, "Weights whose log σ²/μ² is above this value are cut.", within="(-inf, inf)")
    prior: str = option("log_uniform", "The prior of the weights; there is no other.")
    kl_start: float = option(
        0.0, "The weight of the KL divergence grows from 0; other values are refused.", within="[0, inf)"
    )
    kl_end: float = option(1.0, "The weight of the KL divergence from half of training on.", within="[0, inf)")
    propagate: str = option("local", "How randomness passes through the network in training: sample, local or flipout.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.prior != "log_uniform":
            raise UnknownName.of("prior", self.prior, ["log_uniform"])
        if self.kl_start:
            raise InputError(f"the weight of the KL grows from 0 to kl_end; leave kl_start 0, got {self.kl_start}")

    def prior_law(self) -> PriorLike:
        """Return the density 1/|w|."""
        return LogUniformLaw(0.0)

    def subspace(self, model: nn.Module, task: Task, run: Run) -> Subspace:  # noqa: ARG002
        """Choose all weights but those of norm layers, which a prior at zero does not suit."""
        return everything(eligible=not_norm)

    def kl_schedule(self, balanced: float) -> Schedule:  # noqa: ARG002
        """Let the weight of the KL divergence grow until half of training."""
        return warm_up(0.5, self.kl_end)

    def finished(self, bnn: Bayesian) -> Bayesian:
        """Cut the weights that are noise."""
        return cut(bnn, self.threshold)


def cut(bnn: Bayesian, threshold: float = 3.0) -> Bayesian:
    """Return the same network without the weights whose log α = log σ²/μ² is above a threshold.

    The remaining weights are stored sparse. At least one weight of each layer stays. ``bnn`` does not change.
    """
    weights, model = bnn.weights(), densify(bnn.model)
    positions: dict[str, Tensor] = {}
    for name, layer in layers_of(model).items():
        weight = weights[name]
        noise = (2 * weight.spread.detach().log() - weight.mean.detach().square().log()).flatten()
        index = (noise <= max(threshold, float(noise.min()))).nonzero().squeeze(1).to(torch.int32)
        if len(index) < weight.mean.numel():
            sparsify(layer, index)
            positions[name] = index
    keep_layout(model)
    sparse_bnn = Bayesian(
        model,
        subspace=everything(eligible=not_norm),
        posterior=bnn.posterior,
        prior=bnn.prior,
        propagate=bnn.propagate,
        predict_by=bnn.predict_by,
        kl=bnn.kl_estimator,
    )
    raw = {name: parts.rho.detach() for name, parts in bnn.parts()}
    with torch.no_grad():
        for name, parts in sparse_bnn.parts():
            full_name = dense_name(name)
            parts.rho.copy_(
                raw[full_name].flatten()[positions[full_name].long()] if full_name in positions else raw[full_name]
            )
    return sparse_bnn
