"""LeanBayes's own recipe: every weight is random, averaged means, and one pass of moments to predict."""

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from leanbayes._calls import split_batch
from leanbayes.bayesian import Bayesian
from leanbayes.errors import MissingRule
from leanbayes.lab.data.task import Task
from leanbayes.lab.recipes.base import Recipe, Run, option
from leanbayes.lab.recipes.lean_calibration import calibrate
from leanbayes.lab.recipes.options import check_within
from leanbayes.optim import NaturalGradients
from leanbayes.posteriors import Normal
from leanbayes.prediction import in_eval, laws_of
from leanbayes.propagate import Sample, as_propagation
from leanbayes.subspace import Subspace, everything, sensitivity, top_k
from leanbayes.train import Optimization

__all__ = ["Lean"]


_FASTER = 2.0  # the learning rate as a multiple of the plain network's; on two networks better than 1 and than 4


@dataclass(frozen=True)
class Lean(Recipe):
    """All weights are random, Adam trains the means, curvature the scales, and one pass of moments predicts.

    A training step costs one forward and one backward pass, as for the plain network. The halves of a batch see
    mirrored draws, m + Δ and m − Δ, which batch norm does not undo. The learning rate stays constant, and the means of
    the last steps are averaged. After training, the validation set decides two numbers: how wide the posterior is, and
    the temperature of the logits.
    """

    name = "lean"
    rate: float = option(
        1.0,
        "The share of the weights that is random. Below 1, the weights to which the loss of the plain network is most "
        "sensitive become random.",
        within="(0, 1]",
    )
    pretrain: float = option(
        0.3,
        "The share of the epochs for which the plain network is trained before weights become random.",
        within="[0, 1)",
    )
    lr: float | None = option(
        None,
        "The learning rate after pretraining, which stays constant; by default twice the budget's, because means that "
        "are averaged may travel further.",
        within="(0, inf)",
    )
    average: float = option(
        0.7,
        "The share of the steps after pretraining, at the end, over which the means are averaged. 0 keeps the last "
        "means, and the learning rate then falls to 0 as a cosine.",
        within="[0, 1)",
    )
    schedule: str | None = option(None, "The schedule of the learning rate after pretraining.")
    temperature: float = option(
        0.1,
        "The temperature of the posterior in training: the effective number of examples is the number of examples "
        "divided by it. The recipe +temperature is another thing: it divides the logits after training.",
        within="(0, inf)",
    )
    noise: float = option(
        0.5,
        "The standard deviation with which random weights start, as a multiple of 1/√(3·fan-in), with which torch "
        "initialises them.",
        within="(0, inf)",
    )
    forget: float = option(
        1.5,
        "How far the curvature forgets its start: by a factor of e^(-forget) within the training. More lets the scales "
        "move further.",
        within="(0, inf)",
    )
    weight_decay: float = option(
        1e-3,
        "The weight decay δ of the random weights. It stands for the prior N(0, 1/(λδ)), with λ the effective number "
        "of examples.",
        within="(0, inf)",
    )
    predict: str | None = option(
        None,
        "How randomness passes through the network in predictions. By default it is moments (one pass) where every "
        "operation of the network has a rule for moments, and sample elsewhere.",
    )
    calibrate: bool = option(
        True, "Whether the validation set chooses the width of the posterior and the temperature of the logits."
    )

    def __post_init__(self) -> None:
        if self.predict is not None:
            as_propagation(self.predict)
        for item in fields(self):  # before the numbers are divided by
            check_within(getattr(self, item.name), item.metadata["within"], f"lean:{item.name}") if "within" in item.metadata else None
        Optimization(**self.optimization(1, 1.0))

    def optimization(self, steps: int, plain_lr: float) -> dict[str, Any]:
        """Return the fields of `leanbayes.Optimization` for a training of so many steps.

        Args:
            steps: the number of training steps.
            plain_lr: the learning rate of the plain network.
        """
        natural = NaturalGradients(
            temperature=self.temperature,
            relative_scale=self.noise,
            beta2=1 - min(self.forget / steps, 0.1),
            means="adam",
            average=self.average,
        )
        return {
            "optimizer": natural,
            "lr": _FASTER * plain_lr if self.lr is None else self.lr,
            "weight_decay": self.weight_decay,
            "schedule": self.schedule or ("constant" if self.average else "cosine"),
            "patience": None,  # there is no best epoch to wait for: the average, or the last epoch, is kept
        }

    def train(self, task: Task, run: Run) -> nn.Module:
        """Train means and scales, then choose the width and the temperature on the validation set."""
        alone = self.rate == 1 and run.budget.epochs == 1  # one epoch cannot be divided, and all weights need no choice
        first, rest = run.share(0.0 if alone else self.pretrain)
        model = run.plain(task, first) if first else run.new_model(task)
        with run.charged():
            subspace = self._subspace(model, task, run)
        bnn = Bayesian(
            model,
            subspace=subspace,
            posterior=Normal(),
            propagate="mirrored",
            generator=torch.Generator(next(model.parameters()).device).manual_seed(run.seed),
        )
        self._choose_prediction(bnn, task, run)
        steps = rest * len(run.loader(task.train))
        how = self.optimization(steps, run.budget.lr)
        run.fit(bnn, task, self.name, rest, optimization=how, validate=None)
        if not self.calibrate:
            return bnn
        with run.charged():
            chosen = calibrate(bnn, run.tracked(task.validation, "calibration"), task.likelihood, run.seed)
        return chosen.applied(bnn, task.likelihood)

    def _subspace(self, model: nn.Module, task: Task, run: Run) -> Subspace:
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
