"""The variational recipes: propagations, and the weight of the KL divergence."""

import dataclasses
import json
from pathlib import Path

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
    result = lb.predict(bnn, task.test[:][0])
    assert (result.draws == 1).all()
    assert (result.epistemic > 0).any()


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
    terms = schedules[-1]
    assert (terms.at(0.0).kl_weight, terms.at(1.0).kl_weight) == pytest.approx(weights)


RECORD = Path(__file__).parents[3] / "docs" / "results" / "defaults.json"


def test_the_defaults_are_those_that_the_record_chose() -> None:
    """A default that is changed without a record fails here; `benchmarks/defaults.py` makes the record."""
    results = json.loads(RECORD.read_text())["results"]
    assert set(results["summary"]) == {"partial", "vi", "layers", "radial", "vdp", "ssvi"}
    for name, verdict in results["summary"].items():
        factors = ("pretrain", "prior", "kl_end", "init_scale", "scale_lr")
        assert all(f"{factor}=" in verdict["chosen"] for factor in factors), name
        assert parse(verdict["chosen"]) == parse(name), name
        tasks_of = {key.split(" ")[0] for key in results["jobs"] if f" {verdict['chosen']} " in key}
        assert len(tasks_of) >= 4, name


def fitted(spec: str, task: Task, monkeypatch: pytest.MonkeyPatch, budget: Budget = BUDGET) -> tuple[nn.Module, dict]:
    """The network and the options that the last stage of a recipe hands to `fit`."""
    calls: list[tuple[nn.Module, dict]] = []
    monkeypatch.setattr(Run, "fit", lambda self, model, *_, **options: calls.append((model, options)))
    prepare(parse(spec), task, Run(budget))
    return calls[-1]


def test_every_term_of_the_elbo_is_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, recipes knew only the weight of the KL divergence and the number of draws."""
    spec = "vi:draws=2,last_layer_samples=3,temperature=0.5,kl_per=parameter,kl_end=0.3"
    _, options = fitted(spec, tasks.classes(), monkeypatch)
    assert options["kl_weight"].at(1.0) == lb.Terms(0.3, 2, 3, 0.5, "parameter")
    _, options = fitted("vi:kl_per=parameter,kl_end=none", tasks.pictures(), monkeypatch)
    assert options["kl_weight"].at(0.0).kl_weight == 1  # the mean over weights needs no n/k


def test_scales_may_start_at_random(monkeypatch: pytest.MonkeyPatch) -> None:
    """σ = softplus(ρ) with ρ ~ N(m, s²), the same for the same seed, whatever the global state is."""
    for spec in ("vi", "vdp", "radial", "ssvi", "partial:rate=0.9"):
        joint = "," if ":" in spec else ":"
        result = []
        for state in (1, 2):
            torch.manual_seed(state)
            bnn, _ = fitted(f"{spec}{joint}rho_mean=-5,rho_std=0.5", tasks.pictures(), monkeypatch)
            result.append(torch.cat([parts.rho.detach().flatten() for _, parts in bnn.parts()]))
        assert torch.equal(*result), spec
        count = len(result[0])
        assert abs(result[0].mean() + 5) < 4 * 0.5 / count**0.5, spec
        assert result[0].std() == pytest.approx(0.5, abs=4 * 0.5 / (2 * count) ** 0.5), spec
    assert parse("vi:rho_mean=-5").initial_scale() == lb.posteriors.GaussianRho(-5, 0.1)
    assert parse("vi").initial_scale() == 0.01


def test_the_settings_of_moments_reach_training_and_prediction(monkeypatch: pytest.MonkeyPatch) -> None:
    published = "order=taylor,rank=0,positions=independent,kernels=exact"
    bnn, _ = fitted(f"vdp:{published},likelihood=moment", tasks.pictures(), monkeypatch)
    moments = lb.propagate.Moments(0, "independent", "exact", "taylor")
    assert bnn.propagate == bnn.predict_by == moments
    bnn, _ = fitted("partial:predict=moments,order=taylor", tasks.classes(), monkeypatch)
    assert bnn.predict_by == lb.propagate.Moments(order="taylor")
    assert bnn.propagate == lb.propagate.Sample()


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("partial:order=taylor", "neither propagate=None nor predict=None"),
        ("vdp:order=exact", "order"),
        ("vdp:rank=-1", "rank must not be negative"),
        ("vi:temperature=-1", "temperature must be finite"),
        ("vi:last_layer_samples=0", "last_layer_samples must be a whole number"),
        ("vdp:last_layer_samples=3", "no layer is drawn"),
        ("vi:kl_per=weight", "kl_per"),
        ("vi:rho_std=-1", "std of at least 0"),
        ("partial:score=gradient", "score"),
        ("partial:probes=4", "belong to score=output"),
    ],
)
def test_bad_options_are_refused_when_they_are_parsed(spec: str, message: str) -> None:
    with pytest.raises(lb.errors.LeanBayesError, match=message):
        parse(spec)
