import pytest
import torch
from torch import Tensor, nn

from leanbayes.baselines import MCDropout
from leanbayes.errors import InputError
from leanbayes.lab.models import resnet18
from leanbayes.likelihood import Categorical
from leanbayes.prediction import predict
from leanbayes.train import Optimization, fit
from tests.oracles import moments_within_standard_errors


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draws_of(predictor: MCDropout, x: object, count: int = 2, seed: int = 0) -> list[Tensor]:
    return list(predictor.outputs(x, count, seeded(seed)))


@pytest.mark.parametrize("own", [True, False], ids=["own layer", "inserted"])
def test_moments_of_a_linear_layer_are_the_closed_form(own: bool) -> None:
    # Var Σ wᵢ xᵢ mᵢ/(1−p) = p/(1−p) Σ wᵢ² xᵢ², for masks mᵢ that are 1 with probability 1 − p.
    linear, x, p = nn.Linear(6, 3).double(), torch.randn(6, dtype=torch.float64), 0.3
    model = MCDropout(nn.Sequential(nn.Dropout(p), linear)) if own else MCDropout(linear, rate=p)
    (draws,) = draws_of(model, x.expand(20000, 6), 1)
    variance = p / (1 - p) * (linear.weight.square() @ x.square())
    moments_within_standard_errors(draws, linear(x).detach(), variance.detach())


def test_hidden_layers_are_dropped_at_the_rate_and_outputs_are_not() -> None:
    model = nn.Sequential(nn.Linear(4, 50), nn.Identity(), nn.Linear(50, 50), nn.Identity(), nn.Linear(50, 3))
    predictor = MCDropout(model, rate=0.4)
    assert predictor.inserted == {"0": "output", "2": "output"}
    seen: dict[str, Tensor] = {}
    for name in ("1", "3"):
        model.get_submodule(name).register_forward_hook(lambda _m, args, _o, name=name: seen.update({name: args[0]}))
    (out,) = draws_of(predictor, torch.randn(400, 4), 1)
    for hidden in seen.values():
        share, error = (hidden == 0).double().mean(), (0.4 * 0.6 / hidden.numel()) ** 0.5
        assert abs(share - 0.4) < 4 * error
    assert (out != 0).all()


def test_a_resnet_is_dropped_after_the_first_convolution_of_each_block_and_before_its_head() -> None:
    blocks = {f"layer{stage}.{block}.conv1": "output" for stage in (1, 2, 3, 4) for block in (0, 1)}
    assert MCDropout(resnet18()).inserted == blocks | {"fc": "input"}


def test_blocks_are_innermost_however_deep_they_are_wrapped() -> None:
    def unit() -> nn.Module:
        return nn.Sequential(nn.Conv2d(2, 2, 1), nn.ReLU())

    wrapped = nn.Sequential(nn.Sequential(nn.Sequential(unit(), unit())), nn.Conv2d(2, 1, 1))
    assert MCDropout(wrapped).inserted == {"0.0.0.0": "output"}
    plain = nn.Sequential(nn.Conv1d(2, 2, 1), nn.ReLU(), nn.ConvTranspose1d(2, 1, 1))
    assert MCDropout(plain).inserted == {"0": "output"}


def test_own_dropout_is_preferred_unless_it_never_drops() -> None:
    idle = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.0), nn.Linear(4, 2))
    assert MCDropout(idle).inserted == {"0": "output"}
    busy = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1), nn.Linear(4, 2))
    assert (MCDropout(busy).own, MCDropout(busy).inserted) == (["1"], {})


@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_transformers_are_random_beyond_their_fused_path(norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=True, norm_first=norm_first)
    model = nn.TransformerEncoder(layer, 2)
    x = torch.randn(3, 5, 8)
    first, second = draws_of(MCDropout(model), x)
    assert not torch.allclose(first, second)
    with torch.no_grad():
        assert torch.equal(model.eval()(x), model(x))


@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_attention_that_drops_by_itself_is_found(rate: float) -> None:
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.head = nn.MultiheadAttention(8, 2, dropout=rate, batch_first=True), nn.Linear(8, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.attention(x, x, x)[0].mean(1))

    predictor = MCDropout(Attending())
    assert (predictor.own, predictor.inserted) == ((["attention"], {}) if rate else ([], {"head": "input"}))
    first, second = draws_of(predictor, torch.randn(3, 5, 8))
    assert not torch.allclose(first, second)


def test_recurrent_layers_that_drop_by_themselves_are_found() -> None:
    class Recurrent(nn.Module):
        def __init__(self, layers: int) -> None:
            super().__init__()
            self.rnn, self.head = nn.GRU(4, 5, layers, batch_first=True, dropout=0.5 * (layers > 1)), nn.Linear(5, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0][:, -1])

    assert MCDropout(Recurrent(1)).inserted == {"head": "input"}
    predictor = MCDropout(Recurrent(2))
    assert predictor.own == ["rnn"]
    first, second = draws_of(predictor, torch.randn(3, 6, 4))
    assert not torch.allclose(first, second)


def test_batch_norm_stays_in_eval_mode() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)).train()
    before = model[1].running_mean.clone()
    one = draws_of(MCDropout(model), torch.randn(1, 4), 1)  # a batch of one would raise in train mode
    assert torch.isfinite(one[0]).all()
    assert torch.equal(model[1].running_mean, before)


def test_the_model_alone_stays_what_it_was() -> None:
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(5, 4)
    before = model(x)
    draws_of(MCDropout(model), x)
    MCDropout(model)(x)
    assert torch.equal(model(x), before)


def test_an_error_inside_leaves_nothing_behind() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    state = torch.random.get_rng_state()
    with pytest.raises(RuntimeError):
        draws_of(MCDropout(model), torch.randn(5, 3, generator=seeded()))
    assert not any(module._forward_hooks for module in model.modules())
    assert torch.equal(torch.random.get_rng_state(), state)
    assert model.training


def test_fit_trains_it_with_dropout() -> None:
    x = torch.randn(64, 2)
    data = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long()), batch_size=16, shuffle=True
    )
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 2))
    predictor = MCDropout(model)
    history = fit(predictor, data, likelihood=Categorical(), epochs=15, optimizer=Optimization(lr=0.02))
    assert history.losses[-1] < 0.5 * history.losses[0]
    result = predict(predictor, x, samples=20)
    assert (result.mean.argmax(1) == (x[:, 0] > 0).long()).double().mean() > 0.9
    assert result.epistemic.max() > 1e-3


def test_forward_draws_in_eval_mode_too() -> None:
    predictor, x = MCDropout(nn.Linear(8, 2)).eval(), torch.randn(5, 8)
    assert not torch.equal(predictor(x), predictor(x))


def test_layers_that_are_never_called_are_an_error_not_a_silence() -> None:
    class Indirect(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.fc.weight.T

    with pytest.raises(InputError, match=r"none of the layers .*fc"):
        draws_of(MCDropout(Indirect()), torch.randn(5, 4))


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1, float("nan")])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(InputError, match="rate"):
        MCDropout(nn.Linear(2, 2), rate=rate)


def test_a_model_without_a_place_is_refused() -> None:
    with pytest.raises(InputError, match="no dropout, and neither"):
        MCDropout(nn.Sequential(nn.Embedding(3, 4), nn.ReLU()))
