"""Which weights go and which come: schedules and the plan of a move, against plain sets."""

import math
from typing import Any

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import leanbayes as lb
from leanbayes.subspace import Move, Rewire, plan_move, removal_scores
from leanbayes.subspace.blocks import Blocks


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"removal": "size"}, "removal criterion 'size'.*snr_magnitude"),
        ({"addition": "best"}, "addition criterion 'best'.*draws"),
        ({"draws": 0}, "draws"),
        ({"every": 0}, "every"),
        ({"rate": 0.0}, "rate"),
        ({"rate": 1.0}, "rate"),
        ({"rate": math.nan}, "rate"),
        ({"stop": 0.0}, "stop"),
        ({"stop": 1.1}, "stop"),
        ({"new_scale": 0.0}, "new_scale"),
        ({"new_scale": math.inf}, "new_scale"),
        ({"new_scale": "small"}, "new_scale"),
    ],
)
def test_bad_settings_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(lb.errors.InputError, match=words):
        Rewire(**options)


def test_any_positive_number_is_a_scale() -> None:
    assert Rewire(new_scale=1).new_scale == 1


def test_when_weights_move_and_how_many() -> None:
    how = Rewire(every=7, stop=0.5, rate=0.4)
    due = [step for step in range(1, 101) if how.due(step, 100)]
    assert due == [7, 14, 21, 28, 35, 42, 49]
    for step in range(101):
        expected = 0.2 * (1 + math.cos(math.pi * step / 50)) if step < 50 else 0
        assert how.rate_at(step, 100) == pytest.approx(expected, abs=1e-15)
    assert not Rewire(every=1, stop=1.0).due(100, 100)  # after the last step nothing is trained any more


@pytest.mark.parametrize("removal", ["magnitude", "snr", "snr_magnitude", "expected_magnitude"])
def test_the_least_important_leave(removal: str) -> None:
    mean, scale = torch.randn(101), torch.rand(101) + 0.01
    result = Rewire(removal=removal).leaving(mean, scale, 0.305)
    scores = removal_scores(removal, mean, scale)
    assert len(result) == 30
    assert (result.diff() > 0).all()
    rest = torch.ones(101, dtype=torch.bool)
    rest[result] = False
    assert scores[result].max() <= scores[rest].min()
    assert len(Rewire(removal="magnitude").leaving(mean, None, 0.001)) == 0


@settings(max_examples=100, deadline=None, derandomize=True, phases=[Phase.generate])
@given(data=st.data(), size=st.integers(1, 40), ties=st.booleans())
def test_a_plan_against_sets(data: st.DataObject, size: int, ties: bool) -> None:
    """As many as before, sorted; who stayed stayed; who came has the largest gradients of all that were then zero."""
    count = data.draw(st.integers(1, size))
    leaves = data.draw(st.integers(0, count))
    torch.manual_seed(data.draw(st.integers(0, 2**31)))
    dtype = data.draw(st.sampled_from([torch.int32, torch.int64]))
    index = torch.randperm(size)[:count].sort().values.to(dtype)
    leaving = torch.randperm(count)[:leaves].sort().values
    gradient = torch.randint(-2, 3, (size,)).float() if ties else torch.randn(size)
    move = plan_move(index, leaving, gradient)
    before, gone = set(index.tolist()), set(index[leaving].tolist())
    after = move.index.tolist()
    assert after == sorted(set(after))
    assert len(after) == count
    assert move.index.dtype == dtype
    assert before - gone <= set(after) <= set(range(size))
    came, free = set(after) - (before - gone), set(range(size)) - (before - gone)
    assert len(came) == leaves
    if came and free - came:
        assert min(abs(gradient[i]) for i in came) >= max(abs(gradient[i]) for i in free - came)
    values = torch.arange(1.0, count + 1)
    carried = move.carried(values, -5.0)
    for place, value in zip(after, carried.tolist(), strict=True):
        assert value == (index.tolist().index(place) + 1 if place in before else -5)
    assert move.arrived.tolist() == [place not in before for place in after]


def test_a_weight_that_is_asked_for_again_keeps_its_value() -> None:
    index, values = torch.tensor([1, 4, 6]), torch.tensor([10.0, 40.0, 60.0])
    gradient = torch.zeros(2, 4)
    gradient[1, 0] = 9.0
    move = plan_move(index, torch.tensor([1]), gradient)
    assert move.index.tolist() == [1, 4, 6]
    assert move.carried(values).tolist() == [10, 40, 60]
    assert not move.arrived.any()


def test_a_full_layer_does_not_change() -> None:
    index = torch.arange(12)
    move = plan_move(index, torch.tensor([0, 3, 5]), torch.randn(3, 4))
    assert torch.equal(move.index, index)
    assert not move.arrived.any()


def test_numbers_are_carried_in_their_own_type() -> None:
    move = Move(torch.tensor([0, 2]), torch.tensor([1, -1]))
    for dtype in (torch.float64, torch.bfloat16):
        result = move.carried(torch.tensor([1.5, 2.5], dtype=dtype), torch.tensor([0.25]))
        assert result.dtype == dtype
        assert result.tolist() == [2.5, 0.25]


@pytest.mark.parametrize("removal", ["magnitude", "snr", "snr_magnitude", "expected_exponential"])
def test_whole_blocks_leave_by_the_sum_of_their_scores(removal: str) -> None:
    torch.manual_seed(0)
    blocks = Blocks((12, 5, 3), 4)
    index = blocks.positions(torch.randperm(blocks.count)[:20])
    mean, scale = torch.randn(80), torch.rand(80) + 0.01
    result = Rewire(removal=removal).leaving(mean, scale, 0.3, blocks.places(index))
    number = blocks.numbers(index)
    scores = removal_scores(removal, mean, scale)
    sums = {n: float(scores[number == n].double().sum()) for n in set(number.tolist())}
    least = sorted(sums, key=lambda n: sums[n])[:6]
    assert result.tolist() == torch.isin(number, torch.tensor(least)).nonzero().squeeze(1).tolist()


@settings(max_examples=80, deadline=None, derandomize=True, phases=[Phase.generate])
@given(data=st.data(), bands=st.integers(1, 3), size=st.integers(2, 4), columns=st.integers(1, 9), ties=st.booleans())
def test_a_plan_of_blocks_against_sets(data: st.DataObject, bands: int, size: int, columns: int, ties: bool) -> None:
    """As for single weights: as many blocks as before, and those that came have the largest sums of |gradient|."""
    torch.manual_seed(data.draw(st.integers(0, 2**31)))
    blocks = Blocks((bands * size, columns), size)
    count = data.draw(st.integers(1, blocks.count))
    stored = torch.randperm(blocks.count)[:count].sort().values
    gone = torch.randperm(count)[: data.draw(st.integers(0, count))].sort().values
    index = blocks.positions(stored).int()
    leaving = blocks.places(index)[gone].flatten().sort().values
    shape = (bands * size, columns)
    gradient = torch.randint(-2, 3, shape).float() if ties else torch.randn(shape)
    move = plan_move(index, leaving, gradient, blocks)
    after = blocks.numbers(move.index[blocks.places(move.index)[:, 0]].long()).tolist()
    assert move.index.dtype == torch.int32
    assert move.index.tolist() == blocks.positions(torch.tensor(after)).tolist()
    assert len(set(after)) == len(after) == count
    stay = set(stored.tolist()) - set(stored[gone].tolist())
    assert stay <= set(after)
    came, free = set(after) - stay, set(range(blocks.count)) - stay
    sums = gradient.abs().view(bands, size, columns).sum(1).flatten()
    if came and free - came:
        assert min(sums[list(came)]) >= max(sums[list(free - came)])
    before = index.tolist()
    expected = [before.index(place) if place in before else -1 for place in move.index.tolist()]
    assert move.source.tolist() == expected
