"""Sparse variational dropout: what is cut, and what remains."""

import torch
from torch import nn

import leanbayes as lb
from leanbayes.lab.recipes.variational_dropout import cut
from leanbayes.subspace import scatters


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
