"""Every recipe trains a predictor that works, within its budget, and can be kept in a file."""

import dataclasses
from pathlib import Path

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.baselines import Ensemble, LaplaceApproximation, MCDropout, Swag, Temperature
from leanbayes.lab.data import Task
from leanbayes.lab.recipes import RECIPES, Budget, Recipe, Run, parse, prepare, settings
from leanbayes.lab.recipes.variational_dropout import cut
from leanbayes.metrics import accuracy
from leanbayes.subspace import last_layer, scatters
from tests import tasks

SPECS = {
    "deterministic": nn.Sequential,
    "ensemble:members=3": Ensemble,
    "dropout:rate=0.1": MCDropout,
    "vi": lb.Bayesian,
    "partial:rate=0.1": lb.Bayesian,
    "layers": lb.Bayesian,
    "vdp": lb.Bayesian,
    "radial": lb.Bayesian,
    "ssvi:density=0.4": lb.Bayesian,
    "rigl:density=0.4": nn.Sequential,
    "variational_dropout:kl_end=0.1": lb.Bayesian,
    "vdp:likelihood=moment,per=filter": lb.Bayesian,
    "vi:predict=moments": lb.Bayesian,
    "partial:rate=0.1,predict=moments": lb.Bayesian,
    "layers:predict=moments": lb.Bayesian,
    "vdp+temperature": Temperature,
    "swag:rank=3,draws=4": Swag,
    "laplace": LaplaceApproximation,
    "laplace:subset=subnetwork,rate=0.3": LaplaceApproximation,
    "vi+temperature": Temperature,
    "ensemble:members=2+temperature": Temperature,
}
BUDGET = Budget(epochs=8, batch_size=30, lr=2e-2)


@pytest.mark.parametrize("spec", SPECS)
def test_it_learns_and_comes_back_from_a_file(spec: str, tmp_path: Path) -> None:
    task = tasks.classes()
    trained = prepare(parse(spec), task, Run(BUDGET))
    assert isinstance(trained.predictor, SPECS[spec])
    assert trained.seconds > 0
    x, y = task.test[:]

    def ask(model: nn.Module) -> lb.Prediction:
        return lb.predict(model, x, samples=8, method="loop", generator=torch.Generator().manual_seed(3))

    found = ask(trained.predictor)
    assert accuracy(found.mean, y) > 0.85
    lb.save(trained.predictor, tmp_path / "x.lb", about={"spec": spec})
    again = ask(lb.load(tmp_path / "x.lb", tasks.mlp()))
    torch.testing.assert_close(again.mean, found.mean)
    torch.testing.assert_close(again.total, found.total)
    assert lb.about(tmp_path / "x.lb") == {"spec": spec}


@pytest.mark.parametrize("spec", ["swag:rank=3,draws=4", "partial", "dropout", "ensemble:members=2", "vdp"])
def test_batch_norm_passes_through_and_comes_back(spec: str, tmp_path: Path) -> None:
    task = tasks.pictures()
    predictor = prepare(parse(spec), task, Run(BUDGET)).predictor
    x, y = task.test[:]
    generators = [torch.Generator().manual_seed(3) for _ in range(2)]
    found = lb.predict(predictor, x, samples=4, method="loop", generator=generators[0])
    assert accuracy(found.mean, y) > 0.8
    lb.save(predictor, tmp_path / "x.lb")
    again = lb.predict(lb.load(tmp_path / "x.lb", tasks.cnn()), x, samples=4, method="loop", generator=generators[1])
    torch.testing.assert_close(again.mean, found.mean)


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


@pytest.mark.parametrize(
    "spec", ["deterministic", "partial:rate=0.1", "ensemble:members=2", "dropout", "layers:predict=moments", "vdp"]
)
@pytest.mark.parametrize("make", [tasks.pixels, tasks.regression])
def test_pixels_and_regression(spec: str, make) -> None:
    task = make()
    trained = prepare(parse(spec), task, Run(BUDGET))
    x, y = task.test[:]
    found = lb.predict(trained.predictor, x, likelihood=trained.likelihood, samples=4)
    score = (
        (found.mean.argmax(1) == y).float().mean() if y.dim() > 2 else 1 - (found.mean - y).square().mean() / y.var()
    )
    assert score > 0.7


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


def test_the_likelihoods_of_vdp_are_scored_in_training_and_the_tasks_own_predicts() -> None:
    task, weights = tasks.classes(), []
    for name in ("expected", "mean", "moment"):
        trained = prepare(parse(f"vdp:likelihood={name}"), task, Run(dataclasses.replace(BUDGET, epochs=2)))
        assert isinstance(trained.likelihood, lb.Categorical)
        weights.append(trained.predictor.model[0].weight)
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])
    with pytest.raises(lb.errors.InputError, match="cross-entropy needs logits"):
        prepare(parse("vdp:likelihood=mean"), tasks.regression(), Run(BUDGET))
    trained = prepare(parse("vdp:likelihood=moment"), tasks.regression(), Run(BUDGET))
    assert trained.likelihood.noise < 0.9  # it is learnt, from 1


def test_an_operation_without_a_moment_rule_is_named_before_training() -> None:
    class Odd(nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.fft(super().forward(x)).real

    task = dataclasses.replace(tasks.classes(), model=lambda: Odd(nn.Linear(2, 3)))
    stages: list[str] = []
    with pytest.raises(lb.errors.MissingRule, match="fft"):
        prepare(parse("vi:predict=moments"), task, Run(BUDGET, watch=lambda stage, done, total: stages.append(stage)))
    assert "vi" not in stages


def test_noise_is_learnt_in_a_copy() -> None:
    task = tasks.regression()
    trained = prepare(parse("deterministic"), task, Run(dataclasses.replace(BUDGET, epochs=40)))
    assert task.likelihood.noise == 1
    assert 0.05 < trained.likelihood.noise < 0.4


def test_the_same_seed_trains_the_same_net_and_another_another() -> None:
    task = tasks.classes()
    nets = [prepare(parse("partial"), task, Run(BUDGET, seed)).predictor.state_dict() for seed in (1, 1, 2)]
    assert all(torch.equal(nets[0][name], nets[1][name]) for name in nets[0])
    assert not torch.equal(nets[0]["model.0.weight"], nets[2]["model.0.weight"])


def test_members_have_the_seeds_zero_to_four() -> None:
    task = tasks.classes()
    members = prepare(parse("ensemble"), task, Run(dataclasses.replace(BUDGET, epochs=1))).predictor.parts().values()
    assert len(members) == 5
    for seed, member in enumerate(members):
        alone = prepare(parse("deterministic"), task, Run(dataclasses.replace(BUDGET, epochs=1), seed)).predictor
        assert all(torch.equal(a, b) for a, b in zip(member.parameters(), alone.parameters(), strict=True))


def test_members_in_processes_of_their_own_are_the_same() -> None:
    task = tasks.classes()
    budget = dataclasses.replace(BUDGET, epochs=2)
    one, two = (prepare(parse(f"ensemble:members=2,processes={n}"), task, Run(budget)).predictor for n in (1, 2))
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        torch.testing.assert_close(a, b)


def test_a_start_that_two_recipes_share_is_trained_once_and_charged_twice() -> None:
    task, nets = tasks.classes(), {}
    stages: list[str] = []
    for spec in ("vi", "layers"):
        run = Run(BUDGET, nets=nets, watch=lambda stage, epoch, epochs: stages.append(stage))
        prepare(parse(spec), task, run)
        assert run.seconds > next(iter(nets.values()))[1]
    assert stages == ["plain"] * 4 + ["vi"] * 4 + ["layers"] * 4


def test_every_recipe_spends_the_epochs_of_the_budget() -> None:
    task = tasks.classes()
    for spec in ("deterministic", "dropout", "vi", "vdp", "partial:pretrain=0.25", "layers:pretrain=0", "swag:draws=2"):
        stages: list[str] = []
        prepare(parse(spec), task, Run(BUDGET, watch=lambda stage, epoch, epochs, to=stages: to.append(stage)))
        own = ("plain", parse(spec).name)
        assert len([stage for stage in stages if stage in own]) == BUDGET.epochs, spec


def test_names_and_options() -> None:
    names = "deterministic ensemble dropout vi radial vdp partial layers swag laplace temperature ssvi rigl"
    assert {*names.split(), "variational_dropout"} == set(RECIPES)
    recipe = parse("partial:rate=0.02,propagate=local")
    assert (recipe.rate, recipe.propagate) == (0.02, "local")
    assert settings(parse("vi+temperature"))["of"]["name"] == "vi"
    for recipe_class in RECIPES.values():
        assert dataclasses.is_dataclass(recipe_class)
        with pytest.raises(dataclasses.FrozenInstanceError):
            recipe_class().name2 = 1


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("partials", "unknown recipe 'partials'"),
        ("partial:rat=1", "unknown option of partial 'rat'"),
        ("partial:rate", "not an option"),
        ("partial:rate=much", "rate must be a number, got 'much'"),
        ("vi:prior=flat", "unknown prior 'flat'"),
        ("vi:propagate=psychic", "unknown propagation"),
        ("layers:predict=psychic", "unknown propagation"),
        ("vdp:likelihood=perfect", "unknown likelihood"),
        ("vdp:per=layer", "unknown per"),
        ("vi:pretrain=1.5", "pretrain"),
        ("vi+vi", "on top"),
        ("ensemble:members=1", "at least 2 members"),
        ("ensemble:members=2.5", "members must be a whole number"),
        ("laplace:subset=all", "unknown subset"),
        ("ssvi:density=0", "density"),
        ("ssvi:density=2", "density"),
        ("ssvi:layout=dense", "unknown layout|layout"),
        ("ssvi:removal=size", "unknown removal criterion"),
        ("ssvi:addition=none", "unknown addition criterion|addition"),
        ("ssvi:rate=1", "rate"),
        ("ssvi:every=0", "every"),
        ("ssvi:stop=0", "stop"),
        ("ssvi:kl_start=0.1", "kl_start"),
        ("rigl:density=0", "density"),
        ("rigl:rate=2", "rate"),
        ("variational_dropout:prior=normal", "unknown prior"),
        ("variational_dropout:kl_start=0.1", "kl_start"),
    ],
)
def test_a_bad_specification_is_named(spec: str, message: str) -> None:
    with pytest.raises(lb.errors.InputError, match=message):
        parse(spec)


def test_bad_budgets() -> None:
    for values in ({"epochs": 0}, {"batch_size": 0}, {"lr": 0.0}):
        with pytest.raises(lb.errors.InputError):
            Budget(**values)
    with pytest.raises(lb.errors.InputError, match="two stages"):
        prepare(parse("vi"), tasks.classes(), Run(Budget(epochs=1)))


def test_the_last_layer_of_odd_models() -> None:
    assert last_layer(tasks.cnn()) == "4"
    with pytest.raises(lb.errors.InputError, match="globs"):
        last_layer(nn.Linear(2, 2))


def test_an_interrupted_run_ends_where_a_whole_one_does(tmp_path: Path) -> None:
    task = tasks.classes()

    class Stop(Exception):
        pass

    def stop(stage: str, done: int, total: int) -> None:
        if stage == wanted and done == 3:
            raise Stop

    for spec, wanted in (("partial", "plain"), ("partial", "partial"), ("swag:draws=2", "swag")):
        whole = prepare(parse(spec), task, Run(BUDGET)).predictor.state_dict()
        folder = tmp_path / f"{spec[:4]}{wanted}"
        with pytest.raises(Stop):
            prepare(parse(spec), task, Run(BUDGET, folder=folder, watch=stop))
        again = prepare(parse(spec), task, Run(BUDGET, folder=folder)).predictor.state_dict()
        assert all(torch.equal(whole[name], again[name]) for name in whole), (spec, wanted)


def test_a_new_recipe_is_one_class() -> None:
    @dataclasses.dataclass(frozen=True)
    class Nothing(Recipe):
        name = "nothing"

        def train(self, task: object, run: Run) -> nn.Module:
            return run.new_model(task)

    assert isinstance(prepare(Nothing(), tasks.classes(), Run()).predictor, nn.Module)


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
    told: list[tuple[str, int, int]] = []
    prepare(parse(spec), task, Run(BUDGET, watch=lambda *event: told.append(event)))
    steps = [(done, total) for name, done, total in told if name == stage]
    assert steps
    assert steps[-1][0] == steps[-1][1]
    assert all(1 <= done <= total for done, total in steps)


def test_sparse_recipes_end_as_sparse_as_they_began() -> None:
    task = tasks.pictures()
    run = Run(Budget(epochs=6, batch_size=30, lr=2e-2))
    ssvi = prepare(parse("ssvi:density=0.2,every=2"), task, run).predictor
    rigl = prepare(parse("rigl:density=0.2,every=2"), task, run).predictor
    for model in (ssvi.model, rigl):
        (scatter,) = scatters(model).values()
        assert len(scatter.index) == round(0.2 * 4 * 36 * 3)
    start = lb.make_sparse(run.new_model(task), 0.2, seed=run.seed)
    (before,) = scatters(start).values()
    assert not torch.equal(before.index, scatter.index)
    assert {row.name: row.stored for row in ssvi.summary() if row.stored} == {"4.weight": 86}


def test_ssvi_from_a_trained_network_keeps_its_largest_weights() -> None:
    task, run = tasks.classes(), Run(Budget(epochs=4, batch_size=30, lr=2e-2))
    recipe = parse("ssvi:density=0.25,pretrain=0.5,every=1000,layout=erdos_renyi")
    found = prepare(recipe, task, run).predictor
    (scatter,) = scatters(found.model).values()
    dense = run.plain(task, 2)[2].weight.abs().flatten()
    assert set(scatter.index.tolist()) == set(dense.topk(12).indices.tolist())


def test_rewiring_of_the_recipes() -> None:
    for spec in ("ssvi", "rigl"):
        how = parse(spec).rewiring(4000)
        assert (how.every, how.stop, how.rate) == (75, 0.75, 0.3)
        assert sum(how.due(step, 4000) for step in range(4000)) in (39, 40)
        assert parse(f"{spec}:every=7").rewiring(4000).every == 7
    assert parse("ssvi").rewiring(10).removal == "snr_magnitude"
    assert parse("rigl").rewiring(10).removal == "magnitude"
    assert parse("vi").rewiring(10) is None
    schedule = parse("ssvi:kl_end=0.2").kl_schedule(1.0)
    assert [schedule(share) for share in (0.0, 0.25, 0.5, 1.0)] == [0, 0.1, 0.2, 0.2]


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


def test_noise_is_cut_and_the_rest_is_what_it_was() -> None:
    torch.manual_seed(0)
    bnn = lb.Bayesian(
        nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)).double(), prior=lb.priors.LogUniformLaw(0.0)
    )
    with torch.no_grad():
        for parameter in bnn.parameters():
            parameter.add_(torch.randn_like(parameter))
        bnn.model[0].weight[2, 3] = 0.0
        bnn.model[2].weight.mul_(1e-9)  # all of it is noise: one weight stays
    state = {name: value.clone() for name, value in bnn.state_dict().items()}
    made = cut(bnn, 1.0)
    assert all(torch.equal(value, state[name]) for name, value in bnn.state_dict().items())
    weights, own = bnn.weights(), scatters(made.model)
    for name, place in (("0.weight", 0), ("2.weight", 1)):
        mean, scale = weights[name].mean.detach().flatten(), weights[name].spread.detach().flatten()
        signal = (2 * scale.log() - 2 * mean.abs().log()) <= 1.0
        scatter = list(own.values())[place]
        if place == 0:
            assert scatter.index.tolist() == signal.nonzero().flatten().tolist()
            assert 0 < len(scatter.index) < 48
        else:
            assert not signal.any()
            assert scatter.index.tolist() == [int((scale / mean.abs()).argmin())]
        kept = made.weights()[list(own)[place]]
        assert torch.equal(kept.mean, mean[scatter.index.long()])
        assert torch.equal(kept.rho, weights[name].rho.flatten()[scatter.index.long()])
    assert torch.equal(made.weights()["0.bias"].spread, weights["0.bias"].spread)
    x = torch.randn(5, 6, dtype=torch.float64)
    zeroed = made.densify()
    with made.at_mean():
        torch.testing.assert_close(made(x), zeroed(x))
    assert made.summary().size == bnn.summary().size
