"""What a study must state, and what a saved result depends on."""

from dataclasses import replace

import pytest

from leanbayes.errors import InputError, UnknownName
from leanbayes.lab.recipes import Budget
from leanbayes_papers import Job, Results, Verdict
from leanbayes_papers.study import every_job
from tests.papers import stub


@pytest.mark.parametrize("name", ["", "all", "Two Words", "a/b", "é"])
def test_a_name_goes_into_files_and_commands(name: str) -> None:
    with pytest.raises(InputError, match="name"):
        stub.study(name=name)


def test_sizes_claims_methods_and_answers_are_checked() -> None:
    with pytest.raises(InputError, match="smoke, cpu, paper"):
        stub.study(sizes={"smoke": stub.size()})
    for claims in ((), (stub.BETTER, stub.BETTER)):
        with pytest.raises(InputError, match="claims"):
            stub.study(claims=claims)
    with pytest.raises(UnknownName, match="magic"):
        stub.size(methods={"a": "magic"})
    for bad in ({"seeds": 0}, {"samples": 0}, {"data": ()}, {"methods": {}}):
        with pytest.raises(InputError, match="at least one"):
            stub.size(**bad)
    with pytest.raises(UnknownName, match="perhaps"):
        Verdict(stub.BETTER, "perhaps", "")  # type: ignore[arg-type]


def test_every_job_is_every_method_on_all_data_with_every_seed() -> None:
    jobs = every_job(stub.size(data=("x", "y")), [3, 5])
    assert len(jobs) == len(set(jobs)) == 8
    assert {(job.method, job.data, job.seed) for job in jobs} == {(m, d, s) for m in "ab" for d in "xy" for s in (3, 5)}


def test_keys_tell_apart_whatever_changes_numbers_and_nothing_else() -> None:
    size, job = stub.size(), Job("a", "partial:rate=0.1", "mnist", 0)
    for change in (
        {"budget": Budget(epochs=3)}, {"samples": 9}, {"counts": (1, None, None)}, {"options": {"angle": 5}},
    ):  # fmt: skip
        assert replace(size, **change).key() != size.key()
    for same in ({"seeds": 9}, {"minutes": 7}, {"scaled": "nothing"}, {"methods": {"c": "vi"}}):
        assert replace(size, **same).key() == size.key()
    for change in ({"spec": "partial:rate=0.2"}, {"seed": 1}, {"data": "x"}, {"epochs": 3}, {"variant": "random"}):
        assert replace(job, **change).key() != job.key()
    assert job.key()["recipe"]["init_scale"] == 0.01  # a default that changes makes other numbers


def test_a_column_is_by_data_and_seed_and_leaves_out_what_is_missing() -> None:
    runs = [
        (Job("a", "vi", "x", 0), {"metrics": {"nll": 1.0}}),
        (Job("a", "vi", "y", 0), {"metrics": {"nll": 2.0}}),
        (Job("a", "vi", "y", 1), {"metrics": {}}),
        (Job("b", "vi", "x", 0), {"metrics": {"nll": 3.0}}),
    ]
    results = Results(runs)
    assert results.column("nll", "a") == {("x", 0): 1.0, ("y", 0): 2.0}
    assert results.column("nll", "a", "y") == {("y", 0): 2.0}
    assert results.column("nll", "c") == {}
    assert results.methods() == ["a", "b"]
    assert results.first("b", "y") is None
