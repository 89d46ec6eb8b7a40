"""The parameters of a model as slots."""

import pytest
import torch
from torch import nn

from leanbayes.errors import InputError
from leanbayes.subspace import everything, layers, not_norm, random_k, slots_of, top_k
from tests.subspace.models import NAMES, Net


class TestSlots:
    def test_every_parameter_once_with_its_owner(self):
        model = Net()
        slots = slots_of(model)
        assert [slot.name for slot in slots] == NAMES
        by_name = {slot.name: slot for slot in slots}
        assert by_name["token"].module is model
        assert by_name["token"].layer == ""
        assert by_name["layer4.0.1.bias"].module is model.layer4[0][1]
        assert by_name["layer4.0.1.bias"].layer == "layer4.0.1"
        assert by_name["fc.weight"].parameter is model.fc.weight

    def test_a_tied_parameter_is_listed_under_its_first_name(self):
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model[1].weight = model[0].weight
        assert [slot.name for slot in slots_of(model)] == ["0.weight", "0.bias", "1.bias"]

    def test_frozen_ones_are_listed_and_integers_are_not(self):
        model = nn.Linear(2, 1)
        model.bias.requires_grad_(False)
        model.count = nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False)
        assert [slot.name for slot in slots_of(model)] == ["weight", "bias"]

    def test_a_lazy_model_is_refused_by_every_subspace(self):
        model = nn.Sequential(nn.Linear(2, 3), nn.LazyLinear(1))
        for choice in (everything(), layers("*"), random_k(k=1), top_k({}, k=1)):
            with pytest.raises(InputError, match=r"'1\.weight' has no shape yet; run one batch through"):
                choice.select(model)


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm1d(2), nn.BatchNorm2d(2), nn.BatchNorm3d(2), nn.SyncBatchNorm(2), nn.InstanceNorm2d(2, affine=True),
        nn.GroupNorm(1, 2), nn.LayerNorm(2), nn.RMSNorm(2),
    ],
    ids=lambda norm: type(norm).__name__,
)  # fmt: skip
def test_not_norm_knows_every_norm_of_torch(norm):
    model = nn.Sequential(nn.Linear(2, 2), norm)
    assert [slot.name for slot in slots_of(model) if not_norm(slot)] == ["0.weight", "0.bias"]
    assert len(slots_of(model)) > 2
