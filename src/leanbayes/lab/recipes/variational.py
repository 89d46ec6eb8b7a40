"""What the variational recipes share: a plain network first, then the ELBO (evidence lower bound) over a subspace."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributions import Normal as NormalLaw

from leanbayes._calls import split_batch
from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError, UnknownName
from leanbayes.kl import Estimator, Exact
from leanbayes.lab.data.task import Task, length
from leanbayes.lab.recipes.base import Recipe, Run, option
from leanbayes.likelihood import Likelihood
from leanbayes.objective import Schedule, anneal
from leanbayes.posteriors import Family, Normal
from leanbayes.prediction import in_eval
from leanbayes.priors import CentredPrior, FittedPrior, PriorLike
from leanbayes.propagate import Local, Mirrored, OnePass, Propagation, Sample, as_propagation
from leanbayes.subspace import Rewire, Subspace
from leanbayes.train import has_statistics

__all__ = ["KL_END_HELP", "Variational"]

PRIORS: dict[str, PriorLike] = {"normal": NormalLaw(0.0, 1.0), "fitted": FittedPrior(), "centred": CentredPrior()}


KL_END_HELP = (
    "The weight of the KL divergence when training ends; none stands for min(1, n/k), with n examples and k random "
    "weights. The default is that of Abboud et al. 2024."
)


@dataclass(frozen=True)
class Variational(Recipe):
    """A network some or all of whose weights are random, with Normal posteriors unless a subclass says otherwise."""

    pretrain: float = option(
        0.5, "The share of the epochs for which the plain network is trained before weights become random."
    )
    prior: str = option(
        "fitted",
        "The prior of the random weights: normal (mean 0, deviation 1), fitted (mean 0 and the deviation of each "
        "weight tensor) or centred (around the trained weights).",
    )
    kl_start: float | None = option(
        None,
        "The weight of the KL divergence when training begins. By default it is kl_end throughout; the paper on "
        "sensitivity-guided subnetworks starts at 0.2.",
    )
    kl_end: float | None = option(
        None,
        "The weight of the KL divergence when training ends. By default it is 1, the true ELBO, or n/k where more "
        "weights (k) are random than there are examples (n).",
    )
    init_scale: float = option(
        0.01, "Where the scales of the random weights start. A small scale keeps what the plain network has learnt."
    )
    scale_lr: float = option(1e-2, "The learning rate of the scales.")
    propagate: str | None = option(
        None,
        "How randomness passes through the network in training: sample, mirrored, local, flipout, moments or "
        "covariance. By default it is mirrored for networks with batch norm, and sample for others.",
    )
    draws: int = option(1, "How many weight draws each training step averages.")
    predict: str | None = option(
        None,
        "How randomness passes through the network in predictions, if not as in training; moments needs one pass and "
        "no draws.",
    )

    def __post_init__(self) -> None:
        self.prior_law()
        for propagation in filter(None, (self.propagate, self.predict)):
            as_propagation(propagation)  # which refuses unknown names
        if not 0 <= self.pretrain < 1:
            raise InputError(f"pretrain must be in [0, 1), got {self.pretrain}")

    @abstractmethod
    def subspace(self, model: nn.Module, task: Task, run: Run) -> Subspace:
        """Choose the weights that are random."""

    def prior_law(self) -> PriorLike:
        """Return the prior of the random weights."""
        if self.prior not in PRIORS:
            raise UnknownName.of("prior", self.prior, PRIORS)
        return PRIORS[self.prior]

    def posterior(self) -> Family:
        """Return the family of the random weights, with the scale that they start from."""
        return Normal(self.init_scale)

    def estimator(self) -> Estimator:
        """Return what computes the KL divergence."""
        return Exact()

    def likelihood_of(self, task: Task) -> Likelihood:
        """Return what scores the targets in training."""
        return task.likelihood

    def kl_schedule(self, balanced: float) -> Schedule:
        """Return how the weight of the KL divergence changes during training.

        The KL is a sum over k random weights, and the data term a sum over n examples. With k > n the KL would outweigh
        the data, so its weight is then n/k.

        Args:
            balanced: min(1, n/k).
        """
        end = balanced if self.kl_end is None else self.kl_end
        return anneal(end if self.kl_start is None else self.kl_start, end)

    def rewiring(self, steps: int) -> Rewire | None:  # noqa: ARG002
        """Return how sparse weights move in a training of so many steps; None if no weight moves."""
        return None

    def finished(self, bnn: Bayesian) -> Bayesian:
        """Turn the trained network into the predictor."""
        return bnn

    def train(self, task: Task, run: Run) -> nn.Module:
        """Train the plain network, choose the random weights, and spend the remaining epochs on the ELBO."""
        first, rest = run.share(self.pretrain)
        model = run.plain(task, first) if first else run.new_model(task)
        with run.charged():
            subspace = self.subspace(model, task, run)
        bnn = Bayesian(
            model,
            subspace=subspace,
            posterior=self.posterior(),
            prior=self.prior_law(),
            propagate=self._training(model),
            predict_by=self._prediction(),
            kl=self.estimator(),
        )
        if self.predict and isinstance(bnn.predict_by, OnePass):  # a missing rule is named now, not after all training
            x, _ = split_batch(next(iter(run.loader(task.validation))))
            with in_eval(bnn), torch.no_grad():
                bnn.predict_by.law(bnn, x)
        options = {
            "kl_weight": self.kl_schedule(min(1.0, length(task.train) / bnn.summary().random)),
            "samples": self.draws,
            "likelihood": self.likelihood_of(task),
            "rewire": self.rewiring(rest * len(run.loader(task.train))),
        }
        optimization: dict[str, Any] = {"scale_lr": self.scale_lr}
        if not first and isinstance(bnn.propagate, Local):  # no statistics to hold yet, and each example has its noise
            optimization["hold_statistics"] = False
        run.fit(bnn, task, self.name, rest, optimization=optimization, **options)
        return self.finished(bnn)

    def _training(self, model: nn.Module) -> Propagation:
        """The propagation of training, with the settings that save memory.

        By default, networks with batch norm are trained with mirrored draws, because batch norm would normalise one
        draw for a whole batch away.
        """
        if self.propagate is not None:
            return as_propagation(self.propagate).lean()
        return Mirrored() if has_statistics(model) and self.posterior().symmetric else Sample()

    def _prediction(self) -> Propagation:
        """The propagation of predictions: the one that the user names, or the one that suits the training."""
        if self.predict is not None:
            return as_propagation(self.predict)
        return Sample() if self.propagate is None else as_propagation(self.propagate).for_prediction
