"""Sparse recipes stay sparse, and their weights move."""

import pytest
import torch

import leanbayes as lb
from leanbayes._ops.sparse_block_plan import in_blocks
from leanbayes.lab.recipes import Budget, Run, parse, prepare
from leanbayes.subspace import scatters
from tests import tasks


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
    result = prepare(recipe, task, run).predictor
    (scatter,) = scatters(result.model).values()
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
    assert parse("ssvi").rewiring(10).batches == 1
    assert parse("ssvi:addition=draws,pairs=6").rewiring(10).batches == 6
    schedule = parse("ssvi:kl_end=0.2").kl_schedule(1.0)
    assert [schedule(share) for share in (0.0, 0.25, 0.5, 1.0)] == [0, 0.1, 0.2, 0.2]


def test_recipes_store_blocks() -> None:
    task, run = tasks.pictures(), Run(Budget(epochs=2, batch_size=30, lr=2e-2))
    for spec in ("ssvi", "rigl"):
        recipe = parse(f"{spec}:density=0.5,every=2,block=3")
        result = prepare(recipe, task, run).predictor
        (scatter,) = scatters(getattr(result, "model", result)).values()
        assert scatter.block == 3
        assert in_blocks(scatter.index, scatter.shape, 3)
        with pytest.raises(lb.errors.LeanBayesError, match="block"):
            parse(f"{spec}:block=0")
