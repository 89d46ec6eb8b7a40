from typing import Any

import pytest
import torch

from leanbayes.lab.models import small_resnet
from leanbayes.lab.recipes import parse
from leanbayes.lab.recipes.ssvi import SSVI
from leanbayes.subspace import REMOVAL
from leanbayes_papers import STUDIES, Job
from leanbayes_papers.studies import ssvi_cifar as cifar
from tests.papers.made_up import made_up

NAME = "ssvi-cifar"
DENSE, NINETY, NINETY_FIVE, DROPOUT = "dense vi", "ssvi 90 %", "ssvi 95 %", "variational dropout"
BETTER = {("accuracy", NINETY_FIVE): 0.9, ("nll", NINETY_FIVE): 0.1, ("ece", NINETY_FIVE): 0.1}
CHEAP = {("flops", DENSE): 10.0, ("stored", DENSE): 6.0}


@pytest.mark.parametrize(
    ("claim", "good", "bad"),
    [
        (cifar.TABLE_1, {("accuracy", DENSE): 0.515, ("ece", DENSE): 0.499}, {("ece", DENSE): 0.497}),
        (cifar.TABLE_1, {("ece", NINETY_FIVE): 0.1}, {("accuracy", DENSE): 0.53}),
        (cifar.COSTS, CHEAP, {**CHEAP, ("stored", DENSE): 4.0}),
        (cifar.TABLE_2, BETTER, {**BETTER, ("ece", DROPOUT): 0.05}),
        (cifar.SPARSITY, {("accuracy", "rigl 95 %"): 0.4}, {("accuracy", NINETY_FIVE): 0.4}),
        (cifar.SCALE, {("accuracy", DENSE): 0.4}, {("accuracy", DENSE): 0.4, ("accuracy", NINETY): 0.4}),
        (cifar.SCALE, {("accuracy", "dense vi, scale 0.001"): 0.6}, {}),
        (cifar.ABOVE, {("accuracy", NINETY): 0.6}, {("accuracy", DENSE): 0.6}),
        (cifar.CRITERION, {("accuracy", NINETY): 0.6}, {("accuracy", "ssvi 90 % by |μ|"): 0.7}),
        (cifar.ONE_DRAW, {("accuracy", "ssvi 90 %, 4 draws"): 0.505}, {("accuracy", "ssvi 90 %, 4 draws"): 0.52}),
        (cifar.NEW_SCALE, {}, {("accuracy", "ssvi 90 %, new σ 0.001"): 0.48}),
        (cifar.NEW_SCALE, {}, {("accuracy", "ssvi 90 %, new σ 0.001"): 0.52}),
    ],
)
@pytest.mark.usefixtures("no_figures")
def test_verdicts_follow_the_numbers(claim: Any, good: Any, bad: Any) -> None:
    assert made_up(NAME, "cpu", good)[claim.text] == "holds"
    assert made_up(NAME, "cpu", bad)[claim.text] == "does not hold"


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cifar, "lines", lambda *arguments, **options: None)


def test_every_spec_says_what_its_name_does() -> None:
    methods = {name: parse(spec) for name, spec in STUDIES[NAME].sizes["paper"].methods.items()}
    assert methods["ssvi 99 %"].density == methods["rigl 99 %"].density == 0.01  # type: ignore[attr-defined]
    assert methods["ssvi 95 %"].density == 0.05  # type: ignore[attr-defined]
    for name in (DENSE, NINETY):
        scales = [methods[each].init_scale for each in cifar._at_scales(name)]  # type: ignore[attr-defined]
        assert scales == [0.001, 0.003, 0.01]
    assert methods["ssvi 90 % by |μ|"].removal == "magnitude"  # type: ignore[attr-defined]
    assert methods["ssvi 90 %, 4 draws"].addition == "draws"  # type: ignore[attr-defined]
    jobs = STUDIES[NAME].jobs(STUDIES[NAME].sizes["cpu"], [0])
    assert [job.method for job in jobs if job.variant] == ["ssvi 90 %, new σ 0.001"]


def test_every_weight_of_the_network_does_something_and_most_of_the_small_resnets_do_not() -> None:
    def idle(model: torch.nn.Module) -> float:
        torch.manual_seed(0)
        model(torch.randn(64, 3, 32, 32)).square().sum().backward()
        kernels = [p for p in model.parameters() if p.dim() == 4]
        return sum((p.grad == 0).sum().item() for p in kernels) / sum(p.numel() for p in kernels)  # type: ignore[union-attr]

    assert idle(cifar.network(3, 10, (16, 64, 128))) == 0
    # the last two blocks have 1x1 positions: 5 of 9 weights idle in a strided kernel from 2x2, 8 of 9 in three others
    dead = 16 * 32 * 5 + (32 * 32 + 32 * 64 + 64 * 64) * 8
    kernels = 3 * 16 * 9 + 9 * (4 * 16 * 16 + 16 * 32 + 32 * 32 + 32 * 64 + 64 * 64) + 2 * 16 * 16 + 16 * 32 + 32 * 64
    assert idle(small_resnet(3, 10)) == pytest.approx(dead / kernels)
    assert dead / kernels > 0.7


def test_new_weights_start_with_the_small_scale_and_all_else_is_as_before() -> None:
    plain = SSVI(density=0.1, every=7, removal="magnitude")
    changed = cifar.NewScale(density=0.1, every=7, removal="magnitude", new_scale=0.002)
    assert plain.rewiring(100).new_scale == "mean"
    assert changed.rewiring(100) == type(plain.rewiring(100))(
        removal="magnitude", addition="draw", rate=0.3, every=7, stop=0.75, new_scale=0.002
    )


def test_a_sparse_job_stores_less_and_its_overlaps_are_a_table() -> None:
    size = STUDIES[NAME].sizes["smoke"]
    results = {
        name: cifar._run(Job(name, size.methods[name], "digits", 0, epochs=1), size, None) for name in (DENSE, NINETY)
    }
    dense, sparse = (results[name]["metrics"] for name in (DENSE, NINETY))
    assert dense["density"] == 1
    assert 0.1 < sparse["density"] < 0.25  # the first layer and the norms are dense
    assert sparse["stored"] < 0.3 * dense["stored"]
    assert sparse["flops"] <= dense["flops"]  # layers this small run dense
    assert "overlaps" not in results[DENSE]
    table = torch.tensor(results[NINETY]["overlaps"])
    assert table.shape == (6, 6)
    assert torch.equal(table, table.T)
    assert torch.equal(table.diagonal(), torch.ones(6))
    names = list(REMOVAL)
    assert table[names.index("snr"), names.index("snr_magnitude")] == 1  # they order weights alike
    assert table[names.index("magnitude"), names.index("snr_exponential")] < 0.5
