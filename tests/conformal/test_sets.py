"""Sets cover as often as promised, agree with MAPIE and crepes, and refuse what would break the promise."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from crepes import ConformalClassifier
from mapie.classification import SplitConformalClassifier
from mapie.conformity_scores import (
    APSConformityScore,
    LACConformityScore,
    RAPSConformityScore,
    TopKConformityScore,
)
from mapie.utils import _compute_classification_quantile
from sklearn.base import BaseEstimator, ClassifierMixin
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.conformal import APS, LAC, RAPS, ClassScore, Sets, TopK, clopper_pearson, coverage_of

SCORES = ["lac", "aps", "raps", "top_k"]


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def data(count: int, classes: int = 4, seed: int = 0, width: float = 1.5) -> tuple[Tensor, Tensor]:
    """Logits as inputs, and classes that a sharper network would have drawn: the network inside is overconfident."""
    logits = width * torch.randn(count, classes, generator=seeded(seed))
    y = torch.multinomial(torch.softmax(0.6 * logits, 1), 1, generator=seeded(seed + 1))[:, 0]
    return logits, y


def covered(sets: Tensor, y: Tensor) -> Tensor:
    return sets.gather(1, y[:, None])[:, 0]


class Fixed(ClassifierMixin, BaseEstimator):
    """A classifier for MAPIE whose inputs are probabilities."""

    def __init__(self, classes: int = 4) -> None:
        self.classes = classes

    def fit(self, x: Any, y: Any) -> "Fixed":
        self.classes_ = np.arange(self.classes)
        return self

    def predict_proba(self, x: Any) -> Any:
        return np.asarray(x)

    def predict(self, x: Any) -> Any:
        return np.asarray(x).argmax(1)


# ---------------------------------------------------------------- oracles


@pytest.mark.parametrize("score", ["lac", "top_k"])
@pytest.mark.parametrize("level", [0.8, 0.9, 0.95])
def test_thresholds_and_sets_are_those_of_mapie(score: str, level: float) -> None:
    (x, y), (new, _) = data(400), data(300, seed=5)
    p, p_new = (torch.softmax(z.double(), 1) for z in (x, new))
    mapie = SplitConformalClassifier(Fixed().fit(p, y), confidence_level=level, conformity_score=score, prefit=True)
    mapie.conformalize(p.numpy(), y.numpy())
    _, theirs = mapie.predict_set(p_new.numpy())
    ours = Sets(nn.Identity(), level=level, score=score).calibrate([(x.double(), y)])
    first = 1 if score == "top_k" else 0  # MAPIE counts ranks from 0
    threshold = mapie._mapie_classifier.conformity_score_function_.quantiles_[0]
    assert abs(ours.thresholds.item() - threshold - first) < 1e-12
    assert torch.equal(ours.sets(new.double()), torch.from_numpy(theirs[:, :, 0]))


def test_randomised_aps_has_the_threshold_of_mapie_with_the_same_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    (x, y) = data(400)
    p = torch.softmax(x.double(), 1)
    mapie = SplitConformalClassifier(
        Fixed().fit(p, y), confidence_level=0.9, conformity_score="aps", prefit=True, random_state=7
    )
    mapie.conformalize(p.numpy(), y.numpy())
    mapie.predict_set(p.numpy()[:2])
    noise = torch.from_numpy(np.random.RandomState(7).uniform(size=len(p)))
    monkeypatch.setattr("leanbayes.conformal.sets.noise_of", lambda x, seed: noise)
    ours = Sets(nn.Identity(), score="aps").calibrate([(x.double(), y)])
    assert abs(ours.thresholds.item() - mapie._mapie_classifier.conformity_score_function_.quantiles_[0]) < 1e-12


def scores_of_mapie(score: ClassScore, p: Any, y: Any, noise: Any) -> Any:
    """What MAPIE's own functions give the true classes, with this noise."""
    if isinstance(score, LAC):
        return LACConformityScore().get_conformity_scores(y, p, y_enc=y)
    if isinstance(score, TopK):
        return TopKConformityScore().get_conformity_scores(y, p, y_enc=y) + 1.0  # MAPIE counts ranks from 0
    sums, ranks = APSConformityScore().get_true_label_cumsum_proba(y, p, np.arange(p.shape[1]))
    assert isinstance(score, APS | RAPS)
    if score.randomised:
        sums -= (noise * p[np.arange(len(y)), y])[:, None]
    if isinstance(score, RAPS):
        free = np.array([float(score.free)])
        sums = RAPSConformityScore._regularize_conformity_score(free, score.penalty, sums, ranks)[:, :, 0]
    return sums


@pytest.mark.parametrize("per", [None, "class"])
@pytest.mark.parametrize("level", [0.8, 0.9])
@pytest.mark.parametrize(
    "score", [LAC(), TopK(), APS(), APS(False), RAPS(0.05, 1), RAPS(0.05, 1, False)], ids=lambda score: repr(score)
)
def test_every_threshold_is_that_of_mapie_on_the_same_scores(
    score: ClassScore, level: float, per: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = data(400)
    noise = np.random.RandomState(3).uniform(size=400)
    monkeypatch.setattr("leanbayes.conformal.sets.noise_of", lambda x, seed: torch.from_numpy(noise))
    ours = Sets(nn.Identity(), level, score, per).calibrate([(x.double(), y)])
    theirs = scores_of_mapie(score, torch.softmax(x.double(), 1).numpy(), y.numpy(), noise).reshape(-1)
    groups = [np.ones(400, dtype=bool)] if per is None else [y.numpy() == label for label in range(4)]
    expected = [_compute_classification_quantile(theirs[rows], np.array([1 - level]))[0] for rows in groups]
    assert ours.thresholds.numpy() == pytest.approx(np.array(expected), abs=1e-12, rel=0)


@pytest.mark.parametrize("per", [None, "class"])
def test_p_values_and_sets_are_those_of_crepes(per: Any) -> None:
    (x, y), (new, _) = data(400), data(200, seed=5)
    ours = Sets(nn.Identity(), 0.9, "lac", per).calibrate([(x.double(), y)])
    hinge = 1 - torch.softmax(x.double(), 1).numpy()
    oracle = ConformalClassifier()
    alphas, new_alphas = hinge[np.arange(400), y.numpy()], 1 - torch.softmax(new.double(), 1).numpy()
    if per is None:
        oracle.fit(alphas)
        p = oracle.predict_p(new_alphas, smoothing=False)
    else:
        oracle.fit(alphas, bins=y.numpy())
        columns = [oracle.predict_p(new_alphas[:, [c]], bins=np.full(200, c), smoothing=False) for c in range(4)]
        p = np.concatenate(columns, 1)
    assert ours.p_values(new.double()).numpy() == pytest.approx(p, abs=1e-12)
    assert torch.equal(ours.sets(new.double()), ours.p_values(new.double()) > 0.1 + 1e-12)


# ---------------------------------------------------------------- the promise


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("per", [None, "class", lambda x: (x[:, 0] > 1).long()], ids=["all", "class", "group"])
def test_coverage_is_as_promised(score: str, per: Any) -> None:
    """Over 40 calibrations the mean coverage, of each class or group, is at least the level but for its error."""
    x_new, y_new = data(4000, seed=1000)
    groups = {None: torch.zeros_like(y_new), "class": y_new}.get(per) if not callable(per) else per(x_new)
    assert groups is not None
    rates = []
    for split in range(40):
        sets = Sets(nn.Identity(), 0.9, score, per).calibrate([data(300, seed=2 * split)])
        hit = covered(sets.sets(x_new), y_new).double()
        rates.append(torch.stack([hit[groups == g].mean() for g in groups.unique()]))
    mean, error = torch.stack(rates).mean(0), torch.stack(rates).std(0) / 40**0.5
    tested = 4 * (0.09 / torch.bincount(groups)).sqrt()  # the new examples are the same in all calibrations
    assert (mean > 0.9 - 4 * error - tested).all(), mean
    if score in ("lac", "aps", "raps"):  # continuous scores cover 0.9 to 0.9 + 1/(n + 1) of each group
        fewest = 300 / 8
        assert (mean < 0.9 + 1 / fewest + 4 * error + tested).all(), mean


def test_coverage_of_one_calibration_lies_in_its_binomial_interval() -> None:
    sets = Sets(nn.Identity(), 0.9).calibrate([data(20_000)])
    x, y = data(20_000, seed=50)
    low, high = clopper_pearson(int(covered(sets.sets(x), y).sum()), len(y), 0.999)
    assert low < 0.9 < high + 0.01


def test_marginal_sets_do_not_cover_each_class_but_sets_by_class_do() -> None:
    """Class 0 is harder than the others here, so that the two guarantees differ."""

    def hard(count: int, seed: int) -> tuple[Tensor, Tensor]:
        x, y = data(count, seed=seed, width=3)
        x[y == 0, 0] -= 3
        return x, y

    calibration, (x, y) = [hard(6000, 0)], hard(20_000, 9)
    by_all, by_class = (Sets(nn.Identity(), 0.9, "lac", per).calibrate(calibration) for per in (None, "class"))
    of_zero = [covered(sets.sets(x), y)[y == 0].double().mean().item() for sets in (by_all, by_class)]
    assert of_zero[0] < 0.8
    assert abs(of_zero[1] - 0.9) < 0.02


def test_weights_restore_coverage_under_a_known_shift() -> None:
    """New inputs have a wider spread, so they are harder to cover; the ratio of the two Gaussians is the weight."""

    class Network(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x, torch.zeros_like(x)], 1)

    def draw(count: int, seed: int, mean: float) -> tuple[Tensor, Tensor]:
        x = mean + torch.randn(count, 1, generator=seeded(seed))
        p = 0.5 + 0.5 * torch.tanh(2 - x[:, 0].abs()) / torch.tanh(torch.tensor(2.0))
        right = torch.rand(count, generator=seeded(seed + 1)) < p.clamp(0.05, 0.99)
        return x, torch.where(right == (x[:, 0] > 0), 0, 1)

    def weight(x: Tensor) -> Tensor:
        return torch.exp(1.5 * x[:, 0] - 1.5**2 / 2)

    x, y = draw(5000, 77, 1.5)
    rates = {"plain": [], "weighted": []}
    for split in range(10):
        calibration = [draw(2000, 1000 + 2 * split, 0.0)]
        for name, function in (("plain", None), ("weighted", weight)):
            sets = Sets(Network(), 0.8, lb.conformal.APS()).calibrate(calibration, weight=function)
            rates[name].append(covered(sets.sets(x), y).double().mean())
    plain, weighted = (torch.stack(rates[name]) for name in ("plain", "weighted"))
    assert plain.mean() < 0.75
    assert weighted.mean() > 0.8 - 4 * weighted.std() / 10**0.5 - 0.01
    assert weighted.mean() < 0.85


def test_weights_of_one_change_nothing() -> None:
    calibration, (x, _) = [data(100)], data(50, seed=3)
    plain = Sets(nn.Identity(), score="lac").calibrate(calibration)
    weighted = Sets(nn.Identity(), score="lac").calibrate(calibration, weight=lambda x: torch.ones(len(x)))
    assert torch.equal(plain.sets(x), weighted.sets(x))
    assert torch.equal(weighted.sets(x, weights=[1.0] * 50), plain.sets(x))
    assert weighted.sets(x, weights=torch.full((50,), 1e9)).all()


# ---------------------------------------------------------------- settings


def test_empty_sets_are_a_choice() -> None:
    calibration, (x, y) = [data(2000, width=6)], data(3000, seed=3, width=6)
    keep, top = (Sets(nn.Identity(), 0.5, "lac", empty=empty).calibrate(calibration) for empty in ("keep", "top"))
    kept, filled = keep.sets(x), top.sets(x)
    empty = ~kept.any(1)
    assert empty.any()
    assert torch.equal(kept[~empty], filled[~empty])
    assert torch.equal(filled[empty].long().argmax(1), x[empty].argmax(1))
    assert (filled.sum(1)[empty] == 1).all()
    assert covered(filled, y).double().mean() >= covered(kept, y).double().mean()


def test_randomised_sets_repeat_by_seed_and_for_every_batch_size() -> None:
    calibration, (x, _) = [data(300)], data(200, seed=3)
    one, two, other = (Sets(nn.Identity(), 0.8, "aps", seed=seed).calibrate(calibration) for seed in (1, 1, 2))
    assert torch.equal(one.sets(x), two.sets(x))
    assert torch.equal(one.sets(x), torch.cat([one.sets(row[None]) for row in x]))
    assert not torch.equal(one.sets(x), other.sets(x))
    state = torch.random.get_rng_state()
    one.sets(x)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_calibration_does_not_depend_on_batches() -> None:
    x, y = data(300)
    whole = Sets(nn.Identity()).calibrate([(x, y)])
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=37)
    assert torch.equal(Sets(nn.Identity()).calibrate(loader).thresholds, whole.thresholds)


def test_groups_may_be_given_instead_of_a_function(tmp_path: Path) -> None:
    (x, y), (new, y_new) = data(300), data(200, seed=5)
    side, new_side = ((z[:, 0] > 0).long() for z in (x, new))
    by_function = Sets(nn.Identity(), 0.8, "lac", lambda z: (z[:, 0] > 0).long()).calibrate([(x, y)])
    batches = [(x[:100], y[:100]), (x[100:], y[100:])]
    given = Sets(nn.Identity(), 0.8, "lac", "group").calibrate(batches, groups=side.tolist())
    assert torch.equal(given.thresholds, by_function.thresholds)
    assert torch.equal(given.sets(new, groups=new_side), by_function.sets(new))
    lb.save(given, tmp_path / "x.lb")
    again = lb.load(tmp_path / "x.lb", nn.Identity())
    assert torch.equal(again.sets(new, groups=new_side), by_function.sets(new))
    expected = coverage_of(by_function, [(new, y_new)])
    assert coverage_of(again, [(new[:50], y_new[:50]), (new[50:], y_new[50:])], groups=new_side) == expected
    everything = Sets(nn.Identity(), 0.8, "lac").calibrate([(x, y)])
    assert coverage_of(everything, [(new, y_new)], groups=new_side.tolist()).by_group.keys() == {0, 1}
    for groups, words in (
        (None, "needs the group of each example"),
        ([0, 1], "groups= has 2 entries, and there are 300"),
        ([0] * 301, "groups= has 301 entries, and there are 300 examples"),
        (["a"] * 300, "give names numbers first"),
        ([0.5] * 300, "one integer for each example"),
    ):
        with pytest.raises(lb.errors.LeanBayesError, match=words):
            Sets(nn.Identity(), 0.8, "lac", "group").calibrate([(x, y)], groups=groups)
    with pytest.raises(lb.errors.InputError, match='per="group"'):
        Sets(nn.Identity(), 0.8).calibrate([(x, y)], groups=side)
    with pytest.raises(lb.errors.InputError, match="give them with groups="):
        given.sets(new)


def test_a_group_that_was_never_seen() -> None:
    sets = Sets(nn.Identity(), per=lambda x: (x[:, 0] > 0).long() * 7).calibrate([data(300)])
    x, _ = data(10, seed=3)
    assert sets.group_names.tolist() == [0, 7]
    assert torch.equal(sets.sets(x), sets.sets(x, groups=(x[:, 0] > 0).long() * 7))
    with pytest.raises(lb.errors.InputError, match="group 3 had no calibration examples; known are \\[0, 7\\]"):
        sets.sets(x, groups=torch.full((10,), 3))
    with pytest.raises(lb.errors.ShapeMismatch, match="one integer"):
        sets.sets(x, groups=torch.zeros(10))
    with pytest.raises(lb.errors.InputError, match="groups="):
        Sets(nn.Identity()).calibrate([data(300)]).sets(x, groups=torch.zeros(10).long())


def test_ignored_targets_do_not_count() -> None:
    x, y = data(300)
    marked = torch.where(torch.arange(300) < 100, -100, y)
    assert torch.equal(
        Sets(nn.Identity()).calibrate([(x, marked)]).thresholds,
        Sets(nn.Identity()).calibrate([(x[100:], y[100:])]).thresholds,
    )
    with pytest.raises(lb.errors.InputError, match="none of the calibration targets"):
        Sets(nn.Identity()).calibrate([(x, torch.full_like(y, -100))])


# ---------------------------------------------------------------- bad input


BAD: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "too few": (lambda: Sets(nn.Identity()).calibrate([data(8)]), lb.errors.InputError, "at least 9 .*got 8"),
    "too few of a class": (
        lambda: Sets(nn.Identity(), per="class").calibrate([(torch.randn(60, 3), torch.arange(60) // 26)]),
        lb.errors.InputError,
        "class 2 has 8",
    ),
    "no example of a class": (
        lambda: Sets(nn.Identity(), 0.5, per="class").calibrate([(torch.randn(60, 3), torch.arange(60) % 2)]),
        lb.errors.InputError,
        "class 2 has 0",
    ),
    "level": (lambda: Sets(nn.Identity(), level=90), lb.errors.InputError, "between 0 and 1.*0.9"),
    "score": (lambda: Sets(nn.Identity(), score="asp"), lb.errors.UnknownName, "did you mean 'aps'"),
    "per": (lambda: Sets(nn.Identity(), per=3), lb.errors.InputError, "per must be"),  # type: ignore[arg-type]
    "empty": (lambda: Sets(nn.Identity(), empty="x"), lb.errors.UnknownName, "keep"),  # type: ignore[arg-type]
    "samples": (lambda: Sets(nn.Identity(), samples=0), lb.errors.InputError, "samples"),
    "seed": (lambda: Sets(nn.Identity(), seed=1.5), lb.errors.InputError, "seed"),  # type: ignore[arg-type]
    "no module": (lambda: Sets(lambda x: x), lb.errors.InputError, "module"),  # type: ignore[arg-type]
    "numbers": (lambda: Sets(nn.Identity(), likelihood=lb.Gaussian()), lb.errors.InputError, "use Intervals"),
    "not calibrated": (lambda: Sets(nn.Identity()).sets(torch.randn(2, 3)), lb.errors.InputError, "calibrate"),
    "no batches": (lambda: Sets(nn.Identity()).calibrate([]), lb.errors.InputError, "no batches"),
    "a tensor": (lambda: Sets(nn.Identity()).calibrate(torch.randn(5, 2)), lb.errors.InputError, "batches"),
    "NaN": (
        lambda: Sets(nn.Identity()).calibrate([(torch.full((20, 3), torch.nan), torch.zeros(20).long())]),
        lb.errors.NonFinite,
        "NaN",
    ),
    "pixels": (
        lambda: Sets(nn.Identity()).calibrate([(torch.randn(20, 3, 4, 4), torch.zeros(20, 4, 4).long())]),
        lb.errors.ShapeMismatch,
        "RiskControl",
    ),
    "labels as numbers": (
        lambda: Sets(nn.Identity()).calibrate([(torch.randn(20, 3), torch.zeros(20))]),
        lb.errors.ShapeMismatch,
        "class index",
    ),
    "a class that is none": (
        lambda: Sets(nn.Identity()).calibrate([(torch.randn(20, 3), torch.full((20,), 3))]),
        lb.errors.InputError,
        "between 0 and 2, and one is 3",
    ),
    "bad weights": (
        lambda: Sets(nn.Identity()).calibrate([data(20)], weight=lambda x: -torch.ones(len(x))),
        lb.errors.NonFinite,
        "not negative",
    ),
    "no weight": (
        lambda: Sets(nn.Identity()).calibrate([data(20)], weight=lambda x: torch.zeros(len(x))),
        lb.errors.InputError,
        "no weight",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused(name: str) -> None:
    action, error, words = BAD[name]
    with pytest.raises(error, match=words):
        action()


def test_a_failed_calibration_leaves_the_old_one() -> None:
    sets = Sets(nn.Identity()).calibrate([data(300)])
    before, (x, _) = sets.thresholds.clone(), data(20, seed=4)
    answer = sets.sets(x)
    with pytest.raises(lb.errors.InputError):
        sets.calibrate([data(3)])
    assert torch.equal(sets.thresholds, before)
    assert torch.equal(sets.sets(x), answer)


def test_a_changed_predictor_is_refused() -> None:
    model = nn.Linear(4, 4)
    sets = Sets(model).calibrate([data(300)])
    x, _ = data(20, seed=4)
    sets.sets(x)
    with torch.no_grad():
        model.weight[0, 0] += 0.01
    with pytest.raises(lb.errors.InputError, match="has changed since it was calibrated"):
        sets.sets(x)
    sets.calibrate([data(300)]).sets(x)
    sets.half()
    with pytest.raises(lb.errors.InputError, match="cast to"):
        sets.sets(x.half())


@pytest.mark.parametrize(("name", "value"), [("level", 0.99), ("score", LAC()), ("seed", 3), ("per", "class")])
def test_a_setting_that_changes_after_the_calibration_is_refused(tmp_path: Path, name: str, value: Any) -> None:
    sets = Sets(mlp()).calibrate([data(300)])
    lb.save(sets, tmp_path / "sets")
    for each in (sets, lb.load(tmp_path / "sets", mlp())):
        x, before = data(20, seed=4)[0], getattr(each, name)
        answer = each.sets(x)
        setattr(each, name, value)
        with pytest.raises(lb.errors.InputError, match=f"{name} of this Sets changed"):
            each.sets(x)
        setattr(each, name, before)
        assert torch.equal(each.sets(x), answer)
        setattr(each, name, value)
        each.calibrate([data(300)]).sets(x)


@pytest.mark.parametrize("score", SCORES)
def test_arrays_get_the_sets_of_tensors(score: str) -> None:
    x, y = data(60)
    sets = Sets(mlp(), score=score).calibrate([(x.numpy(), y)])
    assert torch.equal(sets.sets(x.numpy()), sets.sets(x))


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_with_ties_and_zeros_covers(score: str, dtype: torch.dtype) -> None:
    """The inputs are logits of few values, many of them so low that their probability is 0 in float32."""
    x, y = data(900)
    coarse = torch.where(x < -1, -300.0, x.round()).to(dtype)
    sets = Sets(nn.Identity(), score=score)
    thresholds = {
        sets.calibrate(list(zip(coarse[:500].split(b), y[:500].split(b), strict=True))).thresholds.item()
        for b in (1, 7, 500)
    }
    assert len(thresholds) == 1
    assert covered(sets.sets(coarse[500:]), y[500:]).double().mean() > 0.9 - 4 * (0.09 / 500 + 0.09 / 400) ** 0.5


def test_a_million_examples_take_less_than_a_second() -> None:
    """From logits to the threshold, in batches of 10,000: about a third of a second of processor time."""
    x, y = torch.randn(1_000_000, 10, generator=seeded()), torch.randint(10, (1_000_000,), generator=seeded())
    batches, sets = list(zip(x.split(10_000), y.split(10_000), strict=True)), Sets(nn.Identity(), score="lac")
    start = time.process_time()
    sets.calibrate(batches)
    assert time.process_time() - start < 1


# ---------------------------------------------------------------- composition


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))


def predictors() -> dict[str, nn.Module]:
    torch.manual_seed(0)
    with torch.no_grad():
        temperature = lb.baselines.Temperature(lb.baselines.Ensemble(mlp(), lb.Bayesian(mlp())))
        temperature.log_temperature.fill_(0.4)
    return {
        "plain": mlp(),
        "bayesian": lb.Bayesian(mlp(), subspace=lb.random_k(0.3)),
        "moments": lb.Bayesian(mlp(), predict_by="moments"),
        "sparse": lb.Bayesian(mlp(), subspace=lb.sparse(0.5)),
        "ensemble": lb.baselines.Ensemble(mlp(), mlp(), mlp(), method="loop"),
        "temperature of an ensemble": temperature,
        "dropout": lb.baselines.MCDropout(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 4))),
        "sets of sets": Sets(lb.Bayesian(mlp())).calibrate([data(60)]),
    }


@pytest.mark.parametrize("name", predictors())
@pytest.mark.parametrize("per", [None, "class"])
def test_what_is_saved_comes_back(tmp_path: Path, name: str, per: Any) -> None:
    predictor = predictors()[name]
    score = lb.conformal.RAPS(0.1, 1)
    sets = Sets(predictor, 0.7, score, per, samples=4, seed=3, empty="top").calibrate([data(200)])
    x, _ = data(50, seed=9)
    lb.save(sets, tmp_path / "x.lb")
    blank = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 4)) if name == "dropout" else mlp()
    again = lb.load(tmp_path / "x.lb", blank)
    assert isinstance(again, Sets)
    assert (again.level, again.score, again.per, again.empty) == (0.7, score, per, "top")
    assert torch.equal(again.sets(x), sets.sets(x))
    one, two = (lb.predict(p, x, samples=2, method="loop", generator=seeded()).mean for p in (predictor, sets))
    assert torch.allclose(one, two, atol=1e-6)
    with torch.no_grad():
        next(blank.parameters()).add_(0.01)
    with pytest.raises(lb.errors.InputError, match="changed"):
        again.sets(x)


def test_functions_do_not_go_into_a_file_and_are_asked_for(tmp_path: Path) -> None:
    def sign(x: Tensor) -> Tensor:
        return (x[:, 0] > 0).long()

    model, (x, _) = mlp(), data(20, seed=9)
    sets = Sets(model, per=sign).calibrate([data(300)], weight=lambda x: torch.exp(x[:, 1]))
    lb.save(sets, tmp_path / "x.lb")
    again = lb.load(tmp_path / "x.lb", mlp())
    with pytest.raises(lb.errors.InputError, match="give them with groups="):
        again.sets(x)
    with pytest.raises(lb.errors.InputError, match="give them with weights="):
        again.sets(x, groups=sign(x))
    assert torch.equal(again.sets(x, groups=sign(x), weights=torch.exp(x[:, 1])), sets.sets(x))
    again.per, again.weight = sign, lambda x: torch.exp(x[:, 1])
    assert torch.equal(again.sets(x), sets.sets(x))


def test_an_uncalibrated_predictor_is_saved_as_such(tmp_path: Path) -> None:
    lb.save(Sets(mlp()), tmp_path / "x.lb")
    again = lb.load(tmp_path / "x.lb", mlp())
    assert not again.calibrated
    with pytest.raises(lb.errors.InputError, match="calibrate"):
        again.sets(torch.randn(2, 4))


def test_every_batch_meets_the_same_networks() -> None:
    """With draws of whole weights the predictor is one function, as exchangeability asks."""
    bnn = lb.Bayesian(mlp(), posterior=lb.posteriors.Normal(0.5))
    sets = Sets(bnn, samples=4)
    x, _ = data(30)
    whole = sets.prediction(x).mean
    assert torch.allclose(torch.cat([sets.prediction(row[None]).mean for row in x]), whole, atol=1e-6)


def test_a_wrapped_predictor() -> None:
    model = mlp()
    sets = Sets(torch.optim.swa_utils.AveragedModel(model)).calibrate([data(100)])
    assert isinstance(sets.model, nn.Sequential)
    assert "calibrated=True" in repr(sets)
