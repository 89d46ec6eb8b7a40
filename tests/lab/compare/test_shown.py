"""What methods keep of segmented test cases: the same cases, the slice that shows most, in the colours of the data."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from leanbayes.evaluation import evaluate
from leanbayes.lab.compare import shown as module
from leanbayes.lab.compare.cases import CaseScores
from leanbayes.lab.compare.shown import ShownCases, shown_cases
from leanbayes.lab.data import lesions
from leanbayes.lab.data.sets.volumes import volumes
from leanbayes.lab.data.source import from_arrays


def keep(task, batch: int = 4, doubt: str = "total") -> tuple[dict[str, torch.Tensor], CaseScores]:
    scores, shown = CaseScores(task, task.likelihood), ShownCases(task)
    scores.use_doubt({"name": doubt})

    def take(predicted) -> None:
        before = len(scores.rows)
        scores.add(predicted)
        shown.add(predicted, scores.rows[before:], scores.doubt_about)

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = task.model()
    evaluate(model, DataLoader(task.test, batch), likelihood=task.likelihood, samples=2, on_prediction=take)
    return shown.arrays(), scores


def test_every_case_of_a_small_set_is_kept_with_its_scores_and_raters() -> None:
    task = lesions(patients=20, size=16, raters=3).task()
    arrays, scores = keep(task, 7, doubt="edge_total")
    names = shown_cases(task)
    assert list(names.values()) == [row["name"] for row in scores.rows]
    for number, row in enumerate(scores.rows):
        facts = arrays[f"shown/{number}/facts"].tolist()
        # Dice with one random rater is a lottery, so it is the mean over the raters; doubt is the chosen score.
        assert facts[:2] == pytest.approx([row["dice_of_raters"], row["edge_total"]], rel=1e-5)
        assert (arrays[f"shown/{number}/truth"] == task.test[number][1]).all()
        assert (arrays[f"shown/{number}/raters"] == task.test.targets.of(number)).all()
        assert arrays[f"shown/{number}/image"].dtype == torch.uint8
        assert arrays[f"shown/{number}/total"].float().mean() == pytest.approx(row["total"], rel=2e-3)


def test_a_volume_shows_the_slice_with_the_largest_reference() -> None:
    task = volumes(patients=8, size=16, raters=1).task()
    arrays, _ = keep(task, 2)
    for number in range(len(task.test)):
        truth = np.asarray(task.test[number][1])  # right, front, up
        at = int(truth.sum((0, 1)).argmax())
        facts = arrays[f"shown/{number}/facts"].tolist()
        assert facts[2:4] == [at, truth.shape[2]]
        assert (np.asarray(arrays[f"shown/{number}/truth"]) == truth[::-1, ::-1, at].T).all()
        assert f"shown/{number}/raters" not in arrays


def test_colours_are_those_of_the_data() -> None:
    random = np.random.default_rng(0)
    images = random.integers(0, 255, (40, 3, 12, 16), dtype=np.uint8)
    task = from_arrays(Path("colours"), {"train": (images, (images[:, 0] > 128).astype(np.int64))}, "pixels").task()
    arrays, _ = keep(task)
    first = (task.preparation.original(task.test[0][0]) * 255).round().to(torch.uint8)
    assert (arrays["shown/0/image"].int() - first.movedim(0, -1).int()).abs().max() <= 1


def test_large_sets_and_large_images_are_thinned_alike_for_every_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CANDIDATES", 3)
    monkeypatch.setattr(module, "_LONGEST", 10)
    task = lesions(patients=20, size=16, raters=2).task()
    arrays, _ = keep(task)
    assert {int(key.split("/")[1]) for key in arrays} == set(shown_cases(task))
    assert len(shown_cases(task)) == 3
    assert arrays[f"shown/{next(iter(shown_cases(task)))}/truth"].shape == (8, 8)
    assert shown_cases(task) == shown_cases(task)


def test_other_kinds_keep_nothing() -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(60, 3))
    data = {"train": (x, (x[:, 0] > 0).astype(np.int64))}
    assert keep(from_arrays(Path("points"), data, "classes", features=("a", "b", "c")).task())[0] == {}
