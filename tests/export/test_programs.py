"""Programs of torch.export compute what `leanbayes.predict` computes, for batches of any size."""

import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leanbayes as lb
from tests.export.nets import bayesian, net

# torch 2.13 uses a class that it deprecates itself.
pytestmark = pytest.mark.filterwarnings("ignore:.*treespec, LeafSpec.*:FutureWarning")

PARTS = ("mean", "total", "aleatoric", "epistemic")


def agree(got: dict[str, Tensor], want: lb.Prediction, within: float = 1e-5) -> None:
    for part in PARTS:
        torch.testing.assert_close(got[part], getattr(want, part), rtol=within, atol=within)


def test_the_mean_network_has_no_uncertainty_about_its_weights() -> None:
    bnn, x = bayesian("mlp"), net("mlp").batch
    got = lb.export.program(bnn, x).module()(x)
    with bnn.at_mean():
        agree(got, lb.predict(bnn, x, samples=1))
    torch.testing.assert_close(got["output"], bnn.model(x))
    assert not got["epistemic"].any()


@pytest.mark.parametrize("size", [1, 2, 9])
def test_one_pass_of_moments_for_batches_of_any_size(size: int) -> None:
    bnn = bayesian("mlp")
    x = torch.randn(size, 3, generator=torch.Generator().manual_seed(1))
    got = _moments_of_mlp()(x)
    agree(got, lb.predict(bnn, x, by="moments", samples=16))
    mean, variance = lb.moments(bnn, x)
    torch.testing.assert_close(got["output_mean"], mean)
    torch.testing.assert_close(got["output_variance"], variance)


LARGER = [
    (kind, what, rate)
    for kind in ("resnet", "unet", "vit")
    for what in ("mean", "draws", "moments")
    for rate in (1, 0.3)
]
QUICK = {case for case in LARGER if case[2] == 1 and (case[1] != "moments" or case[0] == "resnet")}


@pytest.mark.parametrize(
    ("kind", "what", "rate"),
    [pytest.param(*case, marks=() if case in QUICK else pytest.mark.slow) for case in LARGER],
)
def test_larger_networks(kind: str, what: str, rate: float) -> None:
    """Moments are without factors here, which makes the graphs small; the slow tests of ONNX files have factors."""
    subspace = lb.random_k(rate, seed=0) if rate < 1 else None
    bnn, made, by = bayesian(kind, subspace=subspace).eval(), net(kind), lb.propagate.Moments(rank=0)
    options: dict[str, Any] = {"by": by} if what == "moments" else {"generator": torch.Generator().manual_seed(5)}
    got = lb.export.program(bnn, made.batch, what, 3, **options).module()(x := torch.cat([made.batch, made.batch + 1]))
    if what == "moments":
        agree(got, lb.predict(bnn, x, by=by, samples=3))
    elif what == "mean":
        torch.testing.assert_close(got["output"], bnn.model(x))
    else:
        source = torch.Generator().manual_seed(5)
        noise = {name: weight.noise(source, 3) for name, weight in bnn.weights().items()}
        tensors = {name: weight.sample(noise[name][2]) for name, weight in bnn.weights().items()}
        want = torch.func.functional_call(bnn.model, tensors, (x,)).softmax(1)
        torch.testing.assert_close(got["samples"][2], want)


_made: list[Any] = []


def _moments_of_mlp() -> Any:
    """The same graph for all sizes of a batch; it is made once."""
    if not _made:
        _made.append(lb.export.program(bayesian("mlp"), net("mlp").batch[:1], "moments", 16).module())
    return _made[0]


@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_stored_draws_are_those_of_the_generator(rate: float) -> None:
    bnn, x = bayesian("mlp", subspace=lb.random_k(rate, seed=0) if rate < 1 else None), net("mlp").batch
    program = lb.export.program(bnn, x, "draws", 3, generator=torch.Generator().manual_seed(5))
    got = program.module()(x)
    source = torch.Generator().manual_seed(5)
    noise = {name: weight.noise(source, 3) for name, weight in bnn.weights().items()}
    for draw in range(3):
        tensors = {name: weight.sample(noise[name][draw]) for name, weight in bnn.weights().items()}
        want = torch.func.functional_call(bnn.model, tensors, (x,)).softmax(1)
        torch.testing.assert_close(got["samples"][draw], want)
    torch.testing.assert_close(got["mean"], got["samples"].mean(0))
    again = program.module()(x)
    assert all(torch.equal(got[name], again[name]) for name in got)


def test_fresh_draws_have_the_mean_and_variance_of_the_posterior() -> None:
    """The outputs of a linear layer are Gaussian with known moments; 2,000 draws find them within 5 standard errors."""
    bnn = lb.Bayesian(nn.Linear(2, 1), posterior=lb.posteriors.Normal(init_scale=0.3))
    x = torch.tensor([[1.0, 2.0]])
    module = lb.export.program(bnn, x, "draws", 50, fresh=True, likelihood=lb.Gaussian(0.1)).module()
    torch.manual_seed(3)
    draws = torch.cat([module(x)["samples"][:, 0, 0] for _ in range(40)])
    mean, variance = lb.moments(bnn, x)
    assert abs(draws.mean() - mean).item() < 5 * (variance / len(draws)).sqrt().item()
    assert abs(draws.var() / variance - 1).item() < 5 * (2 / len(draws)) ** 0.5
    assert len(draws.unique()) == len(draws)


def test_a_partial_network_stores_its_random_coordinates_and_not_whole_draws() -> None:
    wide = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    bnn = lb.Bayesian(wide, subspace=lb.random_k(0.01, seed=0))
    x = torch.randn(2, 64)
    plain = sum(parameter.numel() for parameter in wide.parameters())
    for what in ("draws", "moments"):
        program = lb.export.program(bnn, x, what, 8)
        stored = [*program.state_dict.values(), *program.constants.values()]
        indices = [tensor for tensor in stored if tensor.dtype == torch.int64 and tensor.numel() > 1]
        assert indices, "the positions are 64 bits wide, as ONNX needs them"
        if what == "draws":
            assert sum(tensor.numel() for tensor in stored) < 1.2 * plain
    agree(program.module()(x), lb.predict(bnn, x, by="moments", samples=8))


def test_numbers_with_a_learned_noise() -> None:
    bnn, x = lb.Bayesian(nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))), torch.randn(4, 3)
    likelihood = lb.Gaussian("learned", initial=0.3)
    got = lb.export.program(bnn, x, "moments", likelihood=likelihood).module()(x)
    agree(got, lb.predict(bnn, x, by="moments", likelihood=likelihood))


def test_a_batch_of_several_tensors_by_name() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(2, 3), nn.Linear(2, 3)

        def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
            return {"logits": self.first(left) + self.second(right)}

    bnn = lb.Bayesian(Two())
    batch = {"right": torch.randn(3, 2), "left": torch.randn(3, 2)}
    got = lb.export.program(bnn, batch, "moments").module()(*batch.values())
    agree(got, lb.predict(bnn, batch, by="moments", samples=8))


def test_exporting_leaves_no_trace() -> None:
    bnn, x = bayesian("mlp").train(), net("mlp").batch
    before, state = {name: value.clone() for name, value in bnn.state_dict().items()}, torch.get_rng_state()
    lb.export.program(bnn, x, "draws", 2, generator=torch.Generator().manual_seed(0))
    assert torch.equal(state, torch.get_rng_state())
    assert bnn.training
    assert all(torch.equal(value, before[name]) for name, value in bnn.state_dict().items())
    assert torch.isfinite(lb.predict(bnn, x, by="moments").total).all()  # no tensor of the tracing is in a cache


def test_two_threads_export_one_network() -> None:
    bnn, x = bayesian("mlp"), net("mlp").batch
    results: list[Any] = []

    def work() -> None:
        results.append(lb.predict(bnn, x, by="moments", samples=8).mean)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    exported = lb.export.program(bnn, x, "mean").module()(x)["output"]
    for thread in threads:
        thread.join()
    torch.testing.assert_close(exported, bnn.model(x))
    assert len(results) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"what": "median"}, "unknown content of a graph 'median'"),
        ({"samples": 0}, "samples must be a whole number of at least 1, got 0"),
        ({"what": "mean", "fresh": True}, 'it needs what="draws"'),
        ({"what": "mean", "by": "moments"}, 'it needs what="moments"'),
        ({"what": "moments", "by": "sample"}, "needs by=leanbayes.propagate.Moments"),
        ({"likelihood": nn.CrossEntropyLoss()}, "is no leanbayes.Likelihood"),
        ({"generator": 3}, "generator must be a torch.Generator"),
        ({"output": 1}, "output must be a function"),
    ],
)
def test_bad_arguments_are_named_before_any_work(options: dict[str, Any], message: str) -> None:
    with pytest.raises(lb.errors.InputError, match=message):
        lb.export.program(bayesian("mlp"), net("mlp").batch, **options)


def test_bad_models_and_batches_are_named() -> None:
    x = net("mlp").batch
    with pytest.raises(lb.errors.InputError, match="export needs random weights"):
        lb.export.program(nn.Linear(3, 2), x)
    with pytest.raises(lb.errors.InputError, match="the batch is empty"):
        lb.export.program(bayesian("mlp"), x[:0])
    with pytest.raises(lb.errors.InputError, match=r"does not take the example, .* shapes \[\(2, 7\)\]: mat1 and mat2"):
        lb.export.program(bayesian("mlp"), torch.zeros(2, 7))
    bnn = bayesian("mlp")
    with bnn.frozen(), pytest.raises(lb.errors.InputError, match="export outside"):
        lb.export.program(bnn, x)


def test_an_operation_without_a_rule_is_named() -> None:
    class Sorting(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input).sort(1).values

    with pytest.raises(lb.errors.MissingRule, match="sort"):
        lb.export.program(lb.Bayesian(Sorting(3, 2)), torch.zeros(2, 3), "moments")


def test_a_model_that_computes_with_the_batch_size_needs_a_fixed_one() -> None:
    class Counting(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return super().forward(input) / len(input)

    bnn, x = lb.Bayesian(Counting(3, 2)), torch.randn(4, 3)
    with pytest.raises(lb.errors.NotExportable, match="dynamic_batch=False"):
        lb.export.program(bnn, x)
    got = lb.export.program(bnn, x, dynamic_batch=False).module()(x)
    torch.testing.assert_close(got["output"], bnn.model(x))


@pytest.mark.parametrize("kernels", ["box", "exact"])
@pytest.mark.parametrize("rank", [0, 8])
def test_convolutions_by_moments_take_batches_of_any_size(rank: int, kernels: str) -> None:
    """The kernels outside of graphs ask for sizes, and a graph must not be bound by the answers."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 8, 3)]
    model = nn.Sequential(*layers, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
    bnn = lb.Bayesian(model, predict_by=lb.propagate.Moments(rank=rank, kernels=kernels))
    graph = lb.export.program(bnn, torch.randn(4, 3, 16, 16), "moments", 16).module()
    for size in (1, 7):
        x = torch.randn(size, 3, 16, 16)
        agree(graph(x), lb.predict(bnn, x, samples=16))
