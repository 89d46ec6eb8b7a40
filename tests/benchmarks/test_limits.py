import pytest
import torch
import torch.nn.functional as F
from torch import nn

from leanbayes.evaluation.cost import count_flops
from limits import (
    LayerUse,
    Machine,
    Work,
    layers_used,
    masked_flops,
    measure_machine,
    prediction_work,
    step_work,
    unique_bytes,
)

MACHINE = Machine(flops=100.0, bandwidths={8: 1000.0, 512: 10.0})


def test_the_work_of_a_linear_layer_is_its_closed_form() -> None:
    n, inputs, outputs = 5, 7, 3
    layer, x = nn.Linear(inputs, outputs), torch.randn(5, 7)
    (use,) = layers_used([nn.ModuleDict({"fc": layer})], ["fc"], lambda: layer(x))
    assert use == LayerUse("fc", n * inputs, n)
    assert use.flops(layer.weight.numel()) == 2 * n * inputs * outputs == count_flops(lambda: layer(x))
    momentum = [torch.zeros_like(p) for p in layer.parameters()]
    numbers = (inputs + 1) * outputs
    work = step_work(0, [*layer.parameters(), *momentum], [use])
    assert work.nbytes == 4 * (2 * 2 * numbers + 2 * n * inputs)  # both are read and written
    assert work.resident == 4 * (2 * numbers + n * inputs)
    assert prediction_work(0, layer.parameters(), [use, use]).resident == 4 * n * inputs
    assert prediction_work(0, layer.parameters(), [use]).nbytes == 4 * (numbers + 2 * n * inputs)
    assert prediction_work(0, layer.parameters(), [use], streams=2).nbytes == 4 * (numbers + 4 * n * inputs)


def test_the_work_of_a_convolution_is_its_closed_form() -> None:
    n, channels, outputs, kernel, side = 2, 3, 4, 3, 8
    layer, x = nn.Conv2d(channels, outputs, kernel, stride=2, padding=1), torch.randn(2, 3, 8, 8)
    (use,) = layers_used([nn.ModuleDict({"conv": layer})], ["conv"], lambda: layer(x))
    places = n * (side // 2) ** 2
    assert use == LayerUse("conv", n * channels * side**2, places)
    expected = 2 * places * channels * outputs * kernel**2
    assert use.flops(layer.weight.numel()) == expected == count_flops(lambda: layer(x))


@pytest.mark.parametrize("density", [1.0, 0.25])
def test_products_under_masks_count_for_stored_entries(density: float) -> None:
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.Flatten(), nn.Linear(6 * 16, 5))
    x, y = torch.randn(2, 3, 8, 8), torch.tensor([0, 1])
    uses = layers_used([plain], ["0", "2", "4"], lambda: plain(x))
    masks = {}
    for name in ("2", "4"):
        masks[name] = torch.zeros(plain.get_submodule(name).weight.shape, dtype=torch.bool)  # type: ignore[arg-type]
        masks[name].flatten()[: int(density * masks[name].numel())] = True
    forward = masked_flops(uses, plain, masks, training=False)
    step = masked_flops(uses, plain, masks, training=True)
    if density == 1.0:
        assert forward == count_flops(lambda: plain(x))
        assert step == count_flops(lambda: F.cross_entropy(plain(x), y).backward())
    else:
        first = 2 * 2 * 36 * 4 * 27
        assert forward - first == density * (count_flops(lambda: plain(x)) - first)
        assert step == 3 * forward - first


def test_entries_under_masks_need_not_be_moved() -> None:
    weight = torch.zeros(10)
    assert step_work(0, [weight, torch.zeros(10)], [], unkept=12).nbytes == 2 * 4 * (20 - 12)
    assert prediction_work(0, [weight], [], unkept=6).nbytes == 4 * (10 - 6)


def test_a_storage_counts_once() -> None:
    weight = torch.zeros(10)
    assert unique_bytes([weight, weight.view(5, 2), torch.zeros(3)]) == 4 * 13


def test_the_limit_is_the_slower_of_products_and_bytes() -> None:
    assert Work(1000, 10, 10).seconds(MACHINE) == 10.0
    assert Work(1, 1000, 1000).seconds(MACHINE) == 100.0
    assert Work(0, 1000, 500).seconds(MACHINE) == 1.0  # what must be there at once is small enough for the cache
    assert Work(0, 4, 4).seconds(MACHINE) == 0.004  # smaller than all that was measured


def test_the_best_of_two_measurements_counts() -> None:
    other = Machine(flops=50.0, bandwidths={8: 2000.0, 512: 5.0}, rates={"matrix product": 50.0})
    best = MACHINE.best(other)
    assert (best.flops, best.bandwidths) == (100.0, {8: 2000.0, 512: 10.0})


def test_no_product_is_faster_than_the_measured_peak() -> None:
    machine = measure_machine(rounds=2, sizes=(2**16, 2**20))
    assert machine.flops == max(machine.rates.values()) > 1e8
    assert set(machine.bandwidths) == {2**16, 2**20}
    assert all(rate > 1e7 for rate in machine.bandwidths.values())


def test_calls_in_several_networks_and_passes_add_up() -> None:
    networks = [nn.ModuleDict({"a": nn.Linear(2, 2)}) for _ in range(3)]
    x = torch.ones(4, 2)
    uses = layers_used(networks, ["a"], lambda: [network["a"](network["a"](x)) for network in networks])
    assert len(uses) == 6
    assert sum(use.inputs for use in uses) == 6 * 8
    for network in networks:
        assert not network["a"]._forward_hooks  # the hooks are gone
