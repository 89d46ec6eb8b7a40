"""A sparse network equals its dense twin, whatever is asked of it, and takes the memory of its non-zeros."""

import copy
import gc
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import leanbayes as lb
from leanbayes._ops import sparse as products
from leanbayes._ops.sparse_block_plan import in_blocks, kernel_block
from leanbayes._ops.sparse_choice import Kernels
from leanbayes.evaluation.cost import count_parameters, peak_memory
from leanbayes.subspace import Scatter, scatters
from leanbayes.subspace.sparse_subspace import counts, layers_of
from tests.subspace.cases import KINDS, assert_same_gradients, batch, close, dense_twin, moved, network

PROPAGATIONS = ("sample", "mirrored", "local", "flipout", "moments", "covariance")


def seeded(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(params=["auto", "numba"])
def kernels(request: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "numba":
        monkeypatch.setattr(products, "choose", lambda *_: Kernels("numba", "numba", "numba"))


def sparse_net(kind: str, inside: str = "all", **options: Any) -> lb.Bayesian:
    chosen = {
        "all": None,
        "weights": lb.layers("*.weight"),
        "part": lb.random_k(0.4, scope="layer"),
        "last": lb.layers("*6", "*5") if kind != "linear" else lb.layers("4"),
    }[inside]
    own = {name: options.pop(name) for name in ("bias", "norm") if name in options}
    subspace = lb.sparse(0.4, dense=(), inside=chosen)
    return moved(lb.Bayesian(network(kind, **own), subspace=subspace, **options))


# ---------------------------------------------------------------- sparse equals dense


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("propagate", PROPAGATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradients_equal_the_dense_twin(kind: str, propagate: str, request: Any) -> None:
    """With the same noise: the outputs of every draw, hence the mean and variance of local, and all gradients."""
    cases = [("all", True), ("weights", True), ("part", True), ("all", False)]
    if propagate in ("moments", "covariance"):  # which take the dense weight, whatever the kernels
        cases = [] if "numba" in request.node.name else cases[::2]
    for inside, bias in cases:
        bnn = sparse_net(kind, inside, bias=bias, propagate=propagate)
        twin, (x, y) = dense_twin(bnn), batch(kind)
        with bnn.at_mean(), twin.at_mean():
            close(bnn(x), twin(x))
            close(bnn(x), bnn.densify()(x))
        close(bnn(x, generator=seeded()), twin(x, generator=seeded()))
        losses = [
            lb.elbo(model, x, y, lb.Categorical(), n_data=9, samples=2, generator=seeded()) for model in (bnn, twin)
        ]
        close(losses[0].loss, losses[1].loss)
        close(losses[0].kl, losses[1].kl)
        for result in losses:
            result.loss.backward()
        assert_same_gradients(bnn, twin)


@pytest.mark.parametrize(
    "posterior",
    [
        lb.posteriors.Normal(),
        lb.posteriors.Laplace(),
        lb.posteriors.Radial(),
        lb.posteriors.LogNormal(0.2),
        lb.posteriors.Gamma(),
    ],
    ids=lambda f: type(f).__name__,
)
def test_families_equal_the_dense_twin(posterior: Any) -> None:
    for inside in ("all", "part"):
        for propagate in ("sample", "local", "moments"):
            bnn = sparse_net("conv2d", inside, posterior=posterior, propagate=propagate, kl=lb.MonteCarlo(3))
            twin, (x, _) = dense_twin(bnn), batch("conv2d")
            close(bnn(x, generator=seeded()), twin(x, generator=seeded()))
            close(bnn.entropy(), twin.entropy())


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("kind", ["conv1d", "conv2d", "conv3d"])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norms_in_the_layout_of_the_products(kind: str, training: bool) -> None:
    bnn = sparse_net(kind, norm=True, propagate="local").train(training)
    twin = dense_twin(bnn)
    assert type(twin.model[1]) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    for size in (1, 5, 40):
        x, _ = batch(kind, size)
        close(bnn(x, generator=seeded()), twin(x, generator=seeded()))
    for one, two in zip(bnn.model[1].buffers(), twin.model[1].buffers(), strict=True):
        close(one.double(), two.double())


def test_an_empty_batch_passes_a_batch_norm() -> None:
    model = lb.make_sparse(network("conv2d", norm=True), 0.4).eval()
    assert model(torch.zeros(0, 2, 4, 4, dtype=torch.float64)).shape == (0, 3)


class Again(nn.Module):
    """A layer called twice, whose weight is also used by hand: one network, so one draw of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        twice: Tensor = self.layer(torch.tanh(self.layer(x)))
        return twice + x @ self.layer.weight.t() + self.layer.weight.sum()


@pytest.mark.parametrize("propagate", ["sample", "mirrored", "local", "flipout"])
@pytest.mark.parametrize("inside", [None, lb.random_k(0.5)], ids=["all", "part"])
def test_a_weight_that_is_used_several_times_is_drawn_once(propagate: str, inside: Any) -> None:
    subspace = lb.sparse(0.5, dense=(), inside=inside)
    bnn = moved(lb.Bayesian(Again().double(), subspace=subspace, propagate=propagate))
    twin, x = dense_twin(bnn), torch.randn(4, 6, dtype=torch.float64)
    close(bnn(x, generator=seeded()), twin(x, generator=seeded()))


def test_moments_of_local_are_those_of_many_draws() -> None:
    """Against weight samples: a layer's outputs have the mean and variance that the draws have."""
    bnn = moved(lb.Bayesian(nn.Sequential(nn.Linear(6, 4).double()), subspace=lb.sparse(0.5, dense=())))
    x = torch.randn(1, 6, dtype=torch.float64).expand(200_000, 6)
    local = bnn.call(bnn.weights(), (x,), {}, propagate="local", generator=seeded())
    twin = dense_twin(bnn)
    weight, bias = (twin.weights()[name] for name in ("0.weight", "0.bias"))
    mean = x[:1] @ weight.mean.t() + bias.mean
    variance = x[:1].square() @ weight.variance().t() + bias.variance()
    n = len(x)
    assert ((local.mean(0) - mean).abs() < 4.5 * (variance / n).sqrt()).all()
    assert ((local.var(0) / variance - 1).abs() < 4.5 * (2 / n) ** 0.5).all()


# ---------------------------------------------------------------- every public entry


@pytest.mark.parametrize("inside", ["all", "part"])
@pytest.mark.parametrize("kind", ["linear", "conv2d"])
def test_every_public_entry(kind: str, inside: str) -> None:
    bnn = sparse_net(kind, inside).eval()
    twin, (x, y) = dense_twin(bnn), batch(kind)
    for ours, theirs in (
        (lb.moments(bnn, x), lb.moments(twin, x)),
        tuple(lb.moments(net, x, by=lb.propagate.Moments(rank=0, kernels="exact")) for net in (bnn, twin)),
        (lb.covariance(bnn, x)[:1], lb.covariance(twin, x)[:1]),
    ):
        for a, b in zip(ours, theirs, strict=True):
            close(a, b)
    for method in ("loop", "vmap", "auto"):
        ours, theirs = (lb.predict(m, x, samples=4, method=method, generator=seeded()) for m in (bnn, twin))
        assert ours.mean.shape == (5, 3)
        if method != "auto":
            close(ours.mean, theirs.mean)
            close(ours.total, theirs.total)
    with bnn.frozen(seeded()), twin.frozen(seeded()):
        close(bnn(x), twin(x))
        assert torch.equal(bnn(x), bnn(x))
    for propagate in ("sample", "mirrored", "local", "flipout"):
        options = {"n_data": 9, "last_layer_samples": 3, "propagate": propagate}
        ours, theirs = (lb.elbo(m, x, y, lb.Categorical(), generator=seeded(), **options) for m in (bnn, twin))
        close(ours.loss, theirs.loss)
    stacked = torch.func.vmap(lambda w: torch.func.functional_call(bnn.model, w, (x,)))(bnn.draw(3))
    assert stacked.shape == (3, 5, 3)
    again = copy.deepcopy(bnn)
    close(again(x, generator=seeded()), bnn(x, generator=seeded()))
    with torch.no_grad():
        for parameter in again.parameters():
            parameter.zero_()
    assert bnn.kl() != again.kl()
    other = sparse_net(kind, inside)
    other.load_state_dict(bnn.state_dict())
    close(other.eval()(x, generator=seeded()), bnn(x, generator=seeded()))
    half = copy.deepcopy(bnn).to(torch.float32)
    torch.testing.assert_close(
        half.call(half.weights(), (x.float(),), {}, propagate="moments").shape, torch.Size((5, 3)), check_dtype=False
    )
    with bnn.at_mean(), half.at_mean():
        torch.testing.assert_close(half(x.float()), bnn(x).float(), rtol=1e-4, atol=1e-4)
    assert copy.deepcopy(bnn).to(torch.bfloat16)(x.bfloat16()).dtype == torch.bfloat16
    assert "random=" in repr(bnn)


def test_a_subnetwork_of_a_subnetwork() -> None:
    """The sensitivity of a sparse model scores what is stored, and its top is random; the rest is not, or not there."""
    model, (x, y) = network("conv2d"), batch("conv2d", 20)
    lb.make_sparse(model, 0.5, dense=())
    scores = lb.sensitivity(model, [(x, y)], lb.Categorical())
    shapes = {name: tuple(value.shape) for name, value in scores.items()}
    assert shapes == {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    whole = model[2].weight.shape, model[0].weight
    assert isinstance(whole[1], Tensor)
    bnn = lb.Bayesian(model, subspace=lb.sparse(0.5, inside=lb.top_k(scores, k=20)), propagate="local")
    summary = bnn.summary()
    assert summary.random == 20
    stored = sum(len(scatter.index) for scatter in scatters(model).values())
    assert summary.stored == stored + sum(len(p) for n, p in model.named_parameters() if n.endswith("bias"))
    assert summary.size == sum(p.numel() for p in network("conv2d").parameters())
    close(bnn(x, generator=seeded()), dense_twin(bnn)(x, generator=seeded()))
    assert {row.name for row in summary} == {name for name, _ in network("conv2d").named_parameters()}
    assert f"{summary.stored} of {summary.size} are stored" in str(summary)


def test_names_are_those_of_the_dense_model() -> None:
    normal = torch.distributions.Normal
    bnn = lb.Bayesian(
        network("linear"),
        subspace=lb.sparse(0.5, inside=lb.layers("2.weight", "4")),
        prior={"2.weight": normal(0.0, 0.1), "*": normal(0.0, 1.0)},
    )
    assert {row.name: row.random for row in bnn.summary() if row.random} == {
        "2.weight": 32,
        "4.weight": 10,
        "4.bias": 3,
    }


def test_transformers_run() -> None:
    """Attention asks for the weight of its output itself, and gets it dense."""
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).double()
    lb.make_sparse(layer, 0.3, dense=())
    plain, x = lb.densify(layer), torch.randn(2, 5, 8, dtype=torch.float64)
    for training in (True, False):
        close(layer.train(training)(x), plain.train(training)(x))
    for propagate in ("sample", "mirrored", "local", "flipout"):
        assert lb.Bayesian(copy.deepcopy(layer), propagate=propagate)(x).isfinite().all()


# ---------------------------------------------------------------- memory


def storages() -> dict[int, int]:
    """Bytes of every memory that a tensor of Python's holds, by address."""
    alive = [o for o in gc.get_objects() if type(o) in (Tensor, nn.Parameter)]
    return {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in alive}


def test_dense_memory_is_released() -> None:
    before = storages().keys()
    size = 4 * 300 * 400
    model = nn.Sequential(nn.Linear(8, 300), nn.ReLU(), nn.Linear(300, 400), nn.ReLU(), nn.Linear(400, 3))
    own = model[2].weight
    assert size in {n for place, n in storages().items() if place not in before}
    bnn = lb.Bayesian(model, subspace=lb.sparse(0.05), propagate="local")
    assert model[2].parametrizations.weight.original is own
    assert own.numel() == 6000
    optimizer = torch.optim.Adam(bnn.parameter_groups(lr=1e-3))
    x, y = torch.randn(16, 8), torch.randint(3, (16,))

    def step() -> None:
        optimizer.zero_grad()
        lb.elbo(bnn, x, y, lb.Categorical(), n_data=16).loss.backward()
        optimizer.step()

    for _ in range(2):
        step()
    large = {n for place, n in storages().items() if place not in before and n >= size // 2}
    assert not large
    assert own.grad.numel() == 6000
    assert {state.numel() for state in optimizer.state[own].values()} == {1, 6000}
    assert peak_memory(step) < size
    kept = count_parameters(bnn)
    assert kept.positions == 6000 + 60
    assert kept.means == 8 * 300 + 300 + 6000 + 400 + 60 + 3
    assert kept.scales == kept.means


# ---------------------------------------------------------------- which weights are stored


@settings(max_examples=60, deadline=None, derandomize=True, phases=[Phase.generate])
@given(
    shapes=st.lists(st.lists(st.integers(1, 12), min_size=2, max_size=5).map(tuple), min_size=1, max_size=6),
    density=st.floats(0.001, 1.0),
)
def test_counts_of_both_layouts(shapes: list[tuple[int, ...]], density: float) -> None:
    sizes = [torch.Size(shape).numel() for shape in shapes]
    uniform = counts(shapes, density, "uniform")
    assert uniform == [max(1, round(density * size)) for size in sizes]
    result = counts(shapes, density, "erdos_renyi")
    assert all(1 <= count <= size for count, size in zip(result, sizes, strict=True))
    assert sum(result) == max(len(shapes), round(density * sum(sizes)))
    if min(result) > 1:  # what is not full has one share of inputs + outputs + extents
        ratios = [c / sum(s) for c, s, size in zip(result, shapes, sizes, strict=True) if c < size]
        assert all(abs(ratio - ratios[0]) < 1 for ratio in ratios)


def test_layers_with_less_than_one_weight_have_one_at_the_cost_of_others() -> None:
    assert counts([(3, 1), (2, 2), (100, 100)], 0.0011, "erdos_renyi") == [1, 1, 9]
    assert counts([(3, 1), (2, 2), (4, 4)], 0.01, "erdos_renyi") == [1, 1, 1]


def test_a_layer_of_one_weight_stores_no_more_than_it_has() -> None:
    """A share of 0.87 was rounded up to 1, and then got one of the weights that rounding had left over: 2 of 1."""
    shapes = [(12, 12, 9, 10, 3), (5, 5, 8, 7), (1, 1, 9, 11), (6, 12, 9, 10, 3), (1, 1), (1, 1, 1)]
    assert counts(shapes, 0.001, "erdos_renyi") == [20, 11, 10, 17, 1, 1]


def test_erdos_renyi_kernel_by_hand() -> None:
    """Densities in the ratio of (inputs + outputs + extents) / size, those above 1 cut (Evci et al. 2020)."""
    shapes = [(16, 3, 3, 3), (32, 16, 3, 3), (64, 32, 3, 3), (10, 64)]
    result = counts(shapes, 0.1, "erdos_renyi")
    sizes = [432, 4608, 18432, 640]
    factor = 2411 / (25 + 54 + 102 + 74)  # 0.1 of 24112, all layers below 1
    expected = [factor * 25, factor * 54, factor * 102, factor * 74]
    assert expected[3] > 640 * 0.99 or all(abs(c - e) < 1 for c, e in zip(result, expected, strict=True))
    assert sum(result) == 2411
    assert all(c <= s for c, s in zip(result, sizes, strict=True))


def test_uniform_density_is_exact_and_the_seed_decides() -> None:
    models = [nn.Sequential(nn.Linear(10, 30), nn.Linear(30, 20), nn.Linear(20, 10)) for _ in range(3)]
    for model, seed in zip(models, (0, 0, 1), strict=True):
        lb.make_sparse(model, 0.1, seed=seed)
    result = [[scatter.index for scatter in scatters(model).values()] for model in models]
    assert [len(index) for index in result[0]] == [60, 20]
    assert all(torch.equal(a, b) for a, b in zip(result[0], result[1], strict=True))
    assert not torch.equal(result[0][0], result[2][0])
    for index in result[0]:
        assert index.dtype == torch.int32
        assert (index.diff() > 0).all()


def test_magnitude_keeps_the_largest_and_random_keeps_the_variance() -> None:
    largest, scaled = nn.Linear(200, 100), nn.Linear(200, 100)
    before = largest.weight.detach().clone(), scaled.weight.detach().clone()
    lb.make_sparse(largest, 0.1, dense=(), start="magnitude")
    lb.make_sparse(scaled, 0.1, dense=())
    kept = largest.weight.dense()
    assert torch.equal(kept[kept != 0], before[0][kept != 0])
    assert before[0][kept == 0].abs().max() <= kept[kept != 0].abs().min()
    there = scaled.weight.dense()
    torch.testing.assert_close(there[there != 0], before[1][there != 0] * 10**0.5)
    x = torch.randn(4000, 200)
    assert 0.85 < float((x @ there.t()).detach().var() / (x @ before[1].t()).var()) < 1.15


def test_density_one_stores_all() -> None:
    bnn = lb.Bayesian(network("conv2d"), subspace=lb.sparse(1.0, dense=(), start="magnitude"))
    torch.manual_seed(0)
    assert bnn.summary().density == 1
    assert torch.equal(bnn.model[0].weight.dense(), network("conv2d")[0].weight)


class Odd(nn.Module):
    """Tied, frozen, parametrized, shared and unusual layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 6)
        self.table = nn.Embedding(6, 6)
        self.tied = nn.Linear(6, 6, bias=False)
        self.tied.weight = self.table.weight
        self.frozen = nn.Linear(6, 6)
        self.frozen.weight.requires_grad_(False)
        self.normed = parametrizations.weight_norm(nn.Linear(6, 6))
        self.twice = nn.Linear(6, 6)
        self.alias = self.twice
        self.turned = nn.ConvTranspose1d(6, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.frozen(self.tied(self.first(x)))
        return self.alias(torch.relu(self.twice(self.normed(x))))


def test_tied_frozen_and_parametrized_weights_stay_dense() -> None:
    model = Odd().double()
    assert list(layers_of(model)) == ["first.weight", "twice.weight"]
    lb.make_sparse(model, 0.5)
    assert list(scatters(model)) == ["twice.parametrizations.weight.original"]
    assert model.alias is model.twice
    assert model.tied.weight is model.table.weight
    assert not model.frozen.weight.requires_grad
    x = torch.randn(4, 6, dtype=torch.float64)
    close(model(x), lb.densify(model)(x))
    assert isinstance(lb.densify(model).normed.parametrizations.weight[0], nn.Module)


def test_named_layers_stay_dense() -> None:
    model = network("conv2d", norm=True)
    lb.make_sparse(model, 0.4, dense=("3", "6.*"))
    assert list(scatters(model)) == ["0.parametrizations.weight.original"]
    model = network("conv2d", norm=True)
    lb.make_sparse(model, 0.4)
    assert [str(scatter) for scatter in scatters(model).values()] == ["Scatter(43 of 108)", "Scatter(29 of 72)"]


def test_bad_input_is_named_and_changes_nothing() -> None:
    for density in (0, -0.1, 1.1, float("nan")):
        with pytest.raises(lb.errors.SelectionError, match="density"):
            lb.sparse(density)
    with pytest.raises(lb.errors.UnknownName, match="erdos_renyi"):
        lb.sparse(0.1, layout="erdos")  # type: ignore[arg-type]
    with pytest.raises(lb.errors.UnknownName, match="magnitude"):
        lb.sparse(0.1, start="largest")  # type: ignore[arg-type]
    for model, options, words in (
        (network("linear"), {"dense": ("nothing",)}, "'nothing' matched none of 3"),
        (network("linear"), {"dense": ("*",)}, "no layer is left"),
        (nn.Sequential(nn.Linear(2, 2)), {}, "no layer is left.*dense=()"),
        (nn.Sequential(nn.Tanh()), {}, "no layer is left"),
    ):
        before = {name: tuple(p.shape) for name, p in model.named_parameters()}
        with pytest.raises(lb.errors.SelectionError, match=words):
            lb.make_sparse(model, 0.5, **options)
        assert {name: tuple(p.shape) for name, p in model.named_parameters()} == before
    with pytest.raises(lb.errors.InputError, match='per="weight"'):
        lb.Bayesian(network("linear"), subspace=lb.sparse(0.5), posterior=lb.posteriors.Normal(per="filter"))
    with pytest.raises(lb.errors.SelectionError, match="matched none"):
        lb.Bayesian(network("linear"), subspace=lb.sparse(0.5, inside=lb.layers("nothing")))


def test_a_sparse_model_stays_as_sparse_as_it_is() -> None:
    model = lb.make_sparse(network("linear"), 0.2)
    index = [scatter.index for scatter in scatters(model).values()]
    bnn = lb.Bayesian(model, subspace=lb.sparse(0.9))
    assert [scatter.index for scatter in scatters(bnn.model).values()] == index
    assert all(isinstance(module, Scatter) for module in scatters(model).values())


# ---------------------------------------------------------------- blocks of output channels


def wide_network() -> nn.Sequential:
    """Layers whose output channels are a multiple of 16, a multiple of 8, 10, and 2 in each of 8 groups."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(2, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU()]
    layers += [nn.Conv2d(32, 24, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(24, 16, 3, groups=8), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(16, 10)).double()


def test_the_structure_of_a_sparse_model_in_blocks() -> None:
    for start in ("random", "magnitude"):
        model = lb.make_sparse(wide_network(), 0.2, block=16, dense=(), start=start)
        blocks = {name.partition(".")[0]: scatter for name, scatter in scatters(model).items()}
        assert {name: scatter.block for name, scatter in blocks.items()} == {"0": 16, "3": 8, "5": 2, "8": 10}
        for scatter in blocks.values():
            assert in_blocks(scatter.index, scatter.shape, scatter.block)
            assert abs(len(scatter.index) - 0.2 * scatter.size) <= scatter.block / 2
        assert str(blocks["0"]) == "Scatter(112 of 576, in blocks of 16)"


def test_magnitude_keeps_the_blocks_of_the_largest_sums() -> None:
    layer = nn.Linear(40, 32)
    before = layer.weight.detach().abs().view(2, 16, 40).sum(1)
    lb.make_sparse(layer, 0.2, block=16, dense=(), start="magnitude")
    kept = layer.weight.dense().detach().view(2, 16, 40).ne(0).all(1)
    assert kept.sum() == 16
    assert before[kept].min() >= before[~kept].max()


def test_one_is_the_layout_without_blocks() -> None:
    plain, one = (lb.make_sparse(wide_network(), 0.2, **options) for options in ({}, {"block": 1}))
    for a, b in zip(plain.state_dict().values(), one.state_dict().values(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("block", [0, -1, 1.5, True])
def test_bad_blocks_are_named(block: Any) -> None:
    with pytest.raises(lb.errors.SelectionError, match="block must be"):
        lb.sparse(0.1, block=block)


@pytest.mark.parametrize("propagate", PROPAGATIONS)
@pytest.mark.parametrize("force", [True, False])
def test_blocks_equal_the_dense_twin(propagate: str, force: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All propagations, with the kernels that are chosen and with those for blocks wherever they fit."""

    def blocks_or_numba(_: Any, index: Tensor, geometry: Any, __: Any) -> Kernels:
        name = "blocks" if kernel_block(index, geometry) else "numba"
        return Kernels(name, name, name)

    if force:
        monkeypatch.setattr(products, "choose", blocks_or_numba)
    x, y = torch.randn(34, 2, 6, 6, dtype=torch.float64), torch.randint(10, (34,))
    for inside in (None, lb.random_k(0.5, scope="layer")):
        subspace = lb.sparse(0.4, dense=(), block=16, inside=inside)
        bnn = moved(lb.Bayesian(wide_network(), subspace=subspace, propagate=propagate))
        twin = dense_twin(bnn)
        results = [
            lb.elbo(model, x, y, lb.Categorical(), n_data=9, samples=2, generator=seeded()) for model in (bnn, twin)
        ]
        close(results[0].loss, results[1].loss)
        for result in results:
            result.loss.backward()
        assert_same_gradients(bnn, twin)


def test_without_numba_blocks_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = lb.make_sparse(wide_network(), 0.2, block=16, dense=()).eval(), torch.randn(70, 2, 6, 6).double()
    with_numba = model(x)
    monkeypatch.setattr(products.compiled, "available", lambda: False)
    close(model(x), with_numba)


def test_a_copy_keeps_its_blocks_and_a_foreign_state_is_refused_before_it_moves() -> None:
    model = lb.make_sparse(wide_network(), 0.2, block=16)
    again = copy.deepcopy(model)
    assert [s.block for s in scatters(again).values()] == [s.block for s in scatters(model).values()]
    state = model.state_dict()
    name = "3.parametrizations.weight.0.index"
    free = next(place for place in range(24 * 32 * 9) if place not in state[name].tolist())
    state[name] = torch.cat([state[name][1:], torch.tensor([free])]).sort().values.int()
    model.load_state_dict(state)
    batches = [(torch.randn(4, 2, 6, 6).double(), torch.randint(10, (4,)))]
    with pytest.raises(lb.errors.InputError, match="not in whole blocks of 8"):
        lb.fit(model, batches, likelihood=lb.Categorical(), epochs=1, rewire=lb.Rewire("magnitude"))
