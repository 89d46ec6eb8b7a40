from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader

from leanbayes.errors import InputError, ShapeMismatch
from leanbayes.evaluation import evaluate
from leanbayes.lab.data import Raters, from_raters
from leanbayes.lab.data.rated import line_up
from leanbayes.metrics import generalised_energy_distance

N, RATERS, SIDE = 200, 3, 12


def rated() -> tuple[torch.Tensor, torch.Tensor, list[str]]:
    """The first pixel of an image is its number, and only the rater's own row is marked."""
    images = torch.zeros(N, SIDE, SIDE, dtype=torch.uint8)
    images[:, 0, 0] = torch.arange(N)
    images[:, 5:] = 99
    masks = torch.zeros(N, RATERS, SIDE, SIDE, dtype=torch.uint8)
    masks[:, range(RATERS), range(RATERS)] = 1
    sizes = torch.randint(1, 9, (N,), generator=torch.Generator().manual_seed(0))
    patients = torch.arange(N).repeat_interleave(sizes)[:N]
    return images, masks, [f"p{patient}" for patient in patients]


def numbers(part) -> list[int]:
    return [int(image[0, 0, 0]) for image in part.inputs]


def make(**options):
    images, masks, patients = rated()
    return from_raters(Path("some.npz"), images, masks, patients, ("background", "nodule"), **options)


def test_no_patient_is_in_two_sets_and_folds_share_the_whole() -> None:
    patients = rated()[2]
    tested = []
    for fold in range(4):
        source = make(fold=fold, seed=1)
        parts = [numbers(part) for part in (source.train, source.validation, source.test)]
        assert sorted([*parts[0], *parts[1], *parts[2]]) == list(range(N))
        people = [{patients[number] for number in part} for part in parts]
        assert len(set.union(*people)) == sum(map(len, people))
        assert abs(len(parts[2]) - N / 4) <= 8
        assert abs(len(parts[1]) - 0.15 * 0.75 * N) <= 8
        tested += parts[2]
    assert sorted(tested) == list(range(N))
    assert numbers(make(seed=1).test) != numbers(make(seed=2).test)


def test_training_draws_a_rater_each_time_and_judging_draws_once() -> None:
    source = make()
    rows = [int(source.train[4][1].argmax()) // SIDE for _ in range(300)]
    shares = torch.tensor(rows).bincount(minlength=RATERS) / 300
    assert (shares - 1 / RATERS).abs().max() < 4 * (2 / 9 / 300) ** 0.5
    judged = [[int(y.argmax()) // SIDE for _, y in source.test] for _ in range(2)]
    assert judged[0] == judged[1]
    assert set(judged[0]) == set(range(RATERS))
    torch.manual_seed(7)
    first = [y for _, y in source.train]
    torch.manual_seed(7)
    assert all(torch.equal(a, b) for a, (_, b) in zip(first, source.train, strict=True))


def test_all_masks_are_kept_in_the_shape_that_scores_take() -> None:
    source = make()
    targets = source.test.targets
    assert isinstance(targets, Raters)
    raters = targets.by_rater()
    assert raters.shape == (RATERS, len(source.test), SIDE, SIDE)
    assert torch.equal(raters[1, 0], rated()[1][0, 1].long())
    assert torch.allclose(generalised_energy_distance(raters, raters), torch.zeros(len(source.test)), atol=1e-6)


def test_rated_data_can_be_learnt_and_judged() -> None:
    task = make().task()
    evaluation = evaluate(task.model(), DataLoader(task.test, 64), likelihood=task.likelihood, samples=1)
    assert 0 <= evaluation.metrics["dice"] <= 1


def test_line_up_is_one_place_for_a_group_of_any_type() -> None:
    groups = [3, "a", 3, (1, 2), "a", "a"]
    at = line_up(groups, 0)
    assert at[0] == at[2]
    assert at[1] == at[4] == at[5]
    assert ((at > 0) & (at < 1)).all()


@pytest.mark.parametrize(
    ("change", "error", "complaint"),
    [
        (lambda i, m, p: (i, m[1:], p), ShapeMismatch, r"\(N, raters, H, W\)"),
        (lambda i, m, p: (i, m[..., 1:], p), ShapeMismatch, r"\(N, raters, H, W\)"),
        (lambda i, m, p: (i, m[:, 0], p), ShapeMismatch, r"\(N, raters, H, W\)"),
        (lambda i, m, p: (i, m, p[1:]), ShapeMismatch, "199 patients"),
        (lambda i, m, p: (i, m * 255, p), InputError, "0 to 1"),
        (lambda i, m, p: (i, m[:, :0], p), InputError, "not be empty"),
        (lambda i, m, p: (i, m, ["one"] * N), InputError, r"too few patients \(1\)"),
    ],
)
def test_what_does_not_fit_is_refused(change, error, complaint: str) -> None:
    with pytest.raises(error, match=complaint):
        from_raters(Path("some.npz"), *change(*rated()), ("background", "nodule"))
    with pytest.raises(InputError, match="fold must be 0 to 3, got 4"):
        make(fold=4)
