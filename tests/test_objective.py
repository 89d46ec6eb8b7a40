"""The ELBO against closed forms: every scale, every part, and its gradient in expectation."""

import math

import pytest
import torch
from torch import Tensor, nn

import leanbayes as lb
from tests.allocations import parameter_bytes, peak_bytes
from tests.oracles import mean_within_standard_errors, normal_kl

PROPAGATIONS = ["sample", "mirrored", "local", "flipout"]


def seeded(seed: int = 7) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def scales(bnn: lb.Bayesian) -> dict[str, Tensor]:
    """log(1 + e^ρ) in float64, by hand."""
    return {name: torch.log1p(parts.rho.detach().double().exp()) for name, parts in bnn.parts()}


def closed_kl(bnn: lb.Bayesian, prior_scale: float = 1.0) -> float:
    means = dict(bnn.model.named_parameters())
    return sum(normal_kl(means[name].detach(), scale, 0.0, prior_scale).item() for name, scale in scales(bnn).items())


@pytest.fixture
def classifier() -> lb.Bayesian:
    return lb.Bayesian(
        nn.Linear(3, 4, dtype=torch.float64), posterior=lb.posteriors.Normal(lb.posteriors.GaussianRho(-1.0, 0.5))
    )


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(6, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 3, 0, 1])


def test_the_loss_is_what_a_hand_computes_from_the_same_noise(
    classifier: lb.Bayesian, batch: tuple[Tensor, Tensor]
) -> None:
    x, y = batch
    result = lb.elbo(
        classifier, x, y, lb.Categorical(), n_data=50, samples=3, kl_weight=0.3, generator=seeded()
    )  # fmt: skip
    generator, scale, nll = seeded(), scales(classifier), 0.0
    weight, bias = classifier.model.weight.detach(), classifier.model.bias.detach()
    for _ in range(3):
        w = weight + scale["weight"] * torch.randn(4, 3, dtype=torch.float64, generator=generator)
        b = bias + scale["bias"] * torch.randn(4, dtype=torch.float64, generator=generator)
        logits = x @ w.T + b
        nll += sum((torch.logsumexp(row, 0) - row[label]).item() for row, label in zip(logits, y, strict=True)) / 3
    kl = closed_kl(classifier)
    assert result.nll.item() == pytest.approx(nll / 6, rel=1e-12)
    assert result.kl.item() == pytest.approx(kl, rel=1e-12)
    assert result.loss.item() == pytest.approx(nll / 6 + 0.3 * kl / 50, rel=1e-12)


@pytest.mark.parametrize("n_data", [1, 6, 1000])
@pytest.mark.parametrize("kl_weight", [0.0, 0.01, 1.0, 3.0])
def test_the_kl_is_scaled_once(
    classifier: lb.Bayesian, batch: tuple[Tensor, Tensor], n_data: int, kl_weight: float
) -> None:
    result = lb.elbo(classifier, *batch, lb.Categorical(), n_data=n_data, kl_weight=kl_weight, generator=seeded())
    assert (result.loss - result.nll).item() == pytest.approx(kl_weight * closed_kl(classifier) / n_data, rel=1e-10)


def test_the_nll_is_a_mean_over_examples_and_a_sum_over_pixels() -> None:
    """Uniform logits: every pixel costs log C, whatever the batch."""
    model = nn.Conv2d(1, 4, 1).requires_grad_(False)
    nn.init.zeros_(model.weight)
    nn.init.zeros_(model.bias)
    for size in (1, 5):
        result = lb.elbo(
            model,
            torch.ones(size, 1, 3, 2),
            torch.zeros(size, 3, 2, dtype=torch.long),
            lb.Categorical(),
            n_data=10,
        )
        assert result.nll.item() == pytest.approx(6 * math.log(4), rel=1e-6)


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0, 2.0])
def test_temperature_counts_the_entropy(
    classifier: lb.Bayesian, batch: tuple[Tensor, Tensor], temperature: float
) -> None:
    """−E_q log p(w) − T·H(q) for Normals: cross-entropy and entropy in closed form."""
    result = lb.elbo(classifier, *batch, lb.Categorical(), n_data=20, temperature=temperature, generator=seeded())
    means, cross, entropy = dict(classifier.model.named_parameters()), 0.0, 0.0
    for name, scale in scales(classifier).items():
        second = scale**2 + means[name].detach() ** 2
        cross += (0.5 * math.log(2 * math.pi) + second / 2).sum().item()
        entropy += (0.5 * math.log(2 * math.pi * math.e) + scale.log()).sum().item()
    assert (result.loss - result.nll).item() == pytest.approx((cross - temperature * entropy) / 20, rel=1e-10)
    assert result.kl.item() == pytest.approx(cross - entropy, rel=1e-10)


def test_temperature_in_half_precision_keeps_the_digits_of_the_kl() -> None:
    """The KL of a bfloat16 model is summed in float32; so must be the entropy that temperature adds."""
    bnn = lb.Bayesian(nn.Linear(60, 50, dtype=torch.bfloat16))
    x, y = torch.zeros(2, 60, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.long)
    result = lb.elbo(bnn, x, y, lb.Categorical(), n_data=1, temperature=2.0)
    spreads = [weight.spread.detach().double() for weight in bnn.weights().values()]
    entropy = sum((0.5 * math.log(2 * math.pi * math.e) + s.log()).sum().item() for s in spreads)
    assert (result.loss - result.nll.float() - result.kl).item() == pytest.approx(-entropy, rel=1e-4)


def test_kl_per_parameter_divides_by_the_random_coordinates(batch: tuple[Tensor, Tensor]) -> None:
    bnn = lb.Bayesian(nn.Linear(3, 4, dtype=torch.float64), subspace=lb.random_k(k=5))
    result = lb.elbo(bnn, *batch, lb.Categorical(), n_data=1000, kl_per="parameter", kl_weight=0.7, generator=seeded())
    means, kl = dict(bnn.model.named_parameters()), 0.0
    for name, parts in bnn.parts():
        positions = slice(None) if parts.index is None else parts.index.long()
        kl += normal_kl(means[name].detach().flatten()[positions], scales(bnn)[name].flatten(), 0.0, 1.0).item()
    assert (result.loss - result.nll).item() == pytest.approx(0.7 * kl / 5, rel=1e-10)


def test_more_samples_average_the_same_nll(classifier: lb.Bayesian, batch: tuple[Tensor, Tensor]) -> None:
    """Sixteen draws: the same expectation, a sixteenth of the variance."""
    generator = seeded()

    def losses(samples: int) -> Tensor:
        with torch.no_grad():
            parts = [
                lb.elbo(classifier, *batch, lb.Categorical(), n_data=10, samples=samples, generator=generator).nll
                for _ in range(400)
            ]
        return torch.stack(parts)

    one, many = losses(1), losses(16)
    assert (one.mean() - many.mean()).abs() < 5 * ((one.var() + many.var()) / 400).sqrt()
    assert 16 / 1.6 < (one.var() / many.var()).item() < 16 * 1.6


def test_a_plain_module_has_no_kl(batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    model = nn.Linear(3, 4, dtype=torch.float64)
    result = lb.elbo(model, x, y, lb.Categorical(), n_data=10, kl_weight=5.0)
    logits = model(x).detach()
    expected = sum((torch.logsumexp(row, 0) - row[label]).item() for row, label in zip(logits, y, strict=True)) / 6
    assert result.kl.item() == 0
    assert result.loss.item() == result.nll.item() == pytest.approx(expected, rel=1e-12)
    result.loss.backward()
    assert model.weight.grad is not None


@pytest.mark.parametrize("propagate", PROPAGATIONS)
def test_the_gradient_is_that_of_the_expected_loss(propagate: str) -> None:
    """Linear-Gaussian: E[loss] = (|y − Xμ|² + Σ x²σ²)/2s²B + KL/n, so its gradient is known.

    ∂/∂μ = −Xᵀ(y − Xμ)/s²B + μ/(p²n);  ∂/∂ρ = (Σᵢ xᵢ²σ/s²B + (σ/p² − 1/σ)/n)·sigmoid(ρ).
    """
    noise, prior, n = 0.7, 1.3, 40
    x, y = torch.randn(5, 3, dtype=torch.float64), torch.randn(5, 1, dtype=torch.float64)
    law = torch.distributions.Normal(torch.zeros((), dtype=torch.float64), torch.tensor(prior, dtype=torch.float64))
    bnn = lb.Bayesian(
        nn.Linear(3, 1, bias=False, dtype=torch.float64),
        posterior=lb.posteriors.Normal(lb.posteriors.GaussianRho(-1.0, 0.5)),
        prior=law,
        propagate=propagate,
    )
    ((_, parts),) = bnn.parts()
    likelihood, generator, result = lb.Gaussian(noise).double(), seeded(), []
    for _ in range(1500):
        loss = lb.elbo(bnn, x, y, likelihood, n_data=n, generator=generator).loss
        result.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, [bnn.model.weight, parts.rho])]))
    mean, rho = bnn.model.weight.detach(), parts.rho.detach()
    sigma = torch.log1p(rho.exp())
    to_mean = -(y - x @ mean.T).T @ x / (noise**2 * 5) + mean / (prior**2 * n)
    to_sigma = (x**2).sum(0) * sigma / (noise**2 * 5) + (sigma / prior**2 - 1 / sigma) / n
    to_rho = to_sigma / (1 + torch.exp(-rho))
    mean_within_standard_errors(torch.stack(result), torch.cat([to_mean.flatten(), to_rho.flatten()]))


def test_another_propagation_than_the_models_own() -> None:
    """Equal rows come out equal from one weight draw, and different from local reparameterization."""
    bnn = lb.Bayesian(nn.Linear(3, 2), posterior=lb.posteriors.Normal(0.5))
    x, y, seen = torch.ones(4, 3), torch.zeros(4, dtype=torch.long), []

    def keep(output: Tensor) -> Tensor:
        seen.append(output.detach())
        return output

    lb.elbo(bnn, x, y, lb.Categorical(), n_data=4, output=keep)
    lb.elbo(bnn, x, y, lb.Categorical(), n_data=4, output=keep, propagate="local")
    assert (seen[0] == seen[0][0]).all()
    assert (seen[1] != seen[1][0])[1:].all()


@pytest.mark.parametrize("kind", ["mapping", "tuple"])
def test_inputs_of_every_kind_and_outputs_picked(kind: str) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 2), nn.Linear(3, 2)

        def forward(self, a: Tensor, b: Tensor) -> dict[str, Tensor]:
            return {"scores": self.one(a) - self.two(b), "other": a}

    a, b, y = torch.randn(4, 3), torch.randn(4, 3), torch.tensor([0, 1, 1, 0])
    bnn = lb.Bayesian(Two())
    inputs = {"b": b, "a": a} if kind == "mapping" else (a, b)
    with bnn.at_mean():
        result = lb.elbo(bnn, inputs, y, lb.Categorical(), n_data=4, output=lambda out: out["scores"])
    expected = nn.functional.cross_entropy(bnn.model.one(a) - bnn.model.two(b), y)
    torch.testing.assert_close(result.nll, expected)


def test_learned_noise_is_reached_by_the_gradient() -> None:
    bnn, likelihood = lb.Bayesian(nn.Linear(2, 1)), lb.Gaussian("learned")
    lb.elbo(bnn, torch.ones(3, 2), torch.ones(3, 1), likelihood, n_data=3).loss.backward()
    assert likelihood.log_variance.grad is not None
    assert likelihood.log_variance.grad != 0


def test_a_monte_carlo_kl_draws_from_the_generator(batch: tuple[Tensor, Tensor]) -> None:
    bnn = lb.Bayesian(nn.Linear(3, 4, dtype=torch.float64), kl=lb.MonteCarlo(2))
    first, again, other = (
        lb.elbo(bnn, *batch, lb.Categorical(), n_data=9, generator=seeded(seed)).loss.item() for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_schedules() -> None:
    progress = [0.0, 0.1, 0.25, 0.5, 0.75, 1.0]
    assert [lb.constant(0.3)(p) for p in progress] == [0.3] * 6
    assert [lb.anneal(0.2, 0.01)(p) for p in progress] == pytest.approx([0.2, 0.181, 0.1525, 0.105, 0.0575, 0.01])
    assert lb.anneal(0.0, 1.0)(0.25) == 0.25
    assert [lb.warm_up(0.5, 2.0)(p) for p in progress] == pytest.approx([0.0, 0.4, 1.0, 2.0, 2.0, 2.0])
    assert lb.warm_up(1.0)(0.75) == 0.75


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: lb.constant(-1.0), "value"),
        (lambda: lb.constant(math.nan), "value"),
        (lambda: lb.anneal(-0.1, 1.0), "initial"),
        (lambda: lb.anneal(0.1, math.inf), "target"),
        (lambda: lb.warm_up(0.0), "fraction"),
        (lambda: lb.warm_up(1.5), "fraction"),
        (lambda: lb.warm_up(0.5, -2.0), "target"),
    ],
)
def test_bad_schedules(make: object, words: str) -> None:
    with pytest.raises(lb.errors.InputError, match=words):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    ("options", "kind", "words"),
    [
        ({"n_data": 0}, lb.errors.InputError, "n_data"),
        ({"samples": 0}, lb.errors.InputError, "samples"),
        ({"kl_weight": -1.0}, lb.errors.InputError, "kl_weight"),
        ({"kl_weight": math.nan}, lb.errors.InputError, "kl_weight"),
        ({"temperature": -0.5}, lb.errors.InputError, "temperature"),
        ({"kl_per": "layer"}, lb.errors.UnknownName, "parameter"),
        ({"propagate": "telepathy"}, lb.errors.UnknownName, "flipout"),
    ],
)
def test_bad_arguments_are_named(
    classifier: lb.Bayesian, batch: tuple[Tensor, Tensor], options: dict[str, object], kind: type, words: str
) -> None:
    with pytest.raises(kind, match=words):
        lb.elbo(classifier, *batch, lb.Categorical(), **{"n_data": 10, **options})


def test_a_bayesian_part_is_not_left_out_of_the_kl(batch: tuple[Tensor, Tensor]) -> None:
    """A plain module has KL 0; one with a random head has not."""
    net = nn.Sequential(nn.Linear(3, 5), lb.Bayesian(nn.Linear(5, 4))).double()
    with pytest.raises(lb.errors.InputError, match="Bayesian"):
        lb.elbo(net, *batch, lb.Categorical(), n_data=10)


def test_bad_batches_are_named(classifier: lb.Bayesian, batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    with pytest.raises(lb.errors.ShapeMismatch, match=r"\(6, 4\)"):
        lb.elbo(classifier, x, y[:3], lb.Categorical(), n_data=10)
    with pytest.raises(lb.errors.InputError, match="empty"):
        lb.elbo(classifier, x[:0], y[:0], lb.Categorical(), n_data=10)


def test_a_loss_that_is_not_finite_says_which_part(classifier: lb.Bayesian, batch: tuple[Tensor, Tensor]) -> None:
    x, y = batch
    with pytest.raises(lb.errors.NonFinite, match=r"nll nan \(Categorical\), KL \d"):
        lb.elbo(classifier, x * math.nan, y, lb.Categorical(), n_data=10)
    with pytest.raises(lb.errors.NonFinite, match="nll"):
        lb.elbo(classifier.model, x * math.inf, y, lb.Categorical(), n_data=10)
    with torch.no_grad():
        next(classifier.parts())[1].rho.fill_(-2000.0)  # softplus underflows: σ = 0, KL = ∞
    with pytest.raises(lb.errors.NonFinite, match=r"nll \d.*KL inf"):
        lb.elbo(classifier, x, y, lb.Categorical(), n_data=10)


def test_the_kl_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Optimizers that own the scales need the likelihood alone; the KL is then not even computed."""
    bnn = lb.Bayesian(nn.Linear(3, 2))
    x, y = torch.randn(4, 3), torch.randint(2, (4,))
    whole = lb.elbo(bnn, x, y, lb.Categorical(), n_data=10, generator=seeded())
    monkeypatch.setattr(lb.Bayesian, "kl", None)
    alone = lb.elbo(bnn, x, y, lb.Categorical(), n_data=10, with_kl=False, generator=seeded())
    assert torch.equal(alone.loss, whole.nll)
    assert alone.kl.item() == 0


def test_terms_hold_what_the_arguments_say(batch: tuple[Tensor, Tensor]) -> None:
    classifier = lb.Bayesian(nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 4)).double())
    settings = {"samples": 2, "last_layer_samples": 3, "temperature": 0.5, "kl_per": "parameter"}
    by_arguments, by_record = (
        lb.elbo(classifier, *batch, lb.Categorical(), n_data=50, generator=seeded(), **options)
        for options in ({"kl_weight": 0.3, **settings}, {"kl_weight": lb.Terms(0.3, **settings)})
    )
    assert torch.equal(by_arguments.loss, by_record.loss)
    halfway = lb.Terms(lb.anneal(0.2, 0.1), **settings).at(0.5)
    assert halfway.kl_weight == pytest.approx(0.15)
    assert halfway.samples == 2


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: lb.Terms(-1.0), "kl_weight must be finite"),
        (lambda: lb.Terms(float("nan")), "kl_weight must be finite"),
        (lambda: lb.Terms([0.1]), "kl_weight must be a number"),
        (lambda: lb.Terms(samples=0), "samples must be a whole number"),
        (lambda: lb.Terms(last_layer_samples=True), "last_layer_samples must be a whole number"),
        (lambda: lb.Terms(temperature=float("inf")), "temperature must be finite"),
        (lambda: lb.Terms(kl_per="weight"), "kl_per"),
        (lambda: lb.Terms("warm_up").at(0.5), "only fit resolves"),
    ],
)
def test_terms_are_checked_when_they_are_made(make, message: str) -> None:
    with pytest.raises(lb.errors.LeanBayesError, match=message):
        make()


def test_elbo_refuses_a_schedule_and_a_setting_that_is_given_twice(
    classifier: lb.Bayesian, batch: tuple[Tensor, Tensor]
) -> None:
    with pytest.raises(lb.errors.InputError, match="how far training is"):
        lb.elbo(classifier, *batch, lb.Categorical(), n_data=50, kl_weight=lb.Terms(lb.warm_up()))
    with pytest.raises(lb.errors.InputError, match="in the Terms alone"):
        lb.elbo(classifier, *batch, lb.Categorical(), n_data=50, kl_weight=lb.Terms(), temperature=0.5)


class TestObjective:
    """The loss as a module is the loss as a function."""

    @pytest.mark.parametrize("propagate", ["sample", "mirrored", "local", "moments"])
    def test_values_and_gradients_are_those_of_elbo(self, batch: tuple[Tensor, Tensor], propagate: str) -> None:
        bnn = lb.Bayesian(nn.Linear(3, 2).double(), propagate=propagate)
        x, y = batch[0][:, :3].double(), batch[1] % 2
        likelihood = lb.Categorical()
        terms = lb.Terms(0.3, samples=2, temperature=0.5)
        module = lb.Objective(bnn, likelihood, n_data=50, kl_weight=terms)
        got = module(x, y, generator=torch.Generator().manual_seed(3))
        got.loss.backward()
        gradients = [parameter.grad.clone() for parameter in module.parameters()]
        module.zero_grad()
        want = lb.elbo(*(bnn, x, y, likelihood), n_data=50, kl_weight=terms, generator=torch.Generator().manual_seed(3))
        want.loss.backward()
        assert all(torch.equal(mine, its) for mine, its in zip(got, want, strict=True))
        for mine, parameter in zip(gradients, module.parameters(), strict=True):
            assert torch.equal(mine, parameter.grad)

    def test_a_step_may_have_its_own_weight(self, batch: tuple[Tensor, Tensor]) -> None:
        bnn = lb.Bayesian(nn.Linear(batch[0].shape[1], 9).to(batch[0].dtype))
        module = lb.Objective(bnn, lb.Categorical(), n_data=10, kl_weight=lb.Terms(lb.warm_up(), samples=2))
        with pytest.raises(lb.errors.InputError, match="does not know how far training is"):
            module(*batch)
        loss, nll, kl = module(*batch, kl_weight=0.5)
        assert torch.isclose(loss, nll + 0.05 * kl)
        loss, nll, kl = module(*batch, kl_weight=lb.Terms(2.0))
        assert torch.isclose(loss, nll + 0.2 * kl)
        assert torch.equal(*lb.Objective(bnn, lb.Categorical(), n_data=10, with_kl=False)(*batch)[:2])

    def test_the_likelihood_is_a_part_of_it(self) -> None:
        likelihood = lb.Gaussian("learned")
        module = lb.Objective(nn.Linear(2, 1), likelihood, n_data=4)
        module(torch.zeros(4, 2), torch.ones(4, 1)).loss.backward()
        assert all(parameter.grad is not None for parameter in likelihood.parameters())
        assert {id(p) for p in likelihood.parameters()} <= {id(p) for p in module.parameters()}

    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (lambda bnn: lb.Objective(nn.DataParallel(bnn), lb.Categorical(), n_data=1), "in a DataParallel.*wrap the"),
            (lambda bnn: lb.Objective(bnn, lb.Categorical(), n_data=0), "n_data must be"),
            (lambda bnn: lb.Objective(bnn, nn.NLLLoss(), n_data=1), "no leanbayes.Likelihood"),
            (lambda bnn: lb.Objective(nn.Sequential(bnn), lb.Categorical(), n_data=1), "Bayesian"),
            (lambda bnn: lb.Objective(3, lb.Categorical(), n_data=1), "must be a torch.nn.Module"),
        ],
    )
    def test_bad_arguments_are_named(self, make, words: str) -> None:
        with pytest.raises(lb.errors.InputError, match=words):
            make(lb.Bayesian(nn.Linear(2, 2)))

    def test_a_loss_that_is_not_finite_is_an_error_unless_asked_otherwise(self) -> None:
        bnn, x, y = lb.Bayesian(nn.Linear(2, 2)), torch.full((1, 2), float("nan")), torch.zeros(1, dtype=torch.long)
        with pytest.raises(lb.errors.NonFinite):
            lb.Objective(bnn, lb.Categorical(), n_data=1)(x, y)
        assert lb.Objective(bnn, lb.Categorical(), n_data=1, check=False)(x, y).loss.isnan()


def test_a_step_at_one_percent_takes_hardly_more_memory_than_a_plain_one() -> None:
    """The gradients take the place of the draws; a KL whose gradient came first would hold both at once."""
    model = nn.Sequential(*[nn.Linear(128, 128) for _ in range(16)])
    x, y = torch.randn(4, 128), torch.randint(0, 128, (4,))
    bnn = lb.Bayesian(model, subspace=lb.random_k(0.01))

    def plain() -> None:
        nn.functional.cross_entropy(model(x), y).backward()

    def ours() -> None:
        lb.elbo(bnn, x, y, lb.Categorical(), n_data=10).loss.backward()

    peaks = []
    for step in (plain, ours):
        model.zero_grad()
        peaks.append(peak_bytes(step))
    assert peaks[1] < peaks[0] + 0.3 * parameter_bytes(model)
