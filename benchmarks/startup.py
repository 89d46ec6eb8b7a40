"""Measure how long a user waits at the first use, each time in a fresh process, with no compiled kernels and with them.

Each work runs in processes of its own: first with an empty folder for compiled kernels ("cold"), then again with what
the first process left there ("warm"). In every process the work runs three times, so that the first call can be
compared with the third. The seconds of the imports of torch and LeanBayes are listed beside it.

    python benchmarks/startup.py [--only draw moments ...] [--cpu-time]

On a busy machine, ``--cpu-time`` counts the seconds of the processor instead of those of the clock.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness import RESULTS, write

WORKS = {
    "import": "def work():\n    pass\n",
    "predict, one draw of 10 million weights": """
bnn = lb.Bayesian(torch.nn.Sequential(torch.nn.Linear(3000, 3000), torch.nn.ReLU(), torch.nn.Linear(3000, 300)))
x = torch.randn(4, 3000)
def work():
    lb.predict(bnn, x, samples=1, method="loop")
""",
    "training step, IVON": """
bnn = lb.Bayesian(network)
step_of = lb.optim.IVON(bnn, lr=0.1, n_data=1000, steps=100)
def work():
    step_of.zero_grad()
    lb.elbo(bnn, images, labels, lb.Categorical(), n_data=1000).loss.backward()
    step_of.step()
""",
    "training step, mirrored": """
bnn = lb.Bayesian(network, propagate="mirrored")
step_of = torch.optim.SGD(bnn.parameters(), lr=0.1)
def work():
    step_of.zero_grad()
    lb.elbo(bnn, images, labels, lb.Categorical(), n_data=1000).loss.backward()
    step_of.step()
""",
    "predict, one pass of moments, U-Net": """
from leanbayes.lab.models import unet
bnn = lb.Bayesian(unet(3, 2), predict_by="moments")
x = torch.randn(2, 3, 64, 64)
def work():
    lb.predict(bnn, x)
""",
}
"""Python code that defines a function ``work``, for each name."""

FRAME = """
import json, time
clock = time.{clock}
begin = clock()
import torch
torch_done = clock()
import leanbayes as lb
imported = clock()
torch.set_num_threads(1)
torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Linear(1000, 1000), torch.nn.ReLU(), torch.nn.Linear(1000, 10))
images, labels = torch.randn(32, 1000), torch.randint(10, (32,))
{work}
calls = []
for _ in range(3):
    start = clock()
    work()
    calls.append(clock() - start)
imports = {{"torch": torch_done - begin, "leanbayes": imported - torch_done}}
print(json.dumps(imports | {{"first": calls[0], "third": calls[2]}}))
"""


def run(work: str, folder: str, clock: str) -> dict[str, float]:
    """Return the seconds of the imports and of the first and third call in a fresh process.

    Args:
        work: the code that defines ``work``.
        folder: where compiled kernels lie.
        clock: the function of the module ``time`` that tells the seconds.
    """
    code = FRAME.format(work=work, clock=clock)
    environment = os.environ | {"NUMBA_CACHE_DIR": folder}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    seconds: dict[str, float] = json.loads(done.stdout)
    return seconds


def help_seconds(cpu: bool) -> float:
    """Return the seconds of ``leanbayes --help`` in a fresh process, with the start of Python."""
    code = "import sys; sys.argv = ['leanbayes', '--help']; from leanbayes_cli import main; main()"
    clock = "c = os.times(); print(c.user + c.system)" if cpu else ""
    clock = clock or "print(time.perf_counter() - begin)"
    program = f"import os, time\nbegin = time.perf_counter()\n{code}\nprint()\n{clock}"
    best = []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
        best.append(float(done.stdout.split()[-1]))
    return min(best)


def measure(names: list[str], cpu: bool) -> dict[str, Any]:
    """Measure the named works, cold and warm."""
    clock = "process_time" if cpu else "perf_counter"
    figures: dict[str, Any] = {"leanbayes --help": help_seconds(cpu)}
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            cold, *warm = (run(WORKS[name], folder, clock) for _ in range(3))
        figures[name] = {"cold": cold, "warm": min(warm, key=lambda seconds: seconds["first"])}
        print(name, json.dumps(figures[name]), flush=True)
    return figures


def main() -> None:
    """Run the measurements and write them to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", help="parts of names of works; by default all")
    parser.add_argument("--cpu-time", action="store_true", help="count seconds of the processor")
    parser.add_argument("--out", type=Path, default=RESULTS / "startup.json")
    options = parser.parse_args()
    names = [name for name in WORKS if not options.only or any(part in name for part in options.only)]
    write(options.out, measure(names, options.cpu_time), {"cpu_time": options.cpu_time})


if __name__ == "__main__":
    main()
