import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from leanbayes.errors import LeanBayesError, NonFinite, SelectionError, UnknownName
from leanbayes.subspace import Slot, everything, layers, not_norm, random_k, top_k
from tests.subspace.models import NAMES, Net


def random_scores(model: nn.Module, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.rand(p.shape, generator=generator) for name, p in model.named_parameters()}


def brute_force(pool: list[tuple[str, Tensor]], count: int) -> dict[str, list[int]]:
    """Rank every coordinate in one Python list."""
    ranked = sorted(
        ((value, name, place) for name, score in pool for place, value in enumerate(score.flatten().tolist())),
        reverse=True,
    )
    result: dict[str, list[int]] = {}
    for _, name, place in ranked[:count]:
        result.setdefault(name, []).append(place)
    return {name: sorted(result[name]) for name, _ in pool if name in result}


def as_lists(selection: dict[str, Tensor | None], model: nn.Module) -> dict[str, list[int]]:
    sizes = {name: p.numel() for name, p in model.named_parameters()}
    return {name: list(range(sizes[name])) if v is None else v.tolist() for name, v in selection.items()}


def total(selection: dict[str, Tensor | None], model: nn.Module) -> int:
    return sum(len(places) for places in as_lists(selection, model).values())


class TestEverything:
    def test_all_tensors_whole(self):
        assert everything().select(Net()) == dict.fromkeys(NAMES)

    def test_frozen_ones_are_left(self):
        model = Net()
        model.fc.requires_grad_(False)
        assert list(everything().select(model)) == [n for n in NAMES if not n.startswith("fc.")]

    def test_tied_ones_once(self):
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model[1].weight = model[0].weight
        assert everything().select(model) == {"0.weight": None, "0.bias": None, "1.bias": None}

    def test_not_norm(self):
        norms = ("stem.1.", "layer4.0.1.")
        assert list(everything(eligible=not_norm).select(Net())) == [n for n in NAMES if not n.startswith(norms)]

    def test_everything_frozen(self):
        model = Net().requires_grad_(False)
        with pytest.raises(SelectionError, match=r"none of the model's 15 parameters.*15 are frozen.*'token'"):
            everything().select(model)

    def test_nothing_eligible(self):
        with pytest.raises(SelectionError, match="0 are frozen and the eligibility predicate refused the rest"):
            everything(eligible=lambda slot: False).select(Net())

    def test_the_model_is_not_changed(self):
        model = Net()
        before = {name: p.detach().clone() for name, p in model.state_dict().items()}
        everything().select(model)
        assert all(torch.equal(before[name], p) for name, p in model.state_dict().items())


class TestLayers:
    @pytest.mark.parametrize(
        ("patterns", "expected"),
        [
            (("fc",), ["fc.weight", "fc.bias"]),
            (("fc.weight",), ["fc.weight"]),
            (("fc*",), ["fc.weight", "fc.bias", "fc2.weight", "fc2.bias"]),
            (("token",), ["token"]),
            (("layer4",), [n for n in NAMES if n.startswith("layer4")]),
            (("layer4.*",), [n for n in NAMES if n.startswith("layer4")]),
            (("layer4.1",), ["layer4.1.weight", "layer4.1.bias"]),
            (("*.bias",), [n for n in NAMES if n.endswith(".bias")]),
            (("layer4.?.?.bias",), ["layer4.0.0.bias", "layer4.0.1.bias"]),
            (("fc[!0-9]*", "token"), ["token", "fc.weight", "fc.bias"]),
            (("fc", "*.weight", "fc"), [n for n in NAMES if n.endswith(".weight") or n.startswith("fc.")]),
            (("*",), NAMES),
        ],
    )
    def test_globs_over_parameter_and_module_names(self, patterns, expected):
        assert layers(*patterns).select(Net()) == dict.fromkeys(expected)

    def test_a_pattern_without_a_match_names_itself_the_number_and_the_first_names(self):
        with pytest.raises(SelectionError) as caught:
            layers("fc", "head.*").select(Net())
        message = str(caught.value)
        assert "'head.*' matched none of 15 trainable parameters" in message
        assert str(NAMES[:3]) in message

    def test_case_matters(self):
        with pytest.raises(SelectionError, match="'FC' matched none"):
            layers("FC").select(Net())

    def test_frozen_layers_do_not_match(self):
        model = Net()
        model.fc.requires_grad_(False)
        assert "fc.weight" not in layers("*.weight").select(model)
        with pytest.raises(SelectionError, match="'fc' matched none of 13 trainable"):
            layers("fc").select(model)

    def test_eligibility_narrows_them(self):
        result = layers("layer4", eligible=not_norm).select(Net())
        assert list(result) == ["layer4.0.0.weight", "layer4.0.0.bias", "layer4.1.weight", "layer4.1.bias"]

    def test_no_pattern(self):
        with pytest.raises(SelectionError, match="at least one pattern"):
            layers()


class TestTopK:
    @pytest.mark.parametrize("rate", [0.013, 0.05, 0.3, 0.77, 0.99])
    def test_global_scope_against_brute_force(self, rate):
        model = Net()
        scores = random_scores(model)
        size = sum(p.numel() for p in model.parameters())
        expected = brute_force(list(scores.items()), round(rate * size))
        result = top_k(scores, rate).select(model)
        assert as_lists(result, model) == expected
        assert list(result) == list(expected)

    @pytest.mark.parametrize("rate", [0.05, 0.3, 0.77])
    def test_layer_scope_against_brute_force(self, rate):
        model = Net()
        scores = random_scores(model)
        expected: dict[str, list[int]] = {}
        for module_name, module in model.named_modules():
            own = [
                (n, scores[n])
                for n in NAMES
                if n.rpartition(".")[0] == module_name and hasattr(module, n.split(".")[-1])
            ]
            if own:
                expected |= brute_force(own, round(rate * sum(s.numel() for _, s in own)))
        result = top_k(scores, rate, scope="layer").select(model)
        assert as_lists(result, model) == {name: expected[name] for name in NAMES if name in expected}
        assert as_lists(result, model) != as_lists(top_k(scores, rate).select(model), model)

    @settings(max_examples=40, deadline=None)
    @given(
        sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6),
        rate=st.floats(0.001, 1.0),
        levels=st.integers(1, 1000),
        seed=st.integers(0, 10_000),
    )
    def test_any_model_any_ties(self, sizes, rate, levels, seed):
        """Exactly round(rate·θ); nothing outside scores higher than anything inside; sorted, unique, int32."""
        model = nn.ParameterList([torch.zeros(size) for size in sizes])
        generator = torch.Generator().manual_seed(seed)
        scores = {
            str(i): torch.randint(0, levels, (size,), generator=generator).float() for i, size in enumerate(sizes)
        }
        count = round(rate * sum(sizes))
        if count == 0:
            with pytest.raises(SelectionError, match="less than one"):
                top_k(scores, rate).select(model)
            return
        result = top_k(scores, rate).select(model)
        chosen = as_lists(result, model)
        assert sum(map(len, chosen.values())) == count
        inside = [scores[n][i].item() for n, places in chosen.items() for i in places]
        outside = [
            score for n, all_ in scores.items() for i, score in enumerate(all_.tolist()) if i not in chosen.get(n, [])
        ]
        assert not outside or min(inside) >= max(outside)
        for name, places in result.items():
            if places is not None:
                assert places.dtype == torch.int32
                assert (places.diff() > 0).all()
                assert 0 < len(places) < scores[name].numel()

    def test_k_instead_of_rate(self):
        model = Net()
        scores = random_scores(model)
        for k in (1, 17, sum(p.numel() for p in model.parameters())):
            assert as_lists(top_k(scores, k=k).select(model), model) == brute_force(list(scores.items()), k)

    def test_a_whole_tensor_becomes_none_and_the_rest_an_index(self):
        model = nn.Linear(3, 2)
        scores = {"weight": torch.tensor([[0.0, 7.0, 1.0], [9.0, 2.0, 3.0]]), "bias": torch.tensor([8.0, 10.0])}
        result = top_k(scores, k=4).select(model)
        assert result["bias"] is None
        assert result["weight"].tolist() == [1, 3]
        assert top_k(scores, rate=1.0).select(model) == {"weight": None, "bias": None}

    def test_a_tensor_without_a_chosen_coordinate_is_left_out(self):
        scores = {"weight": torch.ones(2, 3), "bias": torch.zeros(2)}
        assert list(top_k(scores, k=3).select(nn.Linear(3, 2))) == ["weight"]

    def test_frozen_ones_are_never_chosen_and_not_counted(self):
        model = nn.Sequential(nn.Linear(10, 10), nn.Linear(10, 10))
        model[0].requires_grad_(False)
        scores = {n: torch.full(p.shape, 100.0 if n[0] == "0" else 1.0) for n, p in model.named_parameters()}
        result = top_k(scores, 0.1).select(model)
        assert set(result) <= {"1.weight", "1.bias"}
        assert total(result, model) == 11
        del scores["0.weight"], scores["0.bias"]
        assert total(top_k(scores, 0.1).select(model), model) == 11

    def test_tied_ones_are_counted_once(self):
        model = nn.Sequential(nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False))
        model[1].weight = model[0].weight
        scores = random_scores(model)
        assert list(scores) == ["0.weight"]
        result = top_k(scores, 0.1).select(model)
        assert list(result) == ["0.weight"]
        assert total(result, model) == 10

    def test_eligibility_excludes_norms_and_their_share(self):
        model = nn.Sequential(nn.Linear(10, 9), nn.LayerNorm(9))
        scores = {n: torch.full(p.shape, 9.0 if n[0] == "1" else 1.0) for n, p in model.named_parameters()}
        assert set(top_k(scores, k=18).select(model)) == {"1.weight", "1.bias"}
        result = top_k(scores, 0.1, eligible=not_norm).select(model)
        assert set(result) <= {"0.weight", "0.bias"}
        assert total(result, model) == round(0.1 * 99)

    def test_an_eligibility_of_ones_own(self):
        def only_matrices(slot: Slot) -> bool:
            return slot.parameter.dim() > 1

        assert list(top_k(random_scores(Net()), 0.5, eligible=only_matrices).select(Net())) == [
            name for name, p in Net().named_parameters() if p.dim() > 1
        ]

    def test_one_hundredth_of_a_percent_of_25_million(self):
        model = nn.ParameterList([torch.empty(5000, 4000), torch.empty(5_000_000)])
        generator = torch.Generator().manual_seed(0)
        scores = {n: torch.rand(p.shape, generator=generator) for n, p in model.named_parameters()}
        result = top_k(scores, 0.0001).select(model)
        assert {n: places.dtype for n, places in result.items()} == {"0": torch.int32, "1": torch.int32}
        assert total(result, model) == 2500
        flat = torch.cat([scores["0"].flatten(), scores["1"]])
        threshold = torch.cat([scores[n].flatten()[v] for n, v in result.items()]).min()
        assert int((flat > threshold).sum()) < 2500 <= int((flat >= threshold).sum())

    def test_the_highest_score_wins_across_dtypes(self):
        """A half-precision layer must not decide how finely the other layers are ranked."""
        model = nn.ParameterDict({"a": torch.zeros(4, dtype=torch.bfloat16), "b": torch.zeros(3)})
        scores = {"a": torch.zeros(4, dtype=torch.bfloat16), "b": torch.tensor([1.0, 1.001, 1.0005])}
        for wanted, k in ([1], 1), ([1, 2], 2):
            assert top_k(scores, k=k).select(model)["b"].tolist() == wanted
        scores["b"] *= 1e39 / 1e3  # beyond what half precision can hold, still finite
        scores["a"] = scores["a"].half()
        assert top_k(scores, k=1).select(model)["b"].tolist() == [1]

    def test_scores_in_any_layout(self):
        model = nn.Linear(4, 3, bias=False)
        score = torch.rand(4, 3).T
        assert as_lists(top_k({"weight": score}, k=5).select(model), model) == brute_force([("weight", score)], 5)


class TestRandomK:
    @pytest.mark.parametrize("rate", [0.01, 0.123, 0.5, 1.0])
    def test_exact_count_sorted_unique_int32(self, rate):
        model = Net()
        size = sum(p.numel() for p in model.parameters())
        result = random_k(rate, seed=3).select(model)
        assert total(result, model) == round(rate * size)
        for places in result.values():
            assert places is None or (places.dtype == torch.int32 and (places.diff() > 0).all())

    def test_the_same_for_the_same_seed_and_only_then(self):
        model = Net()
        first, again, other = (as_lists(random_k(0.2, seed=s).select(model), model) for s in (5, 5, 6))
        assert first == again != other

    def test_the_global_random_state_is_left_alone(self):
        model = Net()
        before = torch.get_rng_state()
        random_k(0.2).select(model)
        assert torch.equal(before, torch.get_rng_state())

    @pytest.mark.parametrize("scope", ["global", "layer"])
    def test_every_coordinate_is_equally_likely(self, scope):
        model = nn.ParameterList([torch.zeros(6), torch.zeros(14)])  # both owned by one layer, the list
        hits = torch.zeros(20)
        n = 2000
        for seed in range(n):
            result = as_lists(random_k(0.25, scope=scope, seed=seed).select(model), model)
            hits[result.get("0", [])] += 1
            hits[[6 + i for i in result.get("1", [])]] += 1
        assert hits.sum() == 5 * n
        assert ((hits / n - 0.25).abs() < 5 * math.sqrt(0.25 * 0.75 / n)).all()

    def test_layer_scope_takes_the_same_share_of_each_layer(self):
        model = nn.Sequential(nn.Linear(9, 10), nn.Linear(10, 50))
        result = random_k(0.1, scope="layer").select(model)
        chosen = as_lists(result, model)
        counts = {layer: sum(len(v) for n, v in chosen.items() if n.startswith(layer)) for layer in "01"}
        assert counts == {"0": 10, "1": 55}

    def test_one_hundredth_of_a_percent_of_25_million(self):
        model = nn.ParameterList([torch.empty(5000, 5000)])
        result = random_k(0.0001).select(model)
        assert len(result["0"]) == len(result["0"].unique()) == 2500

    def test_frozen_and_ineligible_ones_are_never_chosen(self):
        model = Net()
        model.fc.requires_grad_(False)
        result = random_k(1.0, eligible=not_norm).select(model)
        assert list(result) == [n for n in NAMES if not n.startswith(("fc.", "stem.1.", "layer4.0.1."))]


class TestErrors:
    @pytest.mark.parametrize("make", [lambda **kw: top_k({}, **kw), random_k], ids=["top_k", "random_k"])
    class TestWhenBuilt:
        @pytest.mark.parametrize("rate", [0, 0.0, -0.1, 1.0001, 2, math.nan, math.inf])
        def test_impossible_rates(self, make, rate):
            with pytest.raises(SelectionError, match=rf"rate must be above 0 and at most 1 .*got {rate}"):
                make(rate=rate)

        def test_both_or_neither(self, make):
            with pytest.raises(SelectionError, match=r"either rate or k, got rate=0\.1 and k=3"):
                make(rate=0.1, k=3)
            with pytest.raises(SelectionError, match="either rate or k, got rate=None and k=None"):
                make()

        @pytest.mark.parametrize("k", [0, -2])
        def test_k_below_one(self, make, k):
            with pytest.raises(SelectionError, match=f"k must be at least 1, got {k}"):
                make(k=k)

        def test_unknown_scope(self, make):
            with pytest.raises(UnknownName, match=r"unknown scope 'tensor'; choose from \['global', 'layer'\]"):
                make(rate=0.1, scope="tensor")

        def test_k_with_layer_scope(self, make):
            with pytest.raises(SelectionError, match='scope="layer" takes a rate'):
                make(k=3, scope="layer")

    def test_k_too_big(self):
        model = nn.Linear(3, 2)
        for choice in (random_k(k=9), top_k(random_scores(model), k=9)):
            with pytest.raises(SelectionError, match="k = 9 is more than the 8 coordinates"):
                choice.select(model)

    @pytest.mark.parametrize("rate", [0.06, 0.0625, 1e-9])
    def test_less_than_half_a_coordinate(self, rate):
        model = nn.Linear(3, 2)  # 0.0625 · 8 = ½, which rounds to the even 0
        for choice in (random_k(rate), top_k(random_scores(model), rate)):
            with pytest.raises(SelectionError, match=rf"rate {rate} of 8 coordinates is less than one; raise the rate"):
                choice.select(model)
        assert total(random_k(0.07).select(model), model) == 1

    def test_nan_and_infinite_scores_name_their_tensor(self):
        model = nn.Linear(3, 2)
        for bad in (math.nan, math.inf, -math.inf):
            scores = random_scores(model)
            scores["bias"][1] = bad
            with pytest.raises(NonFinite, match="1 of 2 scores of 'bias' are NaN or infinite"):
                top_k(scores, 0.5).select(model)

    def test_nan_scores_of_frozen_parameters_do_not_matter(self):
        model = nn.Linear(3, 2)
        model.bias.requires_grad_(False)
        scores = random_scores(model) | {"bias": torch.full((2,), math.nan)}
        assert total(top_k(scores, 0.5).select(model), model) == 3

    def test_scores_of_another_model_by_name(self):
        with pytest.raises(SelectionError) as caught:
            top_k(random_scores(nn.Linear(3, 2)), 0.5).select(nn.Sequential(nn.Linear(3, 2)))
        message = str(caught.value)
        assert "of another model: 2 of 2 parameters have none" in message
        assert "['0.weight', '0.bias']" in message
        assert "['weight', 'bias']" in message

    def test_scores_of_another_model_by_shape(self):
        match = r"of another model: 'weight' has shape \(2, 4\), its scores \(2, 3\)"
        with pytest.raises(SelectionError, match=match):
            top_k(random_scores(nn.Linear(3, 2)), 0.5).select(nn.Linear(4, 2))

    def test_everything_frozen(self):
        model = nn.Linear(3, 2).requires_grad_(False)
        for choice in (random_k(0.5), top_k(random_scores(model), 0.5), layers("*")):
            with pytest.raises(SelectionError, match="none of the model's 2 parameters can be random: 2 are frozen"):
                choice.select(model)

    def test_they_are_value_errors_and_ours(self):
        with pytest.raises(ValueError, match="rate"):
            random_k(2.0)
        with pytest.raises(LeanBayesError):
            random_k(2.0)
