"""Model shapes: under every propagation the outputs have the law of weight draws, or there is a clear refusal.

The truth is a loop over weight draws that are written into the parameters of a second model, which knows nothing of
replaced tensors, stand-ins and rules.
Mean and covariance of the outputs of each example are compared within five standard errors. "moments" and "covariance"
approximate what is not linear; they must be near, or refuse.
"""

import warnings
import zlib
from typing import Any

import pytest
import torch
from torch import Tensor

import leanbayes as lb
from leanbayes._calls import map_tensors
from tests.shapes.cases import CASES, Case

pytestmark = [
    pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad"),  # of a reentrant checkpoint
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors"),
]
DRAWN = ["sample", "mirrored", "local", "flipout"]
ONE_PASS = ["moments", "covariance"]
MOST = 4  # outputs of an example that are compared


def numbers(output: Any) -> Tensor:
    """The first tensor in what a model returned, as (examples, at most `MOST` numbers)."""
    tensors: list[Tensor] = []
    map_tensors(tensors.append, output)
    first = tensors[0].detach().double().clone()  # it may be a parameter, which the next draw overwrites
    return first.reshape(1, -1)[:, :MOST] if first.dim() == 0 else first.reshape(len(first), -1)[:, :MOST]


def build(case: Case, propagate: str) -> tuple[lb.Bayesian, tuple[Any, ...]]:
    torch.manual_seed(2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch, about lazy, nested, quantised and scripted modules
        model = case.build()
    if not isinstance(model, torch.jit.ScriptModule):
        model = model.double()
    inputs = case.inputs()
    bnn = lb.Bayesian(model, posterior=lb.posteriors.Normal(0.3), propagate=propagate, predict_by=propagate)
    return bnn.train(case.train), inputs if isinstance(inputs, tuple) else (inputs,)


def truth_of(case: Case, draws: int) -> Tensor:
    (bnn, inputs), (other, _) = build(case, "sample"), build(case, "sample")
    generator = torch.Generator().manual_seed(77)
    torch.manual_seed(78)
    result = []
    with torch.no_grad():
        for _ in range(draws):
            for name, value in bnn.draw(generator=generator).items():
                other.model.get_parameter(name).copy_(value)
            result.append(numbers(other.model(*inputs)))
    return torch.stack(result)


def draws_of(case: Case, propagate: str, draws: int, name: str, grad: bool = False) -> Tensor:
    bnn, inputs = build(case, propagate)
    generator = torch.Generator().manual_seed(zlib.crc32(f"{name}/{propagate}".encode()))
    torch.manual_seed(79)
    own = {"generator": generator} if not bnn._own_generator else {}
    with torch.set_grad_enabled(grad):
        return torch.stack([numbers(bnn(*inputs, **own)) for _ in range(draws)])


def products(values: Tensor, centre: Tensor) -> Tensor:
    """(yᵢ − mᵢ)(yⱼ − mⱼ) for the outputs i and j of each example."""
    away = values - centre
    return away.unsqueeze(-1) * away.unsqueeze(-2)


def standard_error(one: Tensor, two: Tensor) -> Tensor:
    """The standard error of the difference of two means, from both samples together, because both should have one law.

    Products of outputs are skewed. A sample whose mean is too small by chance has a variance that is too small as well,
    and an error from that variance alone would be exceeded far more often than a normal law says.
    """
    a, b = len(one), len(two)
    pooled = ((a - 1) * one.var(0) + (b - 1) * two.var(0)) / (a + b - 2)
    return (pooled * (1 / a + 1 / b)).sqrt()


def check_law(result: Tensor, truth: Tensor, tolerance: float) -> None:
    centre = truth.mean(0)
    for one, two in ((result, truth), (products(result, centre), products(truth, centre))):
        assert ((one.mean(0) - two.mean(0)).abs() <= 5 * standard_error(one, two) + tolerance + 1e-9).all()


_truths: dict[tuple[str, int], Tensor] = {}


def known_truth(name: str, draws: int) -> Tensor:
    if (name, draws) not in _truths:
        _truths[name, draws] = truth_of(CASES[name], draws)
    return _truths[name, draws]


ACCEPTED = [name for name, case in CASES.items() if case.refused is None]


def check_draws(name: str, propagate: str, draws: int) -> None:
    case = CASES[name]
    result = draws_of(case, propagate, draws, name)
    assert result.isfinite().all()
    if not (case.positions and propagate == "local"):
        check_law(result, known_truth(name, 2 * draws), case.tolerance)


def check_one_pass(name: str, propagate: str, draws: int) -> None:
    case = CASES[name]
    bnn, inputs = build(case, propagate)
    if propagate not in case.only:
        with pytest.raises(lb.errors.LeanBayesError) as refusal, torch.no_grad():
            bnn(*inputs)
        assert "sample" in str(refusal.value) or "draw" in str(refusal.value)
        return
    law = getattr(lb, propagate)
    torch.manual_seed(80)
    with torch.no_grad():
        mean, spread = law(bnn, inputs, output=lambda returned: first_tensor(returned))
    variance = spread.diagonal(dim1=-2, dim2=-1).reshape(mean.shape) if propagate == "covariance" else spread
    truth = known_truth(name, draws)
    if case.train:  # the mask of a dropout is one draw for mean and variance
        assert numbers(variance).gt(0).any()
        return
    std = truth.std(0)
    assert ((numbers(mean) - truth.mean(0)).abs() <= (5 / draws**0.5 + 0.25) * std + case.tolerance + 1e-9).all()
    ratio = (numbers(variance).sqrt() + 1e-9) / (std + 1e-9)
    assert ((ratio > 0.5) & (ratio < 2)).all()


def first_tensor(returned: Any) -> Tensor:
    tensors: list[Tensor] = []
    map_tensors(tensors.append, returned)
    return tensors[0]


@pytest.mark.parametrize("propagate", DRAWN)
@pytest.mark.parametrize("name", ACCEPTED)
def test_draws(name: str, propagate: str) -> None:
    if CASES[name].slow and propagate != "sample":
        pytest.skip("the thorough run has it")
    check_draws(name, propagate, 120)


@pytest.mark.parametrize("propagate", ONE_PASS)
@pytest.mark.parametrize("name", [name for name in ACCEPTED if not CASES[name].slow])
def test_one_pass(name: str, propagate: str) -> None:
    check_one_pass(name, propagate, 240)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.refused is not None])
def test_refused_shapes(name: str) -> None:
    with pytest.raises(lb.errors.LeanBayesError, match=CASES[name].refused):
        build(CASES[name], "sample")


def test_the_suite_would_notice() -> None:
    """A draw that is twice as wide, or shifted by half a standard deviation, does not pass."""
    truth = known_truth("linear", 240)
    for wrong in (truth[:120] + 0.8 * truth.std(0), truth.mean(0) + 2.5 * (truth[:120] - truth.mean(0))):
        with pytest.raises(AssertionError):
            check_law(wrong, truth, 0.0)


def test_the_standard_error_is_right_for_skewed_numbers() -> None:
    """Of squares of normal numbers, which are skewed as products are, 54 of 40,000 means should be 3 errors too small.

    With errors from the variance of each sample by itself it would be 105 to 138, depending on the seed.
    """
    generator = torch.Generator().manual_seed(1)
    one, two = (torch.randn(n, 40000, generator=generator).square() for n in (150, 300))
    score = (one.mean(0) - two.mean(0)) / standard_error(one, two)
    for side in (score, -score):
        assert side.gt(3).sum() <= 54 + 5 * 54**0.5


@pytest.mark.parametrize("propagate", ["mirrored", "local", "flipout"])
@pytest.mark.parametrize("name", ["LSTM", "GRU, two layers", "LSTM, time first"])
def test_recurrent_layers_see_the_weight_draw_itself(name: str, propagate: str) -> None:
    """No propagation has a rule for them, so the same seed gives the same numbers under each, bit for bit."""

    def output(way: str) -> Tensor:
        bnn, inputs = build(CASES[name], way)
        return numbers(bnn(*inputs, generator=torch.Generator().manual_seed(3)))

    assert torch.equal(output(propagate), output("sample"))


@pytest.mark.slow
@pytest.mark.parametrize("propagate", DRAWN)
@pytest.mark.parametrize("name", ACCEPTED)
def test_many_draws(name: str, propagate: str) -> None:
    check_draws(name, propagate, 3000)
