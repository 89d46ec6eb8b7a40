import math
from typing import Any

import pytest
import torch

from leanbayes_papers import STUDIES, Job, Results
from leanbayes_papers.studies import nazarovs_confidence as confidence
from tests.papers.made_up import made_up

NAME = "nazarovs-confidence"
FEW, MANY = "radial, M = 1", "radial, M = 100"
EVERYWHERE = {(f"accuracy@{t:g}", MANY): 0.9 for t in confidence._THRESHOLDS}


@pytest.mark.parametrize(
    ("claim", "good", "bad"),
    [
        (confidence.HIGHER, EVERYWHERE, {**EVERYWHERE, ("accuracy@0.7", MANY): 0.4}),
        (confidence.SURER, {("accuracy@0.9", MANY): 0.9}, {("accuracy", MANY): 0.9}),
        (confidence.SURE, {("size@0.75", MANY): 0.9}, {("size@0.75", MANY): 0.8}),
        (confidence.DROP, {("accuracy", "deterministic"): 0.51}, {("accuracy", "deterministic"): 0.53}),
        (confidence.GAUSSIAN, {("accuracy", "radial, true ELBO"): 0.9}, {("accuracy", "normal, true ELBO"): 0.9}),
        (confidence.TABLE, EVERYWHERE, {}),
        (confidence.SIMILAR, {("size", MANY): 0.51}, {("size", MANY): 0.53}),
    ],
)
@pytest.mark.usefixtures("no_figures")
def test_verdicts_follow_the_numbers(claim: Any, good: Any, bad: Any) -> None:
    assert made_up(NAME, "cpu", good)[claim.text] == "holds"
    assert made_up(NAME, "cpu", bad)[claim.text] == "does not hold"


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confidence, "lines", lambda *arguments, **options: None)


@pytest.mark.parametrize(("wide", "answer"), [(FEW, "holds"), (MANY, "does not hold"), (None, "does not hold")])
def test_a_smaller_variance_is_a_smaller_distance_from_the_median(wide: str | None, answer: str) -> None:
    runs = [
        (Job(method, "radial", "x", seed), {"metrics": {"size": 0.5 + sign * (0.1 if method == wide else 1e-4)}})
        for method in (FEW, MANY)
        for seed, sign in enumerate([-1.1, 1, -0.9, 1.2, -1, 0.8])
    ]
    assert confidence._nearer(Results(runs), confidence.NARROWER, "size", "x", 0.005).answer == answer


def test_one_wild_replication_is_no_smaller_variance() -> None:
    sizes = {FEW: [0.5] * 5 + [0.9], MANY: [0.5] * 6}
    runs = [(Job(m, "radial", "x", i), {"metrics": {"size": v}}) for m in sizes for i, v in enumerate(sizes[m])]
    answer = confidence._nearer(Results(runs), confidence.NARROWER, "size", "x", 0.005).answer
    assert answer == "not testable here"


def test_confidence_sets_of_known_probabilities() -> None:
    probabilities = torch.tensor([[0.95, 0.05], [0.85, 0.15], [0.4, 0.6], [0.45, 0.55]])
    metrics = confidence._measures(probabilities, torch.tensor([0, 1, 1, 1]))
    assert metrics["accuracy"] == 0.75
    assert metrics["accuracy@0.5"] == 0.75
    assert metrics["accuracy@0.8"] == 0.5
    assert metrics["accuracy@0.9"] == 1
    assert "accuracy@0.99" not in metrics  # nobody is that sure
    assert [metrics[f"size@{t}"] for t in ("0.5", "0.6", "0.75", "0.9", "0.99")] == [1, 0.75, 0.5, 0.25, 0]
    assert metrics["size"] == pytest.approx((1 + 0.75 + 0.5 + 0.5 + 0.25 + 0) / 6)


def test_the_radius_of_a_ball_tells_77_per_cent_of_the_volumes() -> None:
    x, y = confidence.volumes(3000, 12, seed=3).tensors
    assert x.shape == (3000, 1, 12, 12, 12)
    assert y.float().mean() == 0.5
    random = torch.Generator().manual_seed(3)
    radius = 0.4 + 0.075 * y + 0.05 * torch.randn(3000, generator=random)
    right = ((radius > 0.4375) == (y == 1)).float().mean().item()
    truth = 0.5 * (1 + math.erf(0.75 / math.sqrt(2)))
    assert abs(right - truth) < 4 * math.sqrt(truth * (1 - truth) / 3000)
    brightness = x.sum((1, 2, 3, 4))
    # ∫ 4πr² sigmoid((R − r)/w) dr = 4π/3 (R³ + π²w²R), and a step of the grid is 2/11
    volume = 4 / 3 * math.pi * 5.5**3 * (radius**3 + (math.pi * 0.05) ** 2 * radius)
    assert torch.corrcoef(torch.stack([brightness, volume]))[0, 1] > 0.8
    assert (brightness - volume).mean().abs() < 0.01 * volume.mean()
    assert not torch.equal(confidence.volumes(4, 6, 0).tensors[0], confidence.volumes(4, 6, 1).tensors[0])


def test_volumes_are_asked_only_of_the_methods_that_table_2_compares() -> None:
    size = STUDIES[NAME].sizes["cpu"]
    jobs = STUDIES[NAME].jobs(size, range(2))
    assert {j.method for j in jobs if j.data == "volumes"} == {"deterministic", FEW, MANY}
    assert {j.epochs for j in jobs if j.data == "volumes"} == {20}
    assert len(jobs) == 2 * (len(size.methods) + 3)
