import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from leanbayes._calls import call_with
from leanbayes.bayesian import Bayesian
from leanbayes.posteriors import Normal, RandomWeight
from leanbayes.propagate import PROPAGATIONS, OnePass, as_propagation
from leanbayes.propagate.stand_in import StandIn, draw_of
from leanbayes.subspace import layers
from tests.oracles import moments_within_standard_errors
from tests.propagate.cases import stand_in as stand_in_of

RULED = ["mirrored", "local", "flipout"]
with_rules = pytest.mark.parametrize("propagate", RULED)


def random_weight(*shape: int, index: list[int] | None = None) -> RandomWeight:
    mean = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    size = shape if index is None else (len(index),)
    places = None if index is None else torch.tensor(index)
    return RandomWeight("w", mean, places, torch.full(size, 0.5, dtype=torch.float64), Normal())


class Matmul(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T + self.bias


class Standardised(nn.Conv1d):
    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        w = (w - w.mean(dim=(1, 2), keepdim=True)) / (w.std(dim=(1, 2), keepdim=True) + 1e-5)
        return F.conv1d(x, w)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]


class TwoSteps(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.cell(x, self.cell(x))[0]


class First(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)[0]


WITHOUT_RULES = {
    "x @ w.T": (lambda: Matmul(4, 3), (5, 4)),
    "weight standardisation": (lambda: Standardised(4, 3, 2, bias=False), (5, 4, 6)),
    "LSTM": (lambda: First(nn.LSTM(4, 3, num_layers=2, batch_first=True)), (5, 6, 4)),
    "GRU": (lambda: First(nn.GRU(4, 3, bidirectional=True)), (5, 6, 4)),
    "RNN": (lambda: First(nn.RNN(4, 3)), (5, 6, 4)),
    "LSTMCell": (TwoSteps, (5, 4)),
    "attention": (Attention, (5, 3, 4)),
    "layer norm": (lambda: nn.LayerNorm(4), (5, 4)),
    "batch norm": (lambda: nn.BatchNorm1d(4), (5, 4)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (5, 4)),
    "prelu": (lambda: nn.PReLU(4), (5, 4)),
}


@with_rules
@pytest.mark.parametrize("kind", WITHOUT_RULES)
@pytest.mark.parametrize("training", [True, False])
class TestOperationsWithoutARule:
    def test_the_whole_pass_uses_one_draw_of_every_weight(self, propagate, kind, training):
        if kind == "batch norm" and propagate in ("mirrored", "flipout"):
            pytest.skip("has a rule: see test_mirrored.py and test_flipout.py")
        make, shape = WITHOUT_RULES[kind]
        model, x = make().double().train(training), torch.randn(shape, dtype=torch.float64)
        bnn = Bayesian(model, propagate=propagate, posterior=Normal(0.5))
        stand_ins = {n: stand_in_of(propagate, w) for n, w in bnn.weights().items()}
        result = call_with(model, stand_ins, (x,), {})
        assert type(result) is Tensor
        drawn = {n: s.draw() for n, s in stand_ins.items() if s.held is not None}
        assert set(drawn) == set(stand_ins)
        torch.testing.assert_close(result, call_with(model, drawn, (x,), {}), rtol=1e-10, atol=1e-10)
        assert not torch.isclose(result, model(x)).all()

    def test_gradients_reach_every_mean_and_scale(self, propagate, kind, training):
        make, shape = WITHOUT_RULES[kind]
        model, x = make().double().train(training), torch.randn(shape, dtype=torch.float64)
        bnn = Bayesian(model, propagate=propagate)
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)
        bnn(x).pow(3).sum().backward()
        for name, parameter in bnn.named_parameters():
            assert parameter.grad is not None, name
            assert torch.isfinite(parameter.grad).all(), name
            assert parameter.grad.any(), name


@with_rules
class TestOneDrawForThePass:
    def test_a_weight_used_twice_is_the_same_both_times(self, propagate):
        stand_in = stand_in_of(propagate, random_weight(3, 4))
        x = torch.randn(2, 4, dtype=torch.float64)
        assert torch.equal(x @ stand_in.T, torch.matmul(x, stand_in.t()))
        assert torch.equal(stand_in + 0, stand_in * 1)
        assert torch.equal(stand_in.detach(), draw_of(stand_in))
        assert torch.equal(stand_in[1], stand_in[1])
        assert not torch.equal(stand_in + 0, stand_in.weight.mean)

    def test_the_next_pass_has_another(self, propagate):
        class Twice(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.w = nn.Parameter(torch.randn(4))

            def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
                return x * self.w, x * self.w

        bnn = Bayesian(Twice(), propagate=propagate)
        first, again = bnn(torch.ones(4))
        other, _ = bnn(torch.ones(4))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)

    def test_tied_weights_share_their_draw(self, propagate):
        class Tied(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.a, self.b = Matmul(3, 3, bias=True), Matmul(3, 3, bias=True)
                self.b.weight, self.b.bias = self.a.weight, self.a.bias

            def forward(self, x: Tensor) -> Tensor:
                return self.a(x) - self.b(x)

        assert not Bayesian(Tied(), propagate=propagate)(torch.randn(5, 3)).any()

    @pytest.mark.parametrize("index", [None, [1, 4, 5, 11]])
    def test_the_draws_have_the_right_moments(self, propagate, index):
        weight = random_weight(3, 4, index=index)
        draws = torch.stack([stand_in_of(propagate, weight) + 0 for _ in range(2000)])
        variance = torch.zeros(12, dtype=torch.float64)
        variance[slice(None) if index is None else index] = 0.25
        moments_within_standard_errors(draws, weight.mean, variance.view(3, 4))


class AsInput(nn.Module):
    """A learned query goes through a layer whose own weights may be plain."""

    def __init__(self, layer: nn.Module, *shape: int) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.randn(shape))
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        inputs = (self.query, self.query) if isinstance(self.layer, nn.Bilinear) else (self.query,)
        return self.layer(*inputs) + x


AS_INPUT = {
    "linear": lambda: AsInput(nn.Linear(3, 2), 2, 3),
    "linear without bias": lambda: AsInput(nn.Linear(3, 2, bias=False), 2, 3),
    "conv1d": lambda: AsInput(nn.Conv1d(3, 2, 2), 2, 3, 4),
    "conv2d": lambda: AsInput(nn.Conv2d(1, 2, 2), 1, 1, 3, 3),
    "conv_transpose1d": lambda: AsInput(nn.ConvTranspose1d(3, 2, 2), 2, 3, 4),
    "bilinear": lambda: AsInput(nn.Bilinear(3, 3, 2), 2, 3),
}


@pytest.mark.parametrize("propagate", [name for name, kind in PROPAGATIONS.items() if not issubclass(kind, OnePass)])
@pytest.mark.parametrize("kind", AS_INPUT)
class TestAParameterAsInput:
    def test_it_is_drawn_when_it_alone_is_random(self, propagate, kind):
        model = AS_INPUT[kind]().double()
        bnn = Bayesian(model, subspace=layers("query"), propagate=propagate, posterior=Normal(0.5))
        stand_in = stand_in_of(propagate, bnn.weights()["query"])
        result = call_with(model, {"query": stand_in}, (torch.zeros(()),), {})
        draw = draw_of(stand_in)
        assert not torch.isclose(draw, model.query).any()
        torch.testing.assert_close(result, call_with(model, {"query": draw}, (torch.zeros(()),), {}))

    def test_it_is_drawn_when_everything_is_random(self, propagate, kind):
        model = AS_INPUT[kind]().double()
        bnn = Bayesian(model, propagate=propagate, posterior=Normal(1e-6))
        plain = model(torch.zeros(()))
        torch.testing.assert_close(bnn(torch.zeros(())), plain, rtol=1e-3, atol=1e-3)
        bnn = Bayesian(model, propagate=propagate, posterior=Normal(0.5))
        bnn(torch.zeros(())).square().sum().backward()
        assert model.query.grad.any()
        assert all(parts.rho.grad.any() for _, parts in bnn.parts())


QUESTIONS = {
    "shape": lambda w: w.shape,
    "shape[0]": lambda w: w.shape[0],
    "dtype": lambda w: w.dtype,
    "device": lambda w: w.device,
    "layout": lambda w: w.layout,
    "ndim": lambda w: w.ndim,
    "requires_grad": lambda w: w.requires_grad,
    "is_leaf": lambda w: w.is_leaf,
    "itemsize": lambda w: w.itemsize,
    "nbytes": lambda w: w.nbytes,
    "is_cuda": lambda w: w.is_cuda,
    "is_meta": lambda w: w.is_meta,
    "is_sparse": lambda w: w.is_sparse,
    "is_quantized": lambda w: w.is_quantized,
    "size()": lambda w: w.size(),
    "size(1)": lambda w: w.size(1),
    "dim()": lambda w: w.dim(),
    "numel()": lambda w: w.numel(),
    "nelement()": lambda w: w.nelement(),
    "stride()": lambda w: w.stride(),
    "is_contiguous()": lambda w: w.is_contiguous(),
    "is_floating_point()": lambda w: w.is_floating_point(),
    "is_complex()": lambda w: w.is_complex(),
    "element_size()": lambda w: w.element_size(),
    "get_device()": lambda w: w.get_device(),
    "len": len,
    "torch.is_floating_point": torch.is_floating_point,
    "torch.is_complex": torch.is_complex,
    "torch.numel": torch.numel,
}


@with_rules
class TestQuestions:
    @pytest.mark.parametrize("question", QUESTIONS)
    def test_they_are_answered_by_the_mean_and_draw_nothing(self, propagate, question):
        weight, generator = random_weight(3, 4), torch.Generator().manual_seed(0)
        stand_in = stand_in_of(propagate, weight, generator)
        held, state = stand_in.held, generator.get_state()
        assert (held is not None) == as_propagation(propagate).draws_ahead
        assert QUESTIONS[question](stand_in) == QUESTIONS[question](weight.mean)
        assert stand_in.held is held
        assert torch.equal(generator.get_state(), state)

    def test_it_can_be_a_key_and_is_a_tensor(self, propagate):
        stand_in = stand_in_of(propagate, random_weight(3, 4))
        assert {stand_in: 1}[stand_in] == 1
        assert isinstance(stand_in, Tensor)
        assert isinstance(stand_in, StandIn)
        assert torch.is_tensor(stand_in)
        assert (stand_in.held is not None) == as_propagation(propagate).draws_ahead

    def test_a_frozen_mean_is_frozen(self, propagate):
        weight = RandomWeight("w", torch.zeros(2), None, torch.ones(2), Normal())
        assert not stand_in_of(propagate, weight).requires_grad

    def test_a_model_that_asks_before_it_computes(self, propagate):
        """Asking must not change the numbers that a generator gives."""

        class Asking(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                assert x.shape[-1] == self.weight.shape[1] == self.weight.size(1)
                return super().forward(x.to(self.weight.dtype).to(self.weight.device))

        asking, plain = Asking(3, 2), nn.Linear(3, 2)
        asking.load_state_dict(plain.state_dict())
        x = torch.randn(4, 3)
        one, two = (
            Bayesian(m, propagate=propagate)(x, generator=torch.Generator().manual_seed(0)) for m in (asking, plain)
        )
        assert torch.equal(one, two)


@pytest.mark.parametrize("propagate", [name for name, kind in PROPAGATIONS.items() if not issubclass(kind, OnePass)])
def test_a_transformer_layer_of_torch(propagate):
    """Attention by one draw, the two linear layers by their rules; in eval mode torch has a fused path of its own."""
    model = nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, dropout=0.0, batch_first=True).double()
    x = torch.randn(3, 5, 4, dtype=torch.float64)
    bnn = Bayesian(model, propagate=propagate, posterior=Normal(0.05))
    for training in (True, False):
        bnn.train(training)
        with torch.no_grad():
            draws = torch.stack([bnn(x) for _ in range(20)])
        assert draws.shape == (20, 3, 5, 4)
        assert draws.std(0).min() > 0
    tiny = Bayesian(model, propagate=propagate, posterior=Normal(1e-7))
    torch.testing.assert_close(tiny(x), model(x), rtol=1e-4, atol=1e-4)
