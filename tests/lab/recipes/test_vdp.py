"""VDP++: the likelihoods of its training."""

import dataclasses

import pytest
import torch

import leanbayes as lb
from leanbayes.lab.recipes import Run, parse, prepare
from tests import tasks
from tests.lab.recipes.cases import BUDGET


def test_the_likelihoods_of_vdp_are_scored_in_training_and_the_tasks_own_predicts() -> None:
    task, weights = tasks.classes(), []
    for name in ("expected", "mean", "moment"):
        trained = prepare(parse(f"vdp:likelihood={name}"), task, Run(dataclasses.replace(BUDGET, epochs=2)))
        assert isinstance(trained.likelihood, lb.Categorical)
        weights.append(trained.predictor.model[0].weight)
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])
    with pytest.raises(lb.errors.InputError, match="cross-entropy needs logits"):
        prepare(parse("vdp:likelihood=mean"), tasks.regression(), Run(BUDGET))
    trained = prepare(parse("vdp:likelihood=moment"), tasks.regression(), Run(BUDGET))
    assert trained.likelihood.noise < 0.9  # it is learnt, from 1


PUBLISHED = "vdp:order=taylor,rank=0,positions=independent,kernels=exact,likelihood=moment,pretrain=0,kl_end=0.001"


def test_vdp_as_published_has_the_moments_of_the_paper_and_learns() -> None:
    """The first-order ReLU, its likelihood and a rank of 0 could not be chosen in any recipe before.

    Equation 4 (a linear layer of random weights and random inputs) and equation 5 (the ReLU to first order), by hand.
    """
    task = tasks.classes()
    run = Run(dataclasses.replace(BUDGET, epochs=12))
    trained = prepare(parse(PUBLISHED), task, run)
    bnn = trained.predictor
    x, y = (part.double() if part.is_floating_point() else part for part in task.test[:])
    bnn.double()
    mean, variance = x, torch.zeros_like(x)
    weights = bnn.weights()
    for index, last in ((0, False), (2, True)):
        w, b = weights[f"{index}.weight"], weights[f"{index}.bias"]
        v = w.variance()
        variance = variance @ w.mean.square().T + (mean.square() + variance) @ v.T + b.variance()
        mean = mean @ w.mean.T + b.mean
        if not last:
            slope = (mean > 0).double()
            mean, variance = mean * slope, variance * slope
    result = lb.moments(bnn, x)
    torch.testing.assert_close(result, (mean, variance), rtol=1e-10, atol=1e-14)
    prediction = lb.predict(bnn, x, likelihood=trained.likelihood)
    assert (prediction.draws == 1).all()
    assert (prediction.mean.argmax(1) == y).float().mean() > 0.8
    assert (prediction.epistemic > 0).any()


def test_the_loss_of_vdp_as_published_falls_and_scales_move() -> None:
    task, moments = tasks.classes(), lb.propagate.Moments(0, "independent", "exact", "taylor")
    torch.manual_seed(0)
    bnn = lb.Bayesian(task.model(), propagate=moments)
    start = {name: parts.rho.detach().clone() for name, parts in bnn.parts()}
    likelihood = lb.likelihood.MomentLikelihood()
    history = lb.fit(
        bnn,
        [task.train[:]] * 4,
        likelihood=likelihood,
        epochs=10,
        kl_weight=0.001,
        optimizer=lb.Optimization(lr=1e-2),
    )
    assert history.losses[-1] < 0.5 * history.losses[0]
    assert all((parts.rho - start[name]).abs().mean() > 0.01 for name, parts in bnn.parts())


@pytest.mark.parametrize("scale", [1.0, 1e-30])
@pytest.mark.parametrize("activation", [torch.nn.ReLU, torch.nn.Hardsigmoid, torch.nn.GELU, torch.nn.LeakyReLU])
def test_first_order_gradients_are_finite_where_means_and_variances_are_zero(activation, scale: float) -> None:
    """Torch cannot differentiate hardsigmoid twice, so that a training to first order raised an error before."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), activation(), torch.nn.Linear(5, 2))
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    posterior = lb.posteriors.Normal(scale)
    bnn = lb.Bayesian(model, posterior=posterior, propagate=lb.propagate.Moments(0, "split", "exact", "taylor"))
    x, y = torch.zeros(4, 3), torch.tensor([0, 1, 0, 1])
    parts = lb.elbo(bnn, x, y, lb.likelihood.MomentLikelihood(), n_data=4, kl_weight=0.1)
    parts.loss.backward()
    gradients = [parameter.grad for parameter in bnn.parameters()]
    assert all(gradient is not None and torch.isfinite(gradient).all() for gradient in gradients)
    assert any((gradient != 0).any() for gradient in gradients)
