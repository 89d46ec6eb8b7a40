"""Every score agrees with MAPIE's, and the catalogue finds scores by name."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from mapie.conformity_scores.sets import (
    APSConformityScore,
    LACConformityScore,
    RAPSConformityScore,
    TopKConformityScore,
)
from torch import Tensor

import leanbayes as lb
from leanbayes.conformal import CLASS_SCORES, ClassScore
from leanbayes.conformal.class_scores.score import as_class_score, describe_score, restore_score


def predictions(count: int = 300, classes: int = 7) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    source = np.random.default_rng(0)
    return source.dirichlet(np.full(classes, 0.5), count), source.integers(0, classes, count)


def of_truth(score: ClassScore, p: np.ndarray[Any, Any], y: np.ndarray[Any, Any], noise: np.ndarray[Any, Any]) -> Any:
    ours = score.scores(torch.from_numpy(p), torch.from_numpy(noise))
    return ours.gather(1, torch.from_numpy(y)[:, None])[:, 0].numpy()


@pytest.mark.parametrize("name", ["lac", "aps", "top_k"])
def test_the_scores_are_those_of_mapie(name: str) -> None:
    p, y = predictions()
    oracle: Any = {"lac": LACConformityScore, "aps": APSConformityScore, "top_k": TopKConformityScore}[name]()
    oracle.set_external_attributes(classes=np.arange(7), random_state=3)
    theirs = oracle.get_conformity_scores(y, p, y_enc=y)[:, 0]
    noise = np.random.RandomState(3).uniform(size=len(p))
    first = 1 if name == "top_k" else 0  # MAPIE counts ranks from 0
    assert of_truth(as_class_score(name), p, y, noise) == pytest.approx(theirs + first, abs=1e-12)


def test_raps_is_that_of_mapie() -> None:
    p, y = predictions()
    oracle: Any = RAPSConformityScore()
    oracle.set_external_attributes(classes=np.arange(7), random_state=3)
    plain = APSConformityScore.get_conformity_scores(oracle, y, p, y_enc=y)
    penalised = oracle._regularize_conformity_score(np.array([2]), 0.1, plain, oracle.cutoff)[:, 0, 0]
    noise = np.random.RandomState(3).uniform(size=len(p))
    assert of_truth(lb.conformal.RAPS(penalty=0.1, free=2), p, y, noise) == pytest.approx(penalised, abs=1e-12)


def test_scores_without_noise() -> None:
    p = torch.tensor([[0.5, 0.2, 0.3]], dtype=torch.float64)
    noise = torch.tensor([0.25], dtype=torch.float64)
    assert lb.conformal.APS(randomised=False).scores(p, noise).tolist()[0] == pytest.approx([0.5, 1.0, 0.8])
    assert lb.conformal.APS().scores(p, noise).tolist()[0] == pytest.approx([0.375, 0.95, 0.725])
    raps = lb.conformal.RAPS(penalty=1, free=1, randomised=False)
    assert raps.scores(p, noise).tolist()[0] == pytest.approx([0.5, 3.0, 1.8])


def test_names_and_values() -> None:
    assert list(CLASS_SCORES) == ["aps", "lac", "raps", "top_k"]
    with pytest.raises(lb.errors.UnknownName, match="did you mean 'raps'"):
        as_class_score("rasp")
    with pytest.raises(lb.errors.InputError, match="score must be"):
        as_class_score(3)  # type: ignore[arg-type]
    with pytest.raises(lb.errors.InputError, match="penalty"):
        lb.conformal.RAPS(penalty=-1)
    for score in (lb.conformal.RAPS(0.2, 3, False), lb.conformal.LAC()):
        assert restore_score(describe_score(score, CLASS_SCORES), CLASS_SCORES) == score


def test_a_score_of_ones_own() -> None:
    @dataclass(frozen=True)
    class Odds(ClassScore):
        name: ClassVar[str] = "odds"

        def scores(self, probabilities: Tensor, noise: Tensor) -> Tensor:
            return (1 - probabilities) / probabilities

    with pytest.raises(lb.errors.InputError, match="in no catalogue"):
        describe_score(Odds(), CLASS_SCORES)
    with CLASS_SCORES.replacing(Odds):
        assert as_class_score("odds") == Odds()
        assert describe_score(Odds(), CLASS_SCORES) == {"name": "odds", "fields": {}}
