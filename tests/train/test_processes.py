"""One process needs torch alone; what needs accelerate says so, and leaves no state behind."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import leanbayes as lb
from leanbayes.train.processes import OneProcess, engine

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


def test_training_happens_where_the_model_is() -> None:
    with engine(nn.Linear(2, 2, device="meta"), None) as place:
        assert isinstance(place, OneProcess)
        assert place.device.type == "meta"
    with engine(nn.Flatten(), "no") as place:
        assert place.device.type == "cpu"
