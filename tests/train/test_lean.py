"""The one place of the numbers by which the recipe `lean` and the estimators for scikit-learn train."""

from dataclasses import fields

import pytest

import leanbayes as lb
from leanbayes.lab.recipes.lean import Lean
from leanbayes.train import LeanTraining


def test_the_recipe_takes_its_numbers_from_here() -> None:
    recipe = Lean()
    assert all(getattr(recipe, field.name) == field.default for field in fields(LeanTraining))
    theirs = recipe.optimization(1000, 0.004, lb.Categorical())
    ours = LeanTraining().optimization(1000, 0.004, lb.Categorical())
    assert theirs == {name: getattr(ours, name) for name in theirs}


def test_numbers_start_with_less_noise_and_forget_it_sooner_than_classes() -> None:
    classes, numbers = (
        LeanTraining().optimization(1000, 0.01, kind).optimizer for kind in (lb.Categorical(), lb.Gaussian("learned"))
    )
    assert numbers.relative_scale < classes.relative_scale
    assert numbers.beta2 < classes.beta2


def test_the_curvature_can_move_within_a_short_training() -> None:
    natural = LeanTraining(forget=2.0).optimization(1000, 0.01, lb.Categorical()).optimizer
    assert natural.beta2 == pytest.approx(1 - 2 / 1000)
    assert LeanTraining(forget=2.0).optimization(3, 0.01, lb.Categorical()).optimizer.beta2 == 0.9


def test_without_averages_the_learning_rate_falls() -> None:
    assert LeanTraining().optimization(10, 0.01, lb.Categorical()).schedule == "constant"
    assert LeanTraining(average=0.0).optimization(10, 0.01, lb.Categorical()).schedule == "cosine"


def test_numbers_have_a_learning_rate_that_falls_and_no_averages() -> None:
    made = LeanTraining().optimization(10, 0.01, lb.Gaussian("learned"))
    assert made.schedule == "cosine"
    assert made.optimizer.average == 0
    assert LeanTraining(average=0.5).optimization(10, 0.01, lb.Gaussian("learned")).schedule == "constant"


def test_bad_numbers_are_named() -> None:
    with pytest.raises(lb.errors.InputError, match=r"temperature must be a positive finite number, got 0"):
        LeanTraining(temperature=0.0).optimization(10, 0.01, lb.Categorical())
