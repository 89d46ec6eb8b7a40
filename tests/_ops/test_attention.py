"""The variance of attention in few products against the rules of its steps, in float64."""

import pytest
import torch

from leanbayes._ops import attention, moments
from leanbayes._ops.attention import attention_variance


@pytest.fixture(autouse=True)
def sweep_small_tensors_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moments, "_LEAST", 1)
    monkeypatch.setattr(moments, "_share", lambda numbers: 700)
    monkeypatch.setattr(attention, "_TOGETHER", 2000)  # some examples at a time, and a last part with fewer


def operands(count: int, tokens: int, keys: int, width: int = 6, size: int = 4):
    """Mean and variance of queries, keys and values that are views into larger tensors, and ρ of the values."""
    shapes = [(count, tokens, 3, width), (count, keys, 3, width), (count, keys, 3, size)]
    moments_of = [(torch.randn(shape).transpose(1, 2), torch.rand(shape).transpose(1, 2)) for shape in shapes]
    return *moments_of, torch.rand(count, 3, 1, size)


def by_the_definition(query, key, value, rho, scale):
    (q, q_v), (k, k_v), (v, v_v) = ((mean.double(), spread.double()) for mean, spread in (query, key, value))
    rho = rho.double()
    p = torch.softmax(scale * (q @ k.mT), -1)
    scores = scale**2 * ((q.square() + q_v) @ k_v.mT + q_v @ k.square().mT)
    jacobian = torch.diag_embed(p) - p.unsqueeze(-1) * p.unsqueeze(-2)
    spread = (jacobian.square() * scores.unsqueeze(-2)).sum(-1)
    together = (p @ (rho * v_v).sqrt()).square()
    return p.square() @ ((1 - rho) * v_v) + spread @ (v_v + v.square()) + together, together


@pytest.mark.parametrize(("count", "tokens", "keys"), [(5, 33, 33), (2, 17, 40), (3, 1, 20), (1, 20, 1)])
def test_variance_and_shared_part(count, tokens, keys):
    torch.manual_seed(count)
    given = operands(count, tokens, keys)
    with torch.no_grad():
        computed = attention_variance(*given, 0.4)
    assert computed is not None
    for one, other in zip(computed, by_the_definition(*given, 0.4), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=2e-5, atol=1e-6)


def test_scores_far_apart_and_what_is_no_number():
    query, key, value, rho = operands(2, 33, 33)
    far = (query[0] * 100, query[1])
    query[0][0, 0, 3, 1], key[1][1, 2, 5, 0] = torch.nan, torch.inf
    with torch.no_grad():
        variance, _ = attention_variance(far, key, value, rho, 1.0) or ()
        broken, _ = attention_variance(query, key, value, rho, 1.0) or ()
    assert variance[0].isfinite().all()
    assert not broken[0, 0, 3].isfinite().any()
    assert not broken[1, 2].isfinite().any()
    assert broken[1, :2].isfinite().all()


def test_what_the_kernel_does_not_take():
    given = operands(2, 33, 33)
    assert attention_variance(*given, 0.4) is None  # gradients are recorded
    double = [(mean.double(), spread.double()) for mean, spread in given[:3]]
    with torch.no_grad():
        assert attention_variance(*double, given[3].double(), 0.4) is None
