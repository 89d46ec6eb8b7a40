"""A weight that is used twice in a pass has one draw in that pass, under every propagation."""

import copy
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import leanbayes as lb

DRAWN = ["sample", "mirrored", "local", "flipout"]
ONE_PASS = ["moments", "covariance"]
SIGMA = 0.6


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class TiedEmbedding(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(6, 10), nn.Linear(10, 6, bias=False)
        self.out.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.table(x))


class CalledTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.layer(x))


class Recurrent(nn.Module):
    """A loop over time, in which the batch axis is the first one of every operation."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.step = nn.Linear(2, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 3)
        for moment in x.unbind(1):
            state = torch.tanh(self.step(state) + self.enter(moment))
        return state


class Transposed(nn.Module):
    """An autoencoder whose decoder has the transposed weight of the encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(3, 4, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.tanh(self.encoder(x)), self.encoder.weight.T)


class AsInput(nn.Module):
    """A weight that is the input and the weight of one operation."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        return x + F.linear(self.weight, self.weight).sum()


def tokens() -> Tensor:
    return torch.tensor([0, 1, 2, 3])


def vectors(size: int) -> Tensor:
    return torch.randn(4, size, dtype=torch.float64, generator=seeded(9))


SHAPES: dict[str, tuple[type[nn.Module], Tensor]] = {
    "tied embedding": (TiedEmbedding, tokens()),
    "called twice": (CalledTwice, vectors(4)),
    "loop over time": (Recurrent, torch.randn(4, 3, 2, dtype=torch.float64, generator=seeded(9))),
    "transposed": (Transposed, vectors(3)),
    "input and weight": (AsInput, vectors(3)),
}


def build(name: str, propagate: str) -> tuple[lb.Bayesian, Tensor]:
    kind, x = SHAPES[name]
    torch.manual_seed(1)
    bnn = lb.Bayesian(kind().double(), posterior=lb.posteriors.Normal(SIGMA), propagate=propagate, predict_by=propagate)
    return bnn, x


def truth_of(bnn: lb.Bayesian, x: Tensor, draws: int) -> Tensor:
    """Outputs at plain weight draws, (draws, N, ...), by vmap."""
    with torch.no_grad():
        tensors = bnn.draw(draws, generator=seeded(123))
        return torch.func.vmap(lambda t: torch.func.functional_call(bnn.model, t, (x,)))(tensors)


@pytest.mark.parametrize("propagate", DRAWN)
@pytest.mark.parametrize("name", SHAPES)
def test_the_law_is_that_of_weight_draws(name: str, propagate: str) -> None:
    """Before, the mean logit of a tied embedding, E|w|² = |μ|² + kσ², was |μ|² under local and flipout.

    The second half of a mirrored batch even had |μ|² − kσ². Mean and variance of each output are compared with those of
    long Monte Carlo by weight draws, within five standard errors.
    """
    bnn, x = build(name, propagate)
    generator, draws = seeded(), 1200
    with torch.no_grad():
        result = torch.stack([bnn(x, generator=generator) for _ in range(draws)])
    truth = truth_of(bnn, x, 20_000)
    for power in (1, 2):
        one, two = (result - truth.mean(0)) ** power, (truth - truth.mean(0)) ** power
        error = (one.var(0) / len(one) + two.var(0) / len(two)).sqrt()
        assert ((one.mean(0) - two.mean(0)).abs() < 5 * error).all(), power


def test_the_mean_of_a_tied_embedding_in_closed_form() -> None:
    """E[w_i·w_i] = |μ_i|² + kσ² and E[w_i·w_j] = μ_i·μ_j, for each half of a mirrored batch, too."""
    for propagate in DRAWN:
        bnn, x = build("tied embedding", propagate)
        table = bnn.model.table.weight.detach()
        truth = table @ table.T + torch.eye(6, dtype=torch.float64) * 10 * SIGMA**2
        generator = seeded()
        with torch.no_grad():
            result = torch.stack([bnn(x, generator=generator) for _ in range(800)])
        assert ((result.mean(0) - truth[x]).abs() < 5 * result.std(0) / 800**0.5).all(), propagate


@pytest.mark.parametrize("propagate", DRAWN)
def test_predictions_too(propagate: str) -> None:
    """`predict` records its first pass; the law must be that of draws whether or not a prefix is shared."""
    bnn, x = build("tied embedding", propagate)
    truth = truth_of(bnn, x, 20_000).softmax(-1)
    result = lb.predict(bnn, x, samples=600, keep_samples=True, generator=seeded())
    error = (result.samples.var(0) / 600 + truth.var(0) / 20_000).sqrt()
    assert ((result.mean - truth.mean(0)).abs() < 5 * error).all()


@pytest.mark.parametrize("propagate", ONE_PASS)
@pytest.mark.parametrize("name", SHAPES)
def test_one_pass_refuses_what_it_cannot_do(name: str, propagate: str) -> None:
    """Two uses of one weight are not independent, which the rules of one pass assume."""
    bnn, x = build(name, propagate)
    with pytest.raises(lb.errors.MissingRule):
        bnn(x)
    with pytest.raises(lb.errors.MissingRule):
        lb.predict(bnn, x)
    if name == "called twice":
        with pytest.raises(lb.errors.MissingRule, match=r"'layer.weight' is used a second time.*\"sample\""):
            lb.predict(bnn, x)


def test_moments_accept_parts_of_a_packed_weight() -> None:
    """The rows of a packed weight are different weights, and so are its columns; a row used twice is refused."""

    class Packed(nn.Module):
        def __init__(self, *parts: Any) -> None:
            super().__init__()
            self.weight, self.parts = nn.Parameter(torch.randn(4, 4)), parts

        def forward(self, x: Tensor) -> Tensor:
            return sum(F.linear(x[:, : self.weight[part].shape[1]], self.weight[part]).sum(1) for part in self.parts)

    x = torch.ones(2, 4)
    for parts in [(slice(0, 2), slice(2, 4)), ((slice(None), slice(0, 2)), (slice(None), slice(2, 4)))]:
        assert lb.Bayesian(Packed(*parts), propagate="moments")(x).shape == (2,)
    with pytest.raises(lb.errors.MissingRule, match="a second time"):
        lb.Bayesian(Packed(slice(0, 3), slice(2, 4)), propagate="moments")(x)
    attention = nn.MultiheadAttention(4, 2, batch_first=True)
    bnn = lb.Bayesian(attention, propagate="moments")
    a, b = torch.randn(2, 3, 4), torch.randn(2, 3, 4)
    assert bnn(a, b, b, need_weights=False)[0].shape == (2, 3, 4)


@pytest.mark.parametrize("propagate", ["mirrored", "local", "flipout"])
def test_the_first_pass_is_as_if_the_weight_had_always_been_drawn_plainly(propagate: str) -> None:
    """A pass that is run again leaves random states, buffers and inputs as one pass does."""

    class Net(CalledTwice):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.noise = nn.BatchNorm1d(4), nn.Dropout(0.5)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.count = self.count + 1
            x.mul_(2)
            return super().forward(self.noise(self.norm(x)))

    def run(bnn: lb.Bayesian, generator: torch.Generator | None) -> list[Tensor]:
        torch.manual_seed(3)
        x = vectors(4)
        out = bnn(x, generator=generator)
        given = torch.zeros(()) if generator is None else generator.get_state()
        return [out.detach(), x, *bnn.buffers(), torch.get_rng_state(), given]

    torch.manual_seed(1)
    fresh = lb.Bayesian(Net().double(), propagate=propagate).train()
    for generator in (True, False):
        first, knows = copy.deepcopy(fresh), copy.deepcopy(fresh)
        knows.reuse.plain[propagate] = {"layer.weight", "layer.bias"} - (
            set() if propagate != "mirrored" else {"layer.weight", "layer.bias"}
        )
        one, two = (run(bnn, seeded() if generator else None) for bnn in (first, knows))
        assert all(map(torch.equal, one, two))
        assert first.model.count == 1
        assert first.model.norm.num_batches_tracked == 1


def test_a_weight_is_drawn_plainly_from_then_on_also_in_copies() -> None:
    bnn, x = build("called twice", "local")
    bnn(x)
    for other in (bnn, copy.deepcopy(bnn), pickle.loads(pickle.dumps(bnn))):  # noqa: S301
        assert other.reuse.plain == {"local": {"layer.weight", "layer.bias"}}
    once, z = lb.Bayesian(nn.Linear(4, 2).double(), propagate="local"), vectors(4)
    once(z)
    assert not once.reuse.plain


def test_a_weight_that_is_used_twice_only_later() -> None:
    """Control flow may use a weight more often in a later pass."""

    class Sometimes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.times = nn.Linear(4, 4), 1
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(self.times):
                x = self.layer(x)
            if self.times == 3:
                self.count += 1
            return x

    bnn = lb.Bayesian(Sometimes().double(), propagate="local")
    bnn(vectors(4))
    bnn.model.times = 2
    bnn(vectors(4))
    assert bnn.reuse.plain
    other = lb.Bayesian(Sometimes().double(), propagate="local")
    other(vectors(4))
    other.model.times = 3
    with pytest.raises(lb.errors.InputError, match="call the model once more"):
        other(vectors(4))
    assert other(vectors(4)).shape == (4, 4)


def test_gradients_are_those_of_the_one_draw() -> None:
    """d/dμ and d/dσ of a pass that uses W twice, by the draw that the pass shows: y = W W x."""
    bnn, x = build("called twice", "flipout")
    bnn(x)
    out = bnn(x, generator=seeded())
    weights = bnn.weights()
    torch.manual_seed(0)
    noises = {}
    generator = seeded()
    for name in ("layer.weight", "layer.bias"):
        noises[name] = weights[name].noise(generator)
    drawn = {name: weights[name].sample(noise) for name, noise in noises.items()}
    truth = torch.func.functional_call(bnn.model, drawn, (x,))
    torch.testing.assert_close(out, truth, rtol=1e-12, atol=1e-12)
    got, expected = (torch.autograd.grad(value.square().sum(), list(bnn.parameters())) for value in (out, truth))
    for one, two in zip(got, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("propagate", ["mirrored", "flipout"])
def test_signs_differ_by_example_only(propagate: str) -> None:
    """Before, an operation whose first axis holds tokens gave the tokens of one example different draws.

    The mean over the tokens of a constant sequence must have the variance of one token.
    """

    class TokensFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x.transpose(0, 1)).mean(0)

    bnn = lb.Bayesian(TokensFirst().double(), posterior=lb.posteriors.Normal(0.5), propagate=propagate)
    x = torch.ones(2, 6, 3, dtype=torch.float64)
    generator = seeded()
    with torch.no_grad():
        result = torch.stack([bnn(x, generator=generator) for _ in range(800)])
    assert ((result.var(0) / (3 * 0.25) - 1).abs() < 5 * (2 / 800) ** 0.5).all()


@pytest.mark.parametrize("propagate", DRAWN)
@pytest.mark.parametrize("ivon", [False, True])
def test_a_step_of_a_sparse_network_waits_for_no_device(propagate: str, ivon: bool) -> None:
    """A meta tensor has no values, so whatever would read them raises: a GPU would have to finish its work first."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2), nn.Flatten(), nn.Linear(64, 4)
    )
    bnn = lb.Bayesian(model, subspace=lb.sparse(density=0.1), propagate=propagate)
    x, y = torch.randn(32, 3, 8, 8), torch.zeros(32, dtype=torch.long)
    lb.elbo(bnn, x, y, lb.Categorical(), n_data=100).loss.backward()  # the first pass looks at all buffers
    bnn.zero_grad()
    bnn.to("meta")
    optimizer = lb.optim.IVON(bnn, lr=0.1, n_data=100, steps=10) if ivon else torch.optim.Adam(bnn.parameters())
    for _ in range(2):
        lb.elbo(bnn, x.to("meta"), y.to("meta"), lb.Categorical(), n_data=100, check=False).loss.backward()
        optimizer.step()
    assert {parameter.grad.device.type for parameter in bnn.parameters() if parameter.grad is not None} == {"meta"}
