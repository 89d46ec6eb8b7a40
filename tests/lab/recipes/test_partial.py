"""The three scores by which partly random networks choose their weights."""

import dataclasses

import pytest
import torch

import leanbayes as lb
from leanbayes.lab.data import Task
from leanbayes.lab.recipes import Run, parse, prepare
from tests import tasks
from tests.lab.recipes.cases import BUDGET


def chosen(spec: str) -> tuple[set[tuple[str, int]], Task, Run]:
    """The random coordinates of a recipe, its task, and its run."""
    task, run = tasks.classes(), Run(dataclasses.replace(BUDGET, epochs=2))
    bnn = prepare(parse(spec), task, run).predictor
    places = {name: range(p.rho.numel()) if p.index is None else p.index.tolist() for name, p in bnn.parts()}
    coordinates = {(name, place) for name, indices in places.items() for place in indices}
    return coordinates, task, run


@pytest.mark.parametrize("score", ["absolute", "squared", "output"])
def test_each_score_chooses_the_weights_that_it_ranks_highest(score: str) -> None:
    """Before, recipes had the absolute gradient of the loss alone. The gradients here come from plain autograd."""
    coordinates, task, run = chosen(f"partial:rate=0.1,score={score}")
    model = run.plain(task, 1).eval()
    names, parameters = zip(*model.named_parameters(), strict=True)
    total = [torch.zeros_like(parameter) for parameter in parameters]
    for x, y in run.loader(task.train):
        if score == "output":
            scalars = [model(row[None])[0, output] for row in x for output in range(3)]
        else:
            scalars = [lb.Categorical().nll(model(x), y)]
        for scalar in scalars:
            for sums, gradient in zip(total, torch.autograd.grad(scalar, parameters), strict=True):
                sums += gradient.abs() if score == "absolute" else gradient.square()
    flat = torch.cat([sums.flatten() for sums in total])
    owners = [(name, index) for name, sums in zip(names, total, strict=True) for index in range(sums.numel())]
    best = flat.sort(descending=True, stable=True).indices[: len(coordinates)]  # of equal scores the first ones count
    assert coordinates == {owners[index] for index in best.tolist()}
    assert len(coordinates) == round(0.1 * len(flat))


def test_the_scores_differ_and_probes_stand_for_outputs() -> None:
    absolute, squared, output = (
        chosen(f"partial:rate=0.1,score={score}")[0] for score in ("absolute", "squared", "output")
    )
    assert absolute != output
    assert squared != output
    probed = chosen("partial:rate=0.1,score=output,probes=64")[0]
    assert len(probed & output) >= 0.5 * len(output)
