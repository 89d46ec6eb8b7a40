"""The budget refuses what no training can spend."""

import pytest

import leanbayes as lb
from leanbayes.lab.recipes import Budget, Run, parse, prepare
from tests import tasks


def test_bad_budgets() -> None:
    for values in ({"epochs": 0}, {"batch_size": 0}, {"lr": 0.0}):
        with pytest.raises(lb.errors.InputError):
            Budget(**values)
    with pytest.raises(lb.errors.InputError, match="two stages"):
        prepare(parse("vi"), tasks.classes(), Run(Budget(epochs=1)))
