import copy
from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass
from types import MappingProxyType, SimpleNamespace

import pytest
import torch
from torch import nn

from leanbayes._calls import batch_size, call, call_with, map_pairs, map_tensors, prediction_tensor, split_batch, take
from leanbayes.errors import InputError


class Tokens(UserDict):
    """A mapping that is no dict, as tokenizers return."""


class Fields(dict):
    """A dict of a class of its own."""


@dataclass
class Record:
    a: object
    b: object


@dataclass(frozen=True, slots=True)
class FrozenRecord:
    a: object
    b: object


class TestCall:
    @staticmethod
    def difference(a, b=1):
        return a - b

    @pytest.mark.parametrize(
        ("inputs", "expected"),
        [
            (torch.tensor(5.0), 4.0),
            ((5.0,), 4.0),
            ((5.0, 2.0), 3.0),
            ([5.0, 2.0], 3.0),
            ({"b": 2.0, "a": 5.0}, 3.0),
            (OrderedDict(b=2.0, a=5.0), 3.0),
            (Tokens(b=2.0, a=5.0), 3.0),
        ],
    )
    def test_a_mapping_by_name_a_sequence_by_position_else_alone(self, inputs, expected):
        assert call(self.difference, inputs) == expected


class TestCallWith:
    def test_some_parameters_are_replaced_for_this_call_only(self):
        model = nn.Linear(2, 1)
        x = torch.randn(3, 2)
        before = model(x)
        weight = torch.tensor([[2.0, -1.0]])
        assert torch.allclose(call_with(model, {"weight": weight}, (x,), {}), x @ weight.T + model.bias)
        assert torch.equal(model(x), before)
        assert isinstance(model.weight, nn.Parameter)

    def test_positions_and_keywords(self):
        class Model(nn.Module):
            def __init__(self):
                super().__init__()
                self.w = nn.Parameter(torch.tensor(2.0))

            def forward(self, a, *, b):
                return self.w * a - b

        assert call_with(Model(), {"w": torch.tensor(3.0)}, (torch.tensor(5.0),), {"b": 1.0}).item() == 14

    def test_tied_parameters_are_replaced_together(self):
        model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
        model[1].weight = model[0].weight
        x, weight = torch.randn(3, 2), torch.randn(2, 2)
        assert torch.allclose(call_with(model, {"0.weight": weight}, (x,), {}), x @ weight.T @ weight.T)

    @pytest.mark.parametrize("cell", [nn.LSTM, nn.GRU, nn.RNN])
    def test_a_recurrent_net_computes_with_the_replaced_weights_and_then_has_its_own_again(self, cell):
        model, other = cell(2, 3, num_layers=2), cell(2, 3, num_layers=2)
        x = torch.randn(4, 1, 2)
        before = model(x)[0]
        replaced = call_with(model, {n: p.detach() for n, p in other.named_parameters()}, (x,), {})[0]
        assert torch.equal(replaced, other(x)[0])
        assert not torch.equal(replaced, before)
        assert torch.equal(model(x)[0], before)
        assert torch.equal(copy.deepcopy(model)(x)[0], before)
        assert {id(w) for w in model._flat_weights} == {id(p) for p in model.parameters()}

    def test_a_recurrent_net_has_its_own_weights_again_after_an_error(self):
        model = nn.LSTM(2, 3)
        with pytest.raises((RuntimeError, ValueError)):
            call_with(model, {"weight_ih_l0": torch.zeros(12, 2)}, (torch.randn(4, 1, 99),), {})
        assert {id(w) for w in model._flat_weights} == {id(p) for p in model.parameters()}

    def test_gradients_reach_what_was_given(self):
        weight = torch.ones(1, 2, requires_grad=True)
        model = nn.Linear(2, 1)
        call_with(model, {"weight": weight}, (torch.tensor([[3.0, 4.0]]),), {}).sum().backward()
        assert weight.grad.tolist() == [[3.0, 4.0]]
        assert model.weight.grad is None


class TestPredictionTensor:
    def test_a_tensor_or_the_logits(self):
        tensor = torch.ones(2)
        assert prediction_tensor(tensor) is tensor
        assert prediction_tensor({"logits": tensor, "loss": torch.zeros(())}) is tensor
        assert prediction_tensor(SimpleNamespace(logits=tensor, hidden=None)) is tensor
        assert prediction_tensor(namedtuple("Output", "loss logits extra")(None, tensor, 1)) is tensor

    def test_a_pair_of_tensors_is_left_to_the_likelihood(self):
        pair = (torch.ones(2), torch.zeros(2))
        assert prediction_tensor(pair) is pair

    @pytest.mark.parametrize(
        "output", [None, [torch.ones(1)], (torch.ones(1),), (torch.ones(1), None), {"out": torch.ones(1)},
                   {"logits": None}, SimpleNamespace(logits=None), (torch.ones(1),) * 3],
    )  # fmt: skip
    def test_anything_else_says_what_it_was_and_what_to_do(self, output):
        with pytest.raises(InputError, match=rf"returned a {type(output).__name__}, which is no tensor.*output=lambda"):
            prediction_tensor(output)


class TestSplitBatch:
    def test_pairs(self):
        x, y = torch.ones(2), torch.zeros(2)
        assert split_batch((x, y)) == (x, y)
        assert split_batch([x, None]) == (x, None)

    @pytest.mark.parametrize(
        ("batch", "match"),
        [
            (torch.ones(4, 2), r"Tensor of shape \(4, 2\)"),
            (torch.ones(2, 2), r"Tensor of shape \(2, 2\)"),
            ((1, 2, 3), "tuple of 3 parts"),
            ({"x": 1, "y": 2}, "dict of 2 parts"),
            (iter([1, 2]), "unknown length"),
        ],
    )
    def test_anything_else(self, batch, match):
        with pytest.raises(InputError, match=rf"a batch must be a pair \(inputs, targets\), got a .*{match}"):
            split_batch(batch)


x, y = torch.arange(6.0).view(3, 2), torch.arange(3)


class TestRows:
    @pytest.mark.parametrize(
        "inputs",
        [x, (x, y), [x, y], {"x": x, "y": y}, OrderedDict(x=x), {"x": x, "deep": [y, {"z": x}], "none": None},
         (x, 7, "mode", torch.tensor(2.0)), Tokens(x=x, y=y), Fields(x=x, y=y)],
        ids=["tensor", "tuple", "list", "dict", "ordered", "nested", "others", "mapping", "own dict"],
    )  # fmt: skip
    def test_batch_size(self, inputs):
        assert batch_size(inputs) == 3

    @pytest.mark.parametrize(
        "rows", [slice(1, 3), slice(2, 3), torch.tensor([2, 0]), torch.tensor([True, False, True])]
    )
    def test_take(self, rows):
        taken = take({"x": x, "deep": (y, [x]), "flag": True, "none": None, "scalar": torch.tensor(2.0)}, rows)
        assert torch.equal(taken["x"], x[rows])
        assert torch.equal(taken["deep"][0], y[rows])
        assert torch.equal(taken["deep"][1][0], x[rows])
        assert (taken["flag"], taken["none"], taken["scalar"].item()) == (True, None, 2.0)

    @pytest.mark.parametrize("kind", [Tokens, Fields])
    def test_take_and_map_see_into_every_mapping_that_call_accepts(self, kind):
        """A mapping that is handed through whole would silently give all rows instead of one."""
        assert torch.equal(call(lambda x: x, take(kind(x=x), slice(0, 1))), x[:1])
        assert torch.equal(call(lambda x: x, map_tensors(torch.neg, kind(x=x))), -x)

    def test_map_tensors_keeps_types(self):
        pair = namedtuple("pair", "a b")
        for value in (
            pair(x, 3),
            Fields(a=x, b=3),
            Tokens(a=x, b=3),
            OrderedDict(a=x, b=3),
            MappingProxyType({"a": x, "b": 3}),
            Record(x, 3),
            FrozenRecord(x, 3),
            torch.max(torch.ones(2, 3), 0),
        ):
            negated = map_tensors(torch.neg, value)
            assert type(negated) is type(value)
            if hasattr(value, "a"):
                assert torch.equal(negated.a, -x)
                assert torch.equal(value.a, x)
                assert negated.b == 3
            elif hasattr(value, "keys"):
                assert torch.equal(negated["a"], -x)
                assert torch.equal(value["a"], x)
                assert negated["b"] == 3
        assert map_tensors(torch.neg, Record(3, "no tensor")) == Record(3, "no tensor")
        assert map_tensors(torch.neg, Record) is Record

    def test_map_pairs_keeps_places(self):
        first, second = {"a": x, "b": [y]}, {"a": 2 * x, "b": [3 * y]}
        sums = map_pairs(torch.add, first, second)
        assert torch.equal(sums["a"], 3 * x)
        assert torch.equal(sums["b"][0], 4 * y)

    def test_map_tensors_leaves_what_is_no_tensor(self):
        made = map_tensors(torch.neg, (x, {"y": [y]}, None, 3))
        assert torch.equal(made[0], -x)
        assert torch.equal(made[1]["y"][0], -y)
        assert made[2:] == (None, 3)

    def test_rows_that_do_not_fit(self):
        with pytest.raises(InputError, match=r"must share their first axis, the batch; got the lengths \[2, 3\]"):
            batch_size((x, torch.ones(2)))

    @pytest.mark.parametrize("inputs", [None, (), {}, 3, torch.tensor(1.0)])
    def test_no_rows_at_all(self, inputs):
        with pytest.raises(InputError, match="hold no tensor with a batch axis"):
            batch_size(inputs)

    def test_an_empty_batch(self):
        with pytest.raises(InputError, match="the batch is empty"):
            batch_size(x[:0])
