"""LeanBayes's own recipe: every weight is random, averaged means, and one pass of moments to predict."""

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from leanbayes._calls import split_batch
from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError, MissingRule
from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes.base import Recipe, Run, option
from leanbayes.lab.recipes.lean_calibration import calibrate, calibrate_one_pass
from leanbayes.lab.recipes.options import check_within
from leanbayes.lab.recipes.ssvi import interval
from leanbayes.likelihood import Categorical, Likelihood
from leanbayes.posteriors import Normal
from leanbayes.prediction import in_eval, laws_of
from leanbayes.propagate import Moments, Sample, as_propagation
from leanbayes.subspace import Rewire, Subspace, everything, sensitivity, sparse, top_k
from leanbayes.train import LeanTraining, Optimization

__all__ = ["Lean"]

_PRETRAIN = 0.3


@dataclass(frozen=True)
class Lean(Recipe):
    """All weights are random, Adam trains the means, curvature the scales, and one pass of moments predicts.

    A training step costs one forward and one backward pass, as for the plain network. The halves of a batch see
    mirrored draws, m + Δ and m − Δ, which batch norm does not undo. For classes, labels and pixels the learning rate
    stays constant, and the means of the last steps are averaged. For numbers the learning rate falls, and the epoch
    with the least validation loss is kept. After training, the validation set decides two numbers: how wide the
    posterior is, and the temperature of the logits or the factor of the predicted noise. For classes, labels and pixels
    it also decides whether the pass of moments carries correlations, which cost about as much again as the rest.
    `leanbayes.train.LeanTraining` has the numbers and their reasons.
    """

    name = "lean"
    rate: float = option(
        1.0,
        "The share of the weights that is random. Below 1, the weights to which the loss of the plain network is most "
        "sensitive become random.",
        within="(0, 1]",
    )
    density: float | None = option(
        None,
        "The share of the weights that is stored; all others are zero and take no memory, and the stored ones move "
        "during training, as in SSVI. By default all weights are stored.",
        within="(0, 1]",
    )
    pretrain: float | None = option(
        None,
        "The share of the epochs for which the plain network is trained before weights become random. By default it is "
        "0 if all weights are random, and 0.3 where the plain network must say which weights matter.",
        within="[0, 1)",
    )
    lr: float | None = option(
        None,
        "The learning rate after pretraining; by default the budget's.",
        within="(0, inf)",
    )
    average: float | None = option(
        LeanTraining.average,
        "The share of the steps after pretraining, at the end, over which the means are averaged, while the learning "
        "rate is constant. With 0 the learning rate falls to 0 as a cosine, and the epoch with the least validation "
        "loss is kept. By default it is 0.5 for classes, labels and pixels, and 0 for numbers.",
        within="[0, 1)",
    )
    temperature: float = option(
        LeanTraining.temperature,
        "The temperature of the posterior in training: the effective number of examples is the number of examples "
        "divided by it. The recipe +temperature is another thing: it divides the logits after training.",
        within="(0, inf)",
    )
    noise: float | None = option(
        None,
        "The standard deviation with which random weights start, as a multiple of 1/√(3·fan-in), with which torch "
        "initialises them. By default it is 0.5 for classes, labels and pixels, and 0.1 for numbers.",
        within="(0, inf)",
    )
    forget: float | None = option(
        None,
        "How far the curvature forgets its start: by a factor of e^(-forget) within the training. More lets the scales "
        "move further. By default it is 1.5 for classes, labels and pixels, and 5 for numbers.",
        within="(0, inf)",
    )
    weight_decay: float = option(
        LeanTraining.weight_decay,
        "The weight decay δ of the random weights. It stands for the prior N(0, 1/(λδ)), with λ the effective number "
        "of examples.",
        within="(0, inf)",
    )
    predict: str | None = option(
        None,
        "How randomness passes through the network in predictions. By default it is moments (one pass) where every "
        "operation of the network has a rule for moments, and sample elsewhere. For classes, labels and pixels the "
        "validation set then chooses between moments with and without correlations.",
    )
    calibrate: bool = option(
        True,
        "Whether the validation set chooses the width of the posterior, and the temperature of the logits or the "
        "factor of the noise.",
    )

    def __post_init__(self) -> None:
        if self.predict is not None:
            as_propagation(self.predict)
        for item in fields(self):  # before the numbers are divided by
            check_within(
                getattr(self, item.name), item.metadata["within"], f"lean:{item.name}"
            ) if "within" in item.metadata else None
        if self.density is not None and self.rate < 1:
            raise InputError(
                f"a sparse network has all of its stored weights random; leave rate 1 or density out, got "
                f"rate={self.rate} and density={self.density}"
            )
        Optimization(**self.optimization(1, 1.0, Categorical()))

    def optimization(self, steps: int, plain_lr: float, likelihood: Likelihood) -> dict[str, Any]:
        """Return the fields of `leanbayes.Optimization` for a training of so many steps.

        Args:
            steps: the number of training steps.
            plain_lr: the learning rate of the plain network.
            likelihood: what the outputs mean, which decides the start of the noise.
        """
        training = LeanTraining(self.average, self.temperature, self.noise, self.forget, self.weight_decay)
        made = training.optimization(steps, plain_lr if self.lr is None else self.lr, likelihood)
        fixed = {name: getattr(made, name) for name in ("optimizer", "lr", "weight_decay", "schedule")}
        return fixed | {"patience": None}  # the whole schedule of the learning rate, or of the average, is wanted

    def least_epochs(self) -> int:
        """Return 2 where the plain network must first say which weights matter; all weights need no choice."""
        return 1 if self.rate == 1 or self.pretrain == 0 else 2

    def train(self, task: Task, run: Run) -> nn.Module:
        """Train means and scales, then choose the width and the temperature on the validation set."""
        pretrain = self.pretrain
        if pretrain is None:
            pretrain = 0.0 if self.rate == 1 else _PRETRAIN
        alone = self.rate == 1 and run.budget.epochs == 1  # one epoch cannot be divided, and all weights need no choice
        first, rest = run.share(0.0 if alone else pretrain)
        model = run.plain(task, first) if first else run.new_model(task)
        with run.charged():
            subspace = self._subspace(model, task, run, trained=first > 0)
        bnn = Bayesian(
            model,
            subspace=subspace,
            posterior=Normal(),
            propagate="mirrored",
            generator=torch.Generator(next(model.parameters()).device).manual_seed(run.seed),
        )
        self._choose_prediction(bnn, task, run)
        steps = rest * len(run.loader(task.train))
        how = self.optimization(steps, run.budget.lr, task.likelihood)
        options: dict[str, Any] = {
            "rewire": None if self.density is None else Rewire(every=interval(steps, Rewire.stop))
        }
        if how["optimizer"].average > 0:  # averages have no best epoch
            options["validate"] = None
        run.fit(bnn, task, self.name, rest, optimization=how, **options)
        if not self.calibrate:
            return bnn
        with run.charged():
            free = self.predict is None and isinstance(bnn.predict_by, Moments)
            choose = calibrate_one_pass if free else calibrate
            chosen = choose(bnn, run.tracked(task.validation, "calibration"), task.likelihood, run.seed)
        return chosen.applied(bnn, task.likelihood)

    def _subspace(self, model: nn.Module, task: Task, run: Run, *, trained: bool) -> Subspace:
        if self.density is not None:
            return sparse(self.density, start="magnitude" if trained else "random", seed=run.seed)
        if self.rate == 1:
            return everything()
        return top_k(sensitivity(model, run.tracked(task.train, "sensitivity"), task.likelihood), rate=self.rate)

    def _choose_prediction(self, bnn: Bayesian, task: Task, run: Run) -> None:
        """Set how the network predicts, before any training: a missing rule is found on one batch."""
        bnn.predict_by = self.predict or "moments"
        x, _ = split_batch(next(iter(run.loader(task.validation))))
        try:
            with in_eval(bnn), torch.no_grad():
                laws_of(bnn, x)
        except MissingRule:
            if self.predict is not None:
                raise
            bnn.predict_by = Sample()
