"""How long does the calibration of a million scores take? Writes docs/results/conformal_speed.json.

    python benchmarks/conformal_speed.py

The whole of `calibrate` is measured, from the outputs of a network that costs nothing to the threshold: the softmax,
the checks, the scores and the quantile. The time is that of the processor on one thread, the best of three runs.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import leanbayes as lb
from harness import RESULTS, write
from leanbayes.conformal import Intervals, Referral, RiskControl, Sets

COUNT, BATCH = 1_000_000, 10_000


def works() -> dict[str, Callable[[], object]]:
    """Return the calibrations by name, each of a million scores."""
    source = torch.Generator().manual_seed(0)

    def batches(x: Tensor, y: Tensor, size: int) -> list[tuple[Tensor, Tensor]]:
        return list(zip(x.split(size), y.split(size), strict=True))

    logits = 4 * torch.randn(COUNT, 10, generator=source)
    classes = torch.multinomial(logits.softmax(1), 1, generator=source)[:, 0]
    of_classes = batches(logits, classes, BATCH)
    numbers = torch.randn(COUNT, 1, generator=source)
    of_numbers = batches(numbers, numbers + torch.randn(COUNT, 1, generator=source), BATCH)
    images = torch.randn(COUNT // 4096, 2, 64, 64, generator=source)
    of_images = batches(images, (images[:, 1] > 1.5).long(), 16)
    marks = torch.randn(COUNT // 10, 10, generator=source)
    of_labels = batches(marks, (marks + torch.randn(marks.shape, generator=source) > 1).float(), 1000)
    return {
        "sets, lac, 10 classes": lambda: Sets(nn.Identity(), score="lac").calibrate(of_classes),
        "sets, aps, 10 classes": lambda: Sets(nn.Identity(), score="aps").calibrate(of_classes),
        "sets, lac, for each class": lambda: Sets(nn.Identity(), score="lac", per="class").calibrate(of_classes),
        "intervals": lambda: Intervals(nn.Identity()).calibrate(of_numbers),
        "referral": lambda: Referral(nn.Identity()).calibrate(of_classes),
        "risk control, 244 images of 64x64 pixels": lambda: RiskControl(nn.Identity()).calibrate(of_images),
        "risk control, 100,000 cases of 10 labels": lambda: RiskControl(
            nn.Identity(), likelihood=lb.Bernoulli()
        ).calibrate(of_labels),
    }


def main() -> None:
    """Measure each calibration and write the record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--out", type=Path, default=RESULTS / "conformal_speed.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for name, work in works().items():
        times = []
        for _ in range(3):
            begin = time.process_time()
            work()
            times.append(time.process_time() - begin)
        results[name] = {"processor_seconds": min(times)}
        print(f"{name}: {min(times):.2f} s", flush=True)
    write(options.out, results, {"scores": COUNT, "batch": BATCH, "threads": 1})


if __name__ == "__main__":
    main()
