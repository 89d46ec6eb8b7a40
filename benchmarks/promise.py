"""Does one `lean` network give what five plain networks give, for the price of one? Writes docs/results/promise.json.

    python benchmarks/promise.py --data-dir DIRECTORY [DIRECTORY ...] [--tasks lenet-10k ...] [--seeds 0 1 2 3 4]

For each task and seed, the script trains five plain networks, one with averaged weights (SWA) and two `lean` networks,
and judges them on the test set: the plain network, the same with a temperature, SWA with a temperature, five networks
with a temperature, one lean network and two of them. Networks that predict numbers have a factor on the predicted noise
in place of a temperature. All trainings of a task have the same number of epochs. Plain
networks keep the epoch with the least validation loss. Each method has those of three settings that had the least
validation NLL on a seed of its own (1000): three learning rates for plain networks, three variants of lean. No setting
is chosen on test data.

Seed s takes the plain networks of the training seeds s to s + 4 and the lean networks of s and s + 1, so units of
neighbouring seeds share networks: five units need nine plain networks in place of 25. Means over seeds stay fair, but
their spread over seeds is smaller than that of separate ensembles. Tables have another split of the data for each
seed, so they share nothing.

A unit of work is one task and one seed. Finished units stay in the record, so the script can be stopped and started
again. The trained networks are kept in ``out/promise``, or in the folder that the
environment variable PROMISE_NETWORKS names, so an unfinished unit loses at most one training.
"""

import argparse
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import nn
from torch.utils.data import TensorDataset

import leanbayes as lb
from harness import RESULTS, ROOT, write
from leanbayes.baselines import Ensemble, NoiseScale, Temperature, rescaling_for
from leanbayes.errors import LeanBayesError
from leanbayes.lab.data import Source, Task, load_data
from leanbayes.lab.data.source import Examples
from leanbayes.lab.recipes import Budget, Run, parse, prepare
from leanbayes.likelihood import Likelihood
from leanbayes_papers.training import as_tensors, small_task
from promise_networks import Augmented, cifar_resnet, trial_cnn, whitening_filters

OUT = RESULTS / "promise.json"
NETWORKS = Path(os.environ.get("PROMISE_NETWORKS", ROOT / "out" / "promise"))
TUNING_SEED = 1000
MEMBERS = 5


@dataclass(frozen=True)
class Experiment:
    """One task of the benchmark.

    Args:
        data: the name of the data set.
        counts: how many examples to train, validate and test on; None takes all.
        model: the network: a name, or a function that makes it; a whitened one takes the filters of its first layer.
        epochs: the epochs of every training.
        batch_size: the examples of a batch.
        unseen: the data set whose images are unfamiliar, the name of shifted images that come with the data, "negative"
            for the test images with inverted colours, or None.
        rates: the learning rates to choose from for plain networks.
        lean: the settings to choose from for lean networks, as many as plain networks have learning rates.
        size: the height and width to which images are resized.
        augment: whether training images are mirrored and moved at random.
        split_by_seed: whether each seed has its own split of the data, as the UCI tables have.
        rate_epochs: the epochs of the trainings that choose settings, where whole trainings would take too long; None
            takes all epochs.
        whitened: whether the network begins with filters that whiten the training images.
    """

    data: str
    counts: tuple[int | None, int | None, int | None]
    model: str | Callable[..., nn.Module] | None
    epochs: int
    batch_size: int = 100
    unseen: str | None = None
    rates: tuple[float, ...] = (2e-3, 4e-3, 8e-3)
    lean: tuple[str, ...] = ("lean:lr=0.004", "lean:lr=0.004,average=0", "lean:lr=0.004,temperature=0.3")
    size: int | None = None
    augment: bool = False
    split_by_seed: bool = False
    rate_epochs: int | None = None
    whitened: bool = False


# A residual network with augmented images is far from fitted after so few epochs, so it bears less noise: the first
# one of this kind had a validation NLL of 0.445 with the default of 0.5, and 0.427 as a plain network with temperature.
_CIFAR = ("lean:lr=0.004,noise=0.2", "lean:lr=0.004,noise=0.1", "lean:lr=0.004,noise=0.2,average=0")
# The settings of this task were chosen before the falling rate (average=0) was among those to choose from.
_WITHOUT_FALL = ("lean:lr=0.004", "lean:lr=0.008", "lean:lr=0.004,temperature=0.3")
# The lowest of the usual rates was the best one of plain networks, so the rates of this task begin lower.
_LESIONS = ("lean:lr=0.002", "lean:lr=0.002,temperature=0.3", "lean:lr=0.004,temperature=0.3")
_TABLES = ("lean:lr=0.008", "lean:lr=0.016", "lean:lr=0.008,average=0.5")

EXPERIMENTS = {
    "lenet-10k": Experiment("fashion-mnist", (10_000, 2_000, None), "lenet5", 15, unseen="mnist"),
    "cnn-10k": Experiment("fashion-mnist", (10_000, 2_000, None), trial_cnn, 15, unseen="mnist"),
    "lenet-60k": Experiment("fashion-mnist", (None, None, None), "lenet5", 8, unseen="mnist"),
    "cnn-60k": Experiment("fashion-mnist", (None, None, None), trial_cnn, 8, unseen="mnist", lean=_WITHOUT_FALL),
    "cifar10": Experiment(
        "cifar10",
        (None, None, None),
        partial(cifar_resnet, half=True),
        14,
        128,
        unseen="svhn-test",
        lean=_CIFAR,
        augment=True,
        rate_epochs=4,
        whitened=True,
    ),
    "skin-lesions": Experiment(
        "isic2017",
        (400, 150, 200),
        "unet",
        20,
        20,
        unseen="negative",
        rates=(1e-3, 2e-3, 4e-3),
        lean=_LESIONS,
        size=64,
    ),
    "demo": Experiment("cells", (None, None, None), None, 40, batch_size=64, unseen="artefact"),
    "uci-concrete": Experiment("uci-concrete", (None, None, None), None, 100, 50, lean=_TABLES, split_by_seed=True),
    "uci-energy": Experiment("uci-energy", (None, None, None), None, 100, 50, lean=_TABLES, split_by_seed=True),
}


def main() -> None:
    """Do the units of work that the record does not have yet, and write the record after each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--data-dir", nargs="+", required=True, help="folders in which the data sets are looked for")
    parser.add_argument("--tasks", nargs="+", default=list(EXPERIMENTS), choices=list(EXPERIMENTS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    folders = tuple(options.data_dir)
    for seed in options.seeds:  # seed by seed, so that every task has a first answer early
        for name in options.tasks:
            entry = _read(options.out).get(name, {"seeds": {}})
            if str(seed) in entry["seeds"] and _has_all_settings(entry, name):
                continue
            settings = _tuned(name, folders, entry.get("settings", {}).get("validation_nll", {}))
            same = all(entry.get("settings", settings)[key] == settings[key] for key in ("lr", "swa_lr", "lean"))
            units = entry["seeds"] if same else {}  # units of other settings do not belong beside new ones
            unit = units.get(str(seed)) or _unit(name, seed, settings, folders)
            record = _read(options.out)  # another process may have written meanwhile
            record[name] = {"settings": settings, "seeds": units | {str(seed): unit}}
            write(options.out, record, {"members": MEMBERS, "tuning_seed": TUNING_SEED})
            _show(name, seed, unit)


def _read(out: Path) -> dict[str, Any]:
    return dict(json.loads(out.read_text())["results"]) if out.exists() else {}


def _has_all_settings(entry: dict[str, Any], name: str) -> bool:
    """Whether the record's settings were chosen among those that the experiment has now."""
    return set(entry["settings"]["validation_nll"]["lean"]) == set(EXPERIMENTS[name].lean)


def _show(name: str, seed: int, unit: dict[str, Any]) -> None:
    for method, row in unit["methods"].items():
        numbers = " ".join(f"{key} {value:.4f}" for key, value in row.items() if isinstance(value, float))
        print(f"{name} seed {seed} {method:18} {numbers}", flush=True)


@cache
def _source(data: str, folders: tuple[str, ...], size: int | None, seed: int = 0) -> Source:
    problems = []
    for folder in folders:
        try:
            return load_data(data, folder, size=size, seed=seed)
        except LeanBayesError as error:
            problems.append(str(error))
    raise SystemExit(f"{data} is in none of the folders:\n" + "\n".join(problems))


def _task(name: str, folders: tuple[str, ...], seed: int) -> Task:
    experiment = EXPERIMENTS[name]
    source = _source(experiment.data, folders, experiment.size, seed if experiment.split_by_seed else 0)
    task = small_task(source, experiment.counts, None if experiment.whitened else experiment.model)
    if experiment.whitened:
        task = replace(task, model=partial(experiment.model, whitening_filters(task.train.tensors[0])))
    if experiment.augment:
        task = replace(task, train=Augmented(task.train))
    count = experiment.counts[2]
    if experiment.unseen == "negative":
        images, targets = task.test.tensors
        low, high = images.amin(), images.amax()
        return replace(task, shifted={"unseen": TensorDataset(low + high - images, targets)})
    if experiment.unseen in source.shifted:
        return replace(task, shifted={"unseen": as_tensors(source.shifted[experiment.unseen], count)})
    if experiment.unseen is not None:
        other = _source(experiment.unseen, folders, experiment.size)
        unseen = Examples(other.test.inputs, other.test.targets, source.preparation)  # standardised as the known ones
        return replace(task, shifted={"unseen": as_tensors(unseen, count)})
    return task


def _train(
    name: str, task: Task, spec: str, lr: float, seed: int, epochs: int | None = None
) -> tuple[nn.Module, Likelihood, dict[str, Any]]:
    """Train a network, or read it if an earlier start of this script has trained it."""
    experiment, length = EXPERIMENTS[name], "" if epochs is None else f"-{epochs}epochs"
    stem = f"{name}-{spec}-{lr:g}-{seed}{length}".replace(":", "_").replace("=", "_")
    file, about = NETWORKS / f"{stem}.lb", NETWORKS / f"{stem}.json"
    if about.exists():
        facts = json.loads(about.read_text())
        likelihood = _with_noise(task.likelihood, facts["noise"])
        return lb.load(file, task.model()).eval(), likelihood, facts
    budget = Budget(epochs or experiment.epochs, experiment.batch_size, lr=lr, schedule="cosine")
    trained = prepare(parse(spec), task, Run(budget, seed))
    noise = getattr(trained.likelihood, "log_variance", None)
    facts = {
        "seconds": trained.seconds,
        "noise": None if noise is None else float(noise),
        "scales": {stage: {"start": s.start, "end": s.end, "moved": s.moved} for stage, s in trained.scales.items()},
    }
    NETWORKS.mkdir(parents=True, exist_ok=True)
    lb.save(trained.predictor, file)
    about.write_text(json.dumps(facts))
    return trained.predictor, trained.likelihood, facts


def _with_noise(likelihood: Likelihood, log_variance: float | None) -> Likelihood:
    if isinstance(likelihood, lb.Gaussian) and likelihood.learned and log_variance is not None:
        likelihood = lb.Gaussian("learned", initial=float(np.exp(log_variance / 2)))
    return likelihood


def _tuned(name: str, folders: tuple[str, ...], known: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Choose the learning rate of plain networks and the settings of lean networks by their validation NLL.

    Args:
        name: the task.
        folders: where the data are.
        known: the validation NLL of settings that the record already has, for the methods plain, swa and lean.
    """
    experiment, task = EXPERIMENTS[name], _task(name, folders, 0)

    def nll(spec: str, lr: float, epochs: int | None = None) -> float:
        network, likelihood, _ = _train(name, task, spec, lr, TUNING_SEED, epochs)
        rescaling = rescaling_for(likelihood)
        if rescaling is not None and not spec.startswith("lean"):  # lean has chosen its own
            network = rescaling.fit(network, _batches(task.validation), likelihood)
        return lb.evaluate(network, _batches(task.validation), likelihood=likelihood).metrics["nll"]

    def scores(method: str, settings: dict[str, tuple[str, float, int | None]]) -> dict[str, float]:
        have = known.get(method, {})
        return {key: have[key] if key in have else nll(*training) for key, training in settings.items()}

    short = experiment.rate_epochs
    plain = scores("plain", {f"{rate:g}": ("deterministic", rate, short) for rate in experiment.rates})
    lr = float(min(plain, key=lambda key: plain[key]))
    lean = scores("lean", {spec: (spec, lr, short) for spec in experiment.lean})
    swa = scores("swa", {f"{rate:g}": ("swa", rate, short) for rate in (lr, lr / 2)})
    chosen = {
        "lr": lr, "swa_lr": float(min(swa, key=lambda key: swa[key])), "lean": min(lean, key=lambda key: lean[key])
    }  # fmt: skip
    print(f"{name}: chosen on validation {chosen}", flush=True)
    return chosen | {"validation_nll": {"plain": plain, "swa": swa, "lean": lean}}


def _batches(data: Any, size: int = 250) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return list(zip(*(tensor.split(size) for tensor in data.tensors), strict=True))


def _unit(name: str, seed: int, settings: dict[str, Any], folders: tuple[str, ...]) -> dict[str, Any]:
    task = _task(name, folders, seed)
    first = MEMBERS * seed if EXPERIMENTS[name].split_by_seed else seed
    plain = [_train(name, task, "deterministic", settings["lr"], first + i) for i in range(MEMBERS)]
    swa = _train(name, task, "swa", settings["swa_lr"], first)
    lean = [_train(name, task, settings["lean"], settings["lr"], first + i) for i in (0, 1)]
    five = Ensemble(*(network for network, _, _ in plain), method="loop")
    methods: Iterator[tuple[str, nn.Module, Likelihood, bool]] = iter(
        [
            ("plain", plain[0][0], plain[0][1], False),
            ("plain+temperature", plain[0][0], plain[0][1], True),
            ("swa+temperature", swa[0], swa[1], True),
            ("five+temperature", five, plain[0][1], True),
            ("lean", lean[0][0], lean[0][1], False),
            ("two lean+temperature", Ensemble(lean[0][0], lean[1][0], method="loop"), lean[0][1], True),
        ]
    )
    rows = {}
    for method, network, likelihood, scaled in methods:
        rescaling = rescaling_for(likelihood)
        if scaled and rescaling is not None:
            network = rescaling.fit(network, _batches(task.validation), likelihood)
        rows[method] = _judged(network, likelihood, task)
    return {
        "methods": rows,
        "training_seconds": {"plain": plain[0][2]["seconds"], "swa": swa[2]["seconds"], "lean": lean[0][2]["seconds"]},
        "scales": lean[0][2]["scales"],
    }


def _judged(network: nn.Module, likelihood: Likelihood, task: Task) -> dict[str, float]:
    doubts: dict[str | None, list[torch.Tensor]] = {None: [], "unseen": []}

    def collect(batch: Any) -> None:
        doubt = batch.prediction.epistemic
        doubts[batch.shifted].append(doubt.flatten(1).mean(1) if doubt.dim() > 1 else doubt)

    shifted = {key: _batches(data) for key, data in task.shifted.items()}
    test = _batches(task.test)
    scores = lb.evaluate(network, test, likelihood=likelihood, shifted=shifted, on_prediction=collect).metrics
    wanted = ("accuracy", "dice", "rmse", "nll", "ece", "brier", "ood/unseen/auroc")
    row = {key: scores[key] for key in wanted if key in scores}
    if isinstance(network, Temperature | NoiseScale):
        row["rescaling"] = network.number
    if task.shifted:
        known, unseen = (torch.cat(doubts[key]).cpu().numpy() for key in (None, "unseen"))
        labels = np.r_[np.zeros(len(known)), np.ones(len(unseen))]
        row["ood/unseen/auroc by epistemic"] = float(roc_auc_score(labels, np.r_[known, unseen]))
    return row


if __name__ == "__main__":
    main()
