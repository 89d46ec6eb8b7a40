"""The variational recipes: propagations, and the weight of the KL divergence."""

import dataclasses

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.lab.data import Task
from leanbayes.lab.recipes import Budget, Run, parse, prepare
from tests import tasks
from tests.lab.recipes.cases import BUDGET


@pytest.mark.parametrize(
    ("spec", "make", "trained_by", "predicts_by"),
    [
        ("partial", tasks.pictures, "mirrored", "sample"),
        ("partial", tasks.classes, "sample", "sample"),
        ("partial:propagate=sample", tasks.pictures, "sample", "sample"),
        ("partial:propagate=flipout", tasks.classes, "flipout", "flipout"),
        ("radial:predict=moments", tasks.pictures, "mirrored", "moments"),
        ("vdp", tasks.pictures, "moments", "moments"),
    ],
)
def test_under_batch_norms_draws_differ_within_a_batch(
    spec: str, make, trained_by: str, predicts_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways: list[str] = []

    def watched(self: Run, model: nn.Module, *arguments, **options) -> None:
        if isinstance(model, lb.Bayesian):
            ways.append(model.propagate.name)
        fit(self, model, *arguments, **options)

    fit = Run.fit
    monkeypatch.setattr(Run, "fit", watched)
    trained = prepare(parse(spec), make(), Run(dataclasses.replace(BUDGET, epochs=2)))
    assert ways == [trained_by]
    assert trained.predictor.predict_by == lb.propagate.as_propagation(predicts_by)


@pytest.mark.parametrize("spec", ["vdp", "vi:predict=moments", "partial:predict=moments", "layers:predict=moments"])
def test_moments_predict_in_one_pass(spec: str) -> None:
    task = tasks.classes()
    stages: list[str] = []
    run = Run(dataclasses.replace(BUDGET, epochs=2), watch=lambda stage, done, total: stages.append(stage))
    bnn = prepare(parse(spec), task, run).predictor
    assert bnn.predict_by == lb.propagate.Moments()
    assert spec.partition(":")[0] in stages
    found = lb.predict(bnn, task.test[:][0])
    assert (found.draws == 1).all()
    assert (found.epistemic > 0).any()


def test_an_operation_without_a_moment_rule_is_named_before_training() -> None:
    class Odd(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.fft(super().forward(x)).real

    task = dataclasses.replace(tasks.classes(), model=lambda: Odd(nn.Linear(2, 3)))
    stages: list[str] = []
    with pytest.raises(lb.errors.MissingRule, match="fft"):
        prepare(parse("vi:predict=moments"), task, Run(BUDGET, watch=lambda stage, done, total: stages.append(stage)))
    assert "vi" not in stages


@pytest.mark.parametrize(
    ("spec", "task", "weights"),
    [
        ("layers", tasks.classes(), (1.0, 1.0)),  # 51 random weights, 120 examples: the true ELBO
        ("vi:kl_end=none", tasks.pictures(), (90 / 483, 90 / 483)),  # 483 weights, 90 examples
        ("vdp:kl_end=none", tasks.pictures(), (90 / 483, 90 / 483)),
        ("vi", tasks.pictures(), (0.01, 0.01)),
        ("vdp", tasks.pictures(), (0.01, 0.01)),
        ("layers", tasks.pictures(), (90 / 435, 90 / 435)),
        ("partial:rate=0.1", tasks.pictures(), (1.0, 1.0)),
        ("partial:rate=0.1,kl_end=0.3", tasks.pictures(), (0.3, 0.3)),
        ("vi:kl_start=0.2,kl_end=0.01", tasks.pictures(), (0.2, 0.01)),
        ("layers:kl_start=0.2", tasks.pictures(), (0.2, 90 / 435)),
        ("radial", tasks.pictures(), (0.01, 0.01)),
    ],
)
def test_the_kl_never_counts_more_than_an_example_a_weight(
    spec: str, task: Task, weights: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules = []
    monkeypatch.setattr(Run, "fit", lambda *_, **options: schedules.append(options.get("kl_weight")))
    prepare(parse(spec), task, Run(Budget(epochs=2, batch_size=30)))
    assert (schedules[-1](0.0), schedules[-1](1.0)) == pytest.approx(weights)
