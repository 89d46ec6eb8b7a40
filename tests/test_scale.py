"""The page about scale says what the records say: every table of numbers on it is computed here from them."""

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import leanbayes as lb

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGE = DOCS / "scale.md"
LARGE: list[dict[str, Any]] = json.loads((DOCS / "results" / "large.json").read_text())["results"]
UNET = json.loads((DOCS / "results" / "prediction.json").read_text())["results"]["U-Net, 128x128, 2 classes, batch 16"]

WORKS = {
    "construct": "construct; ours makes every weight random",
    "choose": "choose 1 %: sensitivity, top-k, `Bayesian`; plain is one gradient",
    "step": "a step of Adam; ours has 1 % random and the KL",
    "ivon": "a step of IVON with 1 % random",
    "adapter": "a step on a LoRA adapter of rank 8; ours has random A",
    "save": "save",
    "load": "load into a model that exists",
    "load_meta": "construct on the meta device and load",
}
SEVEN_BILLION = {"vocabulary": 32_000, "width": 4096, "inner": 11_008, "layers": 32}
GPUS, SCANS, WORKERS, SLICES = 8, 10**7, 64, 100
STEP_BYTES = {  # bytes that a training step keeps for each parameter, in float32: weight, gradient and optimizer
    "plain, Adam": 4 + 4 + 8,
    "1 % random, Adam": 4 + 4 + 8 + 0.01 * (4 + 4 + 8 + 4),  # and a scale with its gradient and state, and a position
    "every weight random, Adam": 2 * (4 + 4 + 8),
    "every weight random, IVON": 2 * (4 + 4) + 4 + 4,  # momentum and curvature in place of two moments for each
}


def table_of_large() -> str:
    """What was measured at 10, 100 and 300 million parameters."""
    lines = [
        "| parameters | work | plain | ours | ours / plain | plain memory | our memory |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in LARGE:
        for work, title in WORKS.items():
            ours, plain = row[f"ours_{work}"], row.get(f"plain_{work}")
            base = plain or (row["plain_step"] if work == "ivon" else None)
            ratio = f"{ours['seconds'] / base['seconds']:.1f}" if base else ""
            cells = [f"{row['parameters'] / 1e6:.0f} M", title, f"{base['seconds']:.2f} s" if base else ""]
            cells += [f"{ours['seconds']:.2f} s", ratio, f"{base['total']:.2f}" if base else "", f"{ours['total']:.2f}"]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def table_of_extra() -> str:
    """The memory that each piece of work adds to what was there before it, in multiples of the parameters."""
    lines = ["| work | " + " | ".join(f"{row['parameters'] / 1e6:.0f} M" for row in LARGE) + " |"]
    lines.append("|---|" + "---|" * len(LARGE))
    for name in ("choose", "save", "load"):
        for who in ("plain", "ours"):
            values = " | ".join(f"{row[f'{who}_{name}']['extra']:.2f}" for row in LARGE)
            lines.append(f"| {name}, {who} | {values} |")
    return "\n".join(lines) + "\n"


def parameters_of_seven_billion() -> tuple[int, int]:
    """Return the parameters of a Llama of 7B, and those of one of its layers."""
    v, w, inner, layers = SEVEN_BILLION.values()
    layer = 4 * w * w + 3 * w * inner + 2 * w
    return 2 * v * w + layers * layer + w, layer


def table_of_seven_billion() -> str:
    """The bytes of a sharded training step, from the counts of `STEP_BYTES`."""
    whole, layer = parameters_of_seven_billion()
    lines = ["| a step in float32 | bytes for each parameter | all GPUs | each of 8 GPUs |", "|---|---|---|---|"]
    for name, count in STEP_BYTES.items():
        gathered = layer * 4 * (1 if name.startswith("plain") else 2)  # the weights of one layer, and their draw
        each = count * whole / GPUS + gathered
        lines.append(f"| {name} | {count:.1f} | {count * whole / 1e9:.0f} GB | {each / 1e9:.1f} GB |")
    return "\n".join(lines) + "\n"


def table_of_adapter() -> str:
    """The bytes of a LoRA adapter of rank 8 on the queries and values of the 7B model."""
    whole, _ = parameters_of_seven_billion()
    matrices = SEVEN_BILLION["layers"] * 2
    a = b = matrices * 8 * SEVEN_BILLION["width"]
    plain, ours = (a + b) * 16, (a + b) * 16 + a * 16
    return (
        "| adapter of rank 8 on queries and values | numbers | bytes of a step |\n|---|---|---|\n"
        f"| base model in bfloat16, frozen | {whole / 1e9:.2f} billion | {2 * whole / 1e9:.1f} GB |\n"
        f"| adapter, Adam | {(a + b) / 1e6:.1f} million | {plain / 1e6:.0f} MB |\n"
        f"| adapter with random A, Adam | {(2 * a + b) / 1e6:.1f} million | {ours / 1e6:.0f} MB |\n"
    )


def table_of_scans() -> str:
    """The time that ten million scans take, from the time of one slice on one core."""
    plain = UNET["plain_seconds"] / 16
    lines = ["| prediction | of one plain pass | one scan, one core | 10⁷ scans, 64 cores |", "|---|---|---|---|"]
    for name, ratio in {"plain": 1.0, "one pass of moments": UNET["predict, one pass"], "32 draws": 32.0}.items():
        scan = plain * ratio * SLICES
        lines.append(f"| {name} | {ratio:.1f} | {scan:.1f} s | {scan * SCANS / WORKERS / 86_400:.1f} days |")
    return "\n".join(lines) + "\n"


TABLES: dict[str, Callable[[], str]] = {
    "large": table_of_large,
    "extra": table_of_extra,
    "7B": table_of_seven_billion,
    "adapter": table_of_adapter,
    "scans": table_of_scans,
}


def with_tables(page: str) -> str:
    for name, table in TABLES.items():
        begin, end = f"<!-- table: {name} -->\n", "<!-- end -->"
        before, rest = page.split(begin)
        page = before + begin + table() + end + rest.partition(end)[2]
    return page


def test_the_tables_of_the_page_are_those_of_the_records() -> None:
    """If it fails, write the tables anew with ``python -m tests.test_scale``."""
    assert PAGE.read_text() == with_tables(PAGE.read_text())


def test_the_prose_of_the_page_states_the_measured_numbers() -> None:
    """Sentences that repeat a number of the record name it in a comment: <!-- 300 ours_choose extra -->1.16."""
    stated = re.findall(r"<!-- (\d+) (\w+) (\w+) -->([\d.]+)", PAGE.read_text())
    assert len(stated) >= 4
    rows = {row["millions"]: row for row in LARGE}
    for millions, work, what, number in stated:
        digits = len(number.partition(".")[2])
        assert f"{rows[int(millions)][work][what]:.{digits}f}" == number


def test_choosing_weights_keeps_the_goal_at_300_million() -> None:
    """The goal of the issue: sensitivity and top-k at 1 % peak at less than 1.5 times the parameters."""
    row = next(row for row in LARGE if row["millions"] == 300)
    assert row["ours_choose"]["extra"] < 1.5
    assert row["ours_load"]["extra"] < 0.5  # no second copy


def bytes_of_step(bnn: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Count what one step keeps for each parameter of the plain model."""
    x, y = torch.randn(4, 64), torch.randint(0, 64, (4,))
    with_kl = not isinstance(optimizer, lb.optim.IVON)
    lb.elbo(bnn, x, y, lb.Categorical(), n_data=10, with_kl=with_kl).loss.backward()
    optimizer.step()
    kept = [*bnn.parameters(), *bnn.buffers(), *[p.grad for p in bnn.parameters() if p.grad is not None]]
    kept += [v for state in optimizer.state.values() for v in state.values() if isinstance(v, torch.Tensor)]
    size = sum(p.numel() for p in (bnn.model if isinstance(bnn, lb.Bayesian) else bnn).parameters())
    return sum(tensor.numel() * tensor.element_size() for tensor in kept) / size


@pytest.mark.parametrize("name", STEP_BYTES)
def test_the_bytes_of_a_step_are_those_that_a_small_network_keeps(name: str) -> None:
    model: nn.Module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    if name != "plain, Adam":
        model = lb.Bayesian(model, subspace=lb.random_k(0.01) if name.startswith("1 %") else None)
    optimizer: Any = torch.optim.Adam(model.parameters())
    if name.endswith("IVON"):
        optimizer = lb.optim.IVON(model, lr=0.1, n_data=10, steps=10)
    assert math.isclose(bytes_of_step(model, optimizer), STEP_BYTES[name], rel_tol=0.02)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
