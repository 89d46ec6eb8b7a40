"""What the variational recipes share: a plain network first, then the ELBO (evidence lower bound) over a subspace."""

from abc import abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

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
from leanbayes.objective import Schedule, Terms, anneal
from leanbayes.posteriors import Family, GaussianRho, Normal
from leanbayes.posteriors.initial import InitialScale
from leanbayes.prediction import in_eval
from leanbayes.priors import CentredPrior, FittedPrior, PriorLike
from leanbayes.propagate import Local, Mirrored, OnePass, Propagation, Sample, as_propagation
from leanbayes.subspace import Rewire, Subspace
from leanbayes.train import has_statistics

__all__ = ["KL_END_HELP", "Variational"]

PRIORS: dict[str, PriorLike] = {"normal": NormalLaw(0.0, 1.0), "fitted": FittedPrior(), "centred": CentredPrior()}


KL_END_HELP = (
    "The weight of the KL divergence when training ends; none stands for min(1, n/k), with n examples and k random "
    "weights. The default is that of Abboud et al. 2024; docs/costs.md says what other weights gave, and 1 was worse."
)


@dataclass(frozen=True)
class Variational(Recipe):
    """A network some or all of whose weights are random, with Normal posteriors unless a subclass says otherwise."""

    pretrain: float = option(
        0.5,
        "The share of the epochs for which the plain network is trained before weights become random.",
        within="[0, 1)",
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
        within="[0, inf)",
    )
    kl_end: float | None = option(
        None,
        "The weight of the KL divergence when training ends. By default it is 1, the true ELBO, or n/k where more "
        "weights (k) are random than there are examples (n).",
        within="[0, inf)",
    )
    init_scale: float = option(
        0.01,
        "Where the scales of the random weights start. A small scale keeps what the plain network has learnt.",
        within="(0, inf)",
    )
    rho_mean: float | None = option(
        None,
        "The mean of ρ where the scales σ = log(1 + e^ρ) start at random, as in the paper on sensitivity-guided "
        "subnetworks. With rho_mean or rho_std, ρ starts at N(rho_mean, rho_std²) and init_scale does not count; the "
        "one that is not given is -3 or 0.1.",
        within="(-inf, inf)",
    )
    rho_std: float | None = option(
        None, "The standard deviation of ρ where the scales start at random; see rho_mean.", within="[0, inf)"
    )
    scale_lr: float = option(1e-2, "The learning rate of the scales.", within="(0, inf)")
    propagate: str | None = option(
        None,
        "How randomness passes through the network in training: sample, mirrored, local, flipout, moments or "
        "covariance. By default it is mirrored for networks with batch norm, and sample for others.",
    )
    draws: int = option(1, "How many weight draws each training step averages.", within="[1, inf)")
    last_layer_samples: int = option(
        1,
        "How many draws of the last layer each of these draws averages, given the input of that layer (Nazarovs et al. "
        "2021); they make training less noisy.",
        within="[1, inf)",
    )
    temperature: float = option(
        1.0,
        "The temperature of the posterior in training: below 1 it is colder, so that the scales become smaller. The "
        "recipe +temperature is another thing: it divides the logits after training.",
        within="[0, inf)",
    )
    kl_per: Literal["data", "parameter"] = option(
        "data",
        "What the KL divergence is divided by: the number of examples (data), which is the ELBO, or the number of "
        "random weights (parameter), as in the public code of Abboud et al. 2024.",
    )
    predict: str | None = option(
        None,
        "How randomness passes through the network in predictions, if not as in training; moments needs one pass and "
        "no draws.",
    )
    order: Literal["gaussian", "taylor"] | None = option(
        None,
        "How moments pass activations: with the moments of the activation of a Gaussian (gaussian, the default), or to "
        "first order (taylor), as VDP++ does.",
    )
    rank: int | None = option(
        None,
        "How many factors of the noise the units of a layer share when moments pass; 0 takes units as independent, as "
        "VDP++ does. By default it is 0 in training and 8 in predictions.",
        within="[0, inf)",
    )
    positions: Literal["split", "shared", "independent"] | None = option(
        None,
        "How moments treat positions that share a random filter: split (the default), shared, or independent, as VDP++ "
        "does.",
    )
    kernels: Literal["exact", "box"] | None = option(
        None,
        "How moments pass the variance through a convolution: with the squares of each filter (exact), or spread "
        "evenly over its window (box), which is faster. By default it is exact in training and box in predictions.",
    )

    def __post_init__(self) -> None:
        self.prior_law()
        named = [as_propagation(name) for name in (self.propagate, self.predict) if name]  # refuses unknown names
        for setting, value in self._moment_settings().items():
            if not any(setting in _settings_of(propagation) for propagation in named):
                raise InputError(
                    f"{setting}={value} is a setting of moments, and neither propagate={self.propagate} nor "
                    f"predict={self.predict} has it; write propagate=moments or predict=moments"
                )
        if self.propagate:
            self._with_settings(named[0])
        if self.last_layer_samples > 1 and self.propagate and isinstance(named[0], OnePass):
            raise InputError(
                f"under propagate={self.propagate} no layer is drawn; leave last_layer_samples 1, got "
                f"{self.last_layer_samples}"
            )
        self.terms(1.0)
        self.initial_scale()
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
        return Normal(self.initial_scale())

    def initial_scale(self) -> InitialScale:
        """Return where the scales start."""
        if self.rho_mean is None and self.rho_std is None:
            return self.init_scale
        usual = GaussianRho()
        return GaussianRho(
            usual.mean if self.rho_mean is None else self.rho_mean, usual.std if self.rho_std is None else self.rho_std
        )

    def terms(self, balanced: float) -> Terms:
        """Return how likelihood and KL are estimated and weighed; ``balanced`` as in `kl_schedule`.

        A KL that is divided by the number of weights is balanced already.
        """
        return Terms(
            self.kl_schedule(balanced if self.kl_per == "data" else 1.0),
            samples=self.draws,
            last_layer_samples=self.last_layer_samples,
            temperature=self.temperature,
            kl_per=self.kl_per,
        )

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
        task = run.weighed(task)
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
            generator=torch.Generator(next(model.parameters()).device).manual_seed(run.seed),
        )
        if self.predict and isinstance(bnn.predict_by, OnePass):  # a missing rule is named now, not after all training
            x, _ = split_batch(next(iter(run.loader(task.validation))))
            with in_eval(bnn), torch.no_grad():
                bnn.predict_by.law(bnn, x)
        options = {
            "kl_weight": self.terms(min(1.0, length(task.train) / bnn.summary().random)),
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
            return self._with_settings(as_propagation(self.propagate).lean())
        return Mirrored() if has_statistics(model) and self.posterior().symmetric else Sample()

    def _prediction(self) -> Propagation:
        """The propagation of predictions: the one that the user names, or the one that suits the training."""
        if self.predict is not None:
            return self._with_settings(as_propagation(self.predict))
        if self.propagate is None:
            return Sample()
        return self._with_settings(as_propagation(self.propagate).for_prediction)

    def _moment_settings(self) -> dict[str, Any]:
        """The settings of moments that the user gives."""
        names = ("order", "rank", "positions", "kernels")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    def _with_settings(self, propagation: Propagation) -> Propagation:
        """The propagation with those of the user's settings that it has."""
        known = _settings_of(propagation)
        return replace(propagation, **{name: v for name, v in self._moment_settings().items() if name in known})  # type: ignore[type-var]


def _settings_of(propagation: Propagation) -> set[str]:
    return {field.name for field in fields(propagation)}  # type: ignore[arg-type]
