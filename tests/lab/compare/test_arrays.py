"""The arrays of figures are collected batch by batch, in memory that does not grow with the data."""

import pytest
import torch
from torch import Tensor

import leanbayes as lb
from leanbayes.evaluation.run import PredictedBatch
from leanbayes.lab.compare import arrays as module
from leanbayes.lab.compare.arrays import FigureArrays, Smallest, bayesian_inside, sigma_of_first_layer
from leanbayes.prediction import Prediction
from tests import tasks


def prediction(mean: Tensor, total: Tensor) -> Prediction:
    zeros = torch.zeros(len(mean))
    return Prediction(mean, total, total, total, zeros, zeros)


def pictures(n: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    probabilities = torch.randn(n, 3, generator=generator).softmax(1)
    return torch.randn(n, 1, 4, 4, generator=generator), torch.arange(n) % 3, probabilities


def entropy(p: Tensor) -> Tensor:
    return -(p * p.log()).sum(1)


def collected(n: int, size: int) -> dict[str, Tensor]:
    x, y, p = pictures(n)
    collector = FigureArrays(lb.Categorical())
    for batch in zip(x.split(size), y.split(size), p.split(size), strict=True):
        collector.add(PredictedBatch(None, batch[0], batch[1], prediction(batch[2], entropy(batch[2]))))
    return collector.arrays()


@pytest.mark.parametrize("size", [1, 7, 50, 1000])
def test_the_smallest_keys_stay_in_the_order_in_which_they_came(size: int) -> None:
    keys = torch.rand(200, generator=torch.Generator().manual_seed(1))
    smallest = Smallest(20)
    for part in torch.arange(200).split(size):
        smallest.add(keys[part], {"row": part})
        assert len(smallest.columns["row"]) <= 20
    expected = keys.argsort()[:20]
    assert smallest.columns["row"].tolist() == sorted(expected.tolist())
    assert smallest.by_key()["row"].tolist() == expected.tolist()


def test_nothing_added_is_nothing_kept() -> None:
    assert Smallest(3).by_key() == {}
    assert FigureArrays(lb.Categorical()).arrays() == {}


def test_the_examples_are_the_most_and_least_certain_of_all_batches() -> None:
    _, y, p = pictures(100)
    arrays, order = collected(100, 9), entropy(p).argsort()
    assert torch.equal(arrays["confidence"], p.amax(1))
    assert torch.equal(arrays["correct"], (p.argmax(1) == y).float())
    for name, rows in (("certain", order[:6]), ("uncertain", order.flip(0)[:6])):
        assert arrays[f"{name}/label"].tolist() == y[rows].tolist()
        assert arrays[f"{name}/predicted"].tolist() == p[rows].argmax(1).tolist()
        torch.testing.assert_close(arrays[f"{name}/entropy"], entropy(p)[rows])
        assert arrays[f"{name}/image"].shape == (6, 4, 4)
        assert (arrays[f"{name}/image"].amin(), arrays[f"{name}/image"].amax()) == (0, 1)


def test_of_a_large_set_a_uniform_sample_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_INPUTS", 50)
    _, _, p = pictures(1000)
    arrays = collected(1000, 64)
    rows = [(p.amax(1) == value).nonzero().item() for value in arrays["confidence"]]
    assert len(set(rows)) == 50
    assert rows == sorted(rows)
    assert 350 < sum(rows) / 50 < 650  # uniform: 499.5 ± 41


def test_pixels_have_cells_inputs_and_overlays() -> None:
    generator = torch.Generator().manual_seed(0)
    p = (3 * torch.randn(5, 2, 4, 4, generator=generator)).softmax(1)
    y = torch.randint(0, 2, (5, 4, 4), generator=generator)
    y[0, 0, 0] = -100
    x = torch.randn(5, 3, 4, 4, generator=generator)
    collector = FigureArrays(lb.Categorical())
    for rows in (slice(0, 2), slice(2, 5)):
        collector.add(PredictedBatch(None, x[rows], y[rows], prediction(p[rows], entropy(p[rows]))))
        collector.add(PredictedBatch("far", x[rows], None, prediction(p[rows], entropy(p[rows]))))
    arrays = collector.arrays()
    assert arrays["confidence"].shape == (5 * 16 - 1,)
    means = entropy(p).flatten(1).mean(1)
    torch.testing.assert_close(arrays["input_entropy"], means)
    torch.testing.assert_close(arrays["shifted/far/entropy"], means)
    order = means.argsort()[[0, 2, 4]]
    torch.testing.assert_close(arrays["overlay/entropy"], entropy(p)[order])
    assert torch.equal(arrays["overlay/truth"], y[order].float())
    assert torch.equal(arrays["overlay/predicted"], p[order].argmax(1).float())
    assert arrays["overlay/image"].shape == (3, 4, 4, 3)


def test_numbers() -> None:
    mean, truth = torch.randn(6, 1), torch.randn(6, 1)
    collector = FigureArrays(lb.Gaussian())
    collector.add(PredictedBatch(None, torch.zeros(6, 2), truth, prediction(mean, torch.full((6, 1), 4.0))))
    collector.add(PredictedBatch("far", torch.zeros(6, 2), truth, prediction(mean, torch.full((6, 1), 4.0))))
    arrays = collector.arrays()
    assert sorted(arrays) == ["deviation", "input_nll", "input_targets", "predicted", "truth"]
    assert torch.equal(arrays["predicted"], mean.flatten())
    assert arrays["deviation"].tolist() == [2.0] * 6


def test_the_bayesian_inside_an_ensemble_gives_its_scales() -> None:
    bnn = lb.Bayesian(tasks.mlp())
    ensemble = lb.baselines.Ensemble(tasks.mlp(), bnn)
    assert bayesian_inside(ensemble) is bnn
    assert sigma_of_first_layer(ensemble)["sigma"].shape == (16, 2)
    assert sigma_of_first_layer(tasks.mlp()) == {}
