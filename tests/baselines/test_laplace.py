import copy
import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from leanbayes.baselines import LaplaceApproximation, MCDropout
from leanbayes.errors import InputError, UnknownName
from leanbayes.likelihood import Bernoulli, Categorical, Gaussian, Likelihood
from leanbayes.prediction import predict
from leanbayes.subspace import everything, layers, random_k, top_k
from tests.oracles import covariance_within_standard_errors

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from laplace import Laplace
    from laplace.curvature import GGNInterface


class Regression:
    """y = Xw + noise, with the exact posterior of w under a Normal prior."""

    def __init__(self, tau: float = 0.7, sigma: float = 0.3) -> None:
        source = torch.Generator().manual_seed(0)
        self.x = torch.randn(30, 4, generator=source, dtype=torch.float64)
        self.tau, self.sigma = tau, sigma
        self.design = torch.cat([self.x, torch.ones(30, 1, dtype=torch.float64)], 1)
        weights = torch.randn(5, 1, generator=source, dtype=torch.float64)
        self.y = self.design @ weights + sigma * torch.randn(30, 1, generator=source, dtype=torch.float64)
        self.precision = self.design.T @ self.design / sigma**2 + tau * torch.eye(5)
        self.mean = torch.linalg.solve(self.precision, self.design.T @ self.y / sigma**2)

    def model(self) -> nn.Linear:
        linear = nn.Linear(4, 1).double()
        with torch.no_grad():
            linear.weight.copy_(self.mean[:4].T)
            linear.bias.copy_(self.mean[4])
        return linear

    def batches(self) -> list[tuple[Tensor, Tensor]]:
        return list(zip(self.x.split(8), self.y.split(8), strict=True))

    def evidence(self, log_tau: float) -> float:
        """log p(y | τ) but for a constant, with the mean held where it is, as Laplace tuning has it."""
        tau = math.exp(log_tau)
        precision = self.design.T @ self.design / self.sigma**2 + tau * torch.eye(5)
        return (0.5 * (5 * math.log(tau) - tau * self.mean.square().sum() - torch.logdet(precision))).item()


@pytest.mark.parametrize("whole", [True, False], ids=["last layer", "subnetwork"])
def test_a_linear_gaussian_model_has_the_exact_posterior(whole: bool) -> None:
    truth = Regression()
    chosen: Any = () if whole else ("subnetwork", everything())
    result = LaplaceApproximation.fit(
        truth.model(), truth.batches(), Gaussian(truth.sigma), *chosen, prior_precision=truth.tau
    )
    x = torch.randn(6, 4, dtype=torch.float64)
    design = torch.cat([x, torch.ones(6, 1)], 1)
    mean, variance = result.functional_variance(x)
    torch.testing.assert_close(mean, design @ truth.mean)
    expected = torch.einsum("ni,ij,nj->n", design, torch.linalg.inv(truth.precision), design)
    torch.testing.assert_close(variance.flatten(), expected, rtol=1e-6, atol=0)
    p = predict(result, x, likelihood=Gaussian(truth.sigma), samples=4000, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(p.epistemic.flatten(), expected, rtol=5 * math.sqrt(2 / 4000), atol=0)
    torch.testing.assert_close(p.aleatoric.flatten(), torch.full((6,), truth.sigma**2, dtype=torch.float64))


def test_the_prior_precision_has_the_highest_evidence() -> None:
    truth = Regression()
    result = LaplaceApproximation.fit(truth.model(), truth.batches(), Gaussian(truth.sigma))
    best = minimize_scalar(
        lambda log_tau: -truth.evidence(log_tau), bounds=(-6, 6), method="bounded", options={"xatol": 1e-9}
    )
    assert math.log(result.prior_precision.item()) == pytest.approx(best.x, abs=1e-4)


class Net(nn.Module):
    def __init__(self, outputs: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.Tanh(), nn.Dropout(0.5), nn.Flatten())
        self.head = nn.Linear(16, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def data(dtype: torch.dtype, likelihood: Likelihood) -> list[tuple[Tensor, Tensor]]:
    source = torch.Generator().manual_seed(0)
    x = torch.randn(20, 2, 6, generator=source).to(dtype)
    if isinstance(likelihood, Gaussian):
        return list(zip(x.split(8), torch.randn(20, 3, generator=source).to(dtype).split(8), strict=True))
    return list(zip(x.split(8), torch.randint(3, (20,), generator=source).split(8), strict=True))


class Loader(list[Any]):
    @property
    def dataset(self) -> range:
        return range(sum(len(y) for _, y in self))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("likelihood", [Categorical(), Gaussian(0.5)], ids=["classes", "regression"])
@pytest.mark.parametrize("subset", ["last_layer", "subnetwork"])
def test_the_variance_is_that_of_laplace_torch(subset: str, likelihood: Likelihood, dtype: torch.dtype) -> None:
    model, batches = Net().to(dtype).eval(), data(dtype, likelihood)
    x = torch.randn(7, 2, 6).to(dtype)
    kind = "classification" if isinstance(likelihood, Categorical) else "regression"
    options: dict[str, Any] = {} if kind == "classification" else {"sigma_noise": 0.5}
    if dtype == torch.float64:
        options["backend"] = GGNInterface  # laplace-torch's default has float32 inside, whatever the dtype
    subspace = random_k(k=25, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if subset == "last_layer":
            theirs = Laplace(copy.deepcopy(model), kind, "last_layer", "full", **options)
        else:
            selection, starts, start = subspace.select(model), {}, 0
            for name, parameter in model.named_parameters():
                starts[name], start = start, start + parameter.numel()
            flat = torch.cat([
                starts[name] + (torch.arange(model.get_parameter(name).numel()) if index is None else index.long())
                for name, index in selection.items()
            ])  # fmt: skip
            theirs = Laplace(copy.deepcopy(model), kind, "subnetwork", "full", subnetwork_indices=flat, **options)
        theirs.fit(Loader(batches))
        theirs.optimize_prior_precision(method="marglik")
        mean, variance = theirs._glm_predictive_distribution(x)
    tau = theirs.prior_precision.item()
    indices = None if subset == "last_layer" else subspace
    ours = LaplaceApproximation.fit(model, batches, likelihood, subset, indices, prior_precision=tau)
    result = ours.functional_variance(x)
    loose = {"rtol": 1e-3, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 1e-6, "atol": 1e-9}
    torch.testing.assert_close(result[0], mean, **loose)
    torch.testing.assert_close(result[1], variance, **loose)
    tuned = LaplaceApproximation.fit(model, batches, likelihood, subset, indices).prior_precision
    evidence = [
        theirs.log_marginal_likelihood(torch.as_tensor(t)).item() for t in (tau, tuned, 1.1 * tuned, tuned / 1.1)
    ]
    assert max(evidence) == pytest.approx(evidence[1], abs=1e-4)
    assert evidence[1] > max(evidence[2:])


def test_the_precision_is_the_gauss_newton_matrix_by_hand() -> None:
    likelihood = Categorical()
    model, batches = Net().double().eval(), data(torch.float64, likelihood)
    result = LaplaceApproximation.fit(model, batches, likelihood, prior_precision=2.0)
    total = 2.0 * torch.eye(51, dtype=torch.float64)
    for x, _ in batches:
        for row in x:
            features = torch.cat([model.body(row[None])[0], torch.ones(1)]).detach()
            p = model(row[None])[0].softmax(0).detach()
            jacobian = torch.zeros(3, 51, dtype=torch.float64)
            for c in range(3):
                jacobian[c, 16 * c : 16 * (c + 1)], jacobian[c, 48 + c] = features[:16], 1.0
            total += jacobian.T @ (torch.diag(p) - torch.outer(p, p)) @ jacobian
    torch.testing.assert_close(result.scale @ result.scale.mT, torch.linalg.inv(total))


def test_draws_have_the_functional_variance() -> None:
    likelihood = Categorical()
    result = LaplaceApproximation.fit(Net().double(), data(torch.float64, likelihood), likelihood)
    x = torch.randn(2, 2, 6, dtype=torch.float64)
    mean, variance = result.functional_variance(x)
    draws = torch.stack(list(result.outputs(x, 4000, torch.Generator().manual_seed(0))))
    for row in range(2):
        covariance_within_standard_errors(draws[:, row], mean[row], variance[row])


def test_chunks_and_rows_one_by_one_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    from leanbayes.baselines import laplace as module

    likelihood = Categorical()
    result = LaplaceApproximation.fit(Net().double(), data(torch.float64, likelihood), likelihood)
    x = torch.randn(7, 2, 6, dtype=torch.float64)
    whole = result.functional_variance(x)[1]
    monkeypatch.setattr(module, "_BYTES", 2 * 3 * 51 * 8)
    torch.testing.assert_close(result.functional_variance(x)[1], whole)

    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("no batching rule")

    monkeypatch.setattr(module, "vmap", broken)
    torch.testing.assert_close(result.functional_variance(x)[1], whole)


class Pair(nn.Module):
    """Two inputs, an output in a mapping, and a recurrent layer, for which torch has no batching rule."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(2, 4, batch_first=True), nn.Linear(4, 3)

    def forward(self, a: Tensor, b: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(self.rnn(a + b)[0][:, -1])}


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("subset", ["last_layer", "subnetwork"])
def test_several_inputs_and_recurrent_layers(named: bool, subset: str) -> None:
    model = Pair()
    a, b, y = torch.randn(12, 5, 2), torch.randn(12, 5, 2), torch.randint(3, (12,))

    def inputs(rows: slice) -> Any:
        return {"a": a[rows], "b": b[rows]} if named else (a[rows], b[rows])

    batches = [(inputs(slice(start, start + 5)), y[start : start + 5]) for start in (0, 5, 10)]
    indices = None if subset == "last_layer" else layers("head")
    result = LaplaceApproximation.fit(model, batches, Categorical(), subset, indices, prior_precision=1.0)
    features = model.rnn((a + b)[:4])[0][:, -1].detach()
    mean, variance = result.functional_variance(inputs(slice(4)))
    torch.testing.assert_close(mean, model(a[:4], b[:4])["logits"].detach())
    jacobian = torch.zeros(4, 3, 15)
    for c in range(3):
        jacobian[:, c, 4 * c : 4 * (c + 1)], jacobian[:, c, 12 + c] = features, 1.0
    torch.testing.assert_close(variance, jacobian @ result.scale @ result.scale.mT @ jacobian.mT, rtol=1e-4, atol=1e-6)
    assert predict(result, inputs(slice(4)), samples=5).mean.shape == (4, 3)


def test_a_subnetwork_by_scores_or_by_their_selection() -> None:
    likelihood = Categorical()
    model, batches = Net(), data(torch.float32, likelihood)
    scores = {name: torch.rand_like(parameter) for name, parameter in model.named_parameters()}
    model.body[0].requires_grad_(False)
    scores["body.0.weight"] += 10  # frozen: not chosen all the same
    chosen = top_k(scores, k=12)
    one = LaplaceApproximation.fit(model, batches, likelihood, "subnetwork", chosen)
    two = LaplaceApproximation.fit(model, batches, likelihood, "subnetwork", chosen.select(model))
    assert sum(one.coordinates.values()) == 12
    assert "body.0.weight" not in one.coordinates
    torch.testing.assert_close(one.scale, two.scale)
    x = torch.randn(3, 2, 6)
    torch.testing.assert_close(one.functional_variance(x), two.functional_variance(x))


def test_fewer_coordinates_than_outputs_give_a_singular_law() -> None:
    likelihood = Categorical()
    result = LaplaceApproximation.fit(Net(), data(torch.float32, likelihood), likelihood, "subnetwork", random_k(k=1))
    draws = torch.stack(list(result.outputs(torch.randn(4, 2, 6), 50, None)))
    assert torch.isfinite(draws).all()
    spread = torch.linalg.svdvals((draws - draws.mean(0)).movedim(1, 0))
    assert (spread[:, 1] < 1e-3 * spread[:, 0].clamp_min(1e-6) + 1e-6).all()


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was(training: bool) -> None:
    likelihood = Categorical()
    model = Net().train(training)
    model.body[0].requires_grad_(False)
    before, x = copy.deepcopy(model.state_dict()), torch.randn(3, 2, 6)
    result = LaplaceApproximation.fit(model, data(torch.float32, likelihood), likelihood)
    next(result.outputs(x, 1, None))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training == training for module in model.modules())
    assert not any(module._forward_hooks for module in model.modules())
    assert [parameter.requires_grad for parameter in model.parameters()] == [False] * 2 + [True] * 4
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_cannot_be_used_is_named() -> None:
    model, batches = Net(), data(torch.float32, Categorical())
    fit = LaplaceApproximation.fit
    with pytest.raises(UnknownName, match="all"):
        fit(model, batches, Categorical(), "all")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="indices"):
        fit(model, batches, Categorical(), "subnetwork")
    with pytest.raises(InputError, match="indices"):
        fit(model, batches, Categorical(), "last_layer", random_k(k=3))
    for bad in (Bernoulli(), Categorical(torch.ones(3)), Gaussian("input")):
        with pytest.raises(InputError, match="laplace-torch knows"):
            fit(model, batches, bad)
    with pytest.raises(InputError, match="the model has no"):
        fit(model, batches, Categorical(), "subnetwork", {"absent": None})
    with pytest.raises(InputError, match="iterator"):
        fit(model, iter(batches), Categorical())
    with pytest.raises(InputError, match="no batches"):
        fit(model, [], Categorical())
    with pytest.raises(InputError, match="prior_precision"):
        fit(model, batches, Categorical(), prior_precision=-1.0)
    with pytest.raises(InputError, match="shape"):
        fit(nn.Flatten(0), batches, Categorical())
    with pytest.raises(InputError, match="not that of a linear layer"):
        fit(nn.Sequential(model, nn.ReLU()), batches, Categorical())
    with pytest.raises(InputError, match="at most"):
        fit(nn.Sequential(nn.Flatten(), nn.Linear(12, 3000)), batches, Categorical())
    with pytest.raises(InputError, match="plain module"):
        fit(MCDropout(model), batches, Categorical())


def test_the_noise_of_a_regression_scales_its_variance() -> None:
    x, truth = torch.randn(3, 4, dtype=torch.float64), Regression()
    result = [
        LaplaceApproximation.fit(truth.model(), truth.batches(), Gaussian(s), prior_precision=1e-9) for s in (0.3, 0.6)
    ]
    small, large = (np.asarray(f.functional_variance(x)[1]) for f in result)
    np.testing.assert_allclose(large, 4 * small, rtol=1e-5)
