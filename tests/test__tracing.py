"""torch.compile: no graph break in any propagation, the numbers of uncompiled code, and nothing stale.

The backend "eager" shows whether dynamo reads everything without a break. The backend "aot_eager" also records the
operations and their gradients, and runs them as they are; inductor, which would generate code from them, is too slow
for tests. `benchmarks/compile.py` measures it.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import make_boxed_func
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd

import leanbayes as lb
from leanbayes._tracing import settings_of
from tests.integrations.matrix import shows

PROPAGATIONS = ("sample", "mirrored", "local", "flipout", "moments")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


class Block(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.second(torch.relu(self.norm(self.first(x)))))


def resnet() -> nn.Module:
    stem = [nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()]
    return nn.Sequential(*stem, Block(4), nn.AvgPool2d(2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 3))


class ViT(nn.Module):
    """Patches, one block of attention and one of an MLP, with layer norms."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 4, 4)
        self.positions = nn.Parameter(0.1 * torch.randn(1, 4, width))
        self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
        self.qkv, self.mix = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.head = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.patches(x).flatten(2).transpose(1, 2) + self.positions
        q, k, v = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.qkv(self.norms[0](tokens)).chunk(3, -1))
        tokens = tokens + self.mix(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        tokens = tokens + self.narrow(F.gelu(self.wide(self.norms[1](tokens))))
        return self.head(tokens.mean(1))


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))


class Twice(nn.Module):
    """A layer that is used twice in each pass, so that its two uses must see one draw."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.layer(torch.tanh(self.layer(x)))))


def batch(images: bool) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(1)
    x = torch.randn(4, 3, 8, 8, generator=source) if images else torch.randn(6, 3, generator=source)
    return x, torch.arange(len(x)) % 3


def objective(model: nn.Module, by: str, **options: Any) -> lb.Objective:
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    bnn = lb.Bayesian(model, propagate=by, **options)
    return lb.Objective(bnn, lb.Categorical(), n_data=50, kl_weight=0.5)


def outcome(module: nn.Module, x: Tensor, y: Tensor, seed: int = 2, **options: Any) -> list[Tensor]:
    """The three numbers, all gradients and all buffers of one step, which starts from the same buffers each time."""
    before = {name: value.clone() for name, value in module.named_buffers()}
    module.zero_grad()
    torch.manual_seed(seed)
    parts = module(x, y, **options)
    parts.loss.backward()
    found = [part.detach() for part in parts] + [p.grad.clone() for p in module.parameters() if p.grad is not None]
    found += [value.clone() for value in module.buffers()]
    for name, value in module.named_buffers():
        value.copy_(before[name])
    return found


def check_equal(module: lb.Objective, compiled: Any, x: Tensor, y: Tensor, **options: Any) -> None:
    want, got = outcome(module, x, y, **options), outcome(compiled, x, y, **options)
    assert len(want) == len(got) == 3 + len(list(module.parameters())) + len(list(module.buffers()))
    for mine, its in zip(got, want, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("by", ["sample", "mirrored", "local", "moments"])
def test_compiled_losses_gradients_and_statistics_are_the_uncompiled_ones(by: str) -> None:
    module = objective(small(), by).train()
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    check_equal(module, compiled, *batch(images=False))
    torch.manual_seed(5)
    other = compiled(*batch(images=False)).nll.item()
    assert other != compiled(*batch(images=False)).nll.item(), "every call must draw anew"


@pytest.mark.parametrize("by", ["sample", "mirrored"])
def test_compiled_networks_alone(by: str) -> None:
    network, (x, _) = objective(small(), by).model.eval(), batch(images=False)
    torch.manual_seed(3)
    want = network(x)
    torch.manual_seed(3)
    assert torch.allclose(torch.compile(network, backend="aot_eager", fullgraph=True)(x), want, atol=1e-6)


@shows("PyTorch", "torch.compile has no graph break in sample, mirrored, local and moments, on a ResNet and a ViT.")
@pytest.mark.parametrize("by", ["sample", "mirrored", "local", "moments"])
@pytest.mark.parametrize("model", [resnet, ViT])
def test_no_propagation_breaks_the_graph(model: Any, by: str) -> None:
    module = objective(model(), by)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    x, y = batch(images=True)
    torch.manual_seed(1)
    want = module(x, y)
    torch.manual_seed(1)
    assert torch.allclose(compiled(x, y).loss, want.loss)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("by", PROPAGATIONS)
@pytest.mark.parametrize("model", [resnet, ViT])
def test_larger_networks_have_the_numbers_of_uncompiled_ones(model: Any, by: str, mode: bool) -> None:
    module = objective(model(), by).train(mode)
    check_equal(module, torch.compile(module, backend="aot_eager", fullgraph=True), *batch(images=True))


@pytest.mark.parametrize("by", ["mirrored", "local"])
def test_a_weight_that_is_used_twice_has_one_draw(by: str) -> None:
    module = objective(Twice(), by)
    check_equal(module, torch.compile(module, backend="aot_eager", fullgraph=True), *batch(images=False))
    learned = module.model.reuse.plain
    assert learned == ({"local": {"layer.weight", "layer.bias"}} if by == "local" else {})  # mirrored draws agree


def test_a_part_of_the_weights() -> None:
    module = objective(small(), "mirrored", subspace=lb.random_k(0.3))
    check_equal(module, torch.compile(module, backend="aot_eager", fullgraph=True), *batch(images=False))


@pytest.mark.parametrize("by", ["sample", "mirrored", "local", "moments"])
def test_batches_of_other_sizes(by: str) -> None:
    module = objective(nn.Linear(3, 3), by)
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    x, y = batch(images=False)
    for size in (6, 5, 4, 1, 6):
        check_equal(module, compiled, x[:size], y[:size])


def test_a_compiled_training_leaves_nothing_behind_for_other_code() -> None:
    """Moments keep fixed numbers in a cache, which must not be those without values of a trace."""
    torch.manual_seed(0)
    module = objective(nn.Sequential(nn.Linear(3, 11), nn.ReLU(), nn.Linear(11, 3)), "moments")
    x, y = batch(images=False)
    got = outcome(torch.compile(module, backend="aot_eager", fullgraph=True), x, y)  # before any uncompiled pass
    for mine, its in zip(got, outcome(module, x, y), strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-6)


def checked(graph: torch.fx.GraphModule, _: Any) -> Any:
    """A compiler that runs the graph as it is, and refuses what inductor refuses: real tensors from elsewhere."""
    for node in graph.graph.nodes:
        if node.op == "get_attr":
            assert all(user.target is torch.ops.aten.lift_fresh_copy.default for user in node.users), str(node.users)
    return make_boxed_func(graph.forward)


@pytest.mark.parametrize(
    ("by", "options"),
    [
        ("mirrored", {}),
        ("mirrored", {"prior": torch.distributions.Laplace(0.0, 1.0), "kl": lb.MonteCarlo(10)}),
        ("mirrored", {"prior": lb.priors.FittedPrior()}),
        ("moments", {}),
    ],
)
def test_every_constant_lies_in_the_graph(by: str, options: dict[str, Any]) -> None:
    module = objective(nn.Sequential(nn.Linear(3, 13), nn.ReLU(), nn.Linear(13, 3)), by, **options)
    compiled = torch.compile(module, backend=aot_autograd(fw_compiler=checked), fullgraph=True)
    check_equal(module, compiled, *batch(images=False))


def test_a_prior_that_learns_is_refused() -> None:
    scale = torch.tensor(1.0, requires_grad=True)
    module = objective(nn.Linear(3, 3), "mirrored", prior=torch.distributions.Normal(0.0, scale))
    with pytest.raises(Exception, match=r"cannot train a tensor|Unsupported output type"):
        torch.compile(module, backend="eager", fullgraph=True)(*batch(images=False))


def graphs() -> int:
    return int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def test_nothing_is_stale() -> None:
    """An opaque call is read once, so everything that it depends on must be guarded."""
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    module = objective(model, "mirrored").train()
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    x, y = batch(images=False)

    def same() -> None:
        check_equal(module, compiled, x, y)

    same()
    module.eval()
    same()
    module.model.propagate = "local"
    same()
    module.train()
    lb.fix_statistics(module)
    same()
    model[2].p = 0.9
    same()
    module.model.posterior = lb.posteriors.Laplace()
    module.terms = lb.Terms(0.5, temperature=0.5)
    same()
    module.n_data = 10
    same()


def test_another_weight_of_the_kl_compiles_once_more_at_most() -> None:
    module = objective(small(), "mirrored").eval()
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    x, y = batch(images=False)
    torch._dynamo.utils.counters.clear()
    for weight in (0.1, 0.2, 0.3, 0.4, 0.5):
        check_equal(module, compiled, x, y, kl_weight=weight)
    assert graphs() <= 2


@pytest.mark.parametrize("by", ["mirrored", "moments"])
def test_held_weights_and_own_generators_run_uncompiled(by: str) -> None:
    module = objective(small(), by).eval()
    x, y = batch(images=False)
    compiled = torch.compile(module, backend="eager")
    network = torch.compile(module.model, backend="eager")
    free = compiled(x, y).nll
    with module.model.at_mean():
        assert torch.equal(compiled(x, y).nll, module(x, y).nll)
        assert torch.equal(network(x), module.model.model(x))
    assert not torch.equal(compiled(x, y).nll, free)
    seeded = [torch.Generator().manual_seed(3) for _ in range(4)]
    assert torch.equal(compiled(x, y, generator=seeded[0]).loss, module(x, y, generator=seeded[1]).loss)
    assert torch.equal(network(x, generator=seeded[2]), module.model(x, generator=seeded[3]))


def test_a_plain_module_and_the_likelihood_alone() -> None:
    x, y = batch(images=False)
    plain = lb.Objective(small(), lb.Categorical(), n_data=9)
    check_equal(plain, torch.compile(plain, backend="aot_eager", fullgraph=True), x, y)
    alone = lb.Objective(lb.Bayesian(small()), lb.Categorical(), n_data=9, with_kl=False)
    torch.manual_seed(0)
    want = alone(x, y)
    torch.manual_seed(0)
    got = torch.compile(alone, backend="aot_eager", fullgraph=True)(x, y)
    assert torch.allclose(got.loss, want.loss)
    assert got.kl == 0


def test_a_weight_that_moments_refuse_is_refused_when_compiled() -> None:
    module = objective(Twice(), "moments")
    with pytest.raises(Exception, match=r"used a second time|Unsupported output type") as raised:
        torch.compile(module, backend="eager", fullgraph=True)(*batch(images=False))
    assert "_plain_terms" in str(raised.value) or "second time" in str(raised.value)


def test_settings_are_numbers_and_words() -> None:
    module = nn.Linear(2, 3)
    assert settings_of(module) == [True, 2, 3]
