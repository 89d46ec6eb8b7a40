"""The loss of a batch and of a validation set."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._calls import batch_size, call, map_tensors, split_batch
from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError
from leanbayes.likelihood import Likelihood
from leanbayes.objective import Terms, elbo
from leanbayes.train.batches import mix, ordered

__all__ = ["LossSettings", "Objective", "culprit", "validation_loss"]


@dataclass(frozen=True)
class LossSettings:
    """What stays the same in every loss of a training.

    Attributes:
        n_data: the number of examples in the training set.
        terms: how likelihood and KL are estimated and weighed.
        output: picks the tensor that matters from what the model returns.
        with_kl: whether the loss contains the KL; it does not if the optimizer owns the scales.
    """

    n_data: int
    terms: Terms
    output: Callable[[Any], Any]
    with_kl: bool


class Objective(nn.Module):
    """Model and likelihood as one module, so that a wrapper for several processes sees every parameter."""

    def __init__(self, model: nn.Module, likelihood: Likelihood, settings: LossSettings) -> None:
        super().__init__()
        self.model, self.likelihood, self.settings = model, likelihood, settings

    def forward(
        self, x: Any, y: Tensor, kl_weight: float, generator: torch.Generator, one_draw: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the loss of a part of a batch, its negative log-likelihood and the KL; ``one_draw`` averages none."""
        terms = replace(self.settings.terms, kl_weight=kl_weight)
        parts = elbo(
            self.model,
            x,
            y,
            self.likelihood,
            n_data=self.settings.n_data,
            kl_weight=replace(terms, samples=1, last_layer_samples=1) if one_draw else terms,
            with_kl=self.settings.with_kl,
            generator=generator,
            output=self.settings.output,
        )
        return parts.loss, parts.nll, parts.kl

    @torch.no_grad()
    def divergence(self, generator: torch.Generator) -> float:
        """Return the KL of the model as it is now, for the report alone; a plain module has none."""
        return self.model.kl(generator=generator).item() if isinstance(self.model, Bayesian) else 0.0


@torch.no_grad()
def validation_loss(objective: Objective, batches: Iterable[Any], device: torch.device, seed: int) -> float:
    """Return the mean negative log-likelihood of an example, with one draw of the weights for each batch."""
    objective.eval()
    noise = torch.Generator(device=device).manual_seed(seed)
    options = {"generator": noise} if isinstance(objective.model, Bayesian) else {}
    total, count = torch.zeros((), dtype=torch.float64, device=device), 0
    with ordered(batches, mix(seed, "order")):
        for batch in batches:
            x, y = map_tensors(lambda leaf: leaf.to(device), split_batch(batch))
            returned = call(lambda *args, **kwargs: objective.model(*args, **kwargs, **options), x)
            total += objective.likelihood.nll(objective.settings.output(returned), y).double()
            count += batch_size(x)
    if not count:
        raise InputError("the validation set is empty; give at least one batch, or leave validate=None")
    return total.item() / count


def culprit(module: nn.Module) -> str:
    """Say which parameter holds NaN or infinite values, for the error after a loss that is not finite."""
    for name, parameter in module.named_parameters():
        if not torch.isfinite(parameter).all():
            return f"; {name.removeprefix('model.')!r} has NaN or infinite values already"
    return "; all parameters are finite, so the data or the loss is to blame"
