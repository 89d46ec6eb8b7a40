"""What must work where torch, numpy and safetensors are installed and nothing else.

`tests/test_minimal_environment.py` runs it in such an environment. To try it in a real one:

    python -m venv /tmp/minimal && /tmp/minimal/bin/pip install torch numpy safetensors
    /tmp/minimal/bin/pip install --no-deps . && /tmp/minimal/bin/python tests/minimal_script.py
"""

import importlib.util
import tempfile
import warnings
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import leanbayes as lb

OPTIONAL = ("numba", "scipy", "accelerate", "sklearn", "matplotlib", "rich", "yaml", "tyro", "PIL")


def network(channels: int = 8) -> nn.Module:
    """A small convolutional network for images of 12 by 12 pixels."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, channels, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(25 * channels, 3)
    )


def data() -> TensorDataset:
    """Images whose class is the brightest of three columns."""
    torch.manual_seed(1)
    images = torch.randn(64, 1, 12, 12)
    return TensorDataset(images, images[..., :3].mean((1, 2)).argmax(-1))


EXAMPLES = data()
X, Y = EXAMPLES.tensors
LOADER = DataLoader(EXAMPLES, batch_size=16)


def check(prediction: lb.Prediction) -> None:
    """The probabilities are finite and the parts of the uncertainty add up."""
    assert prediction.mean.shape == (64, 3)
    assert prediction.mean.isfinite().all()
    torch.testing.assert_close(prediction.aleatoric + prediction.epistemic, prediction.total, atol=1e-4, rtol=1e-4)


def the_lines_of_the_readme(folder: Path) -> None:
    """Score, convert, train, predict, save, load, evaluate."""
    model = network()
    scores = lb.sensitivity(model, [(X, Y)], nn.functional.cross_entropy)
    bnn = lb.Bayesian(model, subspace=lb.top_k(scores, rate=0.01))
    lb.fit(bnn, LOADER, likelihood=lb.Categorical(), epochs=2)
    check(lb.predict(bnn, X))
    lb.save(bnn, folder / "model.lb")
    again = lb.load(folder / "model.lb", network())
    inputs = X[:4]
    torch.testing.assert_close(
        lb.predict(again, inputs, generator=torch.Generator().manual_seed(0)).mean,
        lb.predict(bnn, inputs, generator=torch.Generator().manual_seed(0)).mean,
    )
    metrics = lb.evaluate(again, LOADER, likelihood=lb.Categorical())
    assert metrics


def one_pass_of_moments() -> None:
    """Means and variances through the network, without draws."""
    check(lb.predict(lb.Bayesian(network(), predict_by="moments"), X))
    bnn = lb.Bayesian(network(64), propagate="moments")  # large enough for the sweeps that numba would do
    lb.elbo(bnn, X, Y, lb.Categorical(), n_data=64).loss.backward()
    check(lb.predict(bnn, X))


def a_sparse_network() -> None:
    """Training and prediction by weights of which one in twenty is stored."""
    for propagate in ("sample", "local"):
        bnn = lb.Bayesian(network(64), subspace=lb.sparse(density=0.05), propagate=propagate)
        lb.fit(bnn, LOADER, likelihood=lb.Categorical(), epochs=1)
        check(lb.predict(bnn, X))


def every_family() -> None:
    """A draw and a divergence of each family, by Monte Carlo where no closed form is known."""
    line = torch.distributions.Normal(0.0, 1.0)
    for name, family in lb.posteriors.FAMILIES.items():
        prior = lb.priors.HorseshoeLaw(0.0, 1.0) if name == "Horseshoe" else line
        bnn = lb.Bayesian(network(), posterior=family(), prior=prior, kl=lb.MonteCarlo(10), subspace=lb.layers("4"))
        value = lb.elbo(bnn, X, Y, lb.Categorical(), n_data=64).loss
        value.backward()
        assert value.isfinite(), name
    assert len(lb.posteriors.FAMILIES) >= 15


def large_tensors() -> None:
    """Weights large enough for the draws that numba would do."""
    bnn = lb.Bayesian(nn.Linear(600, 500), kl=lb.MonteCarlo(100))
    inputs, targets = torch.randn(4, 600), torch.zeros(4, dtype=torch.long)
    assert lb.elbo(bnn, inputs, targets, lb.Categorical(), n_data=4).loss.isfinite()


def the_command() -> None:
    """The command line says in one line which extra it needs."""
    from leanbayes.lab import main

    with redirect_stderr(StringIO()) as errors:
        code = main(["compare"])
    assert code != 0
    assert errors.getvalue().count("\n") == 1, errors.getvalue()
    assert "pip install 'leanbayes[lab]'" in errors.getvalue(), errors.getvalue()


def run() -> None:
    """Run all of the above, and see that one warning speaks of numba where numba would help, and none before."""
    for package in OPTIONAL:
        assert importlib.util.find_spec(package) is None, f"{package} is installed, so this environment shows nothing"
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(record=True) as notes:
        warnings.simplefilter("always")
        the_lines_of_the_readme(Path(folder))
        early = [note for note in notes if note.category is lb.errors.PerformanceWarning]
        assert not early, "small dense work needs no numba, so it should not speak of it"
        one_pass_of_moments()
        a_sparse_network()
        every_family()
        large_tensors()
        the_command()
        about_numba = [note for note in notes if note.category is lb.errors.PerformanceWarning]
        assert len(about_numba) == 1, [str(note.message) for note in notes]
        assert "pip install 'leanbayes[fast]'" in str(about_numba[0].message)


if __name__ == "__main__":
    run()
    print("all of it works")
