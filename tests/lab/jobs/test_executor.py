"""Executors: their names and options, and what is said if one is not there."""

import sys

import pytest

from leanbayes.errors import InputError, MissingPackage
from leanbayes.lab.jobs import EXECUTORS, Needs, plan_of


def test_texts_become_plans() -> None:
    assert set(EXECUTORS) == {"local", "ray", "shared", "slurm", "worker"}
    assert plan_of("local").is_plain
    assert plan_of("local:3").workers == 3
    assert plan_of("shared:cores=2,memory=0.5").needs == Needs(2, 0.5)
    assert not plan_of("shared").is_plain


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cloud", r"unknown executor 'cloud'; choose from .*'shared'"),
        ("loca:2", "did you mean 'local'"),
        ("local:0", "whole number of workers from 1 on"),
        ("local:many", "workers must be a number, got 'many'"),
        ("local:2,3", "gives workers twice"),
        ("shared:colour=red", "unknown option of the executor shared 'colour'"),
        ("shared:gpus=-1", "gpus must be a whole number from 0 on"),
        ("shared:cores=0", "at least 1 core"),
    ],
)
def test_a_bad_executor_is_refused(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        plan_of(text)


@pytest.mark.parametrize(("text", "package"), [("slurm:partition=gpu,gpus=1", "submitit"), ("ray:auto", "ray")])
def test_a_missing_package_is_named(text: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingPackage, match=rf"needs the package {package}; .*leanbayes\[cluster\]"):
        plan_of(text)
