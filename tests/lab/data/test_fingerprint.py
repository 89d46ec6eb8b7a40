"""A fingerprint of data: the same for the same, another for any set that has changed."""

import pytest

from leanbayes.lab.data.fingerprint import fingerprint
from tests import tasks


def test_the_same_data_have_the_same_fingerprint() -> None:
    assert fingerprint(tasks.classes()) == fingerprint(tasks.classes())
    assert fingerprint(tasks.classes()) != fingerprint(tasks.pictures())


@pytest.mark.parametrize("name", ["train", "validation", "test"])
@pytest.mark.parametrize("part", [0, 1])
def test_a_change_in_any_set_is_seen(name: str, part: int) -> None:
    task = tasks.classes()
    getattr(task, name).tensors[part][0] += 1
    assert fingerprint(task) != fingerprint(tasks.classes())
