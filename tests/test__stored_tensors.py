"""Models are loaded tensor by tensor: no second copy, also from the meta device, and the same numbers."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes import _stored_tensors
from leanbayes._files import tensor_checksum, write_tensors
from leanbayes._stored_tensors import StoredTensors, home, open_tensors

from .allocations import parameter_bytes, peak_bytes


@pytest.mark.parametrize("block", [8, 24, 2**22])
def test_every_dtype_and_shape_comes_back(tmp_path: Path, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_stored_tensors, "_BLOCK", block)
    torch.manual_seed(0)
    written = {
        "double": torch.randn(3, 5, dtype=torch.float64),
        "half": torch.randn(7).half(),
        "brain": torch.randn(2, 3).bfloat16(),
        "number": torch.tensor(2.5),
        "nothing": torch.zeros(0, 3),
        "truth": torch.tensor([True, False]),
        "whole": torch.arange(11, dtype=torch.int32),
    }
    write_tensors(tmp_path / "x", written, {"kind": "model", "format": 1})
    with open_tensors(tmp_path / "x", "model", 1) as (header, stored):
        assert header["kind"] == "model"
        assert set(stored) == set(written)
        assert len(stored) == len(written)
        for name, value in written.items():
            assert torch.equal(stored[name], value)
            assert stored[name].dtype == value.dtype
            assert stored.digest(name) == tensor_checksum(value)
        turned = torch.zeros(5, 3, dtype=torch.float64).T
        stored.read_into("double", turned)
        assert torch.equal(turned, written["double"])


def test_a_file_that_shrinks_while_it_is_read(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x", {"a": torch.zeros(100)}, {"kind": "model", "format": 1})
    with open_tensors(tmp_path / "x", "model", 1) as (_, stored):
        (tmp_path / "x").write_bytes((tmp_path / "x").read_bytes()[:-10])
        with pytest.raises(lb.errors.TruncatedFile, match="shorter while it was read"):
            stored["a"]


def wide(layers: int = 12, width: int = 128) -> nn.Sequential:
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])


@pytest.mark.parametrize("rate", [0.01, None])
def test_load_makes_no_second_copy_of_the_model(tmp_path: Path, rate: float | None) -> None:
    """Beside the model there may be one of its tensors, and the scales and positions that become part of it."""
    bnn = lb.Bayesian(wide(), subspace=lb.random_k(rate) if rate else None)
    lb.save(bnn, tmp_path / "x")
    size, model = parameter_bytes(bnn.model), wide()
    added = parameter_bytes(bnn) - size
    assert peak_bytes(lambda: lb.load(tmp_path / "x", model)) < 2 * added + size / 3
    with torch.device("meta"):
        empty = wide()
    assert size < peak_bytes(lambda: lb.load(tmp_path / "x", empty)) < size + 2 * added + size / 3


def test_save_makes_no_copy_of_the_model(tmp_path: Path) -> None:
    bnn = lb.Bayesian(wide(), subspace=lb.random_k(0.01))
    assert peak_bytes(lambda: lb.save(bnn, tmp_path / "x")) < parameter_bytes(bnn.model) / 10


class Tied(nn.Module):
    """A network with tied weights, a saved buffer, and one buffer that is not saved if the caller asks for it."""

    def __init__(self, unsaved: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 5, padding_idx=1)
        self.norm = nn.BatchNorm1d(5)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.norm.bias.requires_grad_(False)
        if unsaved:
            self.register_buffer("angles", torch.arange(5.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.embedding(x)))  # type: ignore[no-any-return]


def test_a_model_on_the_meta_device_is_filled(tmp_path: Path) -> None:
    torch.manual_seed(0)
    bnn = lb.Bayesian(Tied(), subspace=lb.random_k(0.5), prior=lb.priors.CentredPrior())
    bnn.model.norm.running_mean.normal_()  # type: ignore[union-attr,operator]
    lb.save(bnn, tmp_path / "x")
    with torch.device("meta"):
        model = Tied()
    loaded: Any = lb.load(tmp_path / "x", model)
    assert loaded.model is model
    assert model.head.weight is model.embedding.weight
    assert not any(value.is_meta for value in loaded.state_dict().values())
    assert [p.requires_grad for p in model.parameters()] == [p.requires_grad for p in bnn.model.parameters()]
    for name, value in bnn.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name]), name
    x, seed = torch.tensor([1, 2, 3]), torch.Generator().manual_seed(1)
    first = bnn.eval()(x, generator=seed)
    assert torch.equal(first, loaded.eval()(x, generator=seed.manual_seed(1)))


def test_a_load_that_fails_leaves_the_meta_device_alone(tmp_path: Path) -> None:
    lb.save(lb.Bayesian(Tied()), tmp_path / "x")
    with torch.device("meta"):
        model = Tied()
    with pytest.raises(lb.errors.NoClosedForm):
        lb.load(tmp_path / "x", model, prior=torch.distributions.Cauchy(0.0, 1.0))
    assert all(p.is_meta for p in model.parameters())


def test_what_no_file_holds_must_not_lie_on_the_meta_device(tmp_path: Path) -> None:
    lb.save(lb.Bayesian(Tied(unsaved=True)), tmp_path / "x")
    with torch.device("meta"):
        model = Tied(unsaved=True)
    with pytest.raises(lb.errors.InputError, match=r"'angles' lies on the meta device.*init_empty_weights"):
        lb.load(tmp_path / "x", model)
    model.angles = torch.arange(5.0)
    assert not any(p.is_meta for p in lb.load(tmp_path / "x", model).parameters())


def test_scales_alone_need_weights(tmp_path: Path) -> None:
    lb.save(lb.Bayesian(Tied()), tmp_path / "x", only="random")
    with torch.device("meta"):
        model = Tied()
    with pytest.raises(lb.errors.InputError, match=r"scales alone.*load the weights first"):
        lb.load(tmp_path / "x", model)


@pytest.mark.parametrize("subspace", [None, lb.random_k(0.1), lb.layers("0")])
def test_a_bayesian_of_a_meta_model_can_be_filled(subspace: Any) -> None:
    with torch.device("meta"):
        model = wide(2, 8)
    empty = lb.Bayesian(model, subspace=subspace)
    full = lb.Bayesian(wide(2, 8), subspace=subspace)
    assert empty.summary() == full.summary()
    assert empty(torch.zeros(3, 8, device="meta")).shape == (3, 8)
    empty.load_state_dict(full.state_dict(), assign=True)
    x, seed = torch.randn(3, 8), torch.Generator().manual_seed(1)
    assert torch.equal(empty(x, generator=seed), full(x, generator=seed.manual_seed(1)))


def test_a_bayesian_of_a_meta_model_takes_no_memory() -> None:
    with torch.device("meta"):
        model = wide(2, 4096)
    assert peak_bytes(lambda: lb.Bayesian(model)) < 10_000


class OwnWay(nn.Linear):
    """A layer that saves its weight turned, and turns it again when it is loaded."""

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[f"{prefix}weight"] = -self.weight.detach()

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        turned = {**state_dict, f"{prefix}weight": -state_dict[f"{prefix}weight"]}
        super()._load_from_state_dict(turned, prefix, *args)


def test_a_layer_with_a_way_of_its_own_to_load_keeps_it(tmp_path: Path) -> None:
    model = nn.Sequential(OwnWay(2, 2), nn.Linear(2, 2))
    lb.save(model, tmp_path / "x")
    again = lb.load(tmp_path / "x", nn.Sequential(OwnWay(2, 2), nn.Linear(2, 2)))
    assert torch.equal(again[0].weight, model[0].weight)
    assert torch.equal(again[1].weight, model[1].weight)


def test_home() -> None:
    assert home(torch.zeros(1)) == torch.device("cpu") == home(torch.zeros(1, device="meta"))
    with torch.device("meta"):
        assert home(torch.zeros(1)) == torch.device("cpu")


def test_numbers_of_an_unknown_type(tmp_path: Path) -> None:
    with (tmp_path / "x").open("wb+") as file:
        stored = StoredTensors(tmp_path / "x", file, {"a": {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}, 0)
        with pytest.raises(lb.errors.ForeignFile, match="type F4"):
            stored["a"]
