"""What natural gradients train: the random tensors of a model, each with its Normal prior."""

from dataclasses import dataclass

from torch import Tensor
from torch.distributions import Normal as TorchNormal

from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError
from leanbayes.optim.random_tensor import RandomTensor
from leanbayes.priors import CentredPrior, FixedPrior

__all__ = ["Target", "check_start", "check_tensors", "replace_priors", "target_of"]


@dataclass(frozen=True)
class Target:
    """A random tensor with its Normal prior: precision, and mean. The mean is None if the tensor remembers it.

    ``usual`` is the usual size of its weights, which ``relative_scale`` multiplies.
    """

    tensor: RandomTensor
    precision: float
    centre: float | None
    usual: float

    def centres(self) -> Tensor | float:
        """Return the mean of the prior, as one number or for each random coordinate."""
        if self.centre is not None:
            return self.centre
        assert self.tensor.parts.memory is not None
        return self.tensor.parts.memory


def target_of(bnn: Bayesian, tensor: RandomTensor, usual: float) -> Target:
    """Join a random tensor with its prior, which must be Normal and must not change."""
    rule = bnn._priors[tensor.name]
    if isinstance(rule, CentredPrior):
        return Target(tensor, rule.scale**-2, None, usual)
    if isinstance(rule, FixedPrior) and isinstance(rule.law, TorchNormal):
        return Target(tensor, float(rule.law.scale) ** -2, float(rule.law.loc), usual)
    raise InputError(
        f"IVON needs a Normal prior that stays as it is, got {rule} for {tensor.name!r}; "
        "use prior=torch.distributions.Normal(0, s), lb.priors.CentredPrior(s), or weight_decay= of IVON"
    )


def check_tensors(tensors: list[RandomTensor]) -> None:
    """Raise if there is nothing to train, or if its type has too few digits."""
    if not tensors:
        raise InputError("the model has no random weights, so IVON has nothing to train; use torch.optim.Adam")
    for tensor in tensors:
        if tensor.rho.dtype.itemsize < 4:
            raise InputError(
                f"{tensor.name!r} has weights of type {tensor.rho.dtype}, whose digits cannot hold the small changes "
                "of the curvature; keep the weights in float32, and run the passes under torch.autocast"
            )


def check_start(target: Target, scale: float | None) -> None:
    """Raise if the training would start with a posterior that is wider than the prior."""
    if scale is not None and scale**-2 <= target.precision:
        raise InputError(
            f"initial_scale must be below the scale of the prior, because data can only narrow the posterior; got "
            f"initial_scale={scale} and a prior of scale {target.precision**-0.5:.3g} for {target.tensor.name!r}; "
            "lower initial_scale"
        )


def replace_priors(bnn: Bayesian, scale: float) -> None:
    """Give every random weight the prior N(0, scale²)."""
    prior = TorchNormal(0.0, scale)
    bnn.prior = prior
    bnn._priors = dict.fromkeys(bnn._priors, FixedPrior(prior))
