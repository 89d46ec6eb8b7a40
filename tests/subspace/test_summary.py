import pytest
import torch
from torch import nn

from leanbayes.bayesian import Bayesian
from leanbayes.subspace import Summary, TensorSummary, layers, random_k, top_k


def test_counts_and_sparsity_of_every_tensor_in_order():
    model = nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3), nn.Linear(3, 2))
    scores = {name: torch.zeros(p.shape) for name, p in model.named_parameters()}
    scores["0.weight"].flatten()[:3] = 1
    scores["2.bias"][:] = 1
    summary = Bayesian(model, subspace=top_k(scores, k=5)).summary()
    assert [(t.name, t.shape, t.size, t.random) for t in summary] == [
        ("0.weight", (3, 4), 12, 3),
        ("0.bias", (3,), 3, 0),
        ("1.weight", (3,), 3, 0),
        ("1.bias", (3,), 3, 0),
        ("2.weight", (2, 3), 6, 0),
        ("2.bias", (2,), 2, 2),
    ]
    assert [t.sparsity for t in summary] == [0.75, 1, 1, 1, 1, 0]
    assert (summary.size, summary.random) == (29, 5)


def test_frozen_tensors_count_as_deterministic_and_tied_ones_once():
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    model[1].bias.requires_grad_(False)
    summary = Bayesian(model).summary()
    assert [(t.name, t.random) for t in summary] == [("0.weight", 9), ("0.bias", 3), ("1.bias", 0)]
    assert (summary.size, summary.random) == (15, 12)


def test_the_total_is_what_was_asked_for():
    model = nn.Linear(100, 10)
    assert Bayesian(model, subspace=random_k(0.01)).summary().random == 10
    assert Bayesian(model, subspace=layers("bias")).summary().random == 10
    assert Bayesian(model).summary().random == 1010


def test_the_table():
    text = str(
        Summary((TensorSummary("a.very.long.name.weight", (1000, 1000), 10**6, 1234), TensorSummary("b", (), 1, 1)))
    )
    head, first, second, total = text.split("\n")
    assert head.split() == ["tensor", "shape", "size", "random", "sparsity"]
    assert first.split() == ["a.very.long.name.weight", "1000x1000", "1000000", "1234", "0.9988"]
    assert second.split() == ["b", "1", "1", "0.0000"]
    assert total.split() == ["in", "all", "1000001", "1235", "0.9988"]


@pytest.mark.parametrize("random", [3, 123_456, 25_000_000])
def test_the_columns_are_aligned(random):
    tensors = (TensorSummary("a.very.long.name.weight", (5000, 5000), 25_000_000, random), TensorSummary("b", (), 1, 1))
    head, first, second, total = str(Summary(tensors)).split("\n")
    assert len({len(line) for line in (head, first, second, total)}) == 1
    for column in ("size", "random", "sparsity"):
        end = head.index(column) + len(column)
        assert all(line[end - 1] != " " and line[end : end + 1] in ("", " ") for line in (first, second, total))


def test_it_is_frozen_data():
    summary = Summary((TensorSummary("w", (2,), 2, 1),))
    assert summary == Summary((TensorSummary("w", (2,), 2, 1),))
    with pytest.raises(AttributeError):
        summary.tensors = ()


def test_a_tensor_without_numbers_has_no_random_ones():
    empty = TensorSummary("w", (2, 0), 0, 0)
    assert empty.sparsity == 1
    assert "w" in str(Summary((empty, TensorSummary("b", (2,), 2, 1))))


def test_a_model_without_parameters():
    assert "in all" in str(Summary(()))
