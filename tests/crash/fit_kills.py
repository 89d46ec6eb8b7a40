"""Kill `fit` at random moments, let its writes fail, and compare where it ends with an undisturbed training.

    python -m tests.crash.fit_kills --kills 70 --seed 0

Each training runs in a process that is forked from this one, which has imported everything and computed nothing. The
disturbances are those of `tests.crash.command_kills`: a kill after a random time or just before a change of a file, a
change that fails with ENOSPC or EIO, and a file that cannot grow beyond a random size. A disturbed training must end
with an error of LeanBayes or not at all. Then it runs again until it ends, and weights, history and checkpoints must be
the same bit for bit as after an undisturbed training, and no part of a file may be left.
"""

import argparse
import errno
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: a process with threads must not fork

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import leanbayes as lb
from leanbayes._files import read_tensors, write_tensors
from tests.crash.command_kills import BUG, Disturbance, Report, _kill_later, _watch_changes

REFUSED = 2


class Noisy(TensorDataset):
    """Adds noise from the global random states of torch and NumPy to each example, as augmentations do."""

    def __getitem__(self, index: Any) -> Any:
        x, y = super().__getitem__(index)
        return x + 0.1 * torch.randn(5) + 0.1 * float(np.random.rand()), y  # noqa: NPY002


def _data() -> Noisy:
    x = torch.randn(48, 5, generator=torch.Generator().manual_seed(0))
    return Noisy(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long())


def _network(*, dropout: float = 0.2, norm: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    between: list[nn.Module] = [nn.BatchNorm1d(16)] if norm else []
    return nn.Sequential(nn.Linear(5, 16), *between, nn.ReLU(), nn.Dropout(dropout), nn.Linear(16, 3))


def _fit(model: nn.Module, loader: DataLoader[Any], folder: Path, **options: Any) -> lb.train.History:
    data = _data()
    return lb.fit(
        model,
        loader,
        likelihood=lb.Categorical(),
        epochs=3,
        validate=DataLoader(TensorDataset(*data.tensors), batch_size=16),
        checkpoint=lb.Checkpointing(folder / "checkpoints", every=2),
        seed=3,
        **options,
    )


def plain(folder: Path) -> tuple[nn.Module, lb.train.History]:
    """A network without randomness, with batch norm, dropout and a schedule."""
    model = _network(norm=True)
    how = lb.Optimization("adamw", lr=1e-2, weight_decay=0.1, schedule="cosine", micro_batches=2)
    return model, _fit(model, DataLoader(_data(), batch_size=8, shuffle=True), folder, optimizer=how)


def partial(folder: Path) -> tuple[nn.Module, lb.train.History]:
    """A part of the weights is random, and the scales have an optimizer of their own."""
    bnn = lb.Bayesian(_network(), subspace=lb.random_k(0.3))
    loader = DataLoader(_data(), batch_size=8, sampler=WeightedRandomSampler(torch.arange(1.0, 49.0), 48))
    how = lb.Optimization("sgd", lr=1e-2, clip=1.0)
    return bnn, _fit(bnn, loader, folder, optimizer=how, kl_weight=lb.anneal(0.2, 0.01))


def sparse(folder: Path) -> tuple[nn.Module, lb.train.History]:
    """Sparse weights that move."""
    bnn = lb.Bayesian(_network(), subspace=lb.sparse(0.3), propagate="local")
    loader = DataLoader(_data(), batch_size=8, sampler=SubsetRandomSampler(range(48)))
    how = lb.Optimization(lr=1e-2)
    return bnn, _fit(bnn, loader, folder, optimizer=how, rewire=lb.Rewire(every=2, stop=0.95))


def moments(folder: Path) -> tuple[nn.Module, lb.train.History]:
    """Means and variances travel through the network."""
    bnn = lb.Bayesian(_network(), propagate="moments")
    sampler = BatchSampler(RandomSampler(_data()), 8, drop_last=False)
    return bnn, _fit(bnn, DataLoader(_data(), batch_sampler=sampler), folder, optimizer=lb.Optimization(lr=1e-2))


def ivon(folder: Path) -> tuple[nn.Module, lb.train.History]:
    """Natural gradients, which keep the scales in the state of the optimizer."""
    bnn = lb.Bayesian(_network(norm=True), propagate="mirrored")
    loader = DataLoader(_data(), batch_size=8, shuffle=True, generator=torch.Generator().manual_seed(7))
    return bnn, _fit(bnn, loader, folder, optimizer="ivon")


CASES: dict[str, Callable[[Path], tuple[nn.Module, lb.train.History]]] = {
    case.__name__: case for case in (plain, partial, sparse, moments, ivon)
}


def train(case: str, folder: Path) -> None:
    """Train, and write weights and history to one file at the end."""
    torch.manual_seed(os.getpid()), np.random.seed(os.getpid()), random.seed(os.getpid())  # noqa: NPY002
    model, history = CASES[case](folder)
    rows = [[row.loss, row.nll, row.kl, row.kl_weight, row.validation] for row in history.epochs]
    scales = None if history.scales is None else vars(history.scales)
    header = {"kind": "end", "format": 1, "rows": rows, "best": history.best, "scales": scales}
    tensors = {name: value.detach().clone() for name, value in model.state_dict().items()}
    write_tensors(folder / "end.safetensors", tensors, header)


def run(case: str, folder: Path, disturbance: Disturbance | None = None) -> tuple[int, str, int, float]:
    """Run a training in a forked process.

    Returns:
        Its exit code (that of a killed process is negative), its errors, how many times it changed a file, and how many
        seconds it took.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log, count = folder.with_suffix(".log"), folder.with_suffix(".count")
    begin = time.monotonic()
    child = os.fork()
    if not child:
        _be_training(case, folder, log, count, disturbance or Disturbance())
    if disturbance is not None and disturbance.kill_after is not None:
        _kill_later(child, disturbance.kill_after)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    changes = len(count.read_bytes()) if count.exists() else 0
    return code, log.read_text() if log.exists() else "", changes, time.monotonic() - begin


def _be_training(case: str, folder: Path, log: Path, count: Path, disturbance: Disturbance) -> None:
    code = BUG
    try:
        os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
        counter = os.open(count, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.chdir(folder)
        _watch_changes(folder.resolve(), counter, disturbance)
        if disturbance.largest is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (disturbance.largest, resource.RLIM_INFINITY))
        train(case, folder)
        code = 0
    except lb.errors.LeanBayesError as error:
        code = REFUSED
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def state(folder: Path) -> dict[str, Any]:
    """Return what a training left: for each file its tensors and its header, without times."""
    return {path.relative_to(folder).as_posix(): _content(path) for path in folder.rglob("*") if path.is_file()}


def _content(path: Path) -> tuple[str, dict[str, Tensor]]:
    kind = "end" if path.stem == "end" else "best" if path.stem == "best" else "checkpoint"
    header, tensors = read_tensors(path, kind, 1)
    if "epochs" in tensors:
        tensors["epochs"] = tensors["epochs"][:, :-1]  # the last column holds the seconds
    return json.dumps(header), tensors


def same(one: dict[str, Any], two: dict[str, Any]) -> str:
    """Return the name of what differs, or nothing."""
    if one.keys() != two.keys():
        return f"the files {sorted(one.keys() ^ two.keys())}"
    for name, (header, tensors) in one.items():
        other_header, others = two[name]
        if header != other_header or tensors.keys() != others.keys():
            return f"the header of {name}"
        for key, value in tensors.items():
            both_nan = torch.equal(value.isnan(), others[key].isnan()) if value.is_floating_point() else True
            if not both_nan or not torch.equal(value.nan_to_num(), others[key].nan_to_num()):
                return f"{key} in {name}"
    return ""


class Harness:
    """Disturbs one training again and again.

    Args:
        case: the name of the training.
        top: a folder for the folders of all runs.
        report: counts what is done.
    """

    def __init__(self, case: str, top: Path, report: Report) -> None:
        self.case, self.top, self.report = case, top / case, report
        code, text, self.changes, self.seconds = run(case, self.top / "undisturbed")
        assert code == 0, text
        self.expected = state(self.top / "undisturbed")
        self.largest = max(path.stat().st_size for path in self.top.rglob("*") if path.is_file())
        report.changes[case] = self.changes
        report.runs += 1

    def disturb(self, *disturbances: Disturbance) -> None:
        """Train with each disturbance in turn, then undisturbed, and compare where the training ended."""
        folder = self.top / "disturbed"
        shutil.rmtree(folder, ignore_errors=True)
        for disturbance in disturbances:
            code, text, _, _ = run(self.case, folder, disturbance)
            self._count(disturbance, code)
            assert code in (0, REFUSED, -signal.SIGKILL), f"{self.case} after {disturbance}: {text}"
            for path in folder.rglob("*.safetensors"):
                if not path.name.startswith("."):
                    _content(path)  # raises if the file is not whole
        code, text, _, _ = run(self.case, folder)
        self.report.runs += 1
        what = f"{self.case} after {'; '.join(map(str, disturbances))}"
        assert code == 0, f"{what} ended with {code}: {text}"
        different = same(self.expected, state(folder))
        assert not different, f"{what} ended elsewhere: {different}"

    def _count(self, disturbance: Disturbance, code: int) -> None:
        self.report.runs += 1
        if disturbance.kill_after is not None or disturbance.kill_at is not None:
            if code == -signal.SIGKILL:
                self.report.kills += 1
            else:
                self.report.too_late += 1
        elif disturbance.fail_at is not None:
            self.report.failures += 1
        else:
            self.report.short_writes += 1


def kill_and_fail(
    kills: int, seed: int, cases: list[str], failures: int | None = None, short_writes: int | None = None
) -> Report:
    """Disturb the trainings, each as often as the others.

    Args:
        kills: how many kills there are in all.
        seed: decides the moments.
        cases: the names of the trainings.
        failures: how many changes of files fail, in all; None lets every single one fail with both errors.
        short_writes: how many runs cannot write large files, in all; None makes it as many as kills.

    Returns:
        What was done. The function raises if a training ended elsewhere than it should have.
    """
    report, chance = Report(seed), random.Random(seed)
    with tempfile.TemporaryDirectory() as top:
        for place, case in enumerate(cases):
            harness = Harness(case, Path(top), report)
            wanted = report.kills + len(range(place, kills, len(cases)))
            while report.kills < wanted:
                count = min(chance.choice((1, 1, 2, 3)), wanted - report.kills)
                harness.disturb(*(_kill(chance, harness) for _ in range(count)))
            both = [(number, error) for number in range(1, harness.changes + 1) for error in (errno.ENOSPC, errno.EIO)]
            if failures is not None:
                both = chance.sample(both, min(len(both), -(-failures // len(cases))))
            for number, error in both:
                harness.disturb(Disturbance(fail_at=number, error=error))
            shorts = len(range(place, kills, len(cases))) if short_writes is None else -(-short_writes // len(cases))
            for _ in range(shorts):
                harness.disturb(Disturbance(largest=int(harness.largest ** chance.random())))
            sys.stderr.write(f"{case}: {vars(report)}\n")
    return report


def _kill(chance: random.Random, harness: Harness) -> Disturbance:
    if chance.random() < 0.5:
        return Disturbance(kill_at=chance.randint(1, harness.changes))
    return Disturbance(kill_after=chance.uniform(0, harness.seconds))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=70)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--failures", type=int, help="by default every change of a file fails twice")
    parser.add_argument("--short-writes", type=int, help="by default as many as kills")
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    return parser.parse_args()


if __name__ == "__main__":
    asked = _arguments()
    started = time.monotonic()
    done = kill_and_fail(asked.kills, asked.seed, asked.cases, asked.failures, asked.short_writes)
    print(json.dumps(vars(done) | {"minutes": round((time.monotonic() - started) / 60, 1)}))
