"""What in an input a prediction, or its uncertainty, comes from: saliency, and how far it can be trusted.

Captum computes the maps and their two measures; what it needs, and a predictor with draws does not give, is one
deterministic function of the input that has gradients. That is made here: the expectation over draws whose noise is
fixed. 002 measures the saliency of its networks so (Figure 4).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any, Literal

import torch
from torch import Tensor, nn

from leanbayes._calls import map_tensors, prediction_tensor
from leanbayes.bayesian import Bayesian, refuse_random_parts
from leanbayes.errors import InputError, NonFinite, ShapeMismatch, UnknownName
from leanbayes.likelihood import Categorical, Likelihood, Uncertainty
from leanbayes.prediction import Predictor, in_eval
from leanbayes.prediction.prediction import networks_of
from leanbayes.propagate import OnePass
from leanbayes.propagate.outputs import IndependentOutputs

__all__ = ["Explainer"]

Quantity = Literal["prediction", "total", "aleatoric", "epistemic"]
Network = Callable[[Tensor], Any]


@dataclass(frozen=True)
class Explainer:
    """Explains one predictor. All methods take inputs (N, ...) and ask about the same draws.

    Args:
        predictor: a plain module, a `Bayesian`, a `Predictor`, or any differentiable function that returns outputs.
            A `Bayesian` with ``predict_by="moments"`` is explained in one pass; any other by weight samples.
        likelihood: what outputs mean; `Categorical` by default.
        of: "prediction": the probability of the target class (or label), or the mean of the target output; for pixels
            the mean over them. "total", "aleatoric", "epistemic": that uncertainty, the mean over pixels or outputs.
        samples: draws that stand for the expectation; their noise is fixed by ``seed``. Memory grows with them.
        seed: for the draws, and for perturbations.
        batch_size: at most so many inputs at a time.

    ``target`` is the class, label or output for each input (N), or a class for each pixel (N, ...); by default the
    most probable one. 002's code gives the true class. Of uncertainties there is no target.

    >>> model = nn.Linear(3, 1)
    >>> x = torch.ones(2, 3)
    >>> from leanbayes.likelihood import Gaussian
    >>> found = Explainer(model, likelihood=Gaussian()).saliency(x)
    >>> bool(torch.allclose(found, model.weight.abs().expand(2, 3)))
    True
    """

    predictor: nn.Module | Network
    likelihood: Likelihood = field(default_factory=Categorical)
    of: Quantity = "prediction"
    samples: int = 32
    seed: int = 0
    batch_size: int | None = None

    def __post_init__(self) -> None:
        if self.of not in ("prediction", "total", "aleatoric", "epistemic"):
            raise UnknownName.of("quantity", self.of, ["prediction", "total", "aleatoric", "epistemic"])
        if self.samples < 1 or (self.batch_size is not None and self.batch_size < 1):
            raise InputError(f"samples and batch_size must be at least 1, got {self.samples} and {self.batch_size}")
        if isinstance(self.predictor, nn.Module) and not isinstance(self.predictor, Predictor):
            refuse_random_parts(self.predictor)

    def uncertainty(self, x: Tensor) -> Uncertainty:
        """The prediction and its uncertainty, as `predict` has them: always the same for ``x``, with gradients."""
        modules = [part for part in (self.predictor, self.likelihood) if isinstance(part, nn.Module)]
        with in_eval(*modules):
            bnn = self.predictor
            if isinstance(bnn, Bayesian) and isinstance(bnn.predict_by, OnePass) and not bnn.held:
                law = bnn.predict_by.law(bnn, x)
                if not isinstance(law, IndependentOutputs):
                    raise InputError(f'explanations know no {bnn.predict_by}; give the model predict_by="moments"')
                mean, variance = (map_tensors(_tamed, part) for part in (law.mean, law.variance))
                return _finite(self.likelihood.uncertainty_of_moments(mean, variance, self.samples))
            total, centre = None, None
            networks = networks_of(bnn, self.samples, torch.Generator().manual_seed(self.seed))
            for network in networks:
                out = map_tensors(_tamed, prediction_tensor(network(x)))
                centre = self.likelihood.centre(out) if total is None else centre
                found = self.likelihood.statistics(out, centre)
                total = found if total is None else total + found
            assert total is not None
            averages = _tamed(total / len(networks))
            draws = torch.full((len(averages),), len(networks), device=averages.device)
            return _finite(self.likelihood.uncertainty(averages, draws, centre))

    def score(self, x: Tensor, target: Tensor | None = None) -> Tensor:
        """The quantity that is explained, one number for each input, with gradients."""
        self._check(x)
        return self._score(x, target if target is None else target.to(x.device))

    def saliency(self, x: Tensor, target: Tensor | None = None, *, signed: bool = False) -> Tensor:
        """|∂ score / ∂ x|, shaped like ``x`` (Simonyan et al. 2014); with its sign, if asked for."""
        return self._over_parts(x, target, partial(self._gradient, signed=signed))

    def sensitivity_max(
        self,
        x: Tensor,
        target: Tensor | None = None,
        *,
        radius: float = 0.1,
        perturbations: int = 5,
        signed: bool = False,
    ) -> Tensor:
        """How far a map moves at most when the input moves a little (Yeh et al. 2019): lower is better, 0 is best.

        max over u ~ U[−radius, radius] of ‖Φ(x + u) − Φ(x)‖ / ‖Φ(x)‖, one number for each input.

        Args:
            x: inputs.
            target: see the class.
            radius: in units of ``x``; 002's code has 0.1 for images in [0, 1].
            perturbations: how many u; 002's code has 5.
            signed: of maps with their sign.
        """
        _check_perturbations(radius, perturbations)
        source = torch.Generator(device=x.device).manual_seed(self.seed)

        def one(some: Tensor, wanted: Tensor | None) -> Tensor:
            def explained(inputs: Any, additional_forward_args: Any = None) -> tuple[Tensor]:
                inputs = inputs[0] if isinstance(inputs, tuple) else inputs
                return (self._gradient(inputs, *(additional_forward_args or (None,)), signed=signed),)

            found: Tensor = _captum("captum.metrics").sensitivity_max(
                explained,
                some,
                perturb_func=lambda inputs: inputs + _uniform(inputs, radius, source),
                n_perturb_samples=perturbations,
                max_examples_per_batch=self._most(some, perturbations),
                additional_forward_args=None if wanted is None else (wanted,),
            )
            return found

        return self._over_parts(x, target, one)

    def infidelity(
        self,
        x: Tensor,
        target: Tensor | None = None,
        *,
        radius: float = 0.5,
        perturbations: int = 5,
        signed: bool = True,
    ) -> Tensor:
        """How badly a map foretells what a perturbation does (Yeh et al. 2019): lower is better, 0 is best.

        E over I ~ U[−radius, radius] of (Iᵀ Φ(x) − (f(x) − f(x − I)))², one number for each input, in squared units
        of the score: so predictors are comparable only if all give probabilities, as here. Φ is the gradient with its
        sign: then the measure is 0 for a linear function. 002's code takes the absolute gradient (``signed=False``),
        with which it is not.

        Args:
            x: inputs.
            target: see the class.
            radius: in units of ``x``; 002's code has 0.5 for images in [0, 1].
            perturbations: how many I; 002's code has 5.
            signed: whether Φ keeps its sign.
        """
        _check_perturbations(radius, perturbations)
        source = torch.Generator(device=x.device).manual_seed(self.seed)

        def perturbed(inputs: Tensor) -> tuple[Tensor, Tensor]:
            change = _uniform(inputs, radius, source)
            return change, inputs - change

        def one(some: Tensor, wanted: Tensor | None) -> Tensor:
            found: Tensor = _captum("captum.metrics").infidelity(
                self._score,
                perturbed,
                some,
                self._gradient(some, wanted, signed=signed),
                additional_forward_args=None if wanted is None else (wanted,),
                n_perturb_samples=perturbations,
                max_examples_per_batch=self._most(some, perturbations),
            )
            return found

        return self._over_parts(x, target, one)

    def _over_parts(
        self, x: Tensor, target: Tensor | None, function: Callable[[Tensor, Tensor | None], Tensor]
    ) -> Tensor:
        """Part after part of the batch, with targets chosen once."""
        self._check(x)
        if self.of != "prediction":
            if target is not None:
                raise InputError(f"an uncertainty has no target; leave it out, or explain of={'prediction'!r}")
        elif target is not None and (not isinstance(target, Tensor) or len(target) != len(x)):
            raise ShapeMismatch(f"{len(x)} inputs need as many targets, got {getattr(target, 'shape', target)}")
        found = []
        for start in range(0, len(x), self.batch_size or len(x)):
            rows = slice(start, start + (self.batch_size or len(x)))
            some, wanted = x[rows].detach(), None if target is None else target[rows].to(x.device)
            if wanted is None and self.of == "prediction":
                wanted = self._predicted(some)
            found.append(function(some, wanted).detach())
        return torch.cat(found)

    @torch.no_grad()
    def _predicted(self, x: Tensor) -> Tensor | None:
        mean = self.uncertainty(x).mean
        if mean.dim() == 1 or mean.shape[1] == 1:
            return None
        if not self.likelihood.has_logits:
            raise InputError(f"the model has {mean.shape[1]} outputs; say which is to be explained: target=...")
        return mean.argmax(1)

    def _score(self, x: Tensor, target: Tensor | None = None) -> Tensor:
        said = self.uncertainty(x)
        if self.of != "prediction":
            return _per_input(getattr(said, self.of))
        mean = said.mean
        if target is not None:
            mean = mean.gather(1, _places(target, mean))
        elif mean.dim() > 1 and mean.shape[1] > 1:
            raise InputError(f"which of the {mean.shape[1]} outputs? Give a target")
        return _per_input(mean)

    def _gradient(self, x: Tensor, target: Tensor | None, *, signed: bool) -> Tensor:
        def score(some: Tensor, *extra: Tensor) -> Tensor:
            return self._score(some, *extra) + 0 * some.flatten(1).sum(1)  # it may not depend on the input at all

        saliency = _captum("captum.attr").Saliency(score)
        extra = None if target is None else (target,)
        found: Tensor = saliency.attribute(
            x.detach().clone().requires_grad_(), abs=not signed, additional_forward_args=extra
        )
        if not torch.isfinite(found).all():
            raise NonFinite("the gradient has NaN or infinite values; check the model at these inputs")
        return found.contiguous()

    def _most(self, some: Tensor, perturbations: int) -> int | None:
        """How many perturbed inputs captum may take at once."""
        return None if self.batch_size is None else min(max(self.batch_size, len(some)), len(some) * perturbations)

    def _check(self, x: Tensor) -> None:
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() < 2 or not len(x):
            what = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
            raise InputError(f"explanations are gradients by one floating-point tensor of inputs (N, ...), got {what}")


def _tamed(value: Tensor) -> Tensor:
    """Where p rounds to 0, the slope of p log p is infinite and that of p is 0; the limit of their product is 0."""
    if value.requires_grad:
        value.register_hook(lambda slope: slope.nan_to_num(0.0, posinf=0.0, neginf=0.0))
    return value


def _finite(said: Uncertainty) -> Uncertainty:
    if not (torch.isfinite(said.mean).all() and torch.isfinite(said.total).all()):
        raise NonFinite("the model's output has NaN or infinite values; check the inputs and the weights")
    return said


def _places(target: Tensor, mean: Tensor) -> Tensor:
    """Where to look along axis 1 of the outputs: one place for each input, or one for each pixel."""
    each = (len(mean), *mean.shape[2:])
    if (
        mean.dim() < 2
        or target.is_floating_point()
        or tuple(target.shape) not in (each, each[:1])
        or not 0 <= int(target.min()) <= int(target.max()) < mean.shape[1]
    ):
        raise ShapeMismatch(
            f"targets must be integers of shape {each[:1]} or {each} that index axis 1 of outputs of shape "
            f"{tuple(mean.shape)}; got {target.dtype} of shape {tuple(target.shape)} from {target.min().item()} to "
            f"{target.max().item()}"
        )
    return target.view(len(mean), 1, *(target.shape[1:] or [1] * (mean.dim() - 2))).expand(-1, 1, *mean.shape[2:])


def _per_input(values: Tensor) -> Tensor:
    return values.flatten(1).mean(1) if values.dim() > 1 else values


def _uniform(like: Tensor, radius: float, source: torch.Generator) -> Tensor:
    fresh = torch.rand(like.shape, dtype=like.dtype, device=like.device, generator=source)
    return (2 * fresh - 1) * radius


def _check_perturbations(radius: float, perturbations: int) -> None:
    if not (0 < radius < math.inf and perturbations >= 1):
        raise InputError(
            f"need a positive finite radius and at least one perturbation, got {radius} and {perturbations}"
        )


def _captum(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(
            f"explanations need captum, which cannot be imported ({error}); pip install 'leanbayes[explain]'"
        ) from error
