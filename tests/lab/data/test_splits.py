from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leanbayes.errors import InputError
from leanbayes.lab.data.splits import complete, divide

SHARES = {"validation": 0.15, "test": 0.15}


@given(st.lists(st.integers(0, 5), min_size=1, max_size=200), st.integers(0, 5))
@settings(max_examples=100, deadline=None)
def test_every_example_is_in_one_set_and_every_group_in_training(groups: list[int], seed: int) -> None:
    parts = divide(groups, SHARES, seed)
    assert sorted(index for rows in parts.values() for index in rows) == list(range(len(groups)))
    assert {groups[index] for index in parts["train"]} == set(groups)


@given(st.lists(st.integers(7, 60), min_size=1, max_size=8), st.integers(0, 3))
@settings(max_examples=50, deadline=None)
def test_each_group_has_its_share_to_within_one(sizes: list[int], seed: int) -> None:
    groups = [group for group, size in enumerate(sizes) for _ in range(size)]
    parts = divide(groups, SHARES, seed)
    for name, share in SHARES.items():
        assert abs(len(parts[name]) - share * len(groups)) <= 0.5 + 1e-9
        counts = Counter(groups[index] for index in parts[name])
        assert all(abs(counts[group] - share * size) <= 1 + 1e-9 for group, size in enumerate(sizes))


def test_seed_decides() -> None:
    groups = [0, 1] * 20
    assert divide(groups, SHARES, 1) == divide(groups, SHARES, 1)
    assert divide(groups, SHARES, 1) != divide(groups, SHARES, 2)


def test_many_groups_of_one_all_stay_in_training() -> None:
    assert divide(list(range(30)), SHARES, 0) == {"train": list(range(30)), "validation": [], "test": []}


def test_only_missing_sets_are_taken_from_training() -> None:
    sets = complete({"train": range(100), "test": range(1000, 1007)}, lambda _: 0, 0, Path("here"))
    assert sets["test"] == list(range(1000, 1007))
    assert len(sets["validation"]) == 15
    assert sorted(sets["train"] + sets["validation"]) == list(range(100))
    given_all = {"train": [3], "validation": [2], "test": [1]}
    assert complete(given_all, lambda _: 0, 0, Path("here")) == given_all


def test_too_few_to_divide() -> None:
    with pytest.raises(InputError, match=r"here has too few examples \(3\) to set some aside for validation"):
        complete({"train": range(3)}, lambda _: 0, 0, Path("here"))
