"""Pruning curves of the studies."""

import pytest
import torch
from torch import nn

from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError
from leanbayes.evaluation import prune
from leanbayes.posteriors import Normal
from leanbayes.prediction import predict
from leanbayes_papers.pruning import FRACTIONS, PruningCurve, accuracy_on, pruning_curve
from tests.baselines.conformance import net
from tests.evaluation.test_pruning import same_state, state


def test_the_curve_has_each_fraction_and_leaves_the_model() -> None:
    model = Bayesian(net(0, torch.float32), posterior=Normal(init_scale=0.02))
    before = state(model)
    x = torch.randn(200, 4)
    y = predict(model, x, samples=64).mean.argmax(1)
    measure = accuracy_on(x, y, samples=8, batch_size=64)
    curve = pruning_curve(model, measure, (0.0, 0.5, 1.0))
    assert isinstance(curve, PruningCurve)
    assert curve.fractions.tolist() == [0.0, 0.5, 1.0]
    assert curve.nonzero.tolist() == [56, 28, 0]
    assert curve.bytes.diff().max() < 0
    assert curve.values.tolist() == [measure(prune(model, f).model) for f in (0.0, 0.5, 1.0)]
    assert curve.values[0] == measure(model) > 0.9 > curve.values[2]
    by_hand = predict(model, x, samples=8, batch_size=64, generator=torch.Generator().manual_seed(0)).mean.argmax(1)
    assert measure(model) == float((by_hand == y).float().mean())
    assert same_state(state(model), before)
    tensors = pruning_curve(model, lambda m: torch.tensor(2.5), [0.1]).values
    assert tensors.tolist() == [2.5]


def test_bad_fractions_are_refused_before_anything_is_measured() -> None:
    model = nn.Linear(3, 2)
    assert len(pruning_curve(model, lambda m: 0.0).values) == len(FRACTIONS)
    with pytest.raises(InputError, match="at least one"):
        pruning_curve(model, lambda m: 0.0, [])
    with pytest.raises(InputError, match="from 0 to 1"):
        pruning_curve(model, lambda m: pytest.fail("measured before all were checked"), [0.5, 2.0])
