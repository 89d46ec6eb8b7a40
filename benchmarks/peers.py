"""Measure the same work in LeanBayes and its peers, beside what the plain network costs and what the machine allows.

Every contestant starts from one plain network: a ResNet-18 for 32x32 images, or a small CNN, whose steps are so short
that the overhead of Python shows. `benchmarks/contestants` says what each of them does.

- step: zero_grad, the passes of the method with its loss, backward, and the update of its optimizer.
- predict: class probabilities of a batch in evaluation mode without gradients, as the method gives them: by several
  draws, several members, or one pass.
- memory: parameters, buffers and the optimizer's state, and what a step needs on top at its peak.
- trained: how many numbers the method trains.

Each row is measured in turns with the plain network, and all ratios are to the plain step with SGD and to one plain
pass. The best round of each counts. Beside each time is the limit of `benchmarks/limits.py`, the time that nothing can
beat with the operations and bytes of that row, and the share of the limit that the row reaches.

An audit of each contestant comes before the measurement: the right tensors are random and have the right scale or KL,
two passes differ, members differ, masks hold, graphs give the numbers of torch.

Rows are measured one by one, and the record is written after each. The next run continues where the last one stopped,
if neither the code nor the settings have changed since. It also measures again the rows that other programs disturbed:
those whose plain network took over half as long again as beside the quickest row.

    make bench-peers            # in a separate environment, see benchmarks/peers.txt
    python benchmarks/peers.py --seconds 150                                    # a part; the next call continues
    python benchmarks/peers.py --networks small_cnn --rounds 3 --out out/peers.json         # a quick look
"""

import argparse
import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import nn

from contestants import ROWS
from contestants.base import DRAWS, N_DATA, Contestant, Task, product_layers
from contestants.plain import ROWS as PLAIN
from harness import RESULTS, ROOT, race, record_of, timing
from leanbayes._provenance import git
from leanbayes.evaluation.cost import count_flops, peak_memory
from leanbayes.lab.models import resnet18, small_cnn
from limits import (
    Machine,
    Work,
    layers_used,
    masked_flops,
    measure_machine,
    prediction_work,
    step_work,
    unique_bytes,
)  # fmt: skip
from peers_table import tables


@dataclass(frozen=True)
class Network:
    """A network, and how many rounds are measured."""

    make: Callable[[], nn.Module]
    rounds: int


NETWORKS = {
    "resnet18": Network(resnet18, 2),
    "small_cnn": Network(lambda: small_cnn(3, 10, (32, 32)), 15),
}

DISTURBED = 1.5


def task_of(network: str, batch: int) -> Task:
    """Make the network and the batch; the seed makes them the same in every run."""
    torch.manual_seed(0)
    plain = NETWORKS[network].make()
    x, y = torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))
    return Task(network, plain, x, y, ROOT / "out" / "peers")


def measure(task: Task, row: str, rounds: int) -> dict[str, Any]:
    """Audit one contestant and measure it in turns with the plain network."""
    x, y = task.x, task.y
    runner, plain = ROWS[row](task), PLAIN["plain, SGD"](task)
    assert plain.step is not None
    audited = runner.audit()
    measured: dict[str, Any] = {
        "network": task.name,
        "name": row,
        "package": runner.package,
        "version": version(runner.package),
        "passes": runner.passes,
        "trained": runner.trained,
    }
    if runner.step is not None:
        works = {"plain": partial(plain.step, x, y), "row": partial(runner.step, x, y)}
        times = race(works, rounds)
        measured |= timing("step", times["row"], times["plain"]) | {"plain_step_seconds": min(times["plain"])}
        measured["step_bytes"] = memory(runner, works["row"])
        measured["step_bytes_ratio"] = measured["step_bytes"] / memory(plain, works["plain"])
        if not math.isfinite(runner.step(x, y)):
            raise SystemExit(f"{row}: the loss is not finite")
    if runner.fit is not None:
        fit, batches = runner.fit
        times = race({"plain": partial(plain.step, x, y), "row": fit}, min(rounds, 2))
        measured["fit_seconds_per_batch"] = min(times["row"]) / batches
        measured["fit_ratio_per_batch"] = min(times["row"]) / batches / min(times["plain"])
    times = race({"plain": partial(plain.predict, x), "row": partial(runner.predict, x)}, rounds)
    measured |= timing("predict", times["row"], times["plain"]) | {"plain_predict_seconds": min(times["plain"])}
    works_of_row = least_work(task, runner)
    return measured | {"least": {name: asdict(work) for name, work in works_of_row.items()}} | {"audit": audited}


def memory(runner: Contestant, step: Callable[[], object]) -> int:
    """Return the bytes of all tensors at the peak of a step, which begins with the gradients of the last one."""
    return unique_bytes([*runner.kept(), *runner.gradients()]) + peak_memory(step)


def least_work(task: Task, runner: Contestant) -> dict[str, Work]:
    """Count the operations and the least bytes of a contestant's step and prediction."""
    x, y = task.x, task.y
    names = [name for name, _ in product_layers(task.plain)]
    predict = partial(runner.predict_as or runner.predict, x)
    works, flops = {}, [0]

    def counted(work: Callable[[], object]) -> None:
        flops[0] = count_flops(work)

    uses = layers_used(runner.networks, names, partial(counted, predict))
    if runner.masks:
        flops[0] = masked_flops(uses, task.plain, runner.masks, training=False)
    parameters = list(runner.model.parameters())
    works["predict"] = prediction_work(flops[0], parameters, uses, unkept=runner.zeros, streams=runner.streams)
    if runner.step is not None:
        uses = layers_used(runner.networks, names, partial(counted, partial(runner.step, x, y)))
        if runner.masks:
            flops[0] = masked_flops(uses, task.plain, runner.masks, training=True)
        copies = unique_bytes(runner.moved()) // max(unique_bytes(parameters), 1)
        unkept, networks = runner.zeros * copies, len(runner.networks)
        works["step"] = step_work(flops[0], runner.moved(), uses, unkept=unkept, networks=networks)
    return works


def with_limits(rows: list[dict[str, Any]], machine: Machine) -> list[dict[str, Any]]:
    """Give each row its limits, and the share of them that it reaches."""
    for row in rows:
        for name, work in row["least"].items():
            limit = Work(**work).seconds(machine)
            row |= {f"{name}_limit_seconds": limit, f"{name}_share_of_limit": limit / row[f"{name}_seconds"]}
    return rows


def undisturbed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows that were measured while the machine did little else: their plain network took its usual time."""
    best: dict[tuple[str, str], float] = {}
    times = [
        (row, key, row[key]) for row in rows for key in ("plain_step_seconds", "plain_predict_seconds") if key in row
    ]
    for row, key, seconds in times:
        best[row["network"], key] = min(seconds, best.get((row["network"], key), math.inf))
    bad = [id(row) for row, key, seconds in times if seconds > DISTURBED * best[row["network"], key]]
    return [row for row in rows if id(row) not in bad]


def earlier(path: Path, settings: dict[str, Any]) -> dict[str, Any] | None:
    """Return the results of a record that was made with the same code and settings."""
    if not path.is_file():
        return None
    record = json.loads(path.read_text())
    changed = git("diff", "--name-only", str(record.get("commit")), "--", "src", "benchmarks")
    if changed or record["settings"] != settings or "rows" not in record["results"]:
        print(f"{path.name} is of other code or settings, so all rows are measured anew")
        return None
    results: dict[str, Any] = record["results"]
    return results


def main() -> None:
    """Measure, print, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS))
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, help="how many rounds count; by default as many as suit the network")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no row after so many seconds")
    parser.add_argument("--out", type=Path, default=RESULTS / "peers.json")
    options = parser.parse_args()
    begin = time.perf_counter()
    rounds = {name: options.rounds or network.rounds for name, network in NETWORKS.items()}
    settings = {"batch": options.batch, "rounds": rounds, "draws": DRAWS, "n_data": N_DATA, "image": "3x32x32"}
    machine = measure_machine()
    results = earlier(options.out, settings)
    rows = undisturbed(results["rows"]) if results else []
    if results:
        machine = machine.best(machine_from(results["machine"]))
    done = {(row["network"], row["name"]) for row in rows}
    wanted = [(network, row) for network in options.networks for row in options.rows if (network, row) not in done]
    for number, (network, row) in enumerate(wanted):
        if time.perf_counter() - begin > options.seconds:
            print(f"{len(wanted) - number} rows are left; the same command continues")
            break
        torch.manual_seed(0)
        rows.append(measure(task_of(network, options.batch), row, rounds[network]))
        write(options.out, rows, machine, settings)
        print(f"{time.perf_counter() - begin:6.0f} s  {network:10} {row:45} {summary(rows[-1])}", flush=True)
    print(tables(with_limits(rows, machine)))


def write(out: Path, rows: list[dict[str, Any]], machine: Machine, settings: dict[str, Any]) -> None:
    """Write the record with the rows in the order of the tables."""
    order = {(network, row): number for number, (network, row) in enumerate((n, r) for n in NETWORKS for r in ROWS)}
    rows.sort(key=lambda row: order[row["network"], row["name"]])
    rates = {"bandwidths": {str(size): rate for size, rate in machine.bandwidths.items()}}
    record = record_of({"machine": asdict(machine) | rates, "rows": with_limits(rows, machine)}, settings)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record, indent=2) + "\n")


def machine_from(entry: dict[str, Any]) -> Machine:
    """Read the machine of a record."""
    return Machine(entry["flops"], {int(size): rate for size, rate in entry["bandwidths"].items()}, entry["rates"])


def summary(row: dict[str, Any]) -> str:
    """Return the ratios of a row in a line."""
    names = ("step_ratio", "fit_ratio_per_batch", "predict_ratio", "step_bytes_ratio")
    return ", ".join(f"{name} {row[name]:.2f}" for name in names if name in row)


if __name__ == "__main__":
    main()
