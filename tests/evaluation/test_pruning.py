"""Pruning against torch's own, against a sorted list, and against the closed-form KL of what is left."""

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune as torch_prune

from leanbayes.baselines import Ensemble, LaplaceApproximation, MCDropout, Swag, Temperature
from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError, NonFinite, SelectionError, UnknownName
from leanbayes.evaluation.packing import packed, unpack
from leanbayes.evaluation.pruning import is_weight, prune
from leanbayes.posteriors import GaussianRho, Normal
from leanbayes.prediction import predict
from leanbayes.priors import CentredPrior, FittedPrior
from leanbayes.storage import load, save
from leanbayes.subspace import layers, random_k, slots_of
from tests.baselines.conformance import CASES, net


def cnn(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 6, 3),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 36, 20),
        nn.ReLU(),
        nn.Linear(20, 3),
    ).to(dtype)


def spread_out() -> Normal:
    return Normal(init_scale=GaussianRho(-2.0, 1.0))


def bayesian(model: nn.Module, **options: object) -> Bayesian:
    return Bayesian(model, posterior=spread_out(), generator=torch.Generator().manual_seed(3), **options)  # type: ignore[arg-type]


def state(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same_state(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("fraction", [0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.96, 0.97, 0.98, 0.123, 1.0])
def test_l1_is_what_torch_prunes(fraction: float) -> None:
    model = cnn()
    before, oracle = state(model), copy.deepcopy(model)
    chosen = [(oracle[0], "weight"), (oracle[4], "weight"), (oracle[6], "weight")]
    torch_prune.global_unstructured(chosen, pruning_method=torch_prune.L1Unstructured, amount=fraction)
    for module, name in chosen:
        torch_prune.remove(module, name)
    result = prune(model, fraction)
    assert same_state(state(result.model), state(oracle))
    assert same_state(state(model), before)
    assert result.weights == 6 * 9 + 6 * 36 * 20 + 60
    assert result.nonzero == result.weights - round(fraction * result.weights) == round(result.kept * result.weights)
    assert {name: int(mask.sum()) for name, mask in result.masks.items()} == {
        f"{place}.weight": int(oracle[place].weight.count_nonzero()) for place in (0, 4, 6)
    }


def test_what_counts_as_a_weight() -> None:
    encoder = nn.TransformerEncoderLayer(8, 2, 16)
    modules = nn.ModuleList([encoder, nn.GRU(3, 4), nn.Embedding(5, 2), nn.LayerNorm((3, 2)), nn.PReLU(4)])
    modules.register_parameter("class_token", nn.Parameter(torch.zeros(1, 1, 8)))
    assert [slot.name for slot in slots_of(modules) if is_weight(slot)] == [
        "0.self_attn.in_proj_weight",
        "0.self_attn.out_proj.weight",
        "0.linear1.weight",
        "0.linear2.weight",
        "1.weight_ih_l0",
        "1.weight_hh_l0",
        "2.weight",
    ]


def test_ties_go_by_position_and_are_counted_exactly() -> None:
    model = nn.Linear(10, 10)
    nn.init.ones_(model.weight)
    result = prune(model, 0.37)
    assert result.masks["weight"].flatten().tolist() == [False] * 37 + [True] * 63


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_mixed_types_and_layouts(dtype: torch.dtype) -> None:
    model = cnn()
    model[4].to(dtype)
    model[0].weight = nn.Parameter(torch.randn(6, 4, 3, 3).to(memory_format=torch.channels_last))
    result = prune(model, 0.6).model
    every = torch.cat([model[i].weight.detach().flatten().double() for i in (0, 4, 6)]).abs()
    after = torch.cat([result[i].weight.detach().flatten().double() for i in (0, 4, 6)]).abs()
    gone = (after == 0) & (every > 0)
    assert int(gone.sum()) == round(0.6 * len(every))
    assert every[gone].max() <= every[~gone].min()
    assert result[4].weight.dtype == dtype
    assert result[0].weight.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("subspace", [None, random_k(rate=0.3, seed=1)])
@pytest.mark.parametrize("by", ["l1", "snr"])
def test_a_pruned_coordinate_of_a_bayesian_is_a_certain_zero(by: str, subspace: object) -> None:
    bnn = bayesian(cnn(), subspace=subspace)
    before = state(bnn)
    result = prune(bnn, 0.8, by=by)
    assert same_state(state(bnn), before)
    assert isinstance(result.model, Bayesian)
    weights, thin = bnn.weights(), result.model.weights()
    draws = result.model.draw(5)
    for name, mask in result.masks.items():
        name = name.removeprefix("model.")
        expected = torch.where(mask, weights[name].variance(), 0.0)
        got = thin[name].variance() if name in thin else torch.zeros_like(expected)
        assert torch.allclose(got, expected, rtol=1e-6, atol=0)  # softplus may round its last digit by its place
        assert torch.equal(
            dict(result.model.model.named_parameters())[name], torch.where(mask, weights[name].mean, 0.0)
        )
        if name in thin:
            assert not draws[name][:, ~mask].any()
            assert draws[name].std(0)[thin[name].variance() > 0].all()
    everywhere = torch.tensor(True)
    kept = {name: result.masks.get(f"model.{name}", everywhere) for name in weights}
    survivors = sum(int(((weight.variance() > 0) & kept[name]).sum()) for name, weight in weights.items())
    assert result.model.summary().random == sum(parts.rho.numel() for _, parts in result.model.parts()) == survivors
    assert all(parts.index is None or parts.index.dtype == torch.int32 for _, parts in result.model.parts())


def test_the_kl_that_is_left_is_that_of_the_survivors() -> None:
    bnn = bayesian(cnn(torch.float64))
    result = prune(bnn, 0.7, by="snr")
    total = 0.0
    for name, weight in bnn.weights().items():
        mean, variance = weight.mean, weight.variance()
        each = 0.5 * (mean.square() + variance - 1 - variance.log())
        mask = result.masks.get(f"model.{name}")
        total += (each if mask is None else each[mask]).sum().item()
    assert result.model.kl().item() == pytest.approx(total, rel=1e-12)


def test_signal_to_noise_order_is_that_of_a_sorted_list() -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 4))
    with torch.no_grad():
        model[0].weight[0] = 0.0  # some of these zeros are random, some are not
    bnn = bayesian(model, subspace=random_k(rate=0.5, seed=2))
    rows = []
    for layer in (0, 1):
        mean = model[layer].weight.detach().flatten().tolist()
        spread = bnn.weights()[f"{layer}.weight"].variance().sqrt().flatten().tolist()
        for place, (m, s) in enumerate(zip(mean, spread, strict=True)):
            ratio = abs(m) / s if s else (float("inf") if m else 0.0)
            rows.append((ratio, abs(m), layer, place))
    assert any(ratio == float("inf") for ratio, *_ in rows)
    assert sum(ratio == 0 for ratio, *_ in rows) == 6
    rows.sort()
    for fraction in (0.1, 0.3, 0.6, 0.9):
        gone = {(layer, place) for _, _, layer, place in rows[: round(fraction * 50)]}
        masks = prune(bnn, fraction, by="snr").masks
        result = {(i, p) for i in (0, 1) for p in (~masks[f"model.{i}.weight"]).flatten().nonzero().flatten().tolist()}
        assert result == gone


@pytest.mark.parametrize("by", ["l1", "snr"])
def test_pruning_in_steps_is_pruning_at_once(by: str) -> None:
    bnn = bayesian(cnn(), subspace=random_k(rate=0.4, seed=1))
    step = bnn
    for fraction in (0.3, 0.3, 0.6, 0.9):
        step = prune(step, fraction, by=by).model  # type: ignore[assignment]
    assert same_state(state(step), state(prune(bnn, 0.9, by=by).model))


def test_a_pruned_bayesian_is_saved_with_its_priors(tmp_path: Path) -> None:
    bnn = bayesian(
        cnn(), prior={"0.*": FittedPrior(), "6.weight": CentredPrior(0.2), "*": torch.distributions.Normal(0.0, 1.0)}
    )
    with torch.no_grad():
        bnn.model[6].weight.mul_(1e-6)  # type: ignore[union-attr,operator]
    result = prune(bnn, 0.5).model
    assert isinstance(result, Bayesian)
    assert "6.weight" not in result.weights()
    save(result, tmp_path / "thin.safetensors")
    back = load(tmp_path / "thin.safetensors", cnn())
    assert same_state(state(back), state(result))
    assert back.kl().item() == result.kl().item()


def test_a_centred_prior_keeps_the_memory_of_the_survivors() -> None:
    bnn = bayesian(cnn(torch.float64), prior=CentredPrior(0.3))
    with torch.no_grad():
        for parameter in bnn.model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    result = prune(bnn, 0.7)
    assert isinstance(result.model, Bayesian)
    old = dict(bnn.parts())
    for name, parts in result.model.parts():
        assert parts.memory is not None
        mask = result.masks.get(f"model.{name}")
        memory = old[name].memory
        assert torch.equal(parts.memory, memory if mask is None else memory[mask])
    assert torch.isfinite(result.model.kl())


def test_memory_really_falls() -> None:
    bnn = bayesian(nn.Linear(300, 300))
    result = prune(bnn, 0.95)
    whole = sum(p.numel() * p.element_size() for p in [*bnn.parameters(), *bnn.buffers()])
    thin = sum(p.numel() * p.element_size() for p in [*result.model.coordinates.parameters(), *result.model.buffers()])
    assert result.dense_bytes == whole == 2 * 4 * (90_000 + 300)
    assert thin == 8 * 4500 + 4 * 300  # scales and positions of the survivors, scales of the bias
    assert result.bytes == thin + 8 * 4500 + 4 * 300  # and the means, with their own positions


def test_where_nothing_is_random_any_more_the_network_is_plain() -> None:
    weights_only = layers("*weight", eligible=is_weight)
    bnn = bayesian(cnn(), subspace=weights_only)
    assert isinstance(prune(bnn, 0.99).model, Bayesian)
    result = prune(bnn, 1.0).model
    assert type(result) is nn.Sequential
    assert result.training
    nested = Ensemble(bayesian(cnn(), subspace=weights_only), bayesian(cnn(), subspace=weights_only))
    gone = prune(nested, 1.0).model
    assert not any(isinstance(part, Bayesian) for part in gone.modules())
    drawn = predict(gone, torch.randn(2, 1, 8, 8), samples=4, keep_samples=True).samples
    assert torch.equal(drawn[:2], drawn[2:])  # the two members, and the two again


@pytest.mark.parametrize("case", [name for name in CASES if "laplace" not in name])
def test_without_weights_every_draw_of_every_predictor_ignores_its_input(case: str) -> None:
    predictor = CASES[case](torch.float64)
    before = state(predictor)
    x = torch.randn(5, 4, dtype=torch.float64)
    result = prune(predictor, 1.0).model
    assert same_state(state(predictor), before)
    draws = 3 if result.members is None else min(3, result.members)
    for one in result.outputs(x, draws, torch.Generator().manual_seed(0)):
        assert torch.equal(one, one[:1].expand_as(one))
    subset = prune(predictor, 0.5)
    assert subset.nonzero == subset.weights - round(subset.weights / 2)
    assert torch.isfinite(predict(subset.model, x, samples=3).mean).all()


@pytest.mark.parametrize("case", [name for name in CASES if "laplace" in name])
@pytest.mark.parametrize("by", ["l1", "snr"])
def test_a_pruned_laplace_approximation_has_less_variance(case: str, by: str) -> None:
    predictor = CASES[case](torch.float64)
    assert isinstance(predictor, LaplaceApproximation)
    result = prune(predictor, 1.0, by=by).model
    assert isinstance(result, LaplaceApproximation)
    mean, covariance = result.functional_variance(torch.randn(5, 4, dtype=torch.float64))
    assert torch.equal(mean, mean[:1].expand_as(mean))
    assert torch.allclose(covariance, covariance[:1].expand_as(covariance), rtol=1e-12)
    half = prune(predictor, 0.5, by=by)
    assert {name.removeprefix("model.") for name in half.masks} == {"first.weight", "last.weight"}
    sizes = list(predictor.coordinates.values())
    parts = zip(predictor.coordinates, predictor.positions.split(sizes), half.model.scale.split(sizes), strict=True)  # type: ignore[operator]
    for (name, places, rows), before in zip(parts, predictor.scale.split(sizes), strict=True):
        mask = half.masks.get(f"model.{name}", torch.ones(100, dtype=torch.bool)).flatten()[places]
        assert torch.equal(rows, before * mask[:, None])


def test_swag_is_ranked_by_the_moments_of_what_it_draws() -> None:
    swag = CASES["swag"](torch.float64)
    assert isinstance(swag, Swag)
    draws = torch.stack([swag.sample(seed)["first.weight"] for seed in range(1500)])
    moments = {id(parameter): (mean, variance) for parameter, mean, variance in swag.random_tensors()}
    mean, variance = moments[id(swag.model.first.weight)]  # type: ignore[union-attr]
    count = len(draws)
    assert ((draws.mean(0) - mean).abs() < 4.5 * (variance / count).sqrt()).all()
    assert ((draws.var(0) / variance - 1).abs() < 4.5 * (2 / count) ** 0.5).all()
    masks = prune(swag, 0.5, by="snr", eligible=lambda slot: slot.name == "model.first.weight").masks
    order = (mean.abs() / variance.sqrt()).flatten().argsort()
    assert masks["model.first.weight"].flatten()[order].tolist() == [False] * 16 + [True] * 16
    thin = prune(swag, 0.5, eligible=lambda slot: slot.name == "model.first.weight")
    gone = ~thin.masks["model.first.weight"]
    assert all(not thin.model.sample(seed)["first.weight"][gone].any() for seed in range(3))  # type: ignore[operator]


def test_tied_weights_are_one() -> None:
    shared = nn.Linear(8, 8)
    model = nn.Sequential(shared, nn.ReLU(), nn.Linear(8, 8))
    model[2].weight = shared.weight
    result = prune(model, 0.5)
    assert result.weights == 64
    assert result.model[0].weight is result.model[2].weight  # type: ignore[index]
    assert sum(part.numel() for name, part in packed(model).items() if "weight" in name) == 64
    other = copy.deepcopy(model)
    unpack(packed(result.model), other)
    assert torch.equal(other[2].weight, result.model[2].weight)  # type: ignore[index]
    members = Ensemble(*(bayesian(nn.Sequential(shared, nn.Linear(8, 2))) for _ in range(2)))
    thin = prune(members, 0.9)
    for member in thin.model.models:  # type: ignore[union-attr]
        weight = member.weights()["0.weight"]
        assert torch.equal(weight.variance() > 0, thin.masks["models.0.model.0.weight"])


def test_dropout_and_temperature_keep_what_they_are() -> None:
    dropout, scaled = MCDropout(net(0, torch.float32), rate=0.3), Temperature(net(0, torch.float32))
    assert prune(dropout, 0.5).model.rate == 0.3
    scaled.log_temperature.fill_(0.5)
    assert prune(scaled, 0.5).model.temperature == scaled.temperature


def test_errors_say_what_to_do() -> None:
    model = nn.Linear(3, 2)
    for wrong in (-0.1, 1.1, float("nan"), "half", None):
        with pytest.raises(InputError, match="from 0 to 1"):
            prune(model, wrong)  # type: ignore[arg-type]
    with pytest.raises(UnknownName, match="l1"):
        prune(model, 0.5, by="l2")  # type: ignore[arg-type]
    with pytest.raises(InputError, match='by="l1"'):
        prune(model, 0.5, by="snr")
    with pytest.raises(SelectionError, match="eligible"):
        prune(nn.BatchNorm2d(3), 0.5)
    with pytest.raises(InputError, match="collect"):
        prune(Swag(nn.Linear(3, 2)), 0.5)
    with torch.no_grad():
        model.weight[0, 0] = torch.nan
    with pytest.raises(NonFinite, match="'weight'"):
        prune(model, 0.5)
