"""Plans are computed once for an index, and die with it."""

import torch
import torch.nn.functional as F

from leanbayes._ops import sparse_plan
from leanbayes._ops.sparse import conv
from tests._ops.cases import assert_equal, dense, pattern


def test_a_plan_is_built_once_for_an_index_and_anew_when_it_changes(monkeypatch):
    built = []
    build = sparse_plan._plan
    monkeypatch.setattr(sparse_plan, "_plan", lambda *a: built.append(1) or build(*a))
    index, mean, _ = pattern((8, 4, 3), 0.3, torch.float64)
    x = torch.randn(40, 4, 9, dtype=torch.float64)
    for _ in range(3):
        conv(x.requires_grad_(), index, (8, 4, 3), mean, kernel="numba").sum().backward()
    assert len(built) == 1
    other = (index + 1) % 96
    with torch.no_grad():
        index.copy_(other.sort().values)
    y = conv(x, index, (8, 4, 3), mean, kernel="numba")
    assert len(built) == 2
    assert_equal([y], [F.conv1d(x, dense(mean, index, (8, 4, 3)))], 12)
    for size in range(9, 20):
        conv(torch.randn(40, 4, size, dtype=torch.float64), index, (8, 4, 3), mean, kernel="numba")
    assert len(sparse_plan._PLANS[index][1]) == sparse_plan._KEPT


def test_plans_die_with_their_index():
    index, mean, _ = pattern((8, 4, 3), 0.3, torch.float64)
    before = len(sparse_plan._PLANS)
    conv(torch.randn(40, 4, 9, dtype=torch.float64), index, (8, 4, 3), mean, kernel="numba")
    assert len(sparse_plan._PLANS) == before + 1
    del index
    assert len(sparse_plan._PLANS) == before
