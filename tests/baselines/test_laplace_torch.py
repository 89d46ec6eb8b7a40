"""The posterior that follows from a curvature, against dense algebra and a search of the evidence."""

import sys

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import nn

from leanbayes.baselines import LaplaceApproximation
from leanbayes.baselines.laplace_torch import TrainingData, inverse_root, most_evident, output_of
from leanbayes.errors import InputError, NonFinite
from leanbayes.likelihood import Categorical


def curvature(size: int = 5) -> torch.Tensor:
    root = torch.randn(size, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return root @ root.T


def test_the_root_is_that_of_the_inverse_precision() -> None:
    root = inverse_root(curvature(), 0.3)
    expected = torch.linalg.inv(curvature() + 0.3 * torch.eye(5, dtype=torch.float64))
    torch.testing.assert_close(root @ root.T, expected, rtol=1e-10, atol=1e-12)
    with pytest.raises(NonFinite, match="give a larger one"):
        inverse_root(-curvature(), 1e-3)


def test_the_chosen_prior_precision_maximises_the_evidence() -> None:
    mode = torch.linspace(-1, 1, 5, dtype=torch.float64)
    eigenvalues = torch.linalg.eigvalsh(curvature())

    def minus_evidence(log_tau: float) -> float:
        tau = torch.tensor(log_tau, dtype=torch.float64).exp()
        return float(-(tau / (eigenvalues + tau)).log().sum() + tau * mode.square().sum())

    best = minimize_scalar(minus_evidence, bounds=(-5, 5), method="bounded", options={"xatol": 1e-10}).x
    assert torch.tensor(most_evident(curvature(), mode)).log().item() == pytest.approx(best, abs=1e-5)


def test_without_laplace_torch_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "laplace", None)
    with pytest.raises(InputError, match=r"pip install 'leanbayes\[laplace\]'"):
        LaplaceApproximation.fit(nn.Linear(2, 3), [(torch.zeros(4, 2), torch.arange(4) % 3)], Categorical())


def test_data_and_outputs_are_checked() -> None:
    with pytest.raises(InputError, match="no batches"):
        TrainingData([])
    with pytest.raises(InputError, match=r"\(N, features\), got \(2, 3, 4\)"):
        output_of(torch.zeros(2, 3, 4))
