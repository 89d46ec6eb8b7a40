"""Readers of what commands, calibrations and integrations have saved, for `tests.fuzz.readers`."""

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import leanbayes as lb
from leanbayes.conformal import Intervals, Referral, RiskControl, Sets
from leanbayes.lab.cli.training_folder import training_folder
from leanbayes.lab.compare import Protocol, compare
from leanbayes.lab.data.shifts import cached
from leanbayes.lab.recipes import Budget, parse
from leanbayes_papers import reproduce, write_claims
from tests import tasks
from tests.baselines.conformance import Net, batches, ensemble, net, swag
from tests.fuzz.mutations import damage_bytes, damage_json, forge_tensors
from tests.fuzz.reader import Reader
from tests.papers import stub

FLOAT = torch.float32


def predictors(home: Path) -> dict[str, Reader]:
    """Files of every kind of predictor, among them calibrated ones, which hold the state of conformal prediction."""
    data = batches(FLOAT, 8)
    images = [(torch.randn(4, 2, 6, 6), torch.randint(2, (4, 6, 6))) for _ in range(8)]
    rows = [(torch.randn(8, 4), torch.randn(8, 3)) for _ in range(8)]
    made: dict[str, tuple[nn.Module, Callable[[], nn.Module]]] = {
        "dropout": (lb.baselines.MCDropout(net(0, FLOAT)), Net),
        "swag": (swag(FLOAT), Net),
        "laplace": (lb.baselines.LaplaceApproximation.fit(net(0, FLOAT), data, lb.Categorical()), Net),
        "temperature": (lb.baselines.Temperature.fit(ensemble(FLOAT), data, lb.Categorical()), Net),
        "noise scale": (lb.baselines.NoiseScale.by(nn.Linear(4, 6), 2.0), lambda: nn.Linear(4, 6)),
        "augmented": (lb.baselines.Augmented(nn.Conv2d(1, 2, 1)), lambda: nn.Conv2d(1, 2, 1)),
        "sets": (Sets(lb.Bayesian(net(0, FLOAT)), 0.8, "aps", per="class", samples=2).calibrate(data), Net),
        "intervals": (Intervals(net(0, FLOAT), 0.8, "absolute", likelihood=lb.Gaussian(0.3)).calibrate(rows), Net),
        "risk control": (RiskControl(nn.Identity(), level=0.3, inner=0.3).calibrate(images), nn.Identity),
        "referral": (Referral(net(0, FLOAT), error=0.5).calibrate(data), Net),
    }
    readers = {}
    for name, (model, blank) in made.items():
        file = home / f"{name}.lb"
        lb.save(model, file)
        readers |= _both(f"load {name}", file, lambda file=file, blank=blank: lb.load(file, blank()), home)
    beside = home / "leanbayes.safetensors"
    lb.save(lb.Bayesian(net(0, FLOAT), subspace=lb.random_k(rate=0.3)), beside, only="random")
    return readers | _both("load random part", beside, lambda: lb.load(beside, net(0, FLOAT)), home)


def _both(name: str, file: Path, read: Callable[[], object], home: Path) -> dict[str, Reader]:
    return {
        name: Reader(file, read, damage_bytes, 0.2),
        f"{name}, forged": Reader(file, read, forge_tensors(home), 0.6),
    }


def folders(home: Path) -> dict[str, Reader]:
    """The folders in which `compare`, `train` and `reproduce` continue."""
    task, methods = tasks.classes(), {"deterministic": parse("deterministic")}
    protocol = Protocol(budget=Budget(epochs=1, batch_size=64), samples=2)
    comparison, training = home / "comparison", home / "training"

    def go_on() -> None:
        compare(task, methods, comparison, protocol)

    go_on()
    (training / "checkpoints").mkdir(parents=True)
    mark = training / "checkpoints" / "training.json"
    mark.write_text(json.dumps({"recipe": "vi", "budget": {"epochs": 2}}))

    def train() -> None:
        with training_folder(training, {"recipe": "vi", "budget": {"epochs": 2}}, overwrite=True):
            pass

    (home / "data").mkdir()
    study, out, cache = stub.study(), home / "out", home / "cache"

    def run() -> dict[str, Any]:
        return reproduce(study, "cpu", seeds=[0], folder=home / "data", out=out / "experiments", cache=cache)

    run()
    kept = sorted((cache / "stub-cpu").iterdir())[0]
    runs, known = comparison / "runs" / "deterministic-0.json", comparison / "comparison.json"
    return {
        "run of compare": Reader(runs, go_on, damage_json, 0.5),
        "comparison.json": Reader(known, go_on, damage_json, 0.5),
        "training.json": Reader(mark, train, damage_json, 0.3),
        "kept job": Reader(kept, run, damage_json, 0.5),
        "record of a study": Reader(
            out / "experiments" / "stub-cpu.json", lambda: write_claims([study], out), damage_json
        ),
    }


def corrupted_images(home: Path) -> dict[str, Reader]:
    """The cache of corrupted images."""
    images = torch.rand(3, 3, 8, 8)
    cached(images, "brightness", 1, folder=home)
    (file,) = home.iterdir()
    return _both("corrupted images", file, lambda: cached(images, "brightness", 1, folder=home), home.parent)


def hub_folders(home: Path) -> dict[str, Reader]:
    """A folder of Hugging Face with a class of one's own: our file, and the arguments of the class."""
    if importlib.util.find_spec("huggingface_hub") is None:
        return {}
    from leanbayes.integrations.huggingface import BayesianHubMixin

    class Own(BayesianHubMixin, lb.Bayesian):
        def __init__(self, width: int = 4, rate: float = 0.5) -> None:
            super().__init__(nn.Linear(3, width), subspace=lb.random_k(rate))

    Own(width=6).save_pretrained(home / "net")
    copy = shutil.copytree(home / "net", home / "copy")
    file = home / "net" / "leanbayes.safetensors"
    return _both("hub folder", file, lambda: Own.from_pretrained(home / "net"), home) | {
        "hub config": Reader(copy / "config.json", lambda: Own.from_pretrained(copy), damage_json, 0.5)
    }
