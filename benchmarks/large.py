"""Measure what a Bayesian network of 10, 100 and 300 million parameters costs beside the plain one: time and memory.

The network is a Llama that is built from its configuration, in float32 on the CPU. Every piece of work runs in a
process of its own, which first does the same work with a tiny network, so that all libraries are loaded. The process
notes its resident memory then, before the work, and the largest one during the work (VmHWM, which it resets first). In
multiples of the bytes of the parameters, ``total`` is the peak above the libraries, and ``extra`` the peak above what
was there before the work. Time is the processor time of one thread, which other work on the machine disturbs little;
the record has the time on the wall as well. The plain work and ours run in turns, and the shortest time of all rounds
counts.

| work | plain | ours |
|---|---|---|
| construct | build the network | build the network, and make every weight random |
| choose | gradients of one batch | `lb.sensitivity` of one batch, `lb.top_k` at 1 %, and `lb.Bayesian` |
| step | one step of Adam | the same at 1 %, with the KL |
| ivon | one step of Adam | one step of IVON, with 1 % random |
| adapter | one step of Adam on a LoRA adapter of rank 8 | the same with random matrices A |
| save | `safetensors.torch.save_file` | `lb.save` at 1 % |
| load | build the network, `safetensors.torch.load_file`, `load_state_dict` | build the network, `lb.load` |
| load_meta | | build the network on the meta device, `lb.load` |

    python benchmarks/large.py                                   # all sizes; the largest process needs about 7 GB
    python benchmarks/large.py --millions 10 --out /tmp/large.json

If the record that exists is of the same commit, a run adds its rounds to it and leaves other sizes as they are.
"""

import argparse
import ctypes
import gc
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from harness import RESULTS, record_of, write

SIZES = {10: (256, 7), 100: (768, 12), 300: (1280, 14)}  # millions: width and layers
TINY = 0
VOCABULARY, TOKENS, N_DATA = 8192, 32, 100_000
PLAIN = ("construct", "choose", "step", "adapter", "save", "load")
OURS = (*PLAIN, "ivon", "load_meta")
LIMIT = 8e9  # bytes that no process may need, because others share the machine


def network(millions: int) -> nn.Module:
    """Build a Llama of about so many million parameters."""
    from transformers import LlamaConfig, LlamaForCausalLM

    width, layers = SIZES.get(millions, (64, 1))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=width, intermediate_size=width * 11 // 4, num_hidden_layers=layers,
        num_attention_heads=width // 64, num_key_value_heads=width // 64, max_position_embeddings=128, use_cache=False,
    )  # fmt: skip
    return LlamaForCausalLM(config)  # type: ignore[no-any-return]


def empty_network(millions: int) -> nn.Module:
    """Build the same network with all parameters on the meta device; buffers that no file holds are real."""
    from accelerate import init_empty_weights

    with init_empty_weights(include_buffers=False):
        return network(millions)


def tokens() -> Tensor:
    """Return one text."""
    return torch.randint(0, VOCABULARY, (1, TOKENS), generator=torch.Generator().manual_seed(1))


def status(name: str) -> int:
    """Return a line of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def give_back() -> None:
    """Return memory that is free to the system, which would otherwise count as used."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)


def measured(work: Callable[[], object], parameter_bytes: int, repeat: int = 1) -> dict[str, float]:
    """Return the shortest time of a piece of work, and its largest memory."""
    give_back()
    Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins again at the resident memory of now
    before, seconds, wall = status("VmRSS"), [], []
    for _ in range(repeat):
        begin, begin_wall = time.process_time(), time.perf_counter()
        kept = work()
        seconds.append(time.process_time() - begin)
        wall.append(time.perf_counter() - begin_wall)
    peak = status("VmHWM")
    del kept
    return {
        "seconds": min(seconds),
        "wall_seconds": min(wall),
        "extra_bytes": peak - before,
        "peak_bytes": peak,
        "bytes": parameter_bytes,
    }


def run(task: str, ours: bool, millions: int, folder: Path) -> dict[str, float]:
    """Do one piece of work in this process."""
    import leanbayes as lb

    data = tokens()
    model: Any = None if task in ("construct", "load_meta") else network(millions)
    size = 4 * COUNTS[millions]
    file = folder / f"{'ours' if ours else 'plain'}-{millions}.safetensors"

    def sparse(rate: float = 0.01) -> lb.Bayesian:
        scores = lb.sensitivity(model, [(data, data)], loss_of_logits)
        return lb.Bayesian(model, subspace=lb.top_k(scores, rate=rate))

    def stepping(
        network: nn.Module, optimizer: torch.optim.Optimizer, with_kl: bool | None = None
    ) -> Callable[[], object]:
        def step() -> None:
            optimizer.zero_grad()
            if with_kl is None:
                loss_of_logits(network(input_ids=data), data).backward()
            else:
                batch, likelihood = ({"input_ids": data}, data.roll(-1)), lb.Categorical(class_axis=-1)
                lb.elbo(network, *batch, likelihood, n_data=N_DATA, with_kl=with_kl).loss.backward()
            optimizer.step()

        return step

    if task == "construct":
        if not ours:
            return measured(lambda: network(millions), size)
        return measured(lambda: lb.Bayesian(network(millions)), size)
    if task == "choose":
        if ours:
            return measured(sparse, size)
        return measured(lambda: loss_of_logits(model(input_ids=data), data).backward(), size)
    if task in ("step", "ivon", "adapter"):
        return _measure_step(task, ours, model, size, sparse, stepping)
    if task == "save":
        from safetensors.torch import save_file

        if ours:
            bnn = sparse()
            return measured(lambda: lb.save(bnn, file), size)
        return measured(lambda: save_file(model.state_dict(), file), size)
    if task == "load_meta":
        return measured(lambda: lb.load(folder / f"ours-{millions}.safetensors", empty_network(millions)), size)
    if ours:
        return measured(lambda: lb.load(file, model), size)

    def load() -> None:
        from safetensors.torch import load_file

        model.load_state_dict(load_file(file))

    return measured(load, size)


def _measure_step(task: str, ours: bool, model: Any, size: int, sparse: Any, stepping: Any) -> dict[str, float]:
    import leanbayes as lb

    bnn = model
    if task == "adapter":
        from peft import LoraConfig, get_peft_model

        from leanbayes.integrations.peft import bayesian_lora

        adapter = LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
        bnn = model = get_peft_model(model, adapter)
        if ours:
            bnn = bayesian_lora(model, prior=torch.distributions.Normal(0.0, 0.2))
    elif ours:
        bnn = sparse()
    if task == "ivon":
        optimizer = lb.optim.IVON(bnn, lr=0.1, n_data=N_DATA, steps=1000)
        return measured(stepping(bnn, optimizer, with_kl=False), size, repeat=3)
    trained = [p for p in bnn.parameters() if p.requires_grad]
    return measured(stepping(bnn, torch.optim.Adam(trained, lr=1e-4), with_kl=True if ours else None), size, repeat=3)


def loss_of_logits(output: Any, data: Tensor) -> Tensor:
    """Return the mean loss of the next tokens."""
    logits = output if isinstance(output, Tensor) else output.logits
    return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), data[:, 1:].flatten())


def count(millions: int) -> int:
    """Return the exact number of parameters."""
    with torch.device("meta"):
        return sum(p.numel() for p in network(millions).parameters())


COUNTS: dict[int, int] = {}


def in_own_process(task: str, ours: bool, millions: int, folder: Path) -> dict[str, float]:
    """Run one piece of work in a process of its own."""
    command = [sys.executable, __file__, "--task", task, "--millions", str(millions), "--folder", str(folder)]
    command += ["--ours"] if ours else []
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {ended.returncode}:\n{ended.stderr[-3000:]}")
    return dict(json.loads(ended.stdout.splitlines()[-1]))


def measure_size(millions: int, rounds: int, folder: Path, row: dict[str, Any]) -> dict[str, Any]:
    """Measure all pieces of work at one size, and add them to what earlier rounds gave."""
    row |= {"millions": millions, "parameters": COUNTS[millions], "rounds": row.get("rounds", 0) + rounds}
    for _ in range(rounds):
        for task in OURS:
            for ours in (False, True):
                if not ours and task not in PLAIN:
                    continue
                one = in_own_process(task, ours, millions, folder)
                name = f"{'ours' if ours else 'plain'}_{task}"
                measures = {
                    "seconds": round(one["seconds"], 4),
                    "wall_seconds": round(one["wall_seconds"], 4),
                    "extra": round(one["extra_bytes"] / one["bytes"], 3),
                    "total": round((one["peak_bytes"] - one["libraries_bytes"]) / one["bytes"], 3),
                    "peak_gigabytes": round(one["peak_bytes"] / 1e9, 3),
                }
                best = row.get(name, measures)
                row[name] = {
                    key: (min if key.endswith("seconds") else max)(best[key], value) for key, value in measures.items()
                }
                print(millions, name, row[name], flush=True)
                if one["peak_bytes"] > LIMIT:
                    raise SystemExit(f"{name} needed {one['peak_bytes'] / 1e9:.1f} GB, more than the limit")
    return row


def main() -> None:
    """Measure, or do the one piece of work that another process asks for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--millions", type=int, nargs="+", default=[*SIZES])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--task", help=argparse.SUPPRESS)
    parser.add_argument("--ours", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=RESULTS / "large.json")
    options = parser.parse_args()
    for millions in (TINY, *options.millions):
        COUNTS[millions] = count(millions)
    torch.set_num_threads(1)
    if options.task:
        with tempfile.TemporaryDirectory(dir="/tmp") as name:
            if options.task in ("load", "load_meta"):  # which read what another piece of work has written
                run("save", options.ours, TINY, Path(name))
            run(options.task, options.ours, TINY, Path(name))
        give_back()
        libraries = status("VmRSS")
        result = run(options.task, options.ours, options.millions[0], options.folder)
        print(json.dumps(result | {"libraries_bytes": libraries}))
        return
    rows: dict[int, Any] = {}
    settings = {"tokens": TOKENS, "vocabulary": VOCABULARY, "threads": 1}
    if options.out.is_file():
        old, now = json.loads(options.out.read_text()), record_of([], settings)
        if old["commit"] == now["commit"] and old["settings"] == settings:
            rows = {row["millions"]: row for row in old["results"]}
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        for millions in options.millions:
            rows[millions] = measure_size(millions, options.rounds, Path(name), rows.get(millions, {}))
            write(options.out, [rows[size] for size in sorted(rows)], settings)


if __name__ == "__main__":
    main()
