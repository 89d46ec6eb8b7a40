"""Commands of `leanbayes`, as small as they can be and still write everything that they write."""

import contextlib
import io
import tempfile
from functools import cache, partial
from pathlib import Path

import numpy as np

from leanbayes import Bayesian, save
from leanbayes.lab.cli import COMMANDS, main
from leanbayes.lab.data import Preparation
from leanbayes.lab.models import model_named
from leanbayes.lab.report import page
from leanbayes.lab.tune.study import open_study
from tests.crash.scenario import Scenario

__all__ = ["COMMAND_LINES", "COMMAND_SCENARIOS"]

_QUICK = "--data data.npz --batch-size 32 --samples 2 --quiet"
COMMAND_LINES = {
    "train": f"train --recipe partial:rate=0.1 --epochs 2 --out run {_QUICK}",
    "compare": f"compare --methods deterministic vi --epochs 2 --out run {_QUICK}",
    "compare-workers": f"compare --methods ensemble:members=2,processes=2 --epochs 1 --out run {_QUICK}",
    "tune": f"tune --method vi --search kl_weight=0.1,1.0 --trials 1 --epochs 2 --out run {_QUICK}",
    "predict": "predict model.lb images.npz --samples 2 --review --out run --quiet",
    "reproduce": "reproduce subnetworks-toy --size smoke --workers 1 --out docs --cache cache --quiet",
    "reproduce-workers": "reproduce subnetworks-toy --size smoke --workers 2 --out docs --cache cache --quiet",
}
"""The arguments of ``leanbayes``. The two with workers start processes of their own."""


def _prepare(folder: Path) -> None:
    x = np.random.default_rng(0).normal(size=(120, 3))
    np.savez(folder / "data.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))


@cache
def _saved_network() -> bytes:
    """The file of a network that segments images, which nobody has trained. Each save orders its header otherwise."""
    plan = Preparation("pixels", (0.5,), (0.3,), ("background", "lesion"), size=(8, 8))
    bnn = Bayesian(model_named("unet", **plan.shape))
    with tempfile.TemporaryDirectory() as top:
        save(bnn, Path(top, "model.lb"), about={"model": "unet", "preparation": plan.to_json()})
        return Path(top, "model.lb").read_bytes()


def _prepare_prediction(folder: Path) -> None:
    (folder / "model.lb").write_bytes(_saved_network())
    np.savez(folder / "images.npz", x=np.random.default_rng(0).random((2, 1, 8, 8)))


def _work(words: list[str]) -> int:
    # The figures of the page would take half of the time of a comparison, and they write no file.
    page.sections = lambda results, rows, arrays: []  # type: ignore[assignment]
    return main(words)


def _warm_up(command: str) -> None:
    """Let the parser of the options and the storage of the studies fill their caches."""
    with contextlib.redirect_stdout(io.StringIO()):
        main([command, "--help"])
    if command == "tune":
        with tempfile.TemporaryDirectory() as top, open_study(Path(top, "study"), "warm", {}, "minimize"):
            pass


def _scenario(name: str, line: str) -> Scenario:
    words = line.split()
    assert words[0] in COMMANDS
    prepare = _prepare_prediction if words[0] == "predict" else _prepare
    return Scenario(name, partial(_work, words), prepare, "workers" in name, partial(_warm_up, words[0]))


COMMAND_SCENARIOS = tuple(_scenario(*item) for item in COMMAND_LINES.items())
