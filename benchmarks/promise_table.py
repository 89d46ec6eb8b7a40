"""Write the tables of docs/costs.md that say how much of five networks' gain one lean network has.

    python benchmarks/promise_table.py [--record docs/results/promise.json] [--page docs/costs.md]

A share is the gain of one method over the plain network with temperature, divided by the gain of five networks with
temperature over it. Both gains are means over the seeds. The script replaces what stands between two marks on the page.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from harness import RESULTS, ROOT

METHODS = ("plain+temperature", "swa+temperature", "five+temperature", "lean", "two lean+temperature")
BASE, FIVE = METHODS[0], METHODS[2]
START, END = "<!-- promise: start -->", "<!-- promise: end -->"
TASKS = {
    "lenet-10k": "LeNet-5, 10,000 images of Fashion-MNIST",
    "lenet-60k": "LeNet-5, 60,000 images",
    "cnn-10k": "CNN with batch norm, 10,000 images",
    "cnn-60k": "CNN with batch norm, 60,000 images",
    "cifar10": "residual network, CIFAR-10",
    "skin-lesions": "U-Net, skin lesions",
    "demo": "the demo: generated blood cells",
    "uci-concrete": "table *concrete*",
    "uci-energy": "table *energy*",
}
NLL, AUROC = "nll", "ood/unseen/auroc"
EPISTEMIC = f"{AUROC} by epistemic"
WITHOUT_EPISTEMIC = METHODS[:2]  # networks without random weights, for which AUROC is that of the total uncertainty


def value(row: dict[str, Any], method: str, key: str) -> float | None:
    """Return a number of one method on one seed; networks without random weights have only the total uncertainty."""
    number: float | None = row[method].get(AUROC if key == EPISTEMIC and method in WITHOUT_EPISTEMIC else key)
    return number


def mean(entry: dict[str, Any], method: str, key: str) -> float | None:
    """Return the mean of a number over the seeds, or None if a seed does not have it."""
    values = [value(seed["methods"], method, key) for seed in entry["seeds"].values()]
    numbers = [number for number in values if number is not None]
    return sum(numbers) / len(numbers) if len(numbers) == len(values) else None


def share(entry: dict[str, Any], method: str, key: str) -> float | None:
    """Return the share of five networks' gain; None where five networks gain nothing."""
    base, five, other = (mean(entry, name, key) for name in (BASE, FIVE, method))
    if base is None or five is None or other is None:
        return None
    sign = -1 if key == NLL else 1
    gain = sign * (five - base)
    return None if gain <= 0 else sign * (other - base) / gain


def worse_seeds(entry: dict[str, Any], method: str, key: str) -> int:
    """Count the seeds on which a method is worse than the plain network with temperature."""
    sign = -1 if key == NLL else 1
    pairs = [
        (value(seed["methods"], method, key), value(seed["methods"], BASE, key)) for seed in entry["seeds"].values()
    ]
    return sum(sign * (other - base) < 0 for other, base in pairs if other is not None and base is not None)


def table(record: dict[str, Any], key: str) -> str:
    """Return the means over seeds of one number as a table in Markdown, with one row for each task that has it."""
    lines = [
        "| | seeds | plain | SWA | five | `lean` | two `lean` | share of `lean` | seeds lost to plain |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, title in TASKS.items():
        entry = record.get(name)
        if entry is None or mean(entry, BASE, key) is None:
            continue
        means = " | ".join(f"{mean(entry, method, key):.3f}" for method in METHODS)
        part = share(entry, "lean", key)
        said = "five do not gain" if part is None else f"{part:.2f}"
        lines.append(f"| {title} | {len(entry['seeds'])} | {means} | {said} | {worse_seeds(entry, 'lean', key)} |")
    return "\n".join(lines)


def main() -> None:
    """Write the tables into the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--record", type=Path, default=RESULTS / "promise.json")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "costs.md")
    options = parser.parse_args()
    text = options.page.read_text()
    before, _, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"{options.page} needs the two lines {START} and {END}, between which the tables are written")
    record = json.loads(options.record.read_text())["results"]
    made = "\n\n".join(
        [
            "NLL:",
            table(record, NLL),
            "AUROC of unfamiliar images by the total uncertainty:",
            table(record, AUROC),
            "AUROC of unfamiliar images by the epistemic uncertainty. The plain network and SWA have none, so their "
            "columns keep the total one:",
            table(record, EPISTEMIC),
        ]
    )
    options.page.write_text(f"{before}{START}\n\n{made}\n\n{END}{after}")
    print(made)


if __name__ == "__main__":
    main()
