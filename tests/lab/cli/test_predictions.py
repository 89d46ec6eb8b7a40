"""The table of predictions, with names from strangers."""

import csv
import io

import torch

import leanbayes as lb
from leanbayes.lab.cli.predictions import Predictions
from leanbayes.lab.data import Preparation
from leanbayes.prediction import predict

HOSTILE = ("=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "\n=1")


def test_no_cell_is_a_formula() -> None:
    """Names of files and classes went into the table as they were, and a spreadsheet ran those that are formulas."""
    plan = Preparation("classes", (0.0,), (1.0,), HOSTILE, features=("a",))
    table = Predictions(plan)
    prediction = predict(torch.nn.Identity(), 9 * torch.eye(len(HOSTILE)), likelihood=lb.Categorical())
    for row, name in enumerate(HOSTILE):
        table.add(name, prediction, row)
    header, *rows = csv.reader(io.StringIO(table.text(), newline=""))
    assert [row[0] for row in rows] == [row[1] for row in rows] == [f"'{name}" for name in HOSTILE]
    for cell in (cell for row in (header, *rows) for cell in row):
        assert not cell.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))


def test_numbers_stay_numbers() -> None:
    """A class -1 and a negative mean are no formulas."""
    plan = Preparation("classes", (0.0,), (1.0,), ("-1", "1"), features=("a",))
    table = Predictions(plan)
    table.add("0", predict(torch.nn.Identity(), torch.tensor([[9.0, 0.0]]), likelihood=lb.Categorical()), 0)
    (row,) = csv.DictReader(io.StringIO(table.text()))
    assert row["predicted"] == "-1"
    plan = Preparation("regression", (0.0,), (1.0,), features=("a",), target_mean=(0.0,), target_std=(1.0,))
    table = Predictions(plan)
    table.add("0", predict(torch.nn.Identity(), torch.tensor([[-3.5]]), likelihood=lb.Gaussian()), 0)
    (row,) = csv.DictReader(io.StringIO(table.text()))
    assert row["mean"] == "-3.5"
