"""What a prediction is, and what can make one."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from leanbayes._calls import Inputs, map_tensors, prediction_tensor
from leanbayes._passes import exclusive, modules_inside
from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError
from leanbayes.propagate import OnePass, Propagation
from leanbayes.propagate.outputs import Outputs

__all__ = ["Prediction", "Predictor", "SequenceUncertainty", "in_eval", "joined", "laws_of", "networks_of"]


@dataclass(frozen=True)
class Prediction:
    """What a model predicts for a batch, and how sure it is.

    For classes, pixels and labels the uncertainties are in nats. For regression they are variances.

    Attributes:
        mean: the predicted probabilities; for regression the predicted mean.
        total: the entropy of the mean; for regression the variance of the target.
        aleatoric: the mean entropy of the draws, which more data would not reduce; for regression the noise.
        epistemic: the mutual information of prediction and weights, which more data would reduce; for regression the
            variance over draws.
        standard_error: the standard error of the total in nats (for regression of ½ log of it), one for each input.
        draws: how many draws were made for each input.
        samples: what each draw predicts, (draws, N, ...), if the caller asked for it.
    """

    mean: Tensor
    total: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    standard_error: Tensor
    draws: Tensor
    samples: Tensor | None = None

    def __len__(self) -> int:
        return len(self.mean)

    def over_tokens(self, counted: Tensor | None = None) -> "SequenceUncertainty":
        """Return the uncertainty of each text from that of its tokens.

        A language model gives the law of each token after the tokens before it, so the entropies of the tokens add up:
        their sum is the entropy of the whole, given the prefixes in the batch. Predict with
        ``likelihood=Categorical(class_axis=-1)``, for logits of shape (N, tokens, vocabulary).

        Args:
            counted: which tokens count, (N, tokens), such as the attention mask of a tokenizer; by default all. Tokens
                of padding must not count. The model needs the mask as well, so that other tokens do not attend to them.

        >>> numbers = torch.tensor([[0.1, 0.3], [0.2, 9.0]])
        >>> p = Prediction(torch.ones(2, 5, 2) / 5, numbers, numbers, 0 * numbers, torch.zeros(2), torch.ones(2))
        >>> p.over_tokens(torch.tensor([[1, 1], [1, 0]])).total
        tensor([0.4000, 0.2000])
        """
        shape = tuple(self.total.shape)
        if len(shape) != 2:
            raise InputError(
                f"over_tokens needs uncertainties of shape (N, tokens), got {shape}; predict with the logits of all "
                "tokens and likelihood=Categorical(class_axis=-1)"
            )
        mask = torch.ones_like(self.total, dtype=torch.bool) if counted is None else counted
        if tuple(mask.shape) != shape or bool(((mask != 0) & (mask != 1)).any()):
            raise InputError(
                f"counted must hold 0 or 1 for each token, of shape {shape}, got shape {tuple(mask.shape)}; "
                "give the attention mask that belongs to these tokens"
            )
        mask = mask.to(self.total.device).bool()
        tokens = mask.sum(1)
        if not bool((tokens > 0).all()):
            raise InputError(f"text {int((tokens == 0).nonzero()[0])} has no token that counts; leave it out")
        # torch.where, because an uncertainty of padding may be anything, and NaN times zero is NaN
        parts = (self.total, self.aleatoric, self.epistemic)
        total, aleatoric, epistemic = (torch.where(mask, part, 0).sum(1) for part in parts)
        return SequenceUncertainty(total, aleatoric, epistemic, tokens)

    def to(self, device: torch.device | str) -> "Prediction":
        """Return the same prediction on another device. Lightning calls this to bring predictions to the host."""
        return map_tensors(lambda tensor: tensor.to(device), self)  # type: ignore[no-any-return]


@dataclass(frozen=True)
class SequenceUncertainty:
    """How sure a language model is of whole texts, in nats, one number for each text.

    Attributes:
        total: the sum of the entropies of the tokens.
        aleatoric: the sum of their aleatoric parts.
        epistemic: the sum of their epistemic parts.
        tokens: how many tokens count.
    """

    total: Tensor
    aleatoric: Tensor
    epistemic: Tensor
    tokens: Tensor

    def per_token(self) -> "SequenceUncertainty":
        """Return the means over tokens, by which texts of different lengths can be compared."""
        return SequenceUncertainty(
            self.total / self.tokens, self.aleatoric / self.tokens, self.epistemic / self.tokens, self.tokens
        )


class Predictor(nn.Module, ABC):
    """A module that makes draws by itself, which `predict` asks for: an ensemble, dropout, SWAG or Laplace.

    A file keeps three things of a predictor: the modules that ``parts`` names, the numbers that ``config`` gives, and
    the buffers that are registered on the predictor itself. ``rebuild`` puts it together again.

    Attributes:
        members: how many draws there are in all; None if there is no limit.
        draws_differ_within_batch: whether ``outputs`` draws anew for each input of a batch, as dropout does, so that
            what it predicts for an input depends on the input's place. ``networks`` never does that.
    """

    members: int | None = None
    draws_differ_within_batch: ClassVar[bool] = False

    @abstractmethod
    def outputs(self, x: Inputs, draws: int, generator: torch.Generator | None) -> Iterator[Any]:
        """Yield what the model returns in each of ``draws`` draws, in eval mode and without gradients."""

    def laws(self, x: Inputs, output: Callable[[Any], Any] = prediction_tensor) -> list[Outputs] | None:  # noqa: ARG002
        """Return distributions of the outputs, whose equal mixture is predicted, if no draws are needed.

        A predictor on top of networks that predict in one pass predicts in one pass for each of them.

        Args:
            x: the inputs.
            output: picks the tensor from what the model returns.

        Returns:
            One distribution for each network inside; None if the predictor predicts by draws.
        """
        return None

    @abstractmethod
    def parts(self) -> dict[str, nn.Module]:
        """Return the modules inside, by name."""

    def config(self) -> dict[str, Any]:
        """Return the arguments of ``rebuild`` that JSON can hold."""
        return {}

    @classmethod
    def rebuild(cls, parts: dict[str, nn.Module], **config: Any) -> Self:
        """Make a predictor of these parts; its own buffers are filled in afterwards."""
        return cls(*parts.values(), **config)

    def random_tensors(self) -> Iterator[tuple[nn.Parameter, Tensor, Tensor]]:
        """Yield each parameter that this predictor itself makes random, with its mean and variance, for pruning."""
        return iter(())

    def make_certain(self, kept: Mapping[nn.Parameter, Tensor]) -> None:
        """Take away, in place, the randomness of pruned weights. Pruning sets the weights themselves to zero.

        Args:
            kept: for parameters that were pruned, which of their entries stay.
        """

    def networks(self, draws: int, source: torch.Generator) -> list[Callable[[Tensor], Any]]:  # noqa: ARG002
        """Return draws as functions of a batch, for explanations.

        Each function always gives the same output for an input, alone or among others. Unlike ``outputs`` it has
        gradients.

        Args:
            draws: how many functions; fewer are returned if there are only so many members.
            source: gives the seeds of the functions.
        """
        raise InputError(
            f"{type(self).__name__} does not say what its draws are as differentiable functions; define its method "
            "networks(draws, source)"
        )


def laws_of(
    model: nn.Module, x: Inputs, output: Callable[[Any], Any] = prediction_tensor, by: Propagation | None = None
) -> list[Outputs] | None:
    """Return the distributions of the outputs of any model, if one pass gives each of them; else None.

    Args:
        model: a `Bayesian`, a `Predictor` or a plain module.
        x: the inputs.
        output: picks the tensor from what the model returns.
        by: a propagation to use instead of that of a `Bayesian`; the networks in a predictor have their own.
    """
    if isinstance(model, Predictor):
        return None if by is not None else model.laws(x, output)
    if not isinstance(model, Bayesian):
        return None
    chosen = by or model.predict_by
    if not isinstance(chosen, OnePass):
        return None
    return [chosen.law(model, x, weights=None if model.held else model.weights(), output=output)]


def networks_of(model: Any, draws: int, source: torch.Generator) -> list[Callable[[Tensor], Any]]:
    """Return the draws of any model as differentiable functions; a plain module or function has one, itself."""
    return model.networks(draws, source) if isinstance(model, Bayesian | Predictor) else [model]


@contextmanager
def in_eval(*modules: nn.Module) -> Iterator[None]:
    """Inside this context, all modules are in eval mode; afterwards each is in the mode that it had.

    Other threads that use the modules wait meanwhile, because all threads share the mode.
    """
    with exclusive(*modules):
        training = [child for child in modules_inside(*modules) if child.training]
        if training:  # to set the mode of a deep network costs as much as a pass through its smallest layers
            for module in modules:
                module.eval()
        try:
            yield
        finally:
            for child in training:
                child.training = True


def joined(parts: list[Prediction], places: Tensor) -> Prediction:
    """Join predictions for parts of a batch; ``places`` says where in the batch each input stands."""
    if len(parts) == 1 and torch.equal(places, torch.arange(len(places))):
        return parts[0]
    order = places.argsort()

    def join(name: str) -> Tensor:
        return torch.cat([getattr(part, name) for part in parts])[order]

    names = ("mean", "total", "aleatoric", "epistemic", "standard_error", "draws")
    samples = [part.samples for part in parts if part.samples is not None]
    return Prediction(**{name: join(name) for name in names}, samples=torch.cat(samples, dim=1) if samples else None)
