"""The NLL of single inputs adds up to the metric."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import leanbayes as lb
from leanbayes.lab.compare import judge
from leanbayes.lab.compare.nlls import nll_of_inputs
from leanbayes.lab.recipes import Run, parse, prepare
from tests import tasks
from tests.lab.compare.cases import BUDGET


@pytest.mark.parametrize("make", [tasks.classes, tasks.pixels, tasks.regression])
def test_the_arrays_have_one_score_for_each_input_in_the_order_of_the_data(make: Any) -> None:
    task, recipe, run = make(), parse("deterministic"), Run(BUDGET)
    trained = prepare(recipe, task, run)
    judged = judge(recipe, trained, task, run, figures=True)
    nll, targets = judged.arrays["input_nll"].double(), judged.arrays["input_targets"].double()
    assert ((nll * targets).sum() / targets.sum()).item() == pytest.approx(judged.metrics["nll"], rel=1e-5)
    x, y = task.test[:]
    for row in (0, len(x) - 1):
        alone = TensorDataset(x[row : row + 1], y[row : row + 1])
        single = lb.evaluate(trained.predictor, run.loader(alone), likelihood=trained.likelihood)
        assert nll[row].item() == pytest.approx(single.metrics["nll"], rel=1e-4)


def test_pixels_that_do_not_count_have_no_weight() -> None:
    likelihood = lb.Categorical(ignore_index=9)
    logits = torch.randn(3, 2, 4, 4, generator=torch.Generator().manual_seed(0))
    y = torch.zeros(3, 4, 4, dtype=torch.long)
    y[0, :2] = 9
    y[1] = 9
    prediction = lb.predict(nn.Identity(), logits, likelihood=likelihood)
    nll, numbers = nll_of_inputs(prediction, y, likelihood)
    assert numbers.tolist() == [8, 0, 16]
    expected = -logits.double().log_softmax(1)[:, 0]
    assert nll.tolist() == pytest.approx([expected[0, 2:].mean().item(), 0.0, expected[2].mean().item()], rel=1e-5)
