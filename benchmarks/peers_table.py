"""Print the record of benchmarks/peers.py as Markdown.

python benchmarks/peers_table.py [docs/results/peers.json]
"""

import json
import sys
from pathlib import Path
from typing import Any

from harness import RESULTS

HEAD = (
    "| | training step | limit | share | prediction | by | limit | share | memory of a step | trained |",
    "|---|---|---|---|---|---|---|---|---|---|",
)


def tables(rows: list[dict[str, Any]]) -> str:
    """Return one table for each network. Steps are multiples of the plain step, and predictions of one plain pass."""
    parts = []
    for network in dict.fromkeys(row["network"] for row in rows):
        of_network = [row for row in rows if row["network"] == network]
        trained = next((row["trained"] for row in of_network if row["name"] == "plain, SGD"), of_network[0]["trained"])
        parts.append("\n".join([f"{network}:\n", *HEAD, *(_line(row, trained) for row in of_network)]))
    return "\n\n".join(parts)


def _line(row: dict[str, Any], trained: int) -> str:
    step = _times(row, "step") if "step_ratio" in row else ["", "", ""]
    if "fit_ratio_per_batch" in row:
        step[0] = f"{row['fit_ratio_per_batch']:.2f}x to fit a batch"
    speed, limit, share = _times(row, "predict")
    memory = f"{row['step_bytes_ratio']:.2f}x" if "step_bytes_ratio" in row else ""
    cells = [row["name"], *step, speed, row["passes"], limit, share, memory, f"{row['trained'] / trained:.3g}x"]
    return "| " + " | ".join(cells) + " |"


def _times(row: dict[str, Any], name: str) -> list[str]:
    plain, share = row[f"plain_{name}_seconds"], row[f"{name}_share_of_limit"]
    return [f"{row[f'{name}_ratio']:.2f}x", f"{row[f'{name}_limit_seconds'] / plain:.2f}x", f"{share:.0%}"]


if __name__ == "__main__":
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS / "peers.json"
    print(tables(json.loads(path.read_text())["results"]["rows"]))
