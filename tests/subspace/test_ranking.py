"""The k highest scores are those of a stable sort of all scores, and no copy of the scores is made."""

import itertools

import pytest
import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.subspace import ranking
from leanbayes.subspace.ranking import Scores, all_finite, highest

from ..allocations import parameter_bytes, peak_bytes


def by_sorting(ranked: list[Scores], count: int) -> list[Tensor]:
    """The plain algorithm: sort all scores together, such that equals keep their order, and take the first."""
    tensors = []
    for scores in ranked:
        values = scores.values.double() if scores.values.is_floating_point() else scores.values.clone()
        if scores.last is not None:
            values = values.clone()
            values[scores.last] = -torch.inf if values.is_floating_point() else torch.iinfo(values.dtype).min
        tensors.append(values)
    order = torch.cat(tensors).sort(descending=True, stable=True).indices[:count].sort().values
    ends = torch.tensor([0, *[len(t) for t in tensors]]).cumsum(0).tolist()
    return [order[(order >= a) & (order < b)] - a for a, b in itertools.pairwise(ends)]


def spread(positions: Tensor | None, scores: Scores) -> list[int]:
    return list(range(len(scores.values))) if positions is None else positions.tolist()


KINDS = {
    "all different": lambda n: torch.randn(n),
    "many equals": lambda n: torch.randint(-3, 3, (n,)).float(),
    "all equal": lambda n: torch.zeros(n),
    "zeros of both signs": lambda n: torch.tensor([0.0, -0.0]).repeat(n)[:n] * torch.randint(0, 2, (n,)),
    "very large and very small": lambda n: torch.randn(n) * 10.0 ** torch.randint(-44, 38, (n,)),
    "double": lambda n: 1 + 1e-12 * torch.randint(0, 9, (n,)).double(),
    "bfloat16": lambda n: torch.randn(n).bfloat16(),
    "whole numbers": lambda n: torch.randint(-(2**40), 2**40, (n,)) // 3 * 3,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [7, 2**20])
def test_it_chooses_as_a_stable_sort_does(kind: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking, "_CHUNK", chunk)
    torch.manual_seed(3)
    ranked = [Scores(KINDS[kind](n)) for n in (5, 1, 40, 8)]
    ranked[2] = Scores(ranked[2].values, slice(10, 15))
    for count in (1, 2, 13, 30, 48, 49):  # 49 are all but the five that come last
        chosen = highest(ranked, count)
        expected = by_sorting(ranked, count)
        assert [spread(p, s) for p, s in zip(chosen, ranked, strict=True)] == [p.tolist() for p in expected]


def test_scores_of_several_types_are_compared_as_numbers() -> None:
    ranked = [Scores(torch.tensor([1.0, 3.0]).half()), Scores(torch.tensor([2.0, 3.0 + 1e-9], dtype=torch.float64))]
    assert [spread(p, s) for p, s in zip(highest(ranked, 1), ranked, strict=True)] == [[], [1]]


def test_without_ties_the_choice_is_that_of_topk() -> None:
    """Until this module existed, torch.topk of all scores together chose."""
    torch.manual_seed(0)
    scores = torch.rand(50_000)
    (chosen,) = highest([Scores(scores)], 500)
    assert chosen is not None
    assert torch.equal(chosen.long(), scores.topk(500).indices.sort().values)


def test_finite() -> None:
    assert all_finite(torch.tensor([1.0, -2.0]))
    assert all_finite(torch.zeros(0))
    for bad in (torch.nan, torch.inf, -torch.inf):
        assert not all_finite(torch.tensor([1.0, bad, 2.0]))


def test_sensitivity_and_top_k_take_less_than_one_and_a_half_times_the_parameters() -> None:
    """The scores themselves are once the parameters. No gradients of the whole model and no joined scores may exist."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(24)])
    x = torch.randn(4, 256)
    size = parameter_bytes(model)

    def work() -> None:
        scores = lb.sensitivity(model, [(x, x), (x, -x)], nn.functional.mse_loss)
        lb.Bayesian(model, subspace=lb.top_k(scores, rate=0.01))

    ranking_chunk = 2**16  # a chunk as large as one of the tensors; the true one is larger than this whole model
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranking, "_CHUNK", ranking_chunk)
        assert size < peak_bytes(work) < 1.5 * size


def test_gradients_by_example_take_no_more_in_a_large_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("leanbayes.subspace.scores._CHUNK_NUMBERS", 1)
    model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(24)])
    x = torch.randn(3, 64)
    peak = peak_bytes(lambda: lb.sensitivity(model, [(x, x)], nn.functional.mse_loss, per="example"))
    assert parameter_bytes(model) < peak < 1.5 * parameter_bytes(model)
