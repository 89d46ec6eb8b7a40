"""The recommended recipe: what it trains, how it predicts, and what the validation set decides."""

import dataclasses

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.baselines import NoiseScale
from leanbayes.baselines.rescaled import Rescaled
from leanbayes.lab.recipes import Run, parse, prepare
from leanbayes.propagate import Moments, Sample
from leanbayes.subspace import scatters
from tests import tasks
from tests.lab.recipes.cases import BUDGET


class Odd(nn.Module):
    """A network with an operation that has no rule for moments."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(2, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.special.i0(self.first(x)))


def _network(predictor: nn.Module) -> lb.Bayesian:
    network = predictor.model if isinstance(predictor, Rescaled) else predictor
    assert isinstance(network, lb.Bayesian)
    return network


def test_every_weight_is_random_its_scale_moves_and_one_pass_predicts() -> None:
    task = tasks.pictures()
    trained = prepare(parse("lean"), task, Run(BUDGET))
    network = _network(trained.predictor)
    summary = network.summary()
    assert summary.random == sum(parameter.numel() for parameter in network.model.parameters())
    assert isinstance(network.predict_by, Moments)
    assert trained.scales["lean"].moved > 0.01
    prediction = lb.predict(trained.predictor, task.test[:10][0])
    assert int(prediction.draws[0]) == 1
    assert bool((prediction.epistemic > 0).all())


def test_it_learns_classes_pixels_and_numbers() -> None:
    for task, metric, least in ((tasks.classes(), "accuracy", 0.8), (tasks.pixels(), "accuracy", 0.8)):
        trained = prepare(parse("lean"), task, Run(dataclasses.replace(BUDGET, epochs=40)))
        scores = lb.evaluate(trained.predictor, Run(BUDGET).loader(task.test), likelihood=trained.likelihood).metrics
        assert scores[metric] > least
    task = tasks.regression()
    trained = prepare(parse("lean"), task, Run(dataclasses.replace(BUDGET, epochs=60)))
    scores = lb.evaluate(trained.predictor, Run(BUDGET).loader(task.test), likelihood=trained.likelihood).metrics
    targets = torch.stack([y for _, y in task.test])
    assert scores["rmse"] < 0.5 * targets.std().item()


def test_a_part_of_the_weights_starts_from_a_plain_network() -> None:
    task = tasks.classes()
    network = _network(prepare(parse("lean:rate=0.1"), task, Run(BUDGET)).predictor)
    summary = network.summary()
    assert summary.random == round(0.1 * sum(parameter.numel() for parameter in network.model.parameters()))


def test_a_network_without_rules_for_moments_predicts_by_draws_unless_moments_were_asked_for() -> None:
    task = dataclasses.replace(tasks.classes(), model=Odd)
    network = _network(prepare(parse("lean"), task, Run(dataclasses.replace(BUDGET, epochs=1))).predictor)
    assert network.predict_by == Sample()
    with pytest.raises(lb.errors.MissingRule, match="i0"):
        prepare(parse("lean:predict=moments"), task, Run(dataclasses.replace(BUDGET, epochs=1)))


def test_two_lean_networks_are_one_pass_each() -> None:
    task = tasks.classes()
    predictor = prepare(parse("ensemble:of=lean,members=2"), task, Run(dataclasses.replace(BUDGET, epochs=2))).predictor
    prediction = lb.predict(predictor, task.test[:10][0])
    assert int(prediction.draws[0]) == 2
    apart = [lb.predict(member, task.test[:10][0]).mean for member in predictor.models]
    assert torch.allclose(prediction.mean, (apart[0] + apart[1]) / 2)


@pytest.mark.parametrize("text", ["lean:temperature=0", "lean:rate=1.5", "lean:predict=nothing", "lean:lr=-1"])
def test_impossible_options_are_refused_when_they_are_parsed(text: str) -> None:
    with pytest.raises(lb.errors.LeanBayesError):
        parse(text)


def test_an_unknown_recipe_of_members_is_named_before_training() -> None:
    with pytest.raises(lb.errors.UnknownName, match="leam"):
        parse("ensemble:of=leam")


def test_a_budget_with_patience_and_clipping_trains_to_its_end() -> None:
    budget = dataclasses.replace(BUDGET, epochs=3, patience=1, clip=1.0)
    trained = prepare(parse("lean"), tasks.classes(), Run(budget))
    assert trained.scales["lean"].steps == 3 * 4  # three epochs of natural gradients, four batches each


def test_a_network_that_predicts_by_draws_is_calibrated_alike_every_time() -> None:
    """The draws of the calibration had no seed of their own, so the same training gave other temperatures."""
    task = dataclasses.replace(tasks.classes(), model=Odd)
    one, two = (prepare(parse("lean"), task, Run(dataclasses.replace(BUDGET, epochs=2))).predictor for _ in range(2))
    assert one.temperature == two.temperature
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_numbers_start_with_less_noise_and_get_a_factor_on_their_noise() -> None:
    starts = {}
    for task in (tasks.classes(), tasks.regression()):
        trained = prepare(parse("lean"), task, Run(dataclasses.replace(BUDGET, epochs=2)))
        usual = (3 * _network(trained.predictor).model[0].in_features) ** -0.5  # of the first layer, the widest
        starts[task.likelihood.has_logits] = max(trained.scales["lean"].start) / usual
    assert starts[True] == pytest.approx(5 * starts[False], rel=0.01)
    both = dataclasses.replace(task, model=lambda: nn.Linear(2, 2), likelihood=lb.Gaussian(noise="input"))
    assert isinstance(prepare(parse("lean"), both, Run(dataclasses.replace(BUDGET, epochs=2))).predictor, NoiseScale)


def test_plain_training_comes_first_only_where_it_must_choose_weights() -> None:
    for text, plain in (("lean", 0), ("lean:rate=0.1", 1), ("lean:pretrain=0.5", 2)):
        run = Run(dataclasses.replace(BUDGET, epochs=4))
        prepare(parse(text), tasks.classes(), run)
        assert sum(epochs for _, epochs in run.nets) == plain


def test_a_sparse_lean_network_stores_few_weights_which_move() -> None:
    task, run = tasks.pictures(), Run(dataclasses.replace(BUDGET, epochs=4))
    network = _network(prepare(parse("lean:density=0.2"), task, run).predictor)
    (scatter,) = scatters(network.model).values()
    assert len(scatter.index) == round(0.2 * 4 * 36 * 3)
    (before,) = scatters(lb.make_sparse(run.new_model(task), 0.2, seed=run.seed)).values()
    assert not torch.equal(before.index, scatter.index)
    with pytest.raises(lb.errors.InputError, match="leave rate 1 or density out"):
        parse("lean:density=0.2,rate=0.1")
