"""Why does one `lean` network have less of five networks' gain? Writes docs/results/promise_reason.json.

    python benchmarks/promise_reason.py --data-dir DIRECTORY [DIRECTORY ...] [--tasks lenet-10k ...]

The negative log-likelihood (NLL) of an average of networks p₁ … p_K, whose mean is p̄, is

    NLL(p̄) = mean_k NLL(p_k) − mean_k E[log p̄(y)/p_k(y)],

the NLL of a member minus the *gap*, which is never negative (Jensen) and is what averaging gains. The members of an
ensemble are as good as the plain network, so its gap is its gain. The members of `lean` are weight draws around one
mode. Wider draws disagree more, which widens the gap, but each draw is worse, which costs more than the gap gains from
some width on. The script measures both terms on the validation set: for five plain networks, and for 64 draws of a
`lean` network whose scales are multiplied by several factors. No logits are rescaled.

It also trains `lean` at other temperatures of the posterior, which are other amounts of noise in training.
"""

import argparse
import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import leanbayes as lb
from harness import RESULTS, write
from leanbayes.baselines import Temperature
from leanbayes.lab.data import Task
from leanbayes.lab.recipes.lean_calibration import widen
from promise import EXPERIMENTS, MEMBERS, _batches, _task, _train

DRAWS = 64
FACTORS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0)
TEMPERATURES = (0.003, 0.01, 0.03, 0.1, 0.3)
SEED = 1000


def main() -> None:
    """Measure each task that the record does not have yet."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data-dir", nargs="+", required=True, help="folders in which the data sets are looked for")
    parser.add_argument("--tasks", nargs="+", default=["lenet-10k", "lenet-60k"], choices=list(EXPERIMENTS))
    parser.add_argument("--out", type=Path, default=RESULTS / "promise_reason.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    folders = tuple(options.data_dir)
    results: dict[str, Any] = json.loads(options.out.read_text())["results"] if options.out.exists() else {}
    for name in options.tasks:
        row = results.setdefault(name, {})
        task = _task(name, folders, 0)
        settings = json.loads((RESULTS / "promise.json").read_text())["results"][name]["settings"]
        if "five" not in row:
            row["five"] = _five(name, task, settings["lr"])
            _save(options.out, results)
        base = settings["lean"]
        for temperature in TEMPERATURES:
            spec = f"{base},temperature={temperature:g}" if temperature != 0.1 else base
            if spec not in row:
                row[spec] = _lean(name, task, spec, settings["lr"])
                _save(options.out, results)


def _save(out: Path, results: dict[str, Any]) -> None:
    write(out, results, {"draws": DRAWS, "members": MEMBERS, "seed": SEED})


def _five(name: str, task: Task, lr: float) -> dict[str, float]:
    log_probabilities = []
    for member in range(MEMBERS):
        network, _, _ = _train(name, task, "deterministic", lr, SEED + member)
        with torch.no_grad():
            logits = torch.cat([network(x) for x, _ in _batches(task.validation)])
        log_probabilities.append(logits.log_softmax(-1))
    return _decomposed(torch.stack(log_probabilities), task.validation.tensors[1])


def _lean(name: str, task: Task, spec: str, lr: float) -> dict[str, Any]:
    """Train one network, and decompose its NLL with its scales multiplied by each factor."""
    predictor, likelihood, facts = _train(name, task, spec, lr, SEED)
    bnn = next(module for module in predictor.modules() if isinstance(module, lb.Bayesian))
    raw = {key: value.clone() for key, value in bnn.state_dict().items()}
    targets = task.validation.tensors[1]
    widths: dict[str, Any] = {}
    for factor in (0.0, *FACTORS):
        bnn.load_state_dict(raw)
        if factor:
            widen(bnn, factor)
        widths[f"{factor:g}"] = _decomposed(_drawn(bnn, task, DRAWS if factor else 1, factor == 0), targets)
    bnn.load_state_dict(raw)
    scores = lb.evaluate(predictor, _batches(task.validation), likelihood=likelihood).metrics
    print(name, spec, {key: {k: round(v, 4) for k, v in row.items()} for key, row in widths.items()}, flush=True)
    return {
        "by width": widths,
        "one pass": {key: scores[key] for key in ("nll", "accuracy", "ece")},
        "moved": facts["scales"]["lean"]["moved"],
        "rescaling": predictor.number if isinstance(predictor, Temperature) else None,
    }


@torch.no_grad()
def _drawn(bnn: lb.Bayesian, task: Task, draws: int, at_mean: bool) -> Tensor:
    """Return the logarithmic probabilities of each draw, each of one draw for all images."""
    bnn.eval()
    rows = []
    for draw in range(draws):
        generator = torch.Generator().manual_seed(draw)
        with bnn.drawn(generator) if not at_mean else nullcontext(bnn.model) as model:
            logits = torch.cat([model(x) for x, _ in _batches(task.validation)])
        rows.append(logits.log_softmax(-1))
    return torch.stack(rows)


def _decomposed(log_probabilities: Tensor, targets: Tensor) -> dict[str, float]:
    """Return the mean NLL of the members, that of their average, and the gap between the two."""
    chosen = log_probabilities.double()[:, torch.arange(len(targets)), targets]
    members = -chosen.mean()
    average = -(chosen.logsumexp(0) - torch.tensor(len(chosen)).log()).mean()
    return {"member": float(members), "average": float(average), "gap": float(members - average)}


if __name__ == "__main__":
    main()
