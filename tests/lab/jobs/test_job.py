"""Jobs, what they need, and what came of them."""

from pathlib import Path
from typing import Any

import pytest

from leanbayes.errors import ForeignFile, InputError
from leanbayes.lab.jobs import Job, Needs, Outcome, this_machine


def test_a_job_comes_back_from_its_record() -> None:
    job = Job("vi-0", Needs(2, 1.5, 1), {"slot": 3})
    assert Job.of(job.record(), Path("jobs/a.json")) == job


@pytest.mark.parametrize("key", ["", "../up", "a/b", ".hidden", "x" * 121])
def test_a_key_that_is_no_file_name_is_refused(key: str) -> None:
    with pytest.raises(InputError, match="letters, digits"):
        Job(key)


@pytest.mark.parametrize("record", [None, {}, {"key": "a", "needs": {"tails": 1}, "payload": {}}, "text"])
def test_a_damaged_job_is_refused(record: Any) -> None:
    with pytest.raises(ForeignFile, match="remove the folder"):
        Job.of(record, Path("queue/jobs/a.json"))


@pytest.mark.parametrize("record", [None, {}, [], {"key": "a"}])
def test_a_damaged_outcome_is_refused(record: Any) -> None:
    with pytest.raises((ForeignFile, TypeError)):
        Outcome.of(record, Path("done/a/outcome.json"))


def test_needs_fit_or_do_not() -> None:
    machine = this_machine()
    assert Needs().fits(machine)
    assert Needs(cores=machine.cores + 1).fits(machine)  # it is only slower there
    assert not Needs(memory=2 * machine.memory).fits(machine)
    assert not Needs(gpus=machine.gpus + 1).fits(machine)
    assert str(Needs(2, 4, 1)) == "2 cores, 4 GB of memory, 1 GPU"
    with pytest.raises(InputError, match="at least 1 core"):
        Needs(cores=0)
