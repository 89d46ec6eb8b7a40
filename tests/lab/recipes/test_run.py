"""A run: what it shares, what it spends, where it continues, and what it reports."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

import leanbayes as lb
from leanbayes.errors import InputError
from leanbayes.lab.recipes import Budget, Run, parse, prepare
from leanbayes.lab.recipes import run as run_module
from tests import tasks
from tests.lab.recipes.cases import BUDGET


def test_a_start_that_two_recipes_share_is_trained_once_and_charged_twice() -> None:
    task, nets = tasks.classes(), {}
    stages: list[str] = []
    for spec in ("vi", "layers"):
        run = Run(BUDGET, nets=nets, watch=lambda stage, epoch, epochs: stages.append(stage))
        prepare(parse(spec), task, run)
        assert run.seconds > next(iter(nets.values())).seconds
    assert stages == ["plain"] * 4 + ["vi"] * 4 + ["layers"] * 4


def test_a_shared_start_brings_the_noise_that_was_learnt_with_it() -> None:
    """The noise used to begin anew for every recipe but the first, which then had another result than alone."""
    task = replace(tasks.regression(), likelihood=lb.Gaussian("learned"))
    nets: dict[tuple[int, int], run_module.Plain] = {}
    prepare(parse("vi"), task, Run(BUDGET, nets=nets))
    shared, alone = (prepare(parse("layers"), task, Run(BUDGET, nets=known)) for known in (nets, {}))
    assert torch.equal(shared.likelihood.log_variance, alone.likelihood.log_variance)
    assert shared.likelihood.log_variance != 0


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_scales_are_trained_under_every_optimizer_and_their_movement_is_kept(optimizer: str) -> None:
    """Recipes with SGD trained no scale, and the records did not tell."""
    run = Run(replace(BUDGET, optimizer=optimizer, lr=1e-2))
    trained = prepare(parse("vi"), tasks.classes(), run)
    assert list(trained.scales) == ["vi"]
    assert trained.scales["vi"].moved > 0.01
    assert len(trained.scales["vi"].start) == len(trained.scales["vi"].end) == 5
    assert not prepare(parse("deterministic"), tasks.classes(), Run(BUDGET)).scales


def test_every_recipe_spends_the_epochs_of_the_budget() -> None:
    task = tasks.classes()
    for spec in (
        "deterministic",
        "dropout",
        "vi",
        "vdp",
        "partial:pretrain=0.25",
        "layers:pretrain=0",
        "swag:draws=2",
        "swa",
        "snapshot:members=3",
    ):
        stages: list[str] = []
        prepare(parse(spec), task, Run(BUDGET, watch=lambda stage, epoch, epochs, to=stages: to.append(stage)))
        own = ("plain", parse(spec).name)
        assert len([stage for stage in stages if stage.startswith(own)]) == BUDGET.epochs, spec


def test_an_interrupted_run_ends_where_a_whole_one_does(tmp_path: Path) -> None:
    task = tasks.classes()

    class Stop(Exception):
        pass

    def stop(stage: str, done: int, total: int) -> None:
        if stage == wanted and done == 3:
            raise Stop

    for spec, wanted in (
        ("partial", "plain"),
        ("partial", "partial"),
        ("swag:draws=2", "swag"),
        ("swa:pretrain=0.5", "plain"),
        ("swa:pretrain=0.5", "swa"),
        ("swa:pretrain=0,schedule=cyclical,cycle=2", "swa"),
        ("snapshot:members=2", "snapshot 1"),
        ("snapshot:members=2", "snapshot 2"),
    ):
        whole = prepare(parse(spec), task, Run(BUDGET)).predictor.state_dict()
        folder = tmp_path / f"{spec}{wanted}"
        with pytest.raises(Stop):
            prepare(parse(spec), task, Run(BUDGET, folder=folder, watch=stop))
        again = prepare(parse(spec), task, Run(BUDGET, folder=folder)).predictor.state_dict()
        assert all(torch.equal(whole[name], again[name]) for name in whole), (spec, wanted)


@pytest.mark.parametrize(
    ("spec", "stage"),
    [
        ("partial:rate=0.1", "sensitivity"),
        ("laplace", "curvature"),
        ("swag:draws=2", "batch norms of the draws"),
        ("deterministic+temperature", "temperature"),
    ],
)
def test_steps_that_are_no_training_are_told_too(spec: str, stage: str) -> None:
    task = tasks.pictures() if "swag" in spec else tasks.classes()
    reported: list[tuple[str, int, int]] = []
    prepare(parse(spec), task, Run(BUDGET, watch=lambda *event: reported.append(event)))
    steps = [(done, total) for name, done, total in reported if name == stage]
    assert steps
    assert steps[-1][0] == steps[-1][1]
    assert all(1 <= done <= total for done, total in steps)


def test_the_same_seed_trains_the_same_net_and_another_another() -> None:
    task = tasks.classes()
    nets = [prepare(parse("partial"), task, Run(BUDGET, seed)).predictor.state_dict() for seed in (1, 1, 2)]
    assert all(torch.equal(nets[0][name], nets[1][name]) for name in nets[0])
    assert not torch.equal(nets[0]["model.0.weight"], nets[2]["model.0.weight"])


def test_class_weights_count_in_training_and_not_in_the_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, no recipe could weigh rare classes, as Abboud et al. 2024 do."""
    x, y = tasks.blobs(120, 0)
    keep = (y != 2) | (torch.arange(120) < 60)
    task = replace(tasks.classes(), train=TensorDataset(x[keep], y[keep]))
    balanced = torch.tensor([100 / (3 * 40), 100 / (3 * 40), 100 / (3 * 20)])
    for weights, expected in (("balanced", balanced), ("1 2 0.5", torch.tensor([1, 2, 0.5]))):
        for spec in ("deterministic", "vi:pretrain=0", "vdp:likelihood=moment,pretrain=0", "ensemble:members=2"):
            seen: list[torch.Tensor] = []
            plain_fit = run_module.fit

            def fit(model, batches, *, likelihood, **options):
                inner = getattr(likelihood, "of", likelihood)
                seen.append(inner.class_weights)  # noqa: B023
                return plain_fit(model, batches, likelihood=likelihood, **options)  # noqa: B023

            with monkeypatch.context() as patch:
                patch.setattr(run_module, "fit", fit)
                trained = prepare(parse(spec), task, Run(Budget(epochs=1, batch_size=60, class_weights=weights)))
            assert seen
            assert all(torch.allclose(result, expected.float()) for result in seen), spec
            assert trained.likelihood.class_weights is None


@pytest.mark.parametrize(
    ("weights", "task", "message"),
    [
        ("1 2", tasks.classes, "one number for each class"),
        ("balanced", tasks.regression, "need classes or labels"),
        ("1 2 3", tasks.regression, "need classes or labels"),
    ],
)
def test_class_weights_that_do_not_fit_are_refused(weights: str, task, message: str) -> None:
    with pytest.raises(InputError, match=message):
        prepare(parse("deterministic"), task(), Run(Budget(epochs=1, class_weights=weights)))
    for bad in ("rare", "1 -2", "1 nan", ""):
        with pytest.raises(InputError, match="class_weights must be balanced"):
            Budget(class_weights=bad)
