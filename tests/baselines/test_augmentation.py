"""Test-time augmentation: views of images, undone where outputs have pixels, and chosen on validation data."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb
from leanbayes.baselines import Augmented, Ensemble, MCDropout, Temperature
from leanbayes.baselines.augmentation import FLIPS, SHIFTS
from leanbayes.errors import InputError, UnknownName
from leanbayes.prediction.prediction import networks_of

ALL = (*FLIPS, *SHIFTS)


def images(n: int = 5, size: int = 6, seed: int = 0) -> Tensor:
    return torch.randn(n, 1, size, size, generator=torch.Generator().manual_seed(seed))


def classifier(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(3 * 36, 4))


def segmenter(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 3, 3, padding=1), nn.Tanh(), nn.Conv2d(3, 2, 3, padding=1))


def shifted(x: Tensor, view: str, by: int) -> Tensor:
    """The oracle: repeat the border, then cut out the moved window."""
    padded = nn.functional.pad(x, (by, by, by, by), mode="replicate")
    size = x.shape[-1]
    row, column = {"left": (by, 2 * by), "right": (by, 0), "up": (2 * by, by), "down": (0, by)}[view]
    return padded[..., row : row + size, column : column + size]


def test_the_prediction_is_the_mean_over_views() -> None:
    model, x = classifier(), images()
    views = [x, x.flip(3), x.flip(2), x.flip(2, 3), *(shifted(x, view, 2) for view in SHIFTS)]
    with torch.no_grad():
        expected = torch.stack([model.double()(view.double()).softmax(1) for view in views]).mean(0)
    result = lb.predict(Augmented(model.float(), ALL, shift=2), x)
    torch.testing.assert_close(result.mean.double(), expected, rtol=1e-5, atol=1e-6)
    assert result.draws.tolist() == [8] * 5
    one = lb.predict(Augmented(model, ("identity",)), x)
    torch.testing.assert_close(one.mean, lb.predict(model, x).mean)


def test_flips_are_undone_where_every_pixel_has_a_prediction() -> None:
    model, x = segmenter(), images()
    with torch.no_grad():
        outs = [model(x.flip(axes)).flip(axes).softmax(1) if axes else model(x).softmax(1) for axes in FLIPS.values()]
    result = lb.predict(Augmented(model, tuple(FLIPS)), x)
    torch.testing.assert_close(result.mean, torch.stack(outs).mean(0))
    # A network that treats each pixel alone does not notice flips, so all views agree once they are undone.
    pointwise = Augmented(nn.Conv2d(1, 2, 1), tuple(FLIPS))
    assert lb.predict(pointwise, x).epistemic.max() < 1e-6
    binary = Augmented(nn.Sequential(nn.Conv2d(1, 1, 1), nn.Flatten(1, 2)), tuple(FLIPS))  # (N, height, width)
    assert lb.predict(binary, x, likelihood=lb.Bernoulli()).epistemic.max() < 1e-6
    with pytest.raises(InputError, match="shifts cannot be undone"):
        lb.predict(Augmented(model, ("identity", "left")), x)


def test_volumes_are_flipped_in_the_plane_of_their_slices() -> None:
    model, x = nn.Conv3d(1, 2, 1), torch.randn(2, 1, 3, 4, 5)
    assert lb.predict(Augmented(model, tuple(FLIPS)), x).epistemic.max() < 1e-6


@pytest.mark.parametrize(
    "build",
    [
        lambda: classifier(),
        lambda: Ensemble(*(classifier(seed) for seed in range(3)), method="loop"),
        lambda: lb.Bayesian(classifier()),
        lambda: lb.Bayesian(classifier(), predict_by="moments"),
        lambda: MCDropout(classifier()),
        lambda: Temperature(classifier()),
    ],
    ids=["plain", "ensemble", "Bayesian", "moments", "dropout", "temperature"],
)
def test_any_model_can_be_inside_and_comes_back_from_a_file(build: Any, tmp_path: Path) -> None:
    predictor = Augmented(build(), ("identity", "horizontal", "up"), shift=2)
    x = images()

    def ask(model: nn.Module) -> lb.Prediction:
        return lb.predict(model, x, samples=9, method="loop", generator=torch.Generator().manual_seed(3))

    result = ask(predictor)
    lb.save(predictor, tmp_path / "x.lb")
    again = lb.load(tmp_path / "x.lb", classifier())
    assert (again.views, again.shift) == (("identity", "horizontal", "up"), 2)
    torch.testing.assert_close(ask(again).mean, result.mean)
    torch.testing.assert_close(ask(again).total, result.total)
    on_top = Temperature.fit(predictor, [(x, torch.zeros(5).long())], lb.Categorical(), samples=3)
    assert on_top.members == predictor.members
    assert not any(module.training for module in predictor.eval().modules())


def test_draws_are_those_of_the_model_for_each_view() -> None:
    members, x = [classifier(seed) for seed in range(3)], images()
    predictor = Augmented(Ensemble(*members, method="loop"), ("identity", "horizontal", "vertical"))
    assert predictor.members == 9
    seen = {"identity": x, "horizontal": x.flip(3), "vertical": x.flip(2)}
    for draws, order in (
        (9, [("identity", 0), ("horizontal", 0), ("vertical", 0), ("identity", 1)]),
        (7, [("identity", 0), ("identity", 1), ("identity", 2), ("horizontal", 0)]),  # no member is left out
        (2, [("identity", 0), ("horizontal", 0)]),
    ):
        outs = list(predictor.outputs(x, draws, None))
        functions = networks_of(predictor, draws, torch.Generator().manual_seed(0))
        assert len(outs) == len(functions) == draws
        for out, function, (view, member) in zip(outs, functions, order, strict=False):
            torch.testing.assert_close(out, members[member](seen[view]))
            torch.testing.assert_close(function(x), out)
    with pytest.raises(InputError, match="10 draws were asked"):
        list(predictor.outputs(x, 10, None))
    leaf = x.clone().requires_grad_()
    networks_of(predictor, 3, torch.Generator().manual_seed(0))[1](leaf).sum().backward()
    assert leaf.grad.abs().sum() > 0


def test_no_mode_and_no_global_noise_is_changed() -> None:
    predictor = Augmented(lb.Bayesian(classifier()), ALL).train()
    state = torch.get_rng_state()
    source = torch.Generator().manual_seed(0)
    outs = predictor.outputs(images(), 16, source)
    next(outs)
    assert predictor.model.training  # between two draws too
    assert torch.is_grad_enabled()
    assert len(list(outs)) == 15
    assert torch.equal(torch.get_rng_state(), state)


class Half(nn.Module):
    """Says class 1 if the first half of the image along an axis is brighter than the second."""

    def __init__(self, axis: int) -> None:
        super().__init__()
        self.axis = axis
        self.scale = nn.Parameter(torch.tensor(3.0))

    def forward(self, x: Tensor) -> Tensor:
        first, second = (half.mean((1, 2, 3)) for half in x.chunk(2, self.axis))
        return torch.stack([torch.zeros(len(x)), self.scale * (first - second)], 1)


def halves(axis: int, n: int = 200) -> tuple[Tensor, Tensor]:
    x = images(n, seed=1)
    first, second = (half.mean((1, 2, 3)) for half in x.chunk(2, axis))
    return x, (first > second).long()


@pytest.mark.parametrize(("axis", "suited"), [(2, "horizontal"), (3, "vertical")])
def test_views_that_change_the_answer_are_not_chosen(axis: int, suited: str) -> None:
    """The class depends on what is above, or on what is left: flips of the other axis change nothing, these do."""
    x, y = halves(axis)
    batches = DataLoader(TensorDataset(x, y), 50)
    chosen = Augmented.fit(Half(axis), batches, lb.Categorical())
    assert set(chosen.views) <= {"identity", suited, *SHIFTS}
    forced = lb.evaluate(Augmented(Half(axis), tuple(FLIPS)), batches, likelihood=lb.Categorical()).metrics["nll"]
    free = lb.evaluate(chosen, batches, likelihood=lb.Categorical()).metrics["nll"]
    plain = lb.evaluate(Half(axis), batches, likelihood=lb.Categorical()).metrics["nll"]
    assert free <= plain + 1e-6 < forced


@pytest.mark.parametrize("kind", ["classes", "labels", "pixels", "regression"])
def test_the_choice_has_the_least_validation_nll_of_all(kind: str) -> None:
    x = images(40, seed=2)
    source = torch.Generator().manual_seed(5)
    model: nn.Module = segmenter() if kind == "pixels" else classifier()
    y = {
        "classes": torch.randint(4, (40,), generator=source),
        "labels": torch.randint(2, (40, 4), generator=source).float(),
        "pixels": torch.randint(2, (40, 6, 6), generator=source),
        "regression": torch.randn(40, 4, generator=source),
    }[kind]
    likelihood = {"labels": lb.Bernoulli(), "regression": lb.Gaussian(0.5)}.get(kind, lb.Categorical())
    batches = DataLoader(TensorDataset(x, y), 16)
    chosen = Augmented.fit(model, batches, likelihood)
    flips = [("identity",), ("identity", "horizontal"), ("identity", "vertical"), tuple(FLIPS)]
    policies = flips if kind == "pixels" else [*flips, *((*views, *SHIFTS) for views in flips)]
    scores = {
        views: lb.evaluate(Augmented(model, views), batches, likelihood=likelihood).metrics["nll"] for views in policies
    }
    assert scores[chosen.views] == pytest.approx(min(scores.values()), rel=1e-6)
    assert max(scores.values()) > min(scores.values())
    without = Augmented.fit(model, batches, likelihood, shift=0)
    assert scores[without.views] == pytest.approx(min(scores[views] for views in flips), rel=1e-6)


def test_what_cannot_be_flipped_is_refused() -> None:
    model = Augmented(nn.Linear(4, 2))
    for x in (torch.zeros(5, 4), torch.zeros(5, 6, 6), (torch.zeros(5, 1, 6, 6),), {"x": torch.zeros(5, 1, 6, 6)}):
        with pytest.raises(InputError, match="columns of a table cannot be flipped"):
            lb.predict(model, x)
    with pytest.raises(UnknownName, match="diagonal"):
        Augmented(classifier(), ("identity", "diagonal"))
    for views in ((), ("identity", "identity")):
        with pytest.raises(InputError, match="views must be a list"):
            Augmented(classifier(), views)
    for shift in (0, -1, 1.5):
        with pytest.raises(InputError, match="shift must be a whole number"):
            Augmented(classifier(), shift=shift)
    with pytest.raises(InputError, match="cannot be shifted by 6"):
        lb.predict(Augmented(classifier(), ALL, shift=6), images())
    tokens = nn.Sequential(nn.Flatten(2), nn.Linear(36, 7))  # (N, 1, 7): which axes are those of the image?
    with pytest.raises(InputError, match="not clear which axes"):
        lb.predict(Augmented(tokens), images())
    with pytest.raises(InputError, match="no batches"):
        Augmented.fit(classifier(), [], lb.Categorical())
