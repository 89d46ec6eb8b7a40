"""NumPy and pandas become tensors by one rule, and what is no number is named."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes._arrays import dtype_of, is_whole, numbers_of, tensors_of
from leanbayes.errors import InputError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (np.float64, torch.bfloat16),
        (np.float32, torch.bfloat16),
        (np.float16, torch.bfloat16),
        (np.longdouble, torch.bfloat16),
        (np.int8, torch.int64),
        (np.uint8, torch.int64),
        (np.uint64, torch.int64),
        (np.int64, torch.int64),
        (np.bool_, torch.bool),
        (np.complex64, torch.complex64),
        (">f8", torch.bfloat16),
        (">i4", torch.int64),
    ],
)
def test_the_kind_of_number_decides_the_type(given: Any, expected: torch.dtype) -> None:
    tensor = numbers_of(np.array([[0, 1], [1, 0]]).astype(given), torch.bfloat16)
    assert (tensor.dtype, tensor.tolist()) == (expected, [[0, 1], [1, 0]])


def test_arrays_that_torch_cannot_share_are_copied() -> None:
    backwards = np.arange(4.0)[::-1]
    fixed = np.arange(3.0, dtype=np.float32)
    fixed.flags.writeable = False
    assert numbers_of(backwards, torch.float32).tolist() == [3, 2, 1, 0]
    numbers_of(fixed, torch.float32).add_(1)
    assert fixed.tolist() == [0, 1, 2]
    assert numbers_of(np.array(2.5), torch.float32).shape == ()


def test_everything_else_stays() -> None:
    tensor = torch.ones(1, dtype=torch.float64)
    made = tensors_of({"a": tensor, "b": [np.ones(1), "word"], "c": (None, 3)}, torch.float32)
    assert made["a"] is tensor
    assert made["b"][0].dtype == torch.float32
    assert (made["b"][1], made["c"]) == ("word", (None, 3))


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.array(["a"]), "holds <U1, which are no numbers"),
        (np.array([object()]), "holds object"),
        (np.array(["2020-01-01"], dtype="M8[D]"), "datetime64"),
        (np.array([2**64 - 1], dtype=np.uint64), "18446744073709551615, which does not fit into int64"),
        (np.ma.masked_array([1.0, 2.0], [True, False]), "is masked"),
    ],
)
def test_what_is_no_number_is_named(array: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        numbers_of(array, torch.float32)


class TestPandas:
    pandas = pytest.importorskip("pandas")

    def test_columns_of_several_kinds(self) -> None:
        """Pandas itself makes objects of truth values beside fractions."""
        frame = self.pandas.DataFrame({"a": [0.5, 1.5], "b": [True, False], "c": [3, 4]})
        tensor = numbers_of(frame, torch.float32)
        assert (tensor.dtype, tensor.tolist()) == (torch.float32, [[0.5, 1, 3], [1.5, 0, 4]])
        assert numbers_of(frame["c"], torch.float32).tolist() == [3, 4]
        assert numbers_of(frame[["c", "c"]], torch.float32).dtype == torch.int64  # also two columns of one name
        assert numbers_of(self.pandas.Series([1, 2], dtype="Int64"), torch.float32).tolist() == [1, 2]

    @pytest.mark.parametrize(
        ("column", "words"),
        [
            (["x", "y"], "the column 'bad' holds"),
            (pandas.Categorical(["u", "v"]), "the column 'bad' holds category"),
            (pandas.to_datetime(["2020-01-01", "2020-01-02"]), "the column 'bad' holds datetime64"),
            (pandas.array([1, None], dtype="Int64"), "the column 'bad' holds Int64"),
        ],
    )
    def test_columns_without_numbers_are_named(self, column: Any, words: str) -> None:
        frame = self.pandas.DataFrame({"good": [1.0, 2.0], "bad": column})
        with pytest.raises(InputError, match=rf"{words}.*encode words and dates as numbers"):
            numbers_of(frame, torch.float32)


def test_the_floating_type_of_a_model() -> None:
    assert dtype_of(nn.Linear(1, 1).bfloat16()) == torch.bfloat16
    assert dtype_of(nn.BatchNorm1d(2, affine=False).double()) == torch.float64


def test_whole_data_are_a_tuple_of_two_arrays() -> None:
    x = np.zeros((4, 2))
    assert is_whole((x, torch.zeros(4)))
    assert not is_whole([x, x])
    assert not is_whole((x, x, x))
    assert not is_whole(((x, x), (x, x)))


def test_predictions_and_metrics_of_arrays_are_those_of_tensors() -> None:
    torch.manual_seed(0)
    bnn = lb.Bayesian(nn.Linear(3, 2).double())
    x, y = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40, dtype=np.int32) % 2

    def seeded() -> torch.Generator:
        return torch.Generator().manual_seed(1)

    tensors = torch.as_tensor(x), torch.as_tensor(y).long()
    expected = lb.predict(bnn, tensors[0], samples=4, generator=seeded(), method="loop")
    assert torch.equal(lb.predict(bnn, x, samples=4, generator=seeded(), method="loop").mean, expected.mean)
    options: dict[str, Any] = {"likelihood": lb.Categorical(), "samples": 4}
    first = lb.evaluate(bnn, [tensors], generator=seeded(), **options).metrics
    for data in ((x, y), [(x, y)], tensors):
        assert lb.evaluate(bnn, data, generator=seeded(), **options).metrics == pytest.approx(first)
    named = [{"first": x, "second": y, "third": ["word"] * 40}]
    split = {"batch": lambda batch: (batch["first"], batch["second"])}
    assert lb.evaluate(bnn, named, generator=seeded(), **split, **options).metrics == pytest.approx(first)
    with pytest.raises(InputError, match="batch must be a function"):
        lb.evaluate(bnn, named, batch=64, **options)
