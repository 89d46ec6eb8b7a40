"""`Bayesian` keeps every promise of a torch module: what it holds, what it returns, and when it draws."""

import copy
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils import parametrizations
from transformers.modeling_outputs import ImageClassifierOutput

import leanbayes as lb
from leanbayes.lab.models import resnet18
from leanbayes.prediction import outputs_of
from tests.oracles import mean_within_standard_errors, moments_within_standard_errors, normal_kl

PROPAGATIONS = ["sample", "mirrored", "local", "flipout"]


def seeded(seed: int = 7) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def mlp(**kwargs: object) -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 8, **kwargs), nn.Tanh(), nn.Linear(8, 2, **kwargs))


def numbers(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def bytes_of(module: nn.Module) -> int:
    return sum(t.numel() * t.element_size() for t in [*module.parameters(), *module.buffers()])


# ---------------------------------------------------------------- what it holds


@pytest.mark.parametrize("rate", [0.01, 0.25, 1.0])
def test_exactly_one_scale_for_each_random_coordinate(rate: float) -> None:
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.Flatten(), nn.Linear(64, 10))
    plain = numbers(model)
    bnn = lb.Bayesian(model, subspace=lb.random_k(rate))
    assert numbers(bnn) == plain + round(rate * plain)
    assert bnn.model is model
    assert all(p.requires_grad for p in bnn.parameters())


def test_one_percent_of_a_resnet_costs_three_percent_of_memory() -> None:
    model = resnet18()
    plain, size = numbers(model), bytes_of(model)
    bnn = lb.Bayesian(model, subspace=lb.random_k(0.01))
    assert numbers(bnn) == plain + round(0.01 * plain)
    assert bytes_of(bnn) <= 1.03 * size


def test_the_summary_counts_tensor_by_tensor() -> None:
    scores = {"0.weight": torch.zeros(8, 3), "0.bias": torch.zeros(8), "2.weight": torch.ones(2, 8), "2.bias": None}
    scores["2.bias"] = torch.tensor([2.0, 0.0])
    scores["0.weight"][0, 0] = 5.0
    bnn = lb.Bayesian(mlp(), subspace=lb.top_k(scores, k=18))
    summary = bnn.summary()
    assert (summary.size, summary.random) == (50, 18)
    assert [(t.name, t.shape, t.size, t.random) for t in summary] == [
        ("0.weight", (8, 3), 24, 1),
        ("0.bias", (8,), 8, 0),
        ("2.weight", (2, 8), 16, 16),
        ("2.bias", (2,), 2, 1),
    ]
    assert [t.sparsity for t in summary] == pytest.approx([23 / 24, 1.0, 0.0, 0.5])
    assert "random=18 of 50" in repr(bnn)


def test_frozen_parameters_are_left_alone() -> None:
    model = mlp()
    model[0].requires_grad_(False)
    before = copy.deepcopy(model[0].state_dict())
    bnn = lb.Bayesian(model)
    assert [name for name, _ in bnn.parts()] == ["2.weight", "2.bias"]
    optimizer = torch.optim.SGD(bnn.parameters(), lr=0.1, weight_decay=0.1)
    lb.elbo(bnn, torch.ones(4, 3), torch.zeros(4, dtype=torch.long), lb.Categorical(), n_data=4).loss.backward()
    optimizer.step()
    assert model[0].weight.grad is None
    assert model[0].bias.grad is None
    assert all(torch.equal(before[name], value) for name, value in model[0].state_dict().items())
    assert [slot.random for slot in bnn.summary()] == [0, 0, 16, 2]


class Tied(nn.Module):
    """Scores = E[tokens] Eᵀ: one table, used by an embedding and by a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.embedding(tokens))


@pytest.mark.parametrize("subspace", [lb.everything(), lb.random_k(k=6)], ids=["everything", "random_k"])
def test_tied_parameters_are_one_random_tensor(subspace: lb.subspace.Subspace) -> None:
    bnn = lb.Bayesian(Tied(), subspace=subspace, posterior=lb.posteriors.Normal(1.0))
    random = bnn.summary().random
    assert numbers(bnn) == 15 + random
    assert bnn.summary().size == 15
    tokens = torch.arange(5)
    table = bnn.draw(generator=seeded())["embedding.weight"]
    torch.testing.assert_close(bnn(tokens, generator=seeded()), table @ table.T)
    out = bnn(tokens)
    torch.testing.assert_close(out, out.T)  # a Gram matrix only if both uses saw one draw
    assert not torch.equal(out, bnn.model(tokens))


def test_weights_that_are_tied_after_the_conversion_are_refused() -> None:
    model = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
    bnn = lb.Bayesian(model)
    model[1].weight = model[0].weight
    with pytest.raises(lb.errors.InputError, match=r"'1.weight' has random entries and is no parameter .* any more"):
        bnn(torch.tensor([0, 1]))


@pytest.mark.parametrize("subspace", [lb.everything(), lb.layers("1")])
def test_two_parameters_in_one_memory_are_refused(subspace: lb.subspace.Subspace) -> None:
    """Their values are one, so their draws must be. Only one and the same Parameter has one draw."""
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = nn.Parameter(model[0].weight.data)
    with pytest.raises(lb.errors.InputError, match=r"'0.weight' and '1.weight' are two parameters in one place"):
        lb.Bayesian(model, subspace=subspace)
    lb.Bayesian(model, subspace=lb.random_k(0.5, eligible=lambda slot: slot.name.endswith("bias")))


def test_draws_have_the_posteriors_moments() -> None:
    bnn = lb.Bayesian(
        nn.Linear(4, 3, dtype=torch.float64),
        subspace=lb.random_k(k=7),
        posterior=lb.posteriors.Normal(lb.posteriors.GaussianRho(-1.0, 1.0)),
    )
    draws = bnn.draw(4000, generator=seeded())
    for name, parts in bnn.parts():
        mean = dict(bnn.model.named_parameters())[name].detach()
        variance = torch.zeros(mean.numel(), dtype=torch.float64)
        positions = slice(None) if parts.index is None else parts.index.long()
        variance[positions] = torch.log1p(parts.rho.detach().exp()).flatten() ** 2
        moments_within_standard_errors(draws[name].detach(), mean, variance.view(mean.shape))


def test_the_kl_and_the_entropy_are_sums_in_nats() -> None:
    bnn = lb.Bayesian(mlp(dtype=torch.float64), subspace=lb.random_k(k=20), posterior=lb.posteriors.Normal(0.3))
    means, kl = dict(bnn.model.named_parameters()), 0.0
    for name, parts in bnn.parts():
        positions = slice(None) if parts.index is None else parts.index.long()
        chosen = means[name].detach().flatten()[positions]
        kl += normal_kl(chosen, torch.full_like(chosen, 0.3), 0.0, 1.0).item()
    assert bnn.kl().item() == pytest.approx(kl, rel=1e-10)
    assert bnn.entropy().item() == pytest.approx(20 * math.log(0.3 * math.sqrt(2 * math.pi * math.e)), rel=1e-10)


# ---------------------------------------------------------------- what it returns


@dataclass
class Answer:
    logits: Tensor
    note: str


class Talkative(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor, *, kind: str = "tensor", shift: Tensor | float = 0.0) -> object:
        y = self.layer(x) + shift
        return {"tensor": y, "tuple": (y, x, "text"), "dict": {"logits": y, "n": 3}, "dataclass": Answer(y, "hi")}[kind]


@pytest.mark.parametrize("propagate", PROPAGATIONS)
@pytest.mark.parametrize("kind", ["tensor", "tuple", "dict", "dataclass"])
def test_whatever_the_model_returns_is_returned(kind: str, propagate: str) -> None:
    bnn = lb.Bayesian(Talkative(), propagate=propagate)
    x = torch.ones(4, 3)
    out = bnn(x, kind=kind, shift=torch.tensor(100.0))
    if kind == "tuple":
        assert isinstance(out, tuple)
        assert out[1] is x
        assert out[2] == "text"
        out = out[0]
    elif kind == "dict":
        assert type(out) is dict
        assert out["n"] == 3
        out = out["logits"]
    elif kind == "dataclass":
        assert isinstance(out, Answer)
        assert out.note == "hi"
        out = out.logits
    assert type(out) is Tensor
    assert (out > 90).all()
    out.sum().backward()
    assert bnn.model.layer.weight.grad is not None


@dataclass(frozen=True)
class FrozenAnswer:
    logits: Tensor
    inputs: Tensor


class Pair(NamedTuple):
    logits: Tensor
    inputs: Tensor


@pytest.mark.parametrize("propagate", [*PROPAGATIONS, "moments", "covariance"])
@pytest.mark.parametrize("kind", [FrozenAnswer, Pair, ImageClassifierOutput])
def test_the_type_is_that_of_the_model(kind: Any, propagate: str) -> None:
    class Model(nn.Linear):
        def forward(self, input: Tensor) -> Any:
            logits = super().forward(input)
            return kind(None, logits, (input,)) if kind is ImageClassifierOutput else kind(logits, input)

    bnn, x = lb.Bayesian(Model(3, 2), propagate=propagate, predict_by=propagate), torch.randn(4, 3)
    out = bnn(x)
    assert type(out) is kind
    assert type(out.logits) is Tensor
    inputs = out.hidden_states[0] if kind is ImageClassifierOutput else out.inputs
    assert torch.equal(inputs, x)
    if kind is ImageClassifierOutput:
        assert list(out) == ["logits", "hidden_states"]
        assert out["logits"] is out.logits is out[0]
    if propagate not in ("moments", "covariance"):
        draws = list(outputs_of(bnn, x, 8))
        assert all(type(draw) is kind for draw in draws)
        if kind is not ImageClassifierOutput:
            assert all(torch.equal(draw.inputs, x) for draw in draws)
        assert len({draw.logits[0, 0].item() for draw in draws}) == 8


@pytest.mark.parametrize("propagate", PROPAGATIONS)
def test_a_weight_that_is_returned_is_a_plain_draw(propagate: str) -> None:
    class Open(nn.Linear):
        def forward(self, input: Tensor) -> tuple[Tensor, Tensor]:
            return super().forward(input), self.weight

    bnn = lb.Bayesian(Open(3, 2), posterior=lb.posteriors.Normal(1.0), propagate=propagate)
    _, weight = bnn(torch.ones(1, 3))
    assert type(weight) in (Tensor, nn.Parameter)
    assert (weight != bnn.model.weight).all()


@pytest.mark.parametrize("propagate", PROPAGATIONS)
def test_at_mean_is_the_plain_model_bit_for_bit(propagate: str) -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    bnn = lb.Bayesian(model, subspace=lb.random_k(0.3), propagate=propagate).eval()
    x = torch.randn(5, 1, 4, 4)
    with bnn.at_mean():
        assert torch.equal(bnn(x), model(x))
    assert not torch.equal(bnn(x), model(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("propagate", PROPAGATIONS)
def test_dtypes_are_respected(dtype: torch.dtype, propagate: str) -> None:
    bnn = lb.Bayesian(mlp(dtype=dtype), subspace=lb.random_k(0.5), propagate=propagate)
    out = bnn(torch.ones(2, 3, dtype=dtype))
    assert out.dtype == dtype
    assert all(parts.rho.dtype == dtype for _, parts in bnn.parts())
    (out.float().sum() + bnn.kl()).backward()
    for parameter in bnn.parameters():
        assert parameter.grad is not None
        assert torch.isfinite(parameter.grad).all()


def test_a_model_without_storage() -> None:
    bnn = lb.Bayesian(mlp(device="meta"), subspace=lb.random_k(0.5))
    out = bnn(torch.ones(2, 3, device="meta"))
    assert out.is_meta
    assert out.shape == (2, 2)
    assert all(p.is_meta for p in bnn.parameters())


def test_to_moves_everything() -> None:
    bnn = lb.Bayesian(mlp(), subspace=lb.random_k(0.5), prior=lb.priors.CentredPrior()).double()
    assert bnn(torch.ones(2, 3, dtype=torch.float64)).dtype == torch.float64
    assert bnn.kl().dtype == torch.float64
    meta = bnn.to("meta")
    assert all(t.is_meta for t in [*meta.parameters(), *meta.buffers()])


def test_nothing_in_the_library_names_a_device() -> None:
    """Tensors stay where the model is: nobody calls .cpu() or .cuda(), or makes a tensor on a fixed device.

    The meta device holds no numbers. ``_files.py`` is left out: it computes the checksums of what it writes to a file,
    and a file lies on the host. So are ``maps.py``, ``overlays.py``, ``reviews.py`` and ``shown.py``, which write maps
    and pictures to files, and ``onnx_file.py``: onnxruntime takes arrays of the host.
    """
    pattern = re.compile(r"""\.(cpu|cuda)\(|device=["'](?!meta)|\.to\(["'](cpu|cuda)""")
    root = Path(lb.__file__).parent
    on_the_host = {"_files.py", "onnx_file.py", "maps.py", "overlays.py", "reviews.py", "shown.py"}
    on_the_host |= {"lesions.py", "segmentations.py"}  # scipy measures masks in main memory
    result = [
        f"{path.relative_to(root)}:{number}: {line.strip()}"
        for path in sorted(root.rglob("*.py"))
        if path.name not in on_the_host
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]
    assert not result, result


# ---------------------------------------------------------------- buffers and modes


def convnet() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 3))


def test_buffers_update_as_the_plain_models_would() -> None:
    model = convnet()
    plain, bnn = copy.deepcopy(model), lb.Bayesian(model)
    for _ in range(3):
        x = torch.randn(5, 1, 4, 4)
        with bnn.at_mean():
            assert torch.equal(bnn(x), plain(x))
    bnn.eval()
    bnn(torch.randn(5, 1, 4, 4))  # eval: no update
    for name, buffer in plain.named_buffers():
        assert torch.equal(buffer, model.get_buffer(name)), name
    assert model[1].num_batches_tracked == 3


def test_buffers_follow_the_draw() -> None:
    model = convnet()
    bnn = lb.Bayesian(model, posterior=lb.posteriors.Normal(0.5))
    plain, x = copy.deepcopy(model), torch.randn(5, 1, 4, 4)
    functional_call(plain, bnn.draw(generator=seeded()), (x,))
    bnn(x, generator=seeded())
    assert torch.equal(model[1].running_mean, plain[1].running_mean)
    assert torch.equal(model[1].running_var, plain[1].running_var)
    assert model[1].num_batches_tracked == 1


def test_train_and_eval_mean_what_they_mean_in_torch() -> None:
    bnn = lb.Bayesian(nn.Sequential(nn.Linear(3, 50), nn.Dropout(0.5), nn.Linear(50, 2)))
    x = torch.ones(2, 3)
    assert bnn.train() is bnn
    assert bnn.model[1].training
    bnn.eval()
    assert not bnn.model[1].training
    assert torch.equal(bnn(x, generator=seeded()), bnn(x, generator=seeded()))  # no dropout
    assert not torch.equal(bnn(x), bnn(x))  # still random
    plain = lb.Bayesian(mlp())
    assert torch.equal(plain.train()(x, generator=seeded()), plain.eval()(x, generator=seeded()))


# ---------------------------------------------------------------- when it draws


@pytest.mark.parametrize("propagate", PROPAGATIONS)
def test_draws_follow_the_generator(propagate: str) -> None:
    bnn = lb.Bayesian(mlp(), propagate=propagate)
    x = torch.ones(4, 3)
    before = torch.get_rng_state()
    first, again, other = (bnn(x, generator=seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(before, torch.get_rng_state())  # the global state is not touched
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not torch.equal(bnn(x), bnn(x))
    torch.manual_seed(5)
    third = bnn(x)
    torch.manual_seed(5)
    assert torch.equal(third, bnn(x))


def test_initial_scales_follow_the_generator() -> None:
    model = mlp()
    first, again, other = (
        lb.Bayesian(model, posterior=lb.posteriors.Normal(lb.posteriors.GaussianRho()), generator=seeded(seed)).kl()
        for seed in (1, 1, 2)
    )
    assert first == again
    assert first != other


def test_making_one_leaves_the_random_state() -> None:
    model = mlp()
    before = torch.get_rng_state()
    lb.Bayesian(model, kl=lb.MonteCarlo(3))
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("propagate", PROPAGATIONS)
def test_frozen_is_one_network(propagate: str) -> None:
    bnn = lb.Bayesian(mlp(), propagate=propagate)
    x = torch.randn(4, 3)
    with bnn.frozen(seeded(1)):
        first = bnn(x)
        assert torch.equal(first, bnn(x))
        torch.testing.assert_close(first[1:2], bnn(x[1:2]))  # the same weights for every row
        with bnn.at_mean():
            assert torch.equal(bnn(x), bnn.model(x))
            with bnn.frozen(seeded(2)):
                inner = bnn(x)
                assert torch.equal(inner, bnn(x))
            assert torch.equal(bnn(x), bnn.model(x))
        assert torch.equal(first, bnn(x))
    assert not torch.equal(first, inner)
    with bnn.frozen(seeded(1)):
        assert torch.equal(first, bnn(x))
    assert not torch.equal(bnn(x), bnn(x))


@pytest.mark.parametrize("call", [lambda m, x: m(x), lambda m, x: m[0](x)])
def test_a_call_that_would_ignore_a_frozen_draw_raises(call: Callable[[nn.Module, Tensor], Tensor]) -> None:
    """Before, ``with bnn.frozen(): bnn.model.generate(...)`` silently used the means."""
    bnn, x = lb.Bayesian(mlp()), torch.ones(1, 3)
    with bnn.frozen():
        bnn(x)
        lb.predict(bnn, x, samples=2)
        with pytest.raises(lb.errors.InputError, match=r"drawn\(\)"):
            call(bnn.model, x)
        nn.Linear(1, 1)(torch.ones(1, 1))
        lb.Bayesian(mlp())(x)
    assert call(bnn.model, x).shape[0] == 1


class Generating(nn.Module):
    """A model with a tied weight, a sparse part, and a method besides ``forward``."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)
        self.out.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.table(x)).mean(1))

    def generate(self, x: Tensor) -> Tensor:
        return self(x).argmax(-1)


def test_drawn_writes_one_draw_and_restores_the_means_bit_for_bit() -> None:
    bnn = lb.Bayesian(Generating(), posterior=lb.posteriors.Normal(1.0), propagate="local")
    x = torch.tensor([[0, 1], [2, 3]])
    before = {name: value.clone() for name, value in bnn.state_dict().items()}
    pointers = [parameter.data_ptr() for parameter in bnn.model.parameters()]
    expected = bnn.draw(generator=seeded())["table.weight"]
    with torch.no_grad(), bnn.drawn(seeded()) as network:
        assert network is bnn.model
        assert torch.equal(network.table.weight, expected)
        assert network.out.weight is network.table.weight
        truth = torch.func.functional_call(network, {}, (x,))
        assert torch.equal(bnn(x), truth)
        assert torch.equal(network.generate(x), truth.argmax(-1))
        torch.testing.assert_close(lb.predict(bnn, x, samples=3).mean, truth.softmax(1))
        torch.testing.assert_close(lb.predict(bnn, x, by="moments").mean, truth.softmax(1))
        for wrong in (bnn.kl, bnn.weights, bnn.state_dict):
            with pytest.raises(lb.errors.InputError, match="hold a draw"):
                wrong()
    assert all(torch.equal(value, before[name]) for name, value in bnn.state_dict().items())
    assert [parameter.data_ptr() for parameter in bnn.model.parameters()] == pointers
    with pytest.raises(RuntimeError, match="stop"), bnn.drawn():
        raise RuntimeError("stop")
    assert all(torch.equal(value, before[name]) for name, value in bnn.state_dict().items())


def test_drawn_of_a_sparse_model() -> None:
    bnn = lb.Bayesian(mlp().double(), subspace=lb.sparse(density=0.3), posterior=lb.posteriors.Normal(0.5))
    x = torch.ones(2, 3, dtype=torch.float64)
    before = {name: value.clone() for name, value in bnn.state_dict().items()}
    with torch.no_grad():
        with bnn.frozen(seeded()):
            truth = bnn(x)
        with bnn.drawn(seeded()) as network:
            torch.testing.assert_close(network(x), truth)
    assert all(torch.equal(value, before[name]) for name, value in bnn.state_dict().items())


def test_training_inside_drawn_is_an_error_and_keeps_the_means() -> None:
    bnn = lb.Bayesian(nn.Linear(2, 1))
    before = bnn.model.weight.clone()
    optimizer = torch.optim.SGD(bnn.model.parameters(), lr=0.1)
    bnn.model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(lb.errors.InputError, match="the change is lost"), bnn.drawn():
        optimizer.step()
    assert torch.equal(bnn.model.weight, before)


def test_modes_end_with_an_exception() -> None:
    bnn = lb.Bayesian(mlp())
    with pytest.raises(ZeroDivisionError), bnn.at_mean(), bnn.frozen():
        raise ZeroDivisionError
    assert not torch.equal(bnn(torch.ones(1, 3)), bnn(torch.ones(1, 3)))


def test_gradients_flow_inside_frozen_and_twice() -> None:
    """w = μ + σξ with ξ held: ∂/∂μ and ∂/∂ρ of a linear output are known, and follow an optimizer's step."""
    bnn = lb.Bayesian(nn.Linear(3, 1, bias=False, dtype=torch.float64))
    ((_, parts),) = bnn.parts()
    x = torch.randn(2, 3, dtype=torch.float64)
    with bnn.frozen(seeded()):
        noise = torch.randn(1, 3, dtype=torch.float64, generator=seeded())
        for _ in range(2):
            bnn.zero_grad()
            bnn(x).sum().backward()
            torch.testing.assert_close(bnn.model.weight.grad, x.sum(0, keepdim=True))
            torch.testing.assert_close(parts.rho.grad, x.sum(0) * noise * torch.sigmoid(parts.rho.detach()))
        before = bnn(x)
        with torch.no_grad():
            bnn.model.weight += 1
        torch.testing.assert_close(bnn(x), before + x.sum(1, keepdim=True))


def test_a_copy_is_independent_and_draws_alike() -> None:
    bnn = lb.Bayesian(mlp(), subspace=lb.random_k(0.4), prior=lb.priors.CentredPrior())
    other, x = copy.deepcopy(bnn), torch.ones(2, 3)
    assert torch.equal(bnn(x, generator=seeded()), other(x, generator=seeded()))
    assert torch.equal(bnn.kl(), other.kl())
    kept = bnn(x, generator=seeded())
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1.0)
    assert torch.equal(bnn(x, generator=seeded()), kept)
    assert not torch.equal(other(x, generator=seeded()), kept)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("propagate", PROPAGATIONS)
def test_recurrent_nets_can_be_copied_and_trained_after_a_pass(kind: type[nn.RNNBase], propagate: str) -> None:
    bnn = lb.Bayesian(kind(3, 4), propagate=propagate)
    x = torch.ones(2, 1, 3)
    bnn(x)[0].sum().backward()
    other = copy.deepcopy(bnn)
    assert torch.equal(bnn(x, generator=seeded())[0], other(x, generator=seeded())[0])
    with bnn.at_mean():
        assert torch.equal(bnn(x)[0], bnn.model(x)[0])
    with torch.no_grad():
        bnn.model.weight_ih_l0.mul_(-1)
    with bnn.at_mean():
        changed = bnn(x)[0]
    with other.at_mean():
        assert not torch.equal(changed, other(x)[0])  # the flat weights are the parameters, not old replacements


def test_state_dicts_round_trip() -> None:
    make = lambda: lb.Bayesian(mlp(), subspace=lb.random_k(0.4, seed=3), prior=lb.priors.CentredPrior())  # noqa: E731
    bnn, other, x = make(), make(), torch.ones(2, 3)
    with torch.no_grad():
        for _, parts in bnn.parts():
            parts.rho.add_(0.5)
    assert not torch.equal(bnn(x, generator=seeded()), other(x, generator=seeded()))
    assert str(other.load_state_dict(bnn.state_dict())) == "<All keys matched successfully>"
    assert torch.equal(bnn(x, generator=seeded()), other(x, generator=seeded()))
    assert torch.equal(bnn.kl(), other.kl())


def test_a_models_own_generator_stays_its_own() -> None:
    class Noisy(nn.Linear):
        def forward(self, input: Tensor, generator: torch.Generator | None = None) -> Tensor:
            return super().forward(input) + torch.rand(1, generator=generator)

    bnn, x = lb.Bayesian(Noisy(3, 2)), torch.ones(1, 3)
    with bnn.at_mean():
        assert torch.equal(bnn(x, generator=seeded()), bnn.model(x, generator=seeded()))
    torch.manual_seed(3)
    first = bnn(x, generator=seeded())
    torch.manual_seed(3)
    assert torch.equal(bnn(x, generator=seeded()), first)
    assert not torch.equal(bnn(x, generator=seeded()), first)  # the weights come from the global state


# ---------------------------------------------------------------- torch's own tools


def test_vmap_over_draws_equals_the_loop() -> None:
    bnn = lb.Bayesian(mlp(dtype=torch.float64), subspace=lb.random_k(0.5))
    x = torch.randn(4, 3, dtype=torch.float64)
    draws = bnn.draw(samples=8, generator=seeded())
    together = vmap(lambda draw: functional_call(bnn.model, draw, (x,)))(draws)
    for number in range(8):
        one = functional_call(bnn.model, {name: draw[number] for name, draw in draws.items()}, (x,))
        torch.testing.assert_close(together[number], one, rtol=1e-12, atol=1e-12)
    assert (together[0] != together[1]).any()


@pytest.mark.parametrize("propagate", PROPAGATIONS)
def test_torch_func_grad_equals_autograd(propagate: str) -> None:
    bnn = lb.Bayesian(mlp(dtype=torch.float64), propagate=propagate)
    x = torch.randn(4, 3, dtype=torch.float64)
    bnn(x, generator=seeded()).square().sum().backward()
    parameters = {name: p.detach() for name, p in bnn.named_parameters()}

    def loss(values: dict[str, Tensor]) -> Tensor:
        return functional_call(bnn, values, (x,), {"generator": seeded()}).square().sum()

    for name, result in grad(loss)(parameters).items():
        torch.testing.assert_close(result, bnn.get_parameter(name).grad, rtol=1e-10, atol=1e-12)


def check_compiled(backend: str, subspace: lb.subspace.Subspace, draws: int) -> None:
    """Mean, variance and gradients of a compiled linear layer are those of the uncompiled one."""
    torch.compiler.reset()
    bnn = lb.Bayesian(nn.Linear(3, 2, dtype=torch.float64), subspace=subspace, posterior=lb.posteriors.Normal(0.4))
    compiled = torch.compile(bnn, backend=backend, fullgraph=True)
    x = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64)
    variance = torch.zeros(1, 2, dtype=torch.float64)
    for name, weight in bnn.weights().items():
        dense = weight.variance().detach()
        variance += (dense @ x[0] ** 2) if name == "weight" else dense
    result = []
    for _ in range(draws):
        bnn.zero_grad()
        out = compiled(x)
        out[0, 0].backward()
        torch.testing.assert_close(bnn.model.weight.grad[0], x[0])
        result.append(out.detach())
    moments_within_standard_errors(torch.stack(result), bnn.model(x).detach(), variance)
    torch.compiler.reset()


@pytest.mark.parametrize("subspace", [lb.everything(), lb.random_k(k=4)], ids=["everything", "random_k"])
def test_compiled_passes_draw(subspace: lb.subspace.Subspace) -> None:
    check_compiled("aot_eager", subspace, draws=600)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # of inductor's own imports
def test_passes_compiled_by_inductor_draw() -> None:
    check_compiled("inductor", lb.everything(), draws=2000)


@pytest.mark.parametrize("propagate", PROPAGATIONS)
def test_weight_norm(propagate: str) -> None:
    """W = g·v/|v|, row by row: g and v are the parameters, both random."""
    bnn = lb.Bayesian(parametrizations.weight_norm(nn.Linear(3, 2)), propagate=propagate)
    assert [name for name, _ in bnn.parts()] == [
        "bias",
        "parametrizations.weight.original0",
        "parametrizations.weight.original1",
    ]
    x = torch.randn(4, 3)
    with bnn.at_mean():
        assert torch.equal(bnn(x), bnn.model(x))
    with bnn.frozen(seeded()):
        drawn = bnn.draw(generator=seeded())
        length, direction = drawn["parametrizations.weight.original0"], drawn["parametrizations.weight.original1"]
        weight = length * direction / direction.norm(dim=1, keepdim=True)
        torch.testing.assert_close(bnn(x), x @ weight.T + drawn["bias"])
    bnn(x).sum().backward()
    assert all(p.grad is not None for p in bnn.parameters())


def test_parameter_groups_feed_an_optimizer() -> None:
    model = mlp()
    model[0].bias.requires_grad_(False)
    bnn = lb.Bayesian(model, subspace=lb.layers("2"))
    means, scales = bnn.parameter_groups(lr=0.1, scale_lr=0.5, weight_decay=0.01)
    assert [id(p) for p in means["params"]] == [id(p) for p in model.parameters() if p.requires_grad]
    assert [id(p) for p in scales["params"]] == [id(parts.rho) for _, parts in bnn.parts()]
    assert (means["lr"], means["weight_decay"]) == (0.1, 0.01)
    assert (scales["lr"], scales["weight_decay"]) == (0.5, 0.0)
    kept = [p.detach().clone() for p in scales["params"]]
    optimizer = torch.optim.SGD([means, scales])
    for parameter in bnn.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = model[0].weight.detach().clone()
    optimizer.step()
    torch.testing.assert_close(model[0].weight.detach(), before * (1 - 0.1 * 0.01))
    assert all(torch.equal(a, b) for a, b in zip(kept, scales["params"], strict=True))
    assert [group.get("lr") for group in bnn.parameter_groups()] == [None, None]
    assert [group["lr"] for group in bnn.parameter_groups(lr=0.2)] == [0.2, 0.2]
    model.requires_grad_(False)
    assert len(bnn.parameter_groups(lr=0.2)) == 1


class Memory(nn.Module):
    """Parameters whose names are also those of a mapping's methods."""

    def __init__(self) -> None:
        super().__init__()
        self.keys, self.values, self.items = (nn.Parameter(torch.randn(3)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.keys).softmax(-1) * self.values + self.items


class Tasks(nn.Module):
    """Modules whose names have a slash."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({"qa/one": nn.Linear(3, 3), "qa": nn.ModuleDict({"one": nn.Linear(3, 3)})})

    def forward(self, x: Tensor) -> Tensor:
        return self.heads["qa/one"](x) - self.heads["qa"]["one"](x)


@pytest.mark.parametrize("make", [Memory, Tasks])
def test_any_name_that_torch_allows(make: Callable[[], nn.Module]) -> None:
    model = make()
    bnn = lb.Bayesian(model)
    assert [name for name, _ in bnn.parts()] == [name for name, _ in model.named_parameters()]
    drawn = bnn.draw(generator=seeded())
    x = torch.randn(2, 3)
    torch.testing.assert_close(bnn(x, generator=seeded()), functional_call(model, drawn, (x,)))


def test_bayesian_in_a_larger_model() -> None:
    """A part of a network may be Bayesian: the rest does not notice."""
    part = lb.Bayesian(nn.Linear(8, 2))
    net = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), part)
    out = net(torch.ones(2, 3))
    out.sum().backward()
    assert net[0].weight.grad is not None
    assert sum(name.startswith("2.") and name.endswith(".rho") for name in net.state_dict()) == 2


# ---------------------------------------------------------------- errors


class Cyclic(torch.distributions.Distribution):
    """A law that nothing is known of."""

    arg_constraints: dict[str, object] = {}  # noqa: RUF012


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: lb.Bayesian(lb.Bayesian(nn.Linear(1, 1))), lb.errors.InputError, "Bayesian already"),
        (lambda: lb.Bayesian(nn.Sequential(lb.Bayesian(nn.Linear(1, 1)))), lb.errors.InputError, "Bayesian already"),
        (lambda: lb.Bayesian(mlp(), propagate="telepathy"), lb.errors.UnknownName, "telepathy.*flipout.*local.*sample"),
        (lambda: lb.Bayesian(mlp().requires_grad_(False)), lb.errors.SelectionError, "4 are frozen"),
        (lambda: lb.Bayesian(nn.ReLU()), lb.errors.SelectionError, "0 parameters"),
        (lambda: lb.Bayesian(mlp(), subspace=lb.layers("head.*")), lb.errors.SelectionError, r"head\.\*.*4.*0\.weight"),
        (lambda: lb.Bayesian(nn.LazyLinear(2)), lb.errors.InputError, "lazy"),
        (lambda: lb.Bayesian(mlp(), prior=torch.distributions.Cauchy(0.0, 1.0)), lb.errors.NoClosedForm, "MonteCarlo"),
        (lambda: lb.Bayesian(mlp(), prior=Cyclic(validate_args=False)), lb.errors.NoClosedForm, "Cyclic"),
        (
            lambda: lb.Bayesian(mlp(), prior=torch.distributions.Uniform(-1.0, 1.0)),
            lb.errors.InputError,
            "0.weight.*inf",
        ),
        (lambda: lb.Bayesian(mlp(), prior="wide"), lb.errors.InputError, "wide"),
    ],
)
def test_errors_say_what_happened(make: Callable[[], object], kind: type, words: str) -> None:
    with pytest.raises(kind, match=words):
        make()


def test_infinite_weights_are_refused() -> None:
    model = mlp()
    with torch.no_grad():
        model[0].weight[0, 0] = math.nan
    with pytest.raises(lb.errors.InputError, match=r"0\.weight.*finite"):
        lb.Bayesian(model)


def test_every_propagation_has_the_same_mean_output() -> None:
    """One linear layer: E[y] is the plain output for each of the three ways."""
    x = torch.randn(3, 4, dtype=torch.float64)
    for propagate in PROPAGATIONS:
        bnn = lb.Bayesian(
            nn.Linear(4, 2, dtype=torch.float64), posterior=lb.posteriors.Normal(0.5), propagate=propagate
        )
        with torch.no_grad():
            draws = torch.stack([bnn(x, generator=None) for _ in range(800)])
        mean_within_standard_errors(draws, F.linear(x, bnn.model.weight, bnn.model.bias))
