"""What the variational recipes share: a plain start, then the ELBO over a chosen subspace."""

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

__all__ = ["Variational"]

PRIORS: dict[str, PriorLike] = {"normal": NormalLaw(0.0, 1.0), "fitted": FittedPrior(), "centred": CentredPrior()}


@dataclass(frozen=True)
class Variational(Recipe):
    """A network whose random weights have Normal posteriors."""

    pretrain: float = option(0.5, "share of the epochs for which the plain network is trained first")
    prior: str = option("fitted", "normal (0, 1), fitted (each tensor's own scale) or centred (at the trained weights)")
    kl_start: float | None = option(None, "weight of the KL when training begins, if not as when it ends (001: 0.2)")
    kl_end: float | None = option(None, "and when it ends: by default 1, the true ELBO, or n/k for more random weights")
    init_scale: float = option(0.01, "of the random weights: small, so that a trained start is not lost")
    scale_lr: float = option(1e-2, "learning rate of the scales")
    propagate: str | None = option(
        None,
        "sample, mirrored, local, flipout, moments or covariance; by default mirrored under batch norm, or sample",
    )
    draws: int = option(1, "a training step")
    predict: str | None = option(None, "another propagation for predictions: moments needs one pass and no draws")

    def __post_init__(self) -> None:
        self.prior_law()
        for propagation in filter(None, (self.propagate, self.predict)):
            as_propagation(propagation)  # which refuses unknown names
        if not 0 <= self.pretrain < 1:
            raise InputError(f"pretrain must be in [0, 1), got {self.pretrain}")

    @abstractmethod
    def subspace(self, model: nn.Module, task: Task, run: Run) -> Subspace:
        """Which weights are random."""

    def prior_law(self) -> PriorLike:
        """What is believed before."""
        if self.prior not in PRIORS:
            raise UnknownName.of("prior", self.prior, PRIORS)
        return PRIORS[self.prior]

    def posterior(self) -> Family:
        """How they are distributed at the start."""
        return Normal(self.init_scale)

    def estimator(self) -> Estimator:
        """How the KL is computed."""
        return Exact()

    def likelihood_of(self, task: Task) -> Likelihood:
        """What scores the targets in training."""
        return task.likelihood

    def kl_schedule(self, balanced: float) -> Schedule:
        """How the weight of the KL runs; ``balanced`` is min(1, n/k).

        A sum over more weights than there are examples would outweigh the data: then it is their mean that counts.
        """
        end = balanced if self.kl_end is None else self.kl_end
        return anneal(end if self.kl_start is None else self.kl_start, end)

    def rewiring(self, steps: int) -> Rewire | None:  # noqa: ARG002
        """How sparse weights move in so many steps; None where there are none."""
        return None

    def finished(self, bnn: Bayesian) -> Bayesian:
        """What is made of the trained network."""
        return bnn

    def train(self, task: Task, run: Run) -> nn.Module:
        """A plain start, the choice of weights, and the rest of the epochs on the ELBO."""
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
