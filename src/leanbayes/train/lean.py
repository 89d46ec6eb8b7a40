"""How the recipe `lean` trains a network whose weights are all random: the one place of its numbers.

The laboratory's recipe and the estimators for scikit-learn both train this way.
"""

from dataclasses import dataclass
from typing import Any

from leanbayes.likelihood import Likelihood
from leanbayes.optim import NaturalGradients
from leanbayes.train.options import Optimization

__all__ = ["LeanTraining"]

_START_FOR_CLASSES, _START_FOR_NUMBERS = (0.5, 1.5), (0.1, 5.0)  # the noise, and how far the curvature forgets it


@dataclass(frozen=True)
class LeanTraining:
    """Adam trains the means, the curvature gives the scales, and the means of the last steps are averaged.

    **Numbers need less noise than classes at the start.** The loss of a classifier has a curvature of at most a quarter
    of the squared slope of its logits. The loss of a regression has 1/s² times the squared slope, and the noise s of
    the targets may be as small as it likes. So networks for numbers start with a fifth of the noise, and their
    curvature forgets its start sooner.

    Args:
        average: the share of the steps, at the end, over which the means are averaged. With 0 the last means are kept,
            and the learning rate falls to 0 as a cosine; otherwise it is constant.
        temperature: the temperature of the posterior: the effective number of examples is their number divided by it.
        noise: the standard deviation with which random weights start, as a multiple of 1/√(3·fan-in), with which torch
            initialises them. By default it depends on the likelihood.
        forget: the curvature forgets its start by a factor of e^(−forget) within the training. By default it depends on
            the likelihood.
        weight_decay: the weight decay δ of the random weights, which stands for the prior N(0, 1/(λδ)), with λ the
            effective number of examples.

    >>> from leanbayes.likelihood import Categorical
    >>> LeanTraining().optimization(1000, 2e-3, Categorical()).schedule
    'constant'
    """

    average: float = 0.5
    temperature: float = 0.1
    noise: float | None = None
    forget: float | None = None
    weight_decay: float = 1e-4

    def optimization(
        self, steps: int, lr: float, likelihood: Likelihood, *, plain_lr: float = NaturalGradients.plain_lr
    ) -> Optimization:
        """Return what `fit` needs for a training of so many steps.

        Args:
            steps: the number of training steps.
            lr: the learning rate of the means.
            likelihood: what the outputs mean, which decides how much noise the weights start with.
            plain_lr: the learning rate of what is not random, such as the noise that a likelihood learns.
        """
        noise, forget = _START_FOR_CLASSES if likelihood.has_logits else _START_FOR_NUMBERS
        natural: Any = NaturalGradients(
            temperature=self.temperature,
            relative_scale=noise if self.noise is None else self.noise,
            beta2=1 - min((forget if self.forget is None else self.forget) / steps, 0.1),
            means="adam",
            average=self.average,
            plain_lr=plain_lr,
        )
        return Optimization(
            natural, lr=lr, weight_decay=self.weight_decay, schedule="constant" if self.average else "cosine"
        )
