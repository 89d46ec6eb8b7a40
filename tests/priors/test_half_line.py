import numpy as np
import pytest
import torch
from scipy import stats

from leanbayes.priors import (
    InverseGaussianLaw,
    rayleigh,
    wald,
)
from tests.priors.cases import number


@pytest.mark.parametrize(
    ("law", "expected"),
    [
        (InverseGaussianLaw(number(1.7), number(2.5)), stats.invgauss(1.7 / 2.5, scale=2.5)),
        (wald(number(2.5)), stats.invgauss(1 / 2.5, scale=2.5)),
        (rayleigh(number(0.8)), stats.rayleigh(scale=0.8)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_densities(law, expected):
    points = np.linspace(0.05, 9, 200)
    result = law.log_prob(torch.from_numpy(points))
    np.testing.assert_allclose(result.numpy(), expected.logpdf(points), rtol=1e-10, atol=1e-12)
