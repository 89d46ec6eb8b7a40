"""Two draws for a batch, mirror images of each other: what each half gets, and what a batch norm makes of them."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError
from leanbayes.posteriors import Normal, Radial
from leanbayes.subspace import random_k


@dataclass(frozen=True)
class Lopsided(Normal):
    symmetric: bool = False


def halves(model: nn.Module, x: Tensor, posterior: Normal | Radial, rate: float = 1.0) -> tuple[Tensor, Tensor]:
    """What one pass adds to the plain model, for each half of a batch of twins."""
    bnn = Bayesian(model, propagate="mirrored", posterior=posterior, subspace=random_k(rate))
    with torch.no_grad():
        first, second = (bnn(torch.cat([x, x])) - model(torch.cat([x, x]))).chunk(2)
    return first, second


@pytest.mark.parametrize("posterior", [Normal(0.5), Radial(0.5)], ids=str)
@pytest.mark.parametrize("rate", [0.3, 1.0])
@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda: nn.Linear(3, 4), (5, 3)),
        (lambda: nn.Linear(3, 4), (5, 2, 3)),
        (lambda: nn.Conv2d(2, 4, 3, groups=2, padding=1), (5, 2, 4, 4)),
        (lambda: nn.ConvTranspose1d(2, 3, 2), (5, 2, 4)),
        (lambda: nn.BatchNorm2d(3).eval(), (5, 3, 2, 2)),
        (lambda: nn.BatchNorm1d(3).train(), (5, 3)),
    ],
)
def test_what_one_half_gets_the_other_gets_with_the_sign_turned(make, shape, rate: float, posterior) -> None:
    torch.manual_seed(0)
    model, x = make().double(), torch.randn(shape, dtype=torch.float64)
    first, second = halves(model, x, posterior, rate)
    assert first.abs().max() > 1e-4
    torch.testing.assert_close(second, -first, rtol=1e-10, atol=1e-10)


def test_the_statistics_of_a_batch_of_twins_keep_their_mean_and_feel_noise_to_second_order() -> None:
    """The mean of ±Δx is 0 exactly, the variance grows by that of Δx: at a 100th of the noise a 10,000th as much."""
    torch.manual_seed(0)
    layer, x = nn.Linear(3, 4).double(), torch.randn(50, 3, dtype=torch.float64)
    twins = torch.cat([x, x])

    def variances(scale: float, propagate: str) -> Tensor:
        torch.manual_seed(1)
        bnn = Bayesian(layer, propagate=propagate, posterior=Normal(scale))
        out = bnn(twins).detach()
        if propagate == "mirrored":
            torch.testing.assert_close(out.mean(0), layer(twins).mean(0).detach(), rtol=1e-10, atol=1e-10)
        return (out.var(0) - layer(twins).var(0).detach()).abs()

    torch.testing.assert_close(variances(0.01, "mirrored") * 10_000, variances(1.0, "mirrored"), rtol=1e-6, atol=1e-9)
    assert (variances(0.01, "sample") * 10_000 > 2 * variances(1.0, "sample")).all()


@pytest.mark.parametrize(("count", "mirrored"), [(1, 0), (2, 1), (5, 2)])
def test_of_an_odd_batch_the_first_half_is_the_larger(count: int, mirrored: int) -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 1)
    bnn = Bayesian(model, propagate="mirrored", posterior=Normal(0.5))
    with torch.no_grad():
        noise = (bnn(torch.ones(count, 2)) - model(torch.ones(count, 2))).flatten()
    assert (noise * noise[0] < 0).tolist() == [False] * (count - mirrored) + [True] * mirrored


def test_without_a_batch_there_is_one_draw() -> None:
    torch.manual_seed(0)
    model, x = nn.Conv1d(4, 2, 1), torch.ones(4, 3)
    noise = Bayesian(model, propagate="mirrored", posterior=Normal(0.5))(x) - model(x)
    torch.testing.assert_close(noise, noise[:, :1].expand_as(noise))


def test_noise_that_is_not_symmetric_is_refused() -> None:
    with pytest.raises(InputError, match=r'symmetric about 0, which Lopsided\(.*\) is not; use propagate="sample"'):
        Bayesian(nn.Linear(2, 1), posterior=Lopsided(), propagate="mirrored")(torch.ones(2, 2))
