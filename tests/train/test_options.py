"""The records of `fit` check their values when they are built, and say what to do."""

import dataclasses
import math
from typing import Any

import pytest
import torch

import leanbayes as lb


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"optimizer": "magic"}, r"unknown optimizer 'magic'.*adam"),
        ({"optimizer": 3}, r"name of.*adam.*got 3"),
        ({"schedule": "magic"}, r"unknown schedule of the learning rate 'magic'.*cosine"),
        ({"schedule": "anneal"}, r"unknown schedule of the learning rate 'anneal'.*cosine"),
        ({"schedule": 3}, "got 3"),
        ({"lr": 0.0}, r"lr must be a positive, finite number, got 0\.0"),
        ({"lr": math.nan}, "got nan"),
        ({"lr": math.inf}, "got inf"),
        ({"scale_lr": -1.0}, "scale_lr.*leave it None"),
        ({"clip": 0.0}, "clip.*leave it None"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"weight_decay": math.nan}, "weight_decay"),
        ({"micro_batches": 0}, "micro_batches"),
        ({"micro_batches": 1.5}, "micro_batches"),
        ({"patience": 0}, "patience"),
        ({"mixed_precision": "half"}, r"'half'.*bf16"),
    ],
)
def test_a_bad_optimization_is_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(lb.errors.InputError, match=words):
        lb.Optimization(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"folder": ""}, "folder"),
        ({"folder": None}, "folder"),
        ({"folder": "run", "every": 0}, "every"),
        ({"folder": "run", "keep": 0}, "keep must be a whole number of at least 1, got 0"),
    ],
)
def test_a_bad_checkpointing_is_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(lb.errors.InputError, match=words):
        lb.Checkpointing(**options)


def test_the_records_are_frozen() -> None:
    for record, name in ((lb.Optimization(), "lr"), (lb.Checkpointing("run"), "keep")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(record, name, 3)


def test_every_kind_of_optimizer_is_accepted() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    for choice in ("adamw", torch.optim.SGD([parameter], lr=0.1), torch.optim.RMSprop, lambda groups: None):
        assert lb.Optimization(choice).optimizer is choice
