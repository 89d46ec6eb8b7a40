"""The settings of IVON for `fit`."""

import torch
from torch import nn

import leanbayes as lb


def test_settings_reach_the_optimizer_and_are_the_same_in_another_process() -> None:
    """The text of the settings identifies a training in its checkpoint, so it may hold no address in memory."""
    torch.manual_seed(7)
    bnn = lb.Bayesian(nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 3)))
    x, y = torch.randn(12, 5), torch.randint(0, 3, (12,))
    natural = lb.optim.NaturalGradients(temperature=0.25, plain_lr=1e-3)
    assert repr(natural) == repr(lb.optim.NaturalGradients(temperature=0.25, plain_lr=1e-3))
    assert "0x" not in repr(natural)
    problem = lb.optim.Problem(bnn, bnn.parameter_groups(), lr=0.1, weight_decay=0.0, n_data=12, steps=40)
    group = natural.build(problem).param_groups[0]
    assert (group["temperature"], group["plain_lr"], group["lr"], group["n_data"]) == (0.25, 1e-3, 0.1, 12)
    lb.fit(bnn, [(x, y)], likelihood=lb.Categorical(), epochs=2, optimizer=lb.Optimization(natural, lr=0.1))
