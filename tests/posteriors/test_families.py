"""The catalogue of families, and a family that another package adds."""

import math
import sys
from dataclasses import dataclass

import pytest
import torch
from scipy import stats
from torch import nn

import leanbayes as lb
from leanbayes.errors import InputError
from leanbayes.kl.table import table
from leanbayes.posteriors import FAMILIES
from tests.posteriors.conformance import CASES, CHECKS, Case


def test_every_family_is_a_case():
    assert sorted(str(case) for case in CASES) == list(FAMILIES)


PLUG_IN = '''
import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from leanbayes.posteriors import LocationScale


@dataclass(frozen=True)
class Secant(LocationScale):
    """The hyperbolic secant law: f(ξ) = ½ sech(πξ/2), of variance 1."""

    def noise(self, like, samples, generator):
        shape = like.shape if samples is None else (samples, *like.shape)
        top, below = (torch.randn(shape, dtype=like.dtype, device=like.device, generator=generator) for _ in "ab")
        return (top.abs().clamp_min(1e-6) / below.abs().clamp_min(1e-6)).log() * (2 / math.pi)

    def log_noise(self, noise):
        y = 0.5 * math.pi * noise
        return y - F.softplus(2 * y, threshold=40)

    def expected(self, term, count):
        k = term.order
        if term.kind == "log" or k != int(k) or k < 0:
            return math.inf
        return 0.0 if k % 2 else {0: 1.0, 2: 1.0, 4: 5.0, 6: 61.0}[k]

    def noise_entropy(self, count):
        return count * math.log(4)
'''


@pytest.fixture
def secant(tmp_path, monkeypatch):
    """A family in one file of another package, which declares it by an entry point."""
    (tmp_path / "secant_of_tests.py").write_text(PLUG_IN)
    metadata = tmp_path / "secant_of_tests-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: secant-of-tests\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[leanbayes.posteriors]\nsecant = secant_of_tests:Secant\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name, value in (("_members", {}), ("_sources", {}), ("_complete", False)):  # as in a new process
        monkeypatch.setattr(FAMILIES, name, value)
    yield FAMILIES.named("Secant")
    sys.modules.pop("secant_of_tests", None)


def test_a_family_from_outside_is_trained_saved_and_loaded(secant, tmp_path):
    assert len(FAMILIES) == len(CASES) + 1
    torch.manual_seed(0)
    x = torch.randn(64, 2)
    y = (x[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    bnn = lb.Bayesian(model, posterior=secant(init_scale=0.1))
    lb.fit(bnn, [(x, y)], likelihood=lb.Categorical(), epochs=60, optimizer=lb.Optimization(lr=0.05), kl_weight=0.1)
    assert (lb.predict(bnn, x).mean.argmax(1) == y).double().mean() > 0.9
    lb.save(bnn, tmp_path / "model.lb")
    again = lb.load(tmp_path / "model.lb", nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2)))
    assert again.posterior == secant(init_scale=0.1)
    assert any(row.posterior == "Secant" for row in table())


def test_a_family_from_outside_inherits_the_checks(secant):
    case = Case(secant(), stats.hypsecant(scale=2 / math.pi))
    for check in CHECKS:
        check(case)


def test_a_file_names_the_family_that_is_not_installed(secant, tmp_path, monkeypatch):
    lb.save(lb.Bayesian(nn.Linear(2, 1), posterior=secant()), tmp_path / "model.lb")
    monkeypatch.setattr(FAMILIES, "_members", {"Normal": lb.posteriors.Normal})
    with pytest.raises(lb.errors.ForeignFile, match="the file names 'Secant', which is unknown here; install the"):
        lb.load(tmp_path / "model.lb", nn.Linear(2, 1))


def test_a_family_that_is_not_registered_cannot_be_saved(tmp_path):
    @dataclass(frozen=True)
    class Mine(lb.posteriors.Normal):
        """Not registered."""

    with pytest.raises(InputError, match=r"Mine.* is in no catalogue of LeanBayes.*FAMILIES\.register"):
        lb.save(lb.Bayesian(nn.Linear(2, 1), posterior=Mine()), tmp_path / "model.lb")
