"""fit takes whole arrays, dictionaries and batches with further parts, and each of them trains as pairs do."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from leanbayes._calls import split_batch
from leanbayes.errors import InputError
from leanbayes.train.data import Arrays, Reading, as_batches
from tests.integrations.matrix import shows

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(48, 4))
Y = (X[:, 0] > 0).astype(np.int32)


class Named(nn.Module):
    """A network that takes its inputs by name, as those of Hugging Face do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        return {"logits": self.layer(input_ids * attention_mask)}


def trained(model: nn.Module, train: Any, **options: Any) -> list[float]:
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    lb.fit(lb.Bayesian(model), train, likelihood=lb.Categorical(), epochs=2, **options)
    return torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()


def batches() -> list[tuple[Tensor, Tensor]]:
    return [(torch.tensor(X[i : i + 12]).float(), torch.tensor(Y[i : i + 12]).long()) for i in range(0, 48, 12)]


KINDS = [
    pytest.param("arrays", marks=shows("NumPy", "Batches of arrays train as batches of tensors do.")),
    pytest.param("dict of MONAI", marks=shows("MONAI", "The dictionaries of its data loaders are batches.")),
    pytest.param(
        "dict of Hugging Face", marks=shows("Transformers", "The dictionaries of its tokenizers are batches.")
    ),
    pytest.param("triple", marks=shows("PyTorch", "Batches of three and more parts train, through batch=.")),
    "own dict",
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_batch_trains_as_pairs_do(kind: str) -> None:
    split, model = None, nn.Linear(4, 2)
    if kind == "arrays":
        data: Any = [(X[i : i + 12], Y[i : i + 12]) for i in range(0, 48, 12)]
    elif kind == "dict of MONAI":
        data = [{"image": x, "label": y, "image_meta_dict": {"name": ["a"] * 12}} for x, y in batches()]
    elif kind == "dict of Hugging Face":
        model = Named()
        data = [{"input_ids": x, "attention_mask": torch.ones(12, 4), "labels": y} for x, y in batches()]
    elif kind == "triple":
        data, split = [(x, y, ["name"] * 12) for x, y in batches()], lambda batch: batch[:2]
    else:
        data, split = [{"a": x, "b": y} for x, y in batches()], lambda batch: (batch["a"], batch["b"])
    expected = trained(nn.Linear(4, 2), batches(), validate=batches())
    assert trained(model, data, batch=split, validate=data) == pytest.approx(expected, abs=1e-6)


@shows("NumPy", "A pair of whole arrays is a data set.")
def test_whole_arrays_are_a_loader_that_shuffles() -> None:
    pair = torch.tensor(X).float(), torch.tensor(Y).long()
    expected = trained(nn.Linear(4, 2), DataLoader(TensorDataset(*pair), 32, shuffle=True))
    assert trained(nn.Linear(4, 2), (X, Y)) == expected
    assert trained(nn.Linear(4, 2), pair, validate=(X, Y)) == pytest.approx(expected, abs=0.1)
    fixed = trained(nn.Linear(4, 2), DataLoader(TensorDataset(*pair), 12))
    assert trained(nn.Linear(4, 2), Arrays(X, Y, batch_size=12, shuffle=False)) == fixed


@shows("pandas", "A data frame and a series are a data set for lb.fit.")
def test_frames_of_pandas_train() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=["a", "b", "c", "d"])
    assert trained(nn.Linear(4, 2), (frame, pandas.Series(Y))) == trained(nn.Linear(4, 2), (X, Y))


def test_arrays_have_the_type_of_the_model() -> None:
    reading = Reading.of(None, nn.Linear(1, 1).double())
    x, y = reading((X.astype(np.float32), Y))
    assert (x.dtype, y.dtype) == (torch.float64, torch.int64)
    loader = as_batches((X, X[:, 0]), reading)
    assert [part.dtype for part in next(iter(loader))] == [torch.float64, torch.float64]
    assert next(iter(as_batches((X, Y), reading, like=DataLoader(TensorDataset(torch.ones(9)), 7))))[0].shape == (7, 4)


def test_datasets_of_medical_images_and_of_tokens() -> None:
    """The real dictionaries of both libraries."""
    monai = pytest.importorskip("monai.data")
    items = [{"image": torch.ones(1, 4) * i, "label": torch.tensor(i % 2)} for i in range(4)]
    batch = next(iter(monai.DataLoader(monai.Dataset(items), batch_size=4)))
    x, y = Reading()(batch)
    assert (x.shape, y.tolist()) == ((4, 1, 4), [0, 1, 0, 1])
    encoding = pytest.importorskip("transformers").BatchEncoding({"input_ids": y, "labels": y})
    inputs, targets = Reading()(encoding)
    assert (list(inputs), targets.tolist()) == (["input_ids"], [0, 1, 0, 1])


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        (
            {"image": 1, "mask": 2},
            r"with the keys \['image', 'mask'\].*batch=lambda batch: \(batch\['image'\], batch\['m",
        ),
        ({"image": 1, "label": 2, "labels": 3}, "with the keys"),
        ({"labels": 1}, "with the keys"),
        ((1, 2, 3), r"tuple of 3 parts.*batch=lambda batch: \(batch\[0\], batch\[1\]\)"),
    ],
)
def test_an_unknown_batch_says_how_to_split_it(batch: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        split_batch(batch)


@pytest.mark.parametrize(
    ("train", "options", "words"),
    [
        (X, {}, "train must be batches.*got a ndarray"),
        (torch.ones(3, 2), {}, "got a Tensor"),
        (3, {}, "got a int"),
        ((X, Y[:-1]), {}, "48 inputs and 47 targets"),
        ((X[:0], Y[:0]), {}, "have no rows"),
        ((np.array(1.0), Y), {}, "x is a single number"),
        ([(X, Y)], {"batch": 64}, r"batch must be a function.*Arrays\(x, y, batch_size=64\)"),
        ([(X, Y)], {"batch": lambda batch: batch[0]}, "must return a pair"),
        ([(X, Y)], {"validate": 3}, "validate must be batches"),
    ],
)
def test_bad_data_are_named(train: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        lb.fit(nn.Linear(4, 2), train, likelihood=lb.Categorical(), epochs=1, **options)
    with pytest.raises(InputError, match="whole number of at least 1"):
        Arrays(X, Y, batch_size=0)
    with pytest.raises(InputError, match="leave out batch="):
        lb.fit(nn.Linear(4, 2), Arrays(X, Y), likelihood=lb.Categorical(), epochs=1, batch=lambda batch: batch)
