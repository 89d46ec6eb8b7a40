"""What an exported graph computes: the mean network, several draws of it, or one pass of moments."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes._calls import Inputs, call, call_with
from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError, UnknownName
from leanbayes.likelihood import Likelihood, Uncertainty
from leanbayes.posteriors import RandomWeight
from leanbayes.propagate import Moments, PropagationLike, as_propagation

__all__ = ["CONTENTS", "Contents", "Graph", "contents_named"]

Weights = Mapping[str, RandomWeight]


@dataclass(frozen=True)
class Contents(ABC):
    """What one graph computes. Every graph returns the four parts of a `leanbayes.Prediction`, and more by its kind.

    Args:
        samples: how many draws, or evenly spread outputs, a prediction is the mean of.
        fresh: whether the graph draws new weights in every run; otherwise the draws are stored in it.
        by: the moments, for a graph of moments.
    """

    samples: int
    fresh: bool
    by: Moments

    @abstractmethod
    def noise(self, weights: Weights, generator: torch.Generator | None) -> dict[str, Tensor]:
        """Return the noise that the graph stores, by the names of the random weights."""

    @abstractmethod
    def outputs(self, graph: "Graph", weights: Weights, inputs: Inputs) -> dict[str, Tensor]:
        """Compute all outputs of the graph by name."""


@dataclass(frozen=True)
class _Mean(Contents):
    """The plain network at the means."""

    def noise(self, weights: Weights, generator: torch.Generator | None) -> dict[str, Tensor]:  # noqa: ARG002
        return {}

    def outputs(self, graph: "Graph", weights: Weights, inputs: Inputs) -> dict[str, Tensor]:  # noqa: ARG002
        out = graph.network({}, inputs)
        predicted = graph.likelihood.uncertainty_of_outputs(iter([out]), 1)
        return {**_prediction(predicted), **_raw("output", out)}


@dataclass(frozen=True)
class _Draws(Contents):
    """Several weight draws, each a pass through the network in the same graph."""

    def noise(self, weights: Weights, generator: torch.Generator | None) -> dict[str, Tensor]:
        return {} if self.fresh else {name: w.noise(generator, self.samples) for name, w in weights.items()}

    def outputs(self, graph: "Graph", weights: Weights, inputs: Inputs) -> dict[str, Tensor]:
        outs = []
        for draw in range(self.samples):
            noise = {name: w.noise(None) if self.fresh else graph.noise(name)[draw] for name, w in weights.items()}
            outs.append(graph.network({name: w.sample(noise[name]) for name, w in weights.items()}, inputs))
        predicted = graph.likelihood.uncertainty_of_outputs(iter(outs), self.samples)
        return {**_prediction(predicted), "samples": torch.stack([graph.likelihood.predictive(out) for out in outs])}


@dataclass(frozen=True)
class _Moments(Contents):
    """One deterministic pass that carries means and variances."""

    def noise(self, weights: Weights, generator: torch.Generator | None) -> dict[str, Tensor]:  # noqa: ARG002
        return {}

    def outputs(self, graph: "Graph", weights: Weights, inputs: Inputs) -> dict[str, Tensor]:
        law = self.by.law(graph.bnn, inputs, weights=weights, output=graph.output)
        predicted = law.uncertainty(graph.likelihood, self.samples)
        return {**_prediction(predicted), **_raw("output_mean", law.mean), **_raw("output_variance", law.variance)}


CONTENTS: dict[str, type[Contents]] = {"mean": _Mean, "draws": _Draws, "moments": _Moments}
"""What `leanbayes.export` can write, by the name that ``what=`` takes."""


def contents_named(what: str, bnn: Bayesian, samples: int, fresh: bool, by: PropagationLike | None) -> Contents:
    """Return what a graph shall compute, after a look at whether the arguments go together."""
    if what not in CONTENTS:
        raise UnknownName.of("content of a graph", what, CONTENTS)
    if not isinstance(samples, int) or isinstance(samples, bool) or samples < 1:
        raise InputError(f"samples must be a whole number of at least 1, got {samples!r}")
    if fresh and what != "draws":
        raise InputError(f'fresh=True draws weights inside the graph, so it needs what="draws", got what={what!r}')
    if by is not None and what != "moments":
        raise InputError(f'by= says how moments pass, so it needs what="moments", got what={what!r}')
    candidates = [bnn.predict_by, bnn.propagate, Moments()] if by is None else [as_propagation(by)]
    chosen = next((value for value in candidates if isinstance(value, Moments)), None)
    if chosen is None:
        raise InputError(f"a graph of moments needs by=leanbayes.propagate.Moments(...), got {by!r}")
    return CONTENTS[what](samples, fresh, chosen)


class Graph(nn.Module):
    """A module without a mode and without surprises: what is traced, and what the result is compared with.

    Args:
        bnn: the network.
        likelihood: what its outputs mean.
        contents: what is computed.
        output: picks the tensor that is predicted from what the model returns.
        generator: the source of the stored noise.
    """

    def __init__(
        self,
        bnn: Bayesian,
        likelihood: Likelihood,
        contents: Contents,
        output: Callable[[Any], Any],
        generator: torch.Generator | None,
    ) -> None:
        super().__init__()
        self.bnn, self.likelihood, self.contents, self.output = bnn, likelihood, contents, output
        self.training = False
        self.names: tuple[str, ...] | None = None
        for name, tensor in contents.noise(bnn.weights(), generator).items():
            self.register_buffer(_buffer(name), tensor)

    def noise(self, name: str) -> Tensor:
        """Return the stored noise of a random weight, one row for each draw."""
        return self.get_buffer(_buffer(name))

    def network(self, tensors: Mapping[str, Tensor], inputs: Inputs) -> Any:
        """Return what the model predicts with ``tensors`` in the place of its random weights."""
        return self.output(call(lambda *args, **kwargs: call_with(self.bnn.model, tensors, args, kwargs), inputs))

    def forward(self, *args: Any) -> dict[str, Tensor]:
        """Compute all outputs of the graph by name. If ``names`` are set, they are those of the model's arguments."""
        inputs: Inputs = args if self.names is None else dict(zip(self.names, args, strict=True))
        weights = {name: _with_long_index(weight) for name, weight in self.bnn.weights().items()}
        return self.contents.outputs(self, weights, inputs)


def _with_long_index(weight: RandomWeight) -> RandomWeight:
    """Return the weight with positions in 64 bits, the only ones that ONNX takes."""
    index = None if weight.index is None else weight.index.long()
    return RandomWeight(weight.name, weight.mean, index, None, weight.family, weight.rho)


def _buffer(name: str) -> str:
    return "noise_of_" + name.replace("_", "__").replace(".", "_")


def _prediction(predicted: Uncertainty) -> dict[str, Tensor]:
    parts = ("mean", "total", "aleatoric", "epistemic")
    return {part: getattr(predicted, part) for part in parts}


def _raw(name: str, value: Any) -> dict[str, Tensor]:
    """Return the outputs of the model under ``name``; those of a pair under two names."""
    if isinstance(value, Tensor):
        return {name: value}
    return {f"{name}_{place}": part for place, part in enumerate(value)}
