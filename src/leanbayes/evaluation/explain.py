"""`Explainer` shows which parts of an input a prediction, or its uncertainty, comes from, and how far to trust that.

Captum computes the maps and two measures of them. It needs one deterministic function of the input with gradients,
which `leanbayes.evaluation.score` makes of a predictor with draws. VDP++ measures the saliency of its networks in this
way (Figure 4).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from leanbayes.bayesian import refuse_random_parts
from leanbayes.errors import InputError, NonFinite, ShapeMismatch, UnknownName
from leanbayes.evaluation.score import Network, Quantity, Score
from leanbayes.likelihood import Categorical, Likelihood, Uncertainty
from leanbayes.prediction import Predictor

__all__ = ["Explainer"]


@dataclass(frozen=True)
class Explainer:
    """Explains one predictor. All methods take inputs (N, ...) and use the same draws.

    The argument ``target`` of the methods is the class, label or output for each input, (N), or a class for each pixel,
    (N, ...). By default it is the most probable one; the code of VDP++ gives the true class. Uncertainties have no
    target.

    Args:
        predictor: a plain module, a `Bayesian`, a `Predictor`, or any differentiable function that returns outputs.
            A `Bayesian` with ``predict_by="moments"`` is explained in one pass, and any other by weight draws.
        likelihood: what the outputs mean; `Categorical` by default.
        of: what to explain. "prediction" is the probability of the target class or label, or the mean of the target
            output, averaged over pixels. "total", "aleatoric" and "epistemic" are that uncertainty, averaged over
            pixels or outputs.
        samples: how many draws stand for the expectation. ``seed`` fixes their noise, and the memory grows with them.
        seed: the seed of the draws and of the perturbations.
        batch_size: the largest number of inputs that are explained at a time; None means all.

    >>> model = nn.Linear(3, 1)
    >>> x = torch.ones(2, 3)
    >>> from leanbayes.likelihood import Gaussian
    >>> saliency = Explainer(model, likelihood=Gaussian()).saliency(x)
    >>> bool(torch.allclose(saliency, model.weight.abs().expand(2, 3)))
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
        """Return the prediction and its uncertainty, with gradients and always the same for ``x``."""
        return self._score.uncertainty(x)

    def score(self, x: Tensor, target: Tensor | None = None) -> Tensor:
        """Return the quantity that is explained, one number for each input, with gradients."""
        self._check(x)
        return self._score(x, target if target is None else target.to(x.device))

    def saliency(self, x: Tensor, target: Tensor | None = None, *, signed: bool = False) -> Tensor:
        """Return |∂ score / ∂ x|, shaped like ``x`` (Simonyan et al. 2014); with its sign if ``signed``."""
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
        """Measure how far a map moves at most when the input moves a little (Yeh et al. 2019): 0 is best.

        It is the maximum over u ~ U[−radius, radius] of ‖Φ(x + u) − Φ(x)‖ / ‖Φ(x)‖, one number for each input.

        Args:
            x: inputs.
            target: see the class.
            radius: in units of ``x``; the code of VDP++ has 0.1 for images in [0, 1].
            perturbations: how many u are drawn; the code of VDP++ draws 5.
            signed: whether the maps Φ have their sign.
        """
        _check_perturbations(radius, perturbations)
        source = torch.Generator(device=x.device).manual_seed(self.seed)

        def measure(inputs: Tensor, target: Tensor | None) -> Tensor:
            def explained(inputs: Any, additional_forward_args: Any = None) -> tuple[Tensor]:
                inputs = inputs[0] if isinstance(inputs, tuple) else inputs
                return (self._gradient(inputs, *(additional_forward_args or (None,)), signed=signed),)

            sensitivity: Tensor = _captum("captum.metrics").sensitivity_max(
                explained,
                inputs,
                perturb_func=lambda inputs: inputs + _uniform(inputs, radius, source),
                n_perturb_samples=perturbations,
                max_examples_per_batch=self._most(inputs, perturbations),
                additional_forward_args=None if target is None else (target,),
            )
            return sensitivity

        return self._over_parts(x, target, measure)

    def infidelity(
        self,
        x: Tensor,
        target: Tensor | None = None,
        *,
        radius: float = 0.5,
        perturbations: int = 5,
        signed: bool = True,
    ) -> Tensor:
        """Measure how badly a map foretells the effect of a perturbation (Yeh et al. 2019): 0 is best.

        It is the mean over I ~ U[−radius, radius] of (Iᵀ Φ(x) − (f(x) − f(x − I)))², one number for each input, in
        squared units of the score. So predictors are comparable only if all of them give probabilities, as here. Φ is
        the gradient with its sign, so that the measure is 0 for a linear function. The code of VDP++ takes the absolute
        gradient (``signed=False``), for which it is not 0.

        Args:
            x: inputs.
            target: see the class.
            radius: in units of ``x``; the code of VDP++ has 0.5 for images in [0, 1].
            perturbations: how many I are drawn; the code of VDP++ draws 5.
            signed: whether Φ has its sign.
        """
        _check_perturbations(radius, perturbations)
        source = torch.Generator(device=x.device).manual_seed(self.seed)

        def perturbed(inputs: Tensor) -> tuple[Tensor, Tensor]:
            change = _uniform(inputs, radius, source)
            return change, inputs - change

        def measure(inputs: Tensor, target: Tensor | None) -> Tensor:
            infidelity: Tensor = _captum("captum.metrics").infidelity(
                self._score,
                perturbed,
                inputs,
                self._gradient(inputs, target, signed=signed),
                additional_forward_args=None if target is None else (target,),
                n_perturb_samples=perturbations,
                max_examples_per_batch=self._most(inputs, perturbations),
            )
            return infidelity

        return self._over_parts(x, target, measure)

    @cached_property
    def _score(self) -> Score:
        return Score(self.predictor, self.likelihood, self.of, self.samples, self.seed)

    def _over_parts(
        self, x: Tensor, target: Tensor | None, function: Callable[[Tensor, Tensor | None], Tensor]
    ) -> Tensor:
        """Apply ``function`` to one part of the batch after the other, with targets that are chosen once."""
        self._check(x)
        if self.of != "prediction":
            if target is not None:
                raise InputError("an uncertainty has no target; leave target out, or explain of='prediction'")
        elif target is not None and (not isinstance(target, Tensor) or len(target) != len(x)):
            raise ShapeMismatch(f"{len(x)} inputs need as many targets, got {getattr(target, 'shape', target)}")
        parts = []
        for start in range(0, len(x), self.batch_size or len(x)):
            rows = slice(start, start + (self.batch_size or len(x)))
            inputs, chosen = x[rows].detach(), None if target is None else target[rows].to(x.device)
            if chosen is None and self.of == "prediction":
                chosen = self._score.target(inputs)
            parts.append(function(inputs, chosen).detach())
        return torch.cat(parts)

    def _gradient(self, x: Tensor, target: Tensor | None, *, signed: bool) -> Tensor:
        def score(inputs: Tensor, *extra: Tensor) -> Tensor:
            return self._score(inputs, *extra) + 0 * inputs.flatten(1).sum(1)  # the score may not depend on the input

        saliency = _captum("captum.attr").Saliency(score)
        extra = None if target is None else (target,)
        gradient: Tensor = saliency.attribute(
            x.detach().clone().requires_grad_(), abs=not signed, additional_forward_args=extra
        )
        if not torch.isfinite(gradient).all():
            raise NonFinite("the gradient has NaN or infinite values; check the model at these inputs")
        return gradient.contiguous()

    def _most(self, inputs: Tensor, perturbations: int) -> int | None:
        """Return how many perturbed inputs captum may take at once."""
        return None if self.batch_size is None else min(max(self.batch_size, len(inputs)), len(inputs) * perturbations)

    def _check(self, x: Tensor) -> None:
        if not isinstance(x, Tensor) or not x.is_floating_point() or x.dim() < 2 or not len(x):
            what = f"{x.dtype} of shape {tuple(x.shape)}" if isinstance(x, Tensor) else f"a {type(x).__name__}"
            raise InputError(f"explanations are gradients by one floating-point tensor of inputs (N, ...), got {what}")


def _uniform(like: Tensor, radius: float, source: torch.Generator) -> Tensor:
    noise = torch.rand(like.shape, dtype=like.dtype, device=like.device, generator=source)
    return (2 * noise - 1) * radius


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
            f"explanations need captum, which cannot be imported ({error}); pip install leanbayes[explain]"
        ) from error
