"""Predictions that do not depend on where in a batch an input stands."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._calls import Inputs
from leanbayes.bayesian import Bayesian
from leanbayes.prediction import Predictor, in_eval
from leanbayes.prediction.prediction import networks_of
from leanbayes.propagate import OnePass

__all__ = ["with_whole_draws"]


class _WholeDraws(Predictor):
    """A predictor whose draws are whole networks, which all inputs of a batch share.

    Dropout, the Laplace approximation and local noise draw anew for each place of a batch. With a fixed seed the first
    input of every batch then meets the same noise, and the second one another. So a calibration in batches of a hundred
    and a new input by itself would meet two different predictors, and the examples would not be exchangeable. Whole
    networks have the same distribution for each input.

    Args:
        model: a predictor, or a `Bayesian`.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    @property
    def members(self) -> int | None:  # type: ignore[override]
        """The number of draws of the model inside."""
        return self.model.members if isinstance(self.model, Predictor) else None

    def outputs(self, x: Inputs, draws: int, generator: torch.Generator | None) -> Iterator[Any]:
        """Yield what each network returns, in eval mode and without gradients."""
        for network in self.networks(draws, torch.Generator() if generator is None else generator):
            with in_eval(self.model), torch.no_grad():
                out = network(x)
            yield out

    def networks(self, draws: int, source: torch.Generator) -> list[Callable[[Tensor], Any]]:
        """Return the networks. Their seeds come from the host, whatever device the model is on."""
        return networks_of(self.model, draws, torch.Generator().manual_seed(source.initial_seed()))

    def parts(self) -> dict[str, nn.Module]:
        """Return the model."""
        return {"model": self.model}


def with_whole_draws(model: nn.Module) -> nn.Module:
    """Return a model whose predictions do not depend on the place in a batch: itself, if it is one already."""
    return _WholeDraws(model) if _depends_on_place(model) else model


def _depends_on_place(model: nn.Module) -> bool:
    if isinstance(model, Bayesian):
        return not (model.held or model.predict_by.plain_draws or isinstance(model.predict_by, OnePass))
    if isinstance(model, Predictor):
        return model.draws_differ_within_batch or any(map(_depends_on_place, model.parts().values()))
    return False
