import math
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from leanbayes._ops import sparse
from leanbayes.bayesian import Bayesian
from leanbayes.errors import InputError
from leanbayes.posteriors import Normal, RandomWeight
from leanbayes.propagate import flipout
from leanbayes.subspace import random_k
from tests.oracles import covariance_within_standard_errors, mean_within_standard_errors
from tests.propagate.cases import stand_in


@dataclass(frozen=True)
class Lopsided(Normal):
    symmetric: bool = False


PASSES = 800

MODELS = {
    "linear": (lambda: nn.Linear(3, 2), (3,)),
    "linear over time": (lambda: nn.Linear(3, 2), (2, 3)),
    "conv1d": (lambda: nn.Conv1d(2, 2, 2), (2, 3)),
    "conv2d, groups": (lambda: nn.Conv2d(2, 2, 2, groups=2), (2, 2, 3)),
    "conv_transpose2d": (lambda: nn.ConvTranspose2d(2, 1, 2), (2, 1, 2)),
}


@cache
def twins(kind: str, propagate: str) -> tuple[Tensor, Tensor, Tensor]:
    """Many passes of two examples with the same input, less the mean; and the true covariance of one example."""
    torch.manual_seed(0)
    make, shape = MODELS[kind]
    model = make().double()
    x = torch.randn(shape, dtype=torch.float64)
    bnn = Bayesian(model, propagate=propagate, posterior=Normal(0.5))
    generator = torch.Generator().manual_seed(0)
    pair = torch.stack([x, x])
    with torch.no_grad():
        draws = torch.stack([bnn(pair, generator=generator) for _ in range(PASSES)]) - model(pair)
    variance = torch.zeros(draws[0, 0].numel(), draws[0, 0].numel(), dtype=torch.float64)
    for parameter in model.parameters():
        for i in range(parameter.numel()):
            with torch.no_grad():
                plain = model(pair)[0]
                parameter.view(-1)[i] += 1
                column = 0.5 * (model(pair)[0] - plain).flatten()
                parameter.view(-1)[i] -= 1
            variance += column.outer(column)
    return draws[:, 0].flatten(1), draws[:, 1].flatten(1), variance


@pytest.mark.parametrize("kind", MODELS)
class TestExamplesOfABatch:
    def test_flipout_decorrelates_them(self, kind):
        first, second, variance = twins(kind, "flipout")
        covariance_within_standard_errors(first, torch.zeros(()), variance)
        covariance_within_standard_errors(second, torch.zeros(()), variance)
        mean_within_standard_errors(first.unsqueeze(2) * second.unsqueeze(1), 0.0)
        assert not torch.isclose(first, second).all()

    def test_sample_gives_both_the_same(self, kind):
        first, second, variance = twins(kind, "sample")
        torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-12)
        covariance_within_standard_errors(first, torch.zeros(()), variance)

    def test_both_still_come_from_one_draw(self, kind):
        """Uncorrelated but not independent: the squares share the size of ΔW. Under ``local`` they do not."""
        shared, apart = (
            torch.corrcoef(torch.stack([part.square().sum(1) for part in twins(kind, name)[:2]]))[0, 1].item()
            for name in ("flipout", "local")
        )
        assert shared > 0.1
        assert abs(apart) < 5 / math.sqrt(PASSES)


def test_a_random_bias_alone_is_decorrelated():
    bias = RandomWeight("b", torch.zeros(2, dtype=torch.float64), None, torch.tensor([1.0, 0.5]).double(), Normal())
    x, weight = torch.ones(2000, 1, dtype=torch.float64), torch.zeros(2, 1, dtype=torch.float64)
    y = torch.nn.functional.linear(x, weight, stand_in("flipout", bias, torch.Generator().manual_seed(0)))
    assert len(y[:, 0].abs().unique()) == 1
    mean_within_standard_errors(y.sign(), 0.0)
    mean_within_standard_errors(y[:, 0].sign() * y[:, 1].sign(), 0.0)


@pytest.mark.parametrize(
    ("norm", "shape"), [(nn.BatchNorm1d, (3,)), (nn.BatchNorm1d, (3, 4)), (nn.BatchNorm2d, (3, 2, 4))]
)
@pytest.mark.parametrize("training", [True, False])
class TestGainsAndOffsetsOfBatchNorm:
    def noise(self, norm, shape, training, examples=1000):
        """What one pass adds to the plain norm of two inputs, each of them many times in the batch."""
        torch.manual_seed(0)
        model = norm(3).double().train(training)
        x = torch.randn(2, *shape, dtype=torch.float64).repeat_interleave(examples, 0)
        bnn = Bayesian(model, propagate="flipout", posterior=Normal(0.5))
        with torch.no_grad():
            result = bnn(x, generator=torch.Generator().manual_seed(1)) - model(x)
        return result.reshape(2, examples, 3, -1)

    def test_each_example_has_signs_of_its_own_and_all_one_draw(self, norm, shape, training):
        """s x̂ Δγ + r Δβ has two sizes at any place, each with both signs; half their sum or difference is |Δβ|."""
        noise = self.noise(norm, shape, training)
        mean_within_standard_errors(noise.transpose(0, 1).flatten(1), 0.0)
        places = noise.movedim(2, 0)[..., 0]
        for channel in places:
            sizes = [example.abs().round(decimals=9).unique() for example in channel]
            assert [len(size) for size in sizes] == [2, 2]
            assert all(len(example.round(decimals=9).unique()) == 4 for example in channel)
            halves = [{round((low + high).item() / 2, 7), round((high - low).item() / 2, 7)} for low, high in sizes]
            assert halves[0] & halves[1]


def test_a_batch_norm_without_gains_is_left_as_it_is():
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3, affine=False)).double()
    bnn, x = Bayesian(model, propagate="flipout"), torch.randn(6, 2, dtype=torch.float64)
    assert bnn(x).mean(0).abs().max() < 1e-12


@pytest.mark.parametrize("model", [nn.Linear(300, 200), nn.Conv2d(64, 64, 3, padding=1, stride=2)], ids=str)
def test_a_few_random_weights_give_the_same_by_a_sparse_product_as_by_a_dense_one(model, monkeypatch):
    torch.manual_seed(0)
    bnn = Bayesian(model.double(), propagate="flipout", posterior=Normal(0.5), subspace=random_k(0.01))
    shape = (32, 300) if isinstance(model, nn.Linear) else (32, 64, 8, 8)
    x = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    index = next(weight.index for name, weight in bnn.weights().items() if name.endswith("weight"))
    size = {} if isinstance(model, nn.Linear) else {"padding": 1, "stride": 2}
    assert "dense" not in str(sparse.kernels_for(x, index, tuple(model.weight.shape), **size))

    def run() -> list[Tensor]:
        out = bnn(x, generator=torch.Generator().manual_seed(1))
        return [out, *torch.autograd.grad(out.square().sum(), [x, *bnn.parameters()])]

    result = run()
    monkeypatch.setattr(flipout, "SPARSE_OPS", ())
    for one, other in zip(result, run(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


def test_noise_that_is_not_symmetric_is_refused():
    with pytest.raises(InputError, match=r'symmetric about 0, which Lopsided\(.*\) is not; use propagate="sample"'):
        Bayesian(nn.Linear(2, 1), posterior=Lopsided(), propagate="flipout")(torch.ones(1, 2))
    assert Bayesian(nn.Linear(2, 1), posterior=Lopsided())(torch.ones(1, 2)).shape == (1, 1)
