"""Moments of unmodified models of many makers, against weight samples, and the public call."""

import pytest
import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes._calls import call, prediction_tensor
from leanbayes.errors import InputError, MissingRule, ShapeMismatch, UnknownName
from leanbayes.lab.models import mlp, resnet18, small_cnn, unet
from leanbayes.propagate import Moments
from leanbayes.propagate.by_moments import moments
from tests.test_breadth import CASES as BREADTH


class Encoder(nn.Module):
    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=batch_first, activation="gelu", norm_first=batch_first)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x, src_key_padding_mask=torch.tensor([[False, False, True]] * x.shape[0]))


class Attention(nn.Module):
    """The spelling with weights returned, another width of keys, and an additive mask."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.MultiheadAttention(4, 2, kdim=3, vdim=5, batch_first=True, add_bias_kv=True)

    def forward(self, x: Tensor) -> Tensor:
        key, value = x[..., :3], torch.cat([x, x[..., :1]], -1)
        mask = torch.zeros(x.shape[1], x.shape[1], dtype=x.dtype).fill_diagonal_(-2.0)
        out, weights = self.body(x, key, value, attn_mask=mask)
        return out * weights.sum(-1, keepdim=True)


def images(*shape: int):
    return lambda: torch.randn(2, *shape)


NETS = {
    "mlp": (lambda: mlp(6, 3), images(6)),
    "small_cnn": (lambda: small_cnn(1, 3), images(1, 8, 8)),
    "resnet18": (lambda: resnet18(4, 3), images(3, 8, 8)),
    "unet": (lambda: unet(1, 2, 4, 2), images(1, 9, 12)),
    "encoder": (lambda: Encoder(True), images(3, 8)),
    "attention": (Attention, images(3, 4)),
    **{
        f"breadth {name}": (BREADTH[name].make, BREADTH[name].inputs) for name in BREADTH if name not in ("lstm", "gru")
    },
}


def output_of(name: str):
    return BREADTH[name.removeprefix("breadth ")].output if name.startswith("breadth") else prediction_tensor


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("training", [False, True])
def test_an_unmodified_model_passes(name: str, training: bool) -> None:
    make, inputs = NETS[name]
    bnn, x, output = (
        lb.Bayesian(make().train(training), posterior=lb.posteriors.Normal(0.02)),
        inputs(),
        output_of(name),
    )
    mean, variance = moments(bnn, x, output=output)
    assert type(mean) is type(variance) is Tensor
    assert mean.shape == variance.shape
    assert torch.isfinite(mean).all()
    assert torch.isfinite(variance).all()
    assert (variance > 0).all()
    (mean.square().sum() + variance.sum()).backward()
    for key, parts in bnn.parts():
        assert parts.rho.grad is None or torch.isfinite(parts.rho.grad).all(), key
    assert sum(parts.rho.grad is not None and bool(parts.rho.grad.any()) for _, parts in bnn.parts()) > 3


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("order", ["gaussian", "taylor"])
def test_as_the_weights_become_sure_it_becomes_the_plain_model(name: str, order: str) -> None:
    make, inputs = NETS[name]
    model, x, output = make().double().eval(), inputs(), output_of(name)
    x = x.double() if isinstance(x, Tensor) and x.is_floating_point() else x
    bnn = lb.Bayesian(model, posterior=lb.posteriors.Normal(1e-9))
    with torch.no_grad():
        mean, variance = moments(bnn, x, output=output, by=Moments(order=order))
        plain = output(call(model, x))
    torch.testing.assert_close(mean, plain, rtol=1e-7, atol=1e-9)
    assert variance.max() < 1e-9


@pytest.mark.parametrize("name", [name for name in NETS if name not in ("attention", "breadth bert")])
def test_the_other_rows_of_the_batch_do_not_matter(name: str) -> None:
    make, inputs = NETS[name]
    bnn, x, output = lb.Bayesian(make().eval(), posterior=lb.posteriors.Normal(0.02)), inputs(), output_of(name)
    with torch.no_grad():
        both, first = moments(bnn, x, output=output), moments(bnn, x[:1], output=output)
    for one, other in zip(both, first, strict=True):
        torch.testing.assert_close(one[:1], other, rtol=1e-4, atol=1e-6)


def test_an_mlp_agrees_with_20000_weight_samples() -> None:
    model = mlp(8, 4, width=32).double()
    bnn, x = lb.Bayesian(model, posterior=lb.posteriors.Normal(0.05)), torch.randn(16, 8, dtype=torch.float64)
    with torch.no_grad():
        mean, variance = moments(bnn, x)
        weights = bnn.draw(20_000, generator=torch.Generator().manual_seed(0))
        run = torch.func.vmap(lambda w: torch.func.functional_call(model, w, (x,)))
        draws = torch.cat([run({k: v[i : i + 2000] for k, v in weights.items()}) for i in range(0, 20_000, 2000)])
    true_mean, true_deviation = draws.mean(0), draws.std(0)
    deviation = variance.sqrt()
    assert torch.corrcoef(torch.stack([mean.flatten(), true_mean.flatten()]))[0, 1] > 0.99
    assert torch.corrcoef(torch.stack([deviation.flatten(), true_deviation.flatten()]))[0, 1] > 0.95
    assert ((deviation - true_deviation) / true_deviation).abs().max() < 0.15


def test_a_linear_model_is_exact_with_and_without_input_noise() -> None:
    model = nn.Linear(3, 2).double()
    bnn, x = lb.Bayesian(model, posterior=lb.posteriors.Normal(0.3)), torch.randn(5, 3, dtype=torch.float64)
    mean, variance = moments(bnn, x)
    assert torch.equal(mean, model(x))
    torch.testing.assert_close(variance, (0.09 * x.square().sum(1) + 0.09)[:, None].expand(5, 2))
    noisy = moments(bnn, x, input_variance=0.2)[1]
    added = 0.2 * model.weight.square().sum(1) + 3 * 0.2 * 0.09
    torch.testing.assert_close(noisy, variance + added)
    by_tensor = moments(bnn, x, input_variance=torch.full((3,), 0.2))[1]
    torch.testing.assert_close(by_tensor, noisy)


def test_a_part_of_the_weights() -> None:
    model = mlp(6, 3)
    x = torch.randn(4, 6)
    bnn = lb.Bayesian(model, subspace=lb.layers("5"), posterior=lb.posteriors.Normal(0.1))
    mean, variance = moments(bnn, x)
    hidden = model[:5](x)
    torch.testing.assert_close(mean, model(x))
    torch.testing.assert_close(variance, (0.01 * hidden.square().sum(1) + 0.01)[:, None].expand(4, 3))
    assert (moments(lb.Bayesian(model, subspace=lb.random_k(0.05)), x)[1] > 0).any()


def test_several_inputs_and_outputs() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
            return self.layer(a), b * 2

    bnn, a, b = lb.Bayesian(Two()), torch.ones(3, 2), torch.ones(3, 1)
    (mean, plain), (variance, nothing) = moments(bnn, (a, b))
    assert mean.shape == variance.shape == (3, 1)
    assert torch.equal(plain, b * 2)
    assert not nothing.any()
    _, (_, noise) = moments(bnn, {"a": a, "b": b}, input_variance={"b": 0.25})
    assert torch.equal(noise, torch.ones(3, 1))
    _, (_, noise) = moments(bnn, (a, b), input_variance=(None, 0.25))
    assert torch.equal(noise, torch.ones(3, 1))
    with pytest.raises(InputError, match="does not match"):
        moments(bnn, (a, b), input_variance=0.25)


def test_bad_arguments() -> None:
    bnn, x = lb.Bayesian(nn.Linear(3, 2)), torch.ones(4, 3)
    with pytest.raises(ShapeMismatch, match="broadcast"):
        moments(bnn, x, input_variance=torch.ones(5))
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="finite and not negative"):
            moments(bnn, x, input_variance=wrong)
    with pytest.raises(InputError, match=r"torch\.int64"):
        moments(lb.Bayesian(nn.Embedding(3, 2)), torch.ones(4, dtype=torch.long), input_variance=1.0)
    with pytest.raises(UnknownName):
        Moments(order="third")
    with pytest.raises(UnknownName):
        Moments(positions="some")


def test_an_operation_without_a_rule_names_itself_and_its_module() -> None:
    class Spectrum(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.fft.fft(x).real

    bnn = lb.Bayesian(nn.Sequential(nn.Linear(3, 4), nn.Sequential(nn.ReLU(), Spectrum())))
    with pytest.raises(MissingRule, match=r"fft.*'1\.1' \(Spectrum\)"):
        moments(bnn, torch.ones(2, 3))
    with pytest.raises(MissingRule, match=r"lstm.*'body' \(LSTM\)"):
        moments(lb.Bayesian(BREADTH["lstm"].make()), BREADTH["lstm"].inputs())


def test_the_model_is_left_as_it_was() -> None:
    model = small_cnn(1, 3).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    moments(lb.Bayesian(model), torch.randn(2, 1, 8, 8))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(type(parameter) is nn.Parameter for parameter in model.parameters())


@pytest.mark.parametrize("order", ["gaussian", "taylor"])
def test_in_inference_mode(order: str) -> None:
    bnn, x = lb.Bayesian(nn.Sequential(nn.Linear(3, 4), nn.GELU(), nn.Linear(4, 2))), torch.ones(2, 3)
    with torch.no_grad():
        expected = moments(bnn, x, by=Moments(order=order))
    with torch.inference_mode():
        computed = moments(bnn, x, by=Moments(order=order))
    for one, other in zip(computed, expected, strict=True):
        assert torch.equal(one, other)
