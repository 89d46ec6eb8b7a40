"""Sharded trainings in several processes are one process with micro-batches; see `tests.sharded.worker`."""

import ast
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

TOP = Path(__file__).parents[2]
ROUNDING = {"loss": 1e-6, "weights": 5e-6}  # Adam divides small gradients by their size, and their rounding with them

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="torch has no gloo for DTensors on Windows")


def environment() -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    return own | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(TOP), *sys.path])}


def worked(number: int, work: str, folder: Path) -> dict[str, Any]:
    """What so many processes have seen."""
    start = partial(subprocess.Popen, env=environment(), cwd=TOP, stderr=subprocess.PIPE, text=True)
    words = [sys.executable, "-m", "tests.sharded.worker"]
    running = [start([*words, str(rank), str(number), str(folder), work]) for rank in range(number)]
    for process in running:
        _, errors = process.communicate(timeout=900)
        assert process.returncode == 0, errors[-4000:]
    seen: dict[str, Any] = json.loads((folder / f"{work}-{number}.json").read_text())
    return seen


def assert_equal(seen: dict[str, Any], least: int) -> None:
    """At least so many cases were compared, and all of them are equal to the rounding of float32."""
    compared = {name: result for name, result in seen.items() if not name.startswith(("refused", "no "))}
    assert len(compared) >= least
    for name, result in compared.items():
        assert isinstance(result, dict), f"{name}: {result}"
        assert all(error <= ROUNDING[kind] for kind, error in result.items()), f"{name}: {result}"


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return worked(2, "core", tmp_path_factory.mktemp("sharded"))


def test_two_processes_are_one_with_two_parts(two: dict[str, Any]) -> None:
    assert_equal(two, least=20)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("early_optimizer", "build the optimizer afterwards"),
        ("outside", "which nothing gathers now"),
        ("whole_scales", "call bnn.shard_scales() after parallelize_module"),
        ("scales_alone", "sharded apart from their weight"),
        ("joint", "is no sum over single weights"),
        ("frozen", "a draw of all weights needs whole weights"),
        ("predicted", "a prediction needs whole weights"),
        ("last_layer", "leave last_layer_samples 1"),
        ("covariance", "cannot pass from one sharded module to the next"),
        ("other_noise", "have generators in different states"),
        ("sharded_first", "the model is sharded already"),
        ("checkpointed", "cannot be computed again"),
        ("spoiled", "of which another process has a piece, has NaN"),
    ],
)
def test_what_cannot_be_sharded_is_said(two: dict[str, Any], case: str, words: str) -> None:
    assert words in two[f"refused: {case}"]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("number", [2, 4])
def test_every_combination(number: int, tmp_path: Path) -> None:
    """DDP, FSDP2 in three ways and tensor parallelism, with Adam and IVON, for every propagation and a fifth random."""
    assert_equal(worked(number, "all", tmp_path), least=150)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_checkpoint_of_two_processes_goes_on_in_one_two_and_four(tmp_path: Path) -> None:
    worked(2, "save", tmp_path)
    for number in (1, 2, 4):
        seen = worked(number, "resume", tmp_path)
        assert_equal(seen, least=6)
        assert "belongs to another model: 'model.coordinates./head/weight" in seen["refused: other model"]
        assert "has optimizer Adam, and this training has IVON" in seen["refused: other optimizer"]
        assert "this IVON has n_data=999, and the state that is loaded has 100" in seen["refused: other settings"]
        assert seen["no checkpoint"] is None


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("how", ["loop", "fit-fsdp"])
def test_a_killed_rank_loses_nothing(how: str) -> None:
    words = [sys.executable, "-m", "tests.sharded", "--kills", "1", "--seed", "3", "--how", how]
    done = subprocess.run(words, env=environment(), cwd=TOP, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["difference"] == 0


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("optimizer", ["adam", "ivon"])
def test_fit_shards_under_accelerate(optimizer: str, tmp_path: Path) -> None:
    script, options = TOP / "tests" / "train" / "script.py", ["--dropout", "0", "--epochs", "2", "--clip", "1.0"]
    own = environment() | {"ACCELERATE_USE_CPU": "true"}
    launch = "accelerate.commands.launch --use_fsdp --fsdp_version 2 --fsdp_auto_wrap_policy SIZE_BASED_WRAP"
    launch += " --fsdp_min_num_params 20 --num_processes {} --num_machines 1 --mixed_precision no --dynamo_backend no"

    def fit(name: str, *words: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / name).mkdir(exist_ok=True)
        command = [sys.executable, *words, str(script), "--folder", str(tmp_path / name), "--optimizer", optimizer]
        more = ["--parts", "2"] if name == "one" else []
        return subprocess.run([*command, *options, *more], capture_output=True, text=True, check=False, env=own)

    assert fit("one").returncode == 0
    done = fit("two", "-m", *launch.format(2).split())
    assert done.returncode == 0, done.stderr
    rows = [
        [ast.literal_eval(row) for row in (tmp_path / name / "history").read_text().splitlines()]
        for name in ("one", "two")
    ]
    for one, two in zip(*rows, strict=True):
        assert one == pytest.approx(two, rel=1e-5)
    weights = [load_file(tmp_path / name / "end") for name in ("one", "two")]
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=1e-4, atol=1e-5)
    refused = fit("two", "-m", *launch.format(4).split())  # the checkpoints of two processes
    assert refused.returncode
    assert "holds a training with {'processes': 2" in refused.stderr
