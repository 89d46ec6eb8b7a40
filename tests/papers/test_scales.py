"""Jobs record how their scales moved, whatever the study makes of the training."""

from typing import Any

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes_papers.scales import collecting, log_scales, note, still
from leanbayes_papers.study import Job
from leanbayes_papers.training import train
from tests import tasks
from tests.papers import stub


def test_the_record_is_that_of_the_scales() -> None:
    torch.manual_seed(0)
    bnn = lb.Bayesian(nn.Linear(30, 20), posterior=lb.posteriors.Normal(lb.posteriors.GaussianRho(-2.0, 0.5)))
    sigma = torch.cat([torch.log1p(parts.rho.detach().double().exp()).flatten() for _, parts in bnn.parts()])
    start = log_scales(bnn)
    assert start is not None
    with torch.no_grad():
        for _, parts in bnn.parts():
            parts.rho.add_(1.0)
    after = torch.cat([torch.log1p(parts.rho.detach().double().exp()).flatten() for _, parts in bnn.parts()])
    with collecting() as records:
        note("vi", start, log_scales(bnn))
        note("plain", None, None)
    (record,) = records
    assert record["stage"] == "vi"
    for name, scales in (("start", sigma), ("end", after)):
        ordered = scales.sort().values
        for value, level in zip(record[name], (0.05, 0.25, 0.5, 0.75, 0.95), strict=True):
            place = int(level * (len(ordered) - 1))
            assert ordered[place] * (1 - 1e-6) <= value <= ordered[place + 1] * (1 + 1e-6)
    assert record["moved"] == pytest.approx((after / sigma).log().abs().median().item(), rel=1e-5)
    assert not still({"scales": records})
    assert log_scales(nn.Linear(2, 2)) is None
    note("outside", start, start)  # nobody collects
    assert len(records) == 1


@pytest.mark.parametrize(("spec", "stages", "moves"), [
    ("deterministic", [], None),
    ("partial:rate=0.2,scale_lr=0.1", ["partial"], True),
    ("vi:scale_lr=1e-9", ["vi"], False),
])  # fmt: skip
def test_every_training_of_a_job_is_recorded(spec: str, stages: list[str], moves: Any) -> None:
    size = stub.size()
    with collecting() as records:
        train(Job("m", spec, "blobs", 0, epochs=4), size, tasks.classes())
    assert [record["stage"] for record in records] == stages
    if moves is not None:
        assert still({"scales": records}) is not moves
