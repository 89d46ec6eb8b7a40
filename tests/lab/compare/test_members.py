"""Ensembles of fewer members, scored from the one pass in which all members are judged."""

from itertools import combinations
from typing import Any

import pytest
import torch

import leanbayes as lb
from leanbayes.baselines import Ensemble
from leanbayes.lab.compare import judge
from leanbayes.lab.compare.members import _subsets, is_ensemble_of_plain_networks, remembering
from leanbayes.lab.recipes import Run, parse, prepare
from tests import tasks
from tests.lab.compare.cases import BUDGET


@pytest.mark.parametrize("make", [tasks.classes, tasks.pixels, tasks.regression])
def test_each_subset_scores_as_an_ensemble_of_its_own(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    task, recipe, run = make(), parse("ensemble:members=3"), Run(BUDGET)
    trained = prepare(recipe, task, run)
    calls: list[int] = []
    models = trained.predictor.models
    handles = [model.register_forward_hook(lambda *_: calls.append(1)) for model in models]
    monkeypatch.setattr("leanbayes.lab.compare.judging._cost", lambda *_: {})
    judged = judge(recipe, trained, task, run)
    for handle in handles:
        handle.remove()
    # One pass over each set. The validation cases of a segmentation choose the score of doubt.
    sets = [task.test, *task.shifted.values(), *([task.validation] if make is tasks.pixels else [])]
    assert len(calls) == 3 * sum(len(run.loader(data)) for data in sets)

    def nll(*members: int) -> float:
        smaller = Ensemble(*(models[i] for i in members), method="loop")
        evaluation = lb.evaluate(smaller, run.loader(task.test), likelihood=trained.likelihood, in_units=task.scored)
        return evaluation.metrics["nll"]

    expected = [sum(nll(*s) for s in subsets) / len(subsets) for subsets in (
        [(0,), (1,), (2,)], [(0, 1), (0, 2), (1, 2)], [(0, 1, 2)],
    )]  # fmt: skip
    assert judged.nll_by_members == pytest.approx(expected, rel=1e-5)
    assert judged.nll_by_members[-1] == pytest.approx(judged.metrics["nll"], rel=1e-5)


def test_scores_and_predictions_are_those_without_remembering() -> None:
    task, recipe, run = tasks.classes(), parse("ensemble:members=2"), Run(BUDGET)
    trained = prepare(recipe, task, run)
    expected = lb.evaluate(
        trained.predictor, run.loader(task.test), likelihood=trained.likelihood,
        shifted={"far": run.loader(task.shifted["far"])}, generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    assert judge(recipe, trained, task, run).metrics == expected.metrics
    watched = remembering(recipe, trained.predictor)
    x, _ = task.test[:7]
    lb.predict(watched, x)
    lb.predict(watched, x[:3])
    assert [len(out) for out in watched.last] == [3, 3]  # of the last batch only
    assert watched.members == 2
    assert remembering(parse("deterministic"), tasks.mlp()) is None


def test_only_plain_networks_from_different_seeds_count() -> None:
    task, run = tasks.classes(), Run(BUDGET)
    for spec, counts in (
        ("ensemble:members=2", True),
        ("snapshot:members=2", False),  # one training
        ("ensemble:members=2+temperature", False),
        ("deterministic", False),
    ):
        recipe = parse(spec)
        assert is_ensemble_of_plain_networks(recipe, prepare(recipe, task, run).predictor) is counts, spec
    random = Ensemble(lb.Bayesian(tasks.mlp()), lb.Bayesian(tasks.mlp()))
    assert not is_ensemble_of_plain_networks(parse("ensemble:members=2"), random)


def test_subsets_are_all_of_a_few_and_ten_different_ones_of_many() -> None:
    for size in range(1, 6):
        assert _subsets(5, size) == list(combinations(range(5), size))
    chosen = _subsets(12, 4)
    assert len(set(chosen)) == 10
    assert chosen == _subsets(12, 4)
    assert all(len(set(subset)) == 4 and max(subset) < 12 for subset in chosen)
