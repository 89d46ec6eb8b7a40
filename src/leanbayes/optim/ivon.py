"""IVON: natural-gradient variational inference at the price of Adam (Shen et al. 2024).

The posterior of a random weight is q = N(m, σ²) with σ² = 1/(λ(h + δ)). Here λ is the effective number of examples, δ
is the precision of the prior divided by λ, and h is a running estimate of the curvature of the mean loss. One step
computes

    g ← β₁ g + (1 − β₁) ĝ                                     ĝ: gradient of the mean loss with respect to m
    h ← h + ρ(ĥ − h) + ½ ρ²(ĥ − h)²/(h + δ),  ρ = 1 − β₂       ĥ: estimate of the curvature
    m ← m − α (h₀ + δ) (g/(1 − β₁ᵗ) + δ(m − m₀)) / (h + δ)      m₀: mean of the prior

The KL divergence is part of this update, so the loss must not contain it. The step is multiplied by h₀ + δ, where h₀ is
the initial curvature, so that the learning rate α is a multiple of a gradient step.

**The curvature estimate.** For a Gaussian, ∂/∂σ E[loss] = σ E[∂²loss/∂w²] (Bonnet's and Price's theorems). So
ĥ = (∂loss/∂σ)/σ estimates the expected curvature for every propagation whose gradient with respect to σ is unbiased:
sample, mirrored, flipout, local and moments. For one weight draw w = m + σξ it is the paper's estimate ĝ·ξ/σ.

**h + δ stays positive.** Write u = h + δ and x = ρ(ĥ − h)/u. Then u becomes u(1 + x + x²/2) = ½u((1 + x)² + 1) ≥ u/2.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributions import Normal as TorchNormal
from torch.optim import Optimizer

from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError
from leanbayes.optim.protocol import Problem
from leanbayes.optim.random_tensor import RandomTensor, random_tensors
from leanbayes.posteriors import Normal
from leanbayes.priors import CentredPrior, FixedPrior

__all__ = ["DEFAULT", "IVON", "CurvatureSummary", "NaturalGradients"]

_DEFAULT_RATE = 0.5
_TIME_CONSTANTS = 5.0  # by default the curvature forgets its start by a factor e⁻⁵ within the training
_ADAM_BETAS = (0.9, 0.999)
_ADAM_EPSILON = 1e-8


@dataclass(frozen=True)
class CurvatureSummary:
    """How far the scales have moved.

    Attributes:
        start: the mean scale at the start.
        quantiles: the 5, 25, 50, 75 and 95 % quantiles of the scales now.
        moved: the median of |log σ − log σ₀|. A training that leaves it near 0 has not learnt its scales.
    """

    start: float
    quantiles: tuple[float, ...]
    moved: float


@dataclass(frozen=True)
class _Target:
    """A random tensor with its Normal prior: mean and precision."""

    tensor: RandomTensor
    centre: Tensor
    precision: Tensor


class IVON(Optimizer):
    """An optimizer that trains the means and the scales of a `Bayesian` by natural gradients.

    The scales need no learning rate of their own: they follow from the curvature that the optimizer estimates. A step
    costs one backward pass, as a step of Adam does. Coordinates that are not random, such as norms or the rest of a
    partly random tensor, are trained by Adam with the learning rate ``plain_lr``.

    After every step the scales of ``bnn`` are those of q, so predicting, saving and pruning work as usual. In a loop of
    your own, use the loss without the KL divergence: ``lb.elbo(..., with_kl=False).loss``. `lb.fit` does so by itself.

    Args:
        bnn: the model, with a Normal posterior that has one scale for each weight.
        lr: the learning rate α of the random weights.
        n_data: how many examples the training set has.
        temperature: the effective number of examples λ is ``n_data / temperature``. A temperature below 1 makes the
            posterior narrower, which helps networks that are not fitted yet, and data with augmentation.
        weight_decay: δ. By default it follows from the prior of ``bnn``. A number replaces that prior by
            N(0, 1/(λδ)), so that the KL divergence that is reported stays true.
        initial_curvature: h₀. The scales start at 1/√(λ(h₀ + δ)).
        beta1: how much of the momentum a step keeps.
        beta2: how much of the curvature a step keeps. By default it is 1 − 5/steps, so that the curvature can move
            within the training.
        steps: how many steps the training takes, from which ``beta2`` is chosen.
        clip: the largest absolute value of a coordinate of the preconditioned step, before the learning rate.
        plain_lr: the learning rate of the coordinates that are not random.
        others: more parameters to train by Adam, such as those of a likelihood.

    >>> bnn = Bayesian(nn.Linear(3, 2))
    >>> optimizer = IVON(bnn, lr=0.1, n_data=100, steps=10)
    >>> torch.nn.functional.mse_loss(bnn(torch.ones(4, 3)), torch.zeros(4, 2)).backward()
    >>> optimizer.step()
    """

    owns_scales = True

    def __init__(
        self,
        bnn: Bayesian,
        lr: float = _DEFAULT_RATE,
        *,
        n_data: int,
        temperature: float = 1.0,
        weight_decay: float | None = None,
        initial_curvature: float = 0.1,
        beta1: float = 0.9,
        beta2: float | None = None,
        steps: int | None = None,
        clip: float | None = None,
        plain_lr: float = 2e-3,
        others: Iterable[nn.Parameter] = (),
    ) -> None:
        if isinstance(bnn, Bayesian) and not (isinstance(bnn.posterior, Normal) and bnn.posterior.per == "weight"):
            raise InputError(
                f"IVON needs a Normal posterior with one scale for each weight, got {bnn.posterior}; "
                "use posterior=lb.posteriors.Normal()"
            )
        if n_data < 1 or (steps is not None and steps < 1):
            raise InputError(f"n_data and steps must be at least 1, got {n_data} and {steps}")
        _require_positive(lr=lr, temperature=temperature, initial_curvature=initial_curvature, plain_lr=plain_lr)
        _require_positive(**{name: x for name, x in (("weight_decay", weight_decay), ("clip", clip)) if x is not None})
        tensors = random_tensors(bnn)
        if not tensors:
            raise InputError("the model has no random weights, so IVON has nothing to train; use torch.optim.Adam")
        beta2 = _beta2(steps) if beta2 is None else beta2
        for name, value in (("beta1", beta1), ("beta2", beta2)):
            if not 0 <= value < 1:
                raise InputError(f"{name} must be at least 0 and below 1, got {value}")
        if weight_decay is not None:
            _replace_priors(bnn, scale=1 / math.sqrt(n_data / temperature * weight_decay))
        self._targets = _targets(bnn, tensors)
        self._by_mean = {id(target.tensor.mean): target for target in self._targets}
        settings: dict[str, Any] = {
            "lr": lr,
            "start_lr": lr,
            "plain_lr": plain_lr,
            "n_data": n_data,
            "temperature": temperature,
            "kl_weight": 1.0,
            "initial_curvature": initial_curvature,
            "beta1": beta1,
            "beta2": beta2,
            "clip": clip,
        }
        trained = [parameter for parameter in bnn.model.parameters() if parameter.requires_grad]
        scales = [tensor.rho for tensor in tensors]
        super().__init__([{"params": [*trained, *others], **settings}, {"params": scales, **settings}], {})
        with torch.no_grad():
            for target in self._targets:
                rho = target.tensor.rho
                curvature = torch.full_like(rho, initial_curvature)
                self.state[rho] = {"curvature": curvature, "momentum": torch.zeros_like(rho), "step": 0}
                target.tensor.set_scale(self._scale(target))

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:  # type: ignore[override]
        """Make one step from the gradients of the mean loss with respect to means and raw scales."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        group = self.param_groups[0]
        if not 0 < group["kl_weight"] < math.inf:
            raise InputError(
                f"IVON has the KL divergence in its update and needs a positive KL weight, got {group['kl_weight']}; "
                "use a constant kl_weight above 0"
            )
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            target = self._by_mean.get(id(parameter))
            if target is None:
                self._adam(parameter, parameter.grad, group)
            elif target.tensor.rho.grad is not None:
                self._natural(target, group)
        return loss

    def summary(self) -> CurvatureSummary:
        """Return how far the scales have moved from their start."""
        group, size = self.param_groups[0], self._size()
        scales = torch.cat([self._scale(target).flatten() for target in self._targets])
        starts = [
            (group["initial_curvature"] * size + target.precision).rsqrt().expand(target.tensor.rho.shape).flatten()
            for target in self._targets
        ]
        start = torch.cat(starts)
        levels = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95], device=scales.device, dtype=scales.dtype)
        stride = max(1, scales.numel() // 1_000_000)  # torch.quantile takes at most 16 million numbers
        quantiles = torch.quantile(scales[::stride], levels)
        moved = (scales.log() - start.log()).abs().median()
        return CurvatureSummary(float(start.mean()), tuple(quantiles.tolist()), float(moved))

    def _natural(self, target: _Target, group: dict[str, Any]) -> None:
        tensor = target.tensor
        mean, index, state = tensor.mean, tensor.index, self.state[tensor.rho]
        if index is not None:
            random = tensor.random_mean()
            assert mean.grad is not None
            self._adam(mean, mean.grad, group)  # for the coordinates that are not random; the others are put back
            mean.view(-1).index_copy_(0, index.long(), random)
        momentum, curvature, decay = state["momentum"], state["curvature"], target.precision / self._size()
        state["step"] += 1
        forget, beta1 = 1 - group["beta2"], group["beta1"]
        momentum.lerp_(tensor.mean_gradient(), 1 - beta1)
        change = (tensor.scale_gradient() / tensor.scale()).sub_(curvature)
        growth = change.square().div_(curvature + decay)
        curvature.add_(change, alpha=forget).add_(growth, alpha=0.5 * forget**2)
        direction = momentum / (1 - beta1 ** state["step"]) + (tensor.random_mean() - target.centre) * decay
        direction.mul_((group["initial_curvature"] + decay) / (curvature + decay))
        if group["clip"] is not None:
            direction.clamp_(-group["clip"], group["clip"])
        if index is None:
            mean.add_(direction, alpha=-group["lr"])
        else:
            mean.view(-1).index_add_(0, index, direction, alpha=-group["lr"])
        tensor.set_scale(self._scale(target))

    def _adam(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["step"] = 0
            state["first"], state["second"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["step"] += 1
        first, second = _ADAM_BETAS
        state["first"].lerp_(gradient, 1 - first)
        state["second"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        rate = group["plain_lr"] * group["lr"] / group["start_lr"]  # follows the schedule of the learning rate
        root = (state["second"] / (1 - second ** state["step"])).sqrt_().add_(_ADAM_EPSILON)
        parameter.addcdiv_(state["first"], root, value=-rate / (1 - first ** state["step"]))

    def _size(self) -> float:
        """Return λ. A KL weight of β divides it, because β KL is the KL of a likelihood to the power of 1/β."""
        group = self.param_groups[0]
        return float(group["n_data"] / (group["temperature"] * group["kl_weight"]))

    def _scale(self, target: _Target) -> Tensor:
        """Return σ = (λh + prior precision)^(−½)."""
        curvature: Tensor = self.state[target.tensor.rho]["curvature"]
        return (self._size() * curvature + target.precision).rsqrt()


@dataclass(frozen=True)
class NaturalGradients:
    """The settings of `IVON` for `lb.fit`, which knows the number of examples and steps by itself.

    ``fit(..., optimizer="ivon")`` uses the defaults. Other settings go through `lb.Optimization`, for example
    ``lb.Optimization(lb.optim.NaturalGradients(temperature=0.3), lr=0.5, schedule="cosine")``. The arguments are those
    of `IVON`; the weight decay is that of `lb.Optimization`, and 0 there means that it follows from the prior.
    """

    name: ClassVar[str] = "ivon"
    owns_scales: ClassVar[bool] = True
    default_lr: ClassVar[float] = _DEFAULT_RATE
    temperature: float = 1.0
    initial_curvature: float = 0.1
    beta1: float = 0.9
    beta2: float | None = None
    clip: float | None = None
    plain_lr: float = 2e-3

    def build(self, problem: Problem) -> IVON:
        """Build the optimizer for a training."""
        if not isinstance(problem.model, Bayesian):
            random_tensors(problem.model)  # raises the error that says what to do
        assert isinstance(problem.model, Bayesian)
        own = {id(parameter) for parameter in problem.model.parameters()}
        return IVON(
            problem.model,
            problem.lr,
            n_data=problem.n_data,
            steps=problem.steps,
            weight_decay=problem.weight_decay or None,
            others=[p for group in problem.groups for p in group["params"] if id(p) not in own],
            **asdict(self),
        )


DEFAULT = NaturalGradients()
"""What ``optimizer="ivon"`` stands for."""


def _beta2(steps: int | None) -> float:
    if steps is None:
        raise InputError("say how long the training is with steps=, or how slow the curvature is with beta2=")
    return 1 - min(_TIME_CONSTANTS / steps, 0.1)


def _targets(bnn: Bayesian, tensors: list[RandomTensor]) -> list[_Target]:
    weights, memories = bnn.weights(), {name: parts.memory for name, parts in bnn.parts()}
    targets = []
    for tensor in tensors:
        rule = bnn._priors[tensor.name]
        prior = rule.distribution(weights[tensor.name], memories[tensor.name])
        if not isinstance(rule, FixedPrior | CentredPrior) or not isinstance(prior, TorchNormal):
            raise InputError(
                f"IVON needs a Normal prior that stays as it is, got {rule} for {tensor.name!r}; "
                "use prior=torch.distributions.Normal(0, s), lb.priors.CentredPrior(s), or weight_decay= of IVON"
            )
        centre, precision = prior.loc.detach().to(tensor.rho), prior.scale.detach().to(tensor.rho).square().reciprocal()
        targets.append(_Target(tensor, centre, precision))
    return targets


def _replace_priors(bnn: Bayesian, scale: float) -> None:
    prior = TorchNormal(0.0, scale)
    bnn.prior = prior
    bnn._priors = dict.fromkeys(bnn._priors, FixedPrior(prior))


def _require_positive(**values: float) -> None:
    for name, value in values.items():
        if not 0 < value < math.inf:
            raise InputError(f"{name} must be a positive finite number, got {value}")
