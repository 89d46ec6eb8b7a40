"""Members of an ensemble: their seeds, and their processes."""

import dataclasses

import torch

from leanbayes.lab.recipes import Run, parse, prepare
from tests import tasks
from tests.lab.recipes.cases import BUDGET


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
