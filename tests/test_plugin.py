"""Each kind of member is one new file outside this repository: a package adds it through an entry point.

The package is ``tests/plugin``. It is installed into a folder of its own, and a process with that folder on its path
finds and uses everything in it. Nothing here imports the package.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

PLUGIN = Path(__file__).parent / "plugin"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the package as pip does for a user, but without the network."""
    source = tmp_path_factory.mktemp("source") / "plugin"
    shutil.copytree(PLUGIN, source)  # setuptools writes beside what it builds
    target = tmp_path_factory.mktemp("site")
    options = ["--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check"]
    pip = [sys.executable, "-m", "pip", "install", *options, "--target", str(target), str(source)]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    return target


def python(site: Path, *words: str, folder: Path) -> str:
    """Run Python with the package installed; return what it prints."""
    path = os.pathsep.join([str(site), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, capture_output=True, text=True, timeout=500, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


LIBRARY = """
import json, torch
import leanbayes as lb
from leanbayes.likelihood import LIKELIHOODS
from leanbayes.metrics import METRICS, metric_named
from leanbayes.posteriors import FAMILIES
from leanbayes.propagate import PROPAGATIONS
from leanbayes.train import SCHEDULES, Optimization
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
x = torch.randn(64, 2)
y = (x.sum(1) > 0).long()
batches = DataLoader(TensorDataset(x, y), batch_size=16)
net = lambda outputs: nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, outputs))
answers = {}

answers["metric"] = lb.evaluate(net(2), batches, likelihood=lb.Categorical()).metrics["margin"]
answers["title"] = metric_named("margin").title

Poisson = LIKELIHOODS.named("Poisson")
counts = DataLoader(TensorDataset(x, torch.poisson(x[:, :1].exp())), batch_size=16)
model = net(1)
history = lb.fit(model, counts, likelihood=Poisson(), epochs=3, optimizer=Optimization(lr=0.02))
answers["likelihood"] = float(lb.predict(model, x, likelihood=Poisson()).mean.min())

bnn = lb.Bayesian(net(2), posterior=FAMILIES.named("Uniform")(0.5), prior=torch.distributions.Normal(0.0, 1.0))
answers["family"] = float(bnn.weights()["0.weight"].variance().mean())  # 0.25 / 3
answers["kl"] = float(bnn.kl())

bnn = lb.Bayesian(net(2), propagate="at_the_mean")
answers["propagation"] = bool(torch.equal(bnn(x), bnn.model(x)))

rates = []
optimization = Optimization("sgd", lr=0.1, schedule="steps")
lb.fit(bnn, batches, likelihood=lb.Categorical(), epochs=2, optimizer=optimization, kl_weight="steps")
scheduler = SCHEDULES.named("steps").rate(torch.optim.SGD(bnn.parameters(), 0.1), 4)
for _ in range(4):
    rates.append(round(scheduler.get_last_lr()[0], 9))
    scheduler.optimizer.step()
    scheduler.step()
answers["schedule"] = rates
print(json.dumps(answers))
"""


def test_the_library_finds_and_uses_members_of_another_package(site: Path, tmp_path: Path) -> None:
    answers = json.loads(python(site, "-W", "error::RuntimeWarning", "-c", LIBRARY, folder=tmp_path))
    assert 0 < answers["metric"] < 1
    assert answers["title"] == "Margin"
    assert answers["likelihood"] > 0
    assert answers["family"] == pytest.approx(0.25 / 3, rel=1e-5)
    assert answers["kl"] > 0
    assert answers["propagation"]
    assert answers["schedule"] == [0.1, 0.1, 0.01, 0.01]


def test_the_laboratory_finds_and_uses_members_of_another_package(site: Path, tmp_path: Path) -> None:
    """A reader, a recipe, what goes on top of it, a metric, a propagation and a schedule, in one comparison."""
    x = np.random.default_rng(0).normal(size=(100, 2))
    np.savetxt(tmp_path / "data.tsv", np.column_stack([x, x[:, 0] > 0]), delimiter="\t")
    methods = ["widest:predict=at_the_mean", "deterministic+halved:by=4"]
    quick = ["--epochs", "4", "--schedule", "steps", "--samples", "2"]
    cli = ["-W", "error::RuntimeWarning", "-m", "leanbayes.lab.cli"]
    command = ["compare", "--data", "data.tsv", "--methods", *methods, *quick, "--out", "run"]
    table = python(site, *cli, *command, folder=tmp_path)
    assert "Margin" in table
    assert "Margin" in (tmp_path / "run" / "report.html").read_text()
    record = json.loads((tmp_path / "run" / "results.json").read_text())
    assert [row["name"] for row in record["methods"]] == methods
    assert all(row["error"] is None for row in record["methods"])
    assert all("margin" in row["runs"][0]["metrics"] for row in record["methods"])
    assert record["methods"][1]["recipe"]["by"] == 4


def test_a_data_set_of_another_package_has_a_name(site: Path, tmp_path: Path) -> None:
    command = ["train", "--data", "parity", "--recipe", "deterministic", "--epochs", "1", "--json"]
    scores = json.loads(python(site, "-m", "leanbayes.lab.cli", *command, folder=tmp_path))
    assert 0 <= scores["metrics"]["accuracy"] <= 1


def test_a_command_of_another_package_is_listed_explained_and_run(site: Path, tmp_path: Path) -> None:
    cli = ["-m", "leanbayes.lab.cli"]
    assert "count  " in python(site, *cli, "--help", folder=tmp_path)
    assert "The first letter of the recipes to count." in python(site, *cli, "count", "--help", folder=tmp_path)
    answer = json.loads(python(site, *cli, "count", "wi", "--twice", "--json", folder=tmp_path))
    assert answer == {"count": 2, "names": ["widest"]}
    assert "widest" in python(site, *cli, "train", "--help", folder=tmp_path)
