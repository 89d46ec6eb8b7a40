"""Which weights are random, and where they start: verdicts and the recipe."""

from typing import Any

import pytest

from leanbayes.bayesian import Bayesian
from leanbayes.lab.recipes import Budget, Run
from leanbayes_papers import Claim, Job
from leanbayes_papers.studies import selection
from leanbayes_papers.training import train
from tests import tasks
from tests.papers import stub
from tests.papers.made_up import made_up


@pytest.mark.parametrize(
    ("claim", "good", "bad"),
    [
        (selection.RANDOM, {("nll", f"{r} % by sensitivity"): 0.1 for r in (1, 5, 20)}, {}),
        (selection.CHEAPER, {("nll", "5 % by sensitivity"): 0.1}, {("nll", "5 % by sensitivity"): 0.9}),
    ],
)
@pytest.mark.usefixtures("verdicts_only")
def test_verdicts_follow_the_numbers(claim: Claim, good: Any, bad: Any) -> None:
    assert made_up("selection", "cpu", good)[claim.text] == "holds"
    assert made_up("selection", "cpu", bad)[claim.text] == "does not hold"


def test_weights_are_chosen_by_sensitivity_size_or_chance_and_are_equally_many() -> None:
    task = tasks.classes()
    run = Run(Budget(epochs=2, batch_size=30), seed=1)
    model = run.plain(task, 2)
    chosen = {}
    for way in ("sensitivity", "magnitude", "random"):
        recipe = selection.Selected(rate=0.2, by=way)
        weights = Bayesian(model, subspace=recipe.subspace(model, task, run)).weights()
        chosen[way] = {(name, int(place)) for name, weight in weights.items() for place in weight.positions}
    assert len({len(weights) for weights in chosen.values()}) == 1
    assert len({frozenset(weights) for weights in chosen.values()}) == 3
    sizes = sorted(((v.item(), n, i) for n, p in model.named_parameters() for i, v in enumerate(p.abs().flatten())))
    assert chosen["magnitude"] == {(name, place) for _, name, place in sizes[-len(chosen["magnitude"]) :]}
    with pytest.raises(ValueError, match="colour"):
        selection.Selected(by="colour")


def test_a_random_start_has_the_weights_that_the_trained_network_chooses() -> None:
    task, size = tasks.classes(), stub.size(budget=Budget(epochs=4, batch_size=30))

    def places(pretrain: float, epochs: int) -> set[tuple[str, int]]:
        job = Job("a", "partial", "x", 1, epochs=epochs)
        net = train(job, size, task, selection.Selected(rate=0.1, pretrain=pretrain))[0].predictor
        assert isinstance(net, Bayesian)
        return {(name, int(place)) for name, weight in net.weights().items() for place in weight.positions}

    assert places(0.5, 4) == places(0.0, 2)
