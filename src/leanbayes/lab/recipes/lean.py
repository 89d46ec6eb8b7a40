"""LeanBayes's own recipe: natural gradients over all weights, and one pass of moments to predict."""

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import nn

from leanbayes._calls import split_batch
from leanbayes.bayesian import Bayesian
from leanbayes.errors import MissingRule
from leanbayes.lab.data.task import Task, length
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

_USUAL_CURVATURE = 0.1
_WIDEST_START = 0.02
_LONGEST_MOVE = 0.02  # of the mean of a weight in one step: where the loss is far from quadratic, steps must be small


@dataclass(frozen=True)
class Lean(Recipe):
    """All weights are random, trained by natural gradients (IVON), and one pass of moments predicts.

    A training step costs one forward and one backward pass, as for the plain network. The halves of a batch see
    mirrored draws, m + Δ and m − Δ, which batch norm does not undo. After training, the validation set decides two
    numbers: how wide the posterior is, and the temperature of the logits.
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
    temperature: float = option(
        0.33,
        "The temperature of the posterior in training: the effective number of examples is the number of examples "
        "divided by it. The recipe +temperature is another thing: it divides the logits after training.",
        within="(0, inf)",
    )
    step: float = option(
        0.05,
        "The size s of a natural-gradient step: the mean of a weight with curvature h moves by s·gradient/(h + δ). The "
        "budget's learning rate is for weights that are not random.",
        within="(0, inf)",
    )
    init_scale: float | None = option(
        None,
        "The standard deviation with which every random weight starts. By default it is that of the curvature 0.1, but "
        "at most 0.02.",
        within="(0, inf)",
    )
    forget: float = option(
        1.5,
        "How far the curvature forgets its start: by a factor of e^(-forget) within the training. More lets the scales "
        "move further, which on small networks made them too wide.",
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
            check_within(getattr(self, item.name), item.metadata["within"], f"lean:{item.name}")
        Optimization(**self.optimization(1, 1, 1.0))

    def optimization(self, examples: int, steps: int, plain_lr: float) -> dict[str, Any]:
        """Return the fields of `leanbayes.Optimization` for a training set of so many examples.

        The learning rate of IVON is that of a gradient step at the start, where the curvature is h₀: α = s/(h₀ + δ).

        Args:
            examples: the number of training examples.
            steps: the number of training steps.
            plain_lr: the learning rate of the weights that are not random.
        """
        size, decay = examples / self.temperature, self.weight_decay
        scale = self.init_scale or min(_WIDEST_START, (size * (_USUAL_CURVATURE + decay)) ** -0.5)
        lr = self.step * size * scale**2  # h₀ + δ = 1/(λσ₀²)
        natural = NaturalGradients(
            temperature=self.temperature,
            initial_scale=scale,
            plain_lr=plain_lr,
            beta2=1 - min(self.forget / steps, 0.1),
            clip=_LONGEST_MOVE / lr,
        )
        # The schedule ends at a rate of 0, so the last epoch is kept, and there is nothing to stop early.
        return {"optimizer": natural, "lr": lr, "weight_decay": decay, "schedule": "cosine", "patience": None}

    def train(self, task: Task, run: Run) -> nn.Module:
        """Train by natural gradients, then choose the width and the temperature on the validation set."""
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
        how = self.optimization(length(task.train), steps, run.budget.lr)
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
