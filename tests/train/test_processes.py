"""One process needs torch alone; what needs accelerate says so, and leaves no state behind."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.train.processes import OneProcess, engine
from tests.integrations.matrix import shows

BATCHES = [(torch.ones(4, 2), torch.tensor([0, 1, 0, 1]))]

WITHOUT_ACCELERATE = """
import os, sys
sys.modules["accelerate"] = None
import torch
from torch import nn
import leanbayes as lb

batches = [(torch.randn(8, 3), torch.randint(2, (8,)))] * 2
bnn = lb.Bayesian(nn.Linear(3, 2))
options = {"likelihood": lb.Categorical(), "epochs": 2, "validate": batches}
lb.fit(bnn, batches, checkpoint=sys.argv[1] + "/run", optimizer=lb.Optimization(clip=1.0), **options)
lb.save(bnn, sys.argv[1] + "/model.lb")
again = lb.load(sys.argv[1] + "/model.lb", nn.Linear(3, 2))
assert all(torch.equal(value, again.state_dict()[name]) for name, value in bnn.state_dict().items())
lb.predict(again, batches[0][0], samples=2)
for how, several in ((lb.Optimization(mixed_precision="bf16"), "1"), (lb.Optimization(), "2")):
    os.environ["WORLD_SIZE"] = several
    try:
        lb.fit(bnn, batches, optimizer=how, **options)
    except lb.errors.InputError as error:
        print(error)
"""


def test_without_accelerate_one_process_trains_and_other_trainings_name_the_extra(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WITHOUT_ACCELERATE, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    mixed, several = done.stdout.splitlines()
    assert mixed.startswith("mixed_precision='bf16' needs the package accelerate")
    assert several.startswith("training on several processes needs the package accelerate")
    assert all(line.endswith("pip install 'leanbayes[distributed]'") for line in (mixed, several))


def test_one_process_does_not_import_accelerate() -> None:
    program = (
        "import sys, torch, leanbayes as lb; from torch import nn\n"
        "lb.fit(nn.Linear(2, 2), [(torch.ones(2, 2), torch.tensor([0, 1]))], likelihood=lb.Categorical(), epochs=1)\n"
        "assert 'accelerate' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@shows("accelerate", "Trainings of different precisions follow each other in one program.")
def test_one_precision_does_not_leak_into_the_next_training() -> None:
    state = pytest.importorskip("accelerate.state").AcceleratorState
    before = dict(state._shared_state)
    ends = []
    for precisions in ((None,), ("bf16", "no", "bf16", None)):
        for precision in precisions:
            torch.manual_seed(0)
            bnn = lb.Bayesian(nn.Linear(2, 2))
            how = lb.Optimization(mixed_precision=precision)
            lb.fit(bnn, BATCHES, likelihood=lb.Categorical(), epochs=2, optimizer=how)
        ends.append(bnn.state_dict())
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())
    assert dict(state._shared_state) == before


def states() -> list[dict[str, object]]:
    state = pytest.importorskip("accelerate.state")
    return [dict(kind._shared_state) for kind in (state.PartialState, state.AcceleratorState, state.GradientState)]


def test_precisions_follow_each_other_beside_an_accelerator_of_the_user(fresh_accelerate: None) -> None:
    """Accelerate has one state for the program: neither its precision nor a step that it holds back reaches fit."""
    accelerate = pytest.importorskip("accelerate")
    lb.fit(nn.Linear(2, 2), BATCHES, likelihood=lb.Categorical(), epochs=1)
    mine = accelerate.Accelerator(mixed_precision="bf16", gradient_accumulation_steps=4)
    mine.gradient_state._set_sync_gradients(False)
    before = states()
    for precision in (None, "bf16", "no", "bf16"):
        torch.manual_seed(0)
        bnn = lb.Bayesian(nn.Linear(2, 2))
        start = bnn.model.weight.detach().clone()
        lb.fit(
            bnn, BATCHES, likelihood=lb.Categorical(), epochs=1, optimizer=lb.Optimization(mixed_precision=precision)
        )
        assert not torch.equal(bnn.model.weight, start)
        assert states() == before
    assert mine.mixed_precision == "bf16"


@pytest.fixture
def accelerator(request: pytest.FixtureRequest, fresh_accelerate: None) -> Any:
    return pytest.importorskip("accelerate").Accelerator(cpu=True, **request.param)


def trained(**options: Any) -> tuple[lb.train.History, dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    bnn = lb.Bayesian(nn.Linear(2, 2))
    history = lb.fit(bnn, BATCHES * 3, likelihood=lb.Categorical(), epochs=2, **options)
    return history, bnn.state_dict()


@shows("accelerate", "An Accelerator of your own trains as lb.fit does, also in mixed precision.")
@pytest.mark.parametrize("accelerator", [{}, {"mixed_precision": "bf16"}], indirect=True)
def test_an_accelerator_of_the_user_trains_as_fit_would(accelerator: Any, tmp_path: Path) -> None:
    how = lb.Optimization(clip=0.5, mixed_precision=None if accelerator.mixed_precision == "no" else "bf16")
    expected, weights = trained(optimizer=how)
    other = accelerator.prepare(nn.Linear(1, 1))
    held = list(accelerator._models)
    for folder in ("a", "a", "b"):  # the second training finds the checkpoints of the first
        given, same = trained(optimizer=how, accelerator=accelerator, checkpoint=tmp_path / folder)
        assert given.losses == expected.losses
        assert all(torch.equal(value, same[name]) for name, value in weights.items())
    assert accelerator._models == held == [other]
    assert not accelerator._optimizers
    assert not hasattr(nn.Linear(1, 1), "_original_forward")
    if accelerator.mixed_precision == "bf16":
        with pytest.raises(lb.errors.OtherTraining, match="precision"):
            trained(checkpoint=tmp_path / "a", optimizer=lb.Optimization(clip=0.5))


@pytest.mark.parametrize(
    ("accelerator", "options", "words"),
    [
        ({"gradient_accumulation_steps": 2}, {}, "accumulates gradients over 2 steps.*micro_batches"),
        ({"mixed_precision": "bf16"}, {"optimizer": lb.Optimization(mixed_precision="fp16")}, "leave it to the Accel"),
        ({}, {"accelerator": "cpu"}, r"must be an accelerate.Accelerator, got 'cpu'"),
    ],
    indirect=["accelerator"],
)
def test_an_accelerator_that_cannot_be_used_is_named(accelerator: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(lb.errors.InputError, match=words):
        trained(**({"accelerator": accelerator} | options))


def test_training_happens_where_the_model_is() -> None:
    with engine(nn.Linear(2, 2, device="meta"), None) as place:
        assert isinstance(place, OneProcess)
        assert place.device.type == "meta"
    with engine(nn.Flatten(), "no") as place:
        assert place.device.type == "cpu"


def test_samplers_of_a_user_in_two_processes(tmp_path: Path) -> None:
    """Before, a sampler that draws from the global state gave each process an order of its own."""
    pytest.importorskip("accelerate")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    environment |= {"ACCELERATE_USE_CPU": "true"}
    command = [sys.executable, str(Path(__file__).with_name("order_script.py")), str(tmp_path)]
    running = [
        subprocess.Popen(
            command, env=environment | {"RANK": rank, "LOCAL_RANK": rank}, stderr=subprocess.PIPE, text=True
        )
        for rank in ("0", "1")
    ]
    for process in running:
        _, errors = process.communicate(timeout=500)
        assert process.returncode == 0, errors
    one, two = (json.loads((tmp_path / rank).read_text()) for rank in ("0", "1"))
    assert one["global"]["error"] == two["global"]["error"] == ""
    for epoch in range(2):
        parts = [result["global"]["read"][6 * epoch : 6 * epoch + 6] for result in (one, two)]
        assert sorted(parts[0] + parts[1]) == list(range(12))
    assert one["global"]["read"][:6] != one["global"]["read"][6:]
    for result in (one, two):
        assert "another order of the examples" in result["system"]["error"]
        assert "a share of that share" in result["shares"]["error"]


TWO = """
import atexit, os, sys, torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset
import leanbayes as lb

torch.manual_seed(0)
x, rank = torch.randn(64, 4), int(os.environ["RANK"])
y = (x[:, 0] > 0).long()

class Stream(IterableDataset):
    def __iter__(self):
        return iter(zip(x, y))

def still_joined():
    with open(f"{sys.argv[1]}/{rank}", "a") as file:
        print("joined" if torch.distributed.is_initialized() else "left", file=file)

atexit.register(still_joined)  # handlers run in the reverse order, so this one runs after those of fit

def stop(step):
    return lb.train.Stop("enough") if rank == 1 and step.step == 6 else None

for train, options in (
    (DataLoader(TensorDataset(x, y), 16), {"callbacks": [lb.train.EachStep(stop)]}),
    (DataLoader(Stream(), 16), {"steps_per_epoch": 3, "n_data": 64}),
):
    torch.manual_seed(0)
    bnn = lb.Bayesian(nn.Linear(4, 2))
    history = lb.fit(bnn, train, likelihood=lb.Categorical(), epochs=3, **options)
    with open(f"{sys.argv[1]}/{rank}", "a") as file:
        print(len(history.epochs), bool(history.stopped), bnn.model.weight.tolist(), file=file)
"""


def test_processes_of_torchrun_train_one_model_and_stop_together(tmp_path: Path) -> None:
    """Before, accelerate did not join processes without a GPU, and each of them trained a model of its own.

    The processes must leave their group before the interpreter ends: otherwise the threads of the group sometimes need
    an interpreter that is gone, and the process ends with SIGABRT.
    """
    pytest.importorskip("accelerate")
    script = tmp_path / "two.py"
    script.write_text(TWO)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = subprocess.run([*command, str(script), str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = ((tmp_path / rank).read_text() for rank in ("0", "1"))
    assert first == second
    assert [line.split()[:2] for line in first.splitlines()] == [["2", "True"], ["3", "False"], ["left"]]
