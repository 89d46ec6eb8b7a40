"""Under a guarantee, what is predicted for an input does not depend on its place in a batch, nor on the batch."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import leanbayes as lb
from leanbayes.baselines import Ensemble, LaplaceApproximation, MCDropout, Temperature
from leanbayes.conformal import Sets
from leanbayes.conformal.whole_draws import _WholeDraws, with_whole_draws


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def data(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.randn(count, 4, generator=seeded(seed))
    return x, torch.multinomial(torch.softmax(2 * x[:, :3], 1), 1, generator=seeded(seed + 1))[:, 0]


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))


def predictors() -> dict[str, nn.Module]:
    wide = lb.posteriors.Normal(0.5)
    laplace = LaplaceApproximation.fit(mlp(), [data(60)], lb.Categorical())
    return {
        "local": lb.Bayesian(mlp(), posterior=wide, propagate="local"),
        "flipout": lb.Bayesian(mlp(), posterior=wide, propagate="flipout"),
        "dropout": MCDropout(mlp(), 0.5),
        "laplace": laplace,
        "temperature of dropout": Temperature(MCDropout(mlp(), 0.5)),
        "ensemble of local": Ensemble(lb.Bayesian(mlp(), posterior=wide, propagate="local"), mlp()),
    }


@pytest.mark.parametrize("name", predictors())
def test_the_place_in_a_batch_does_not_matter(name: str) -> None:
    sets = Sets(predictors()[name], samples=4)
    x, _ = data(12)
    whole = sets.prediction(x).mean
    assert torch.allclose(torch.cat([sets.prediction(row[None]).mean for row in x]), whole, atol=1e-6)
    assert torch.allclose(sets.prediction(x.flip(0)).mean.flip(0), whole, atol=1e-6)
    assert not torch.allclose(Sets(predictors()[name], samples=4, seed=1).prediction(x).mean, whole, atol=1e-4)


@pytest.mark.parametrize("name", ["local", "dropout"])
def test_whole_draws_have_the_distribution_of_the_draws_that_differ(name: str) -> None:
    """800 draws of each: the means of the probabilities agree within their standard errors."""
    model, (x, _) = predictors()[name], data(3)
    pair = [lb.predict(m, x, samples=800, keep_samples=True, generator=seeded(5)) for m in (model, _WholeDraws(model))]
    errors = [p.samples.std(0) / 800**0.5 for p in pair if p.samples is not None]
    assert ((pair[0].mean - pair[1].mean).abs() < 4.5 * (errors[0].square() + errors[1].square()).sqrt()).all()


def test_dropout_covers_inputs_one_by_one_though_it_was_calibrated_in_one_batch() -> None:
    """Over many inputs the coverage is that of this calibration: Beta with mean 0.9 and deviation 0.011.

    If the first place of a batch had noise of its own, all new inputs would meet this one mask, and the calibration
    would have met 800 others. With one draw of strong dropout the coverage would then lie far off for many seeds.
    """
    (x, y), (new, labels) = data(800), data(400, seed=50)
    shares = []
    for seed in range(4):
        sets = Sets(MCDropout(mlp(), 0.5), 0.9, "lac", samples=1, seed=seed).calibrate([(x, y)])
        one = torch.cat([sets.sets(row[None]) for row in new[:20]])
        assert torch.equal(one, sets.sets(new[:20]))
        shares.append(sets.sets(new).gather(1, labels[:, None]).double().mean())
    assert (torch.stack(shares) - 0.9).abs().max() < 4 * (0.09 / 800 + 0.09 / 400) ** 0.5


class Two(nn.Module):
    """A network of two inputs, by name."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return self.net(torch.cat([first, second], 1))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "model", [MCDropout(Two(), 0.5), lb.Bayesian(Two(), propagate="local")], ids=["dropout", "local"]
)
def test_networks_of_several_inputs(model: Any) -> None:
    x, y = data(40)
    named, placed = {"first": x[:, :1], "second": x[:, 1:]}, (x[:, :1], x[:, 1:])
    sets = Sets(model, samples=3, score="lac").calibrate([(named, y)])
    assert torch.equal(sets.sets(named), sets.sets(placed))
    assert torch.equal(sets.sets({name: part[:1] for name, part in named.items()}), sets.sets(named)[:1])


def test_what_does_not_depend_on_places_stays_as_it_is() -> None:
    for model in (mlp(), lb.Bayesian(mlp()), lb.Bayesian(mlp(), predict_by="moments"), Ensemble(mlp(), mlp())):
        assert with_whole_draws(model) is model
    assert isinstance(with_whole_draws(lb.Bayesian(mlp(), propagate="local")), _WholeDraws)
