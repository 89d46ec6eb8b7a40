"""Measure the peak of the resident memory of ``leanbayes compare`` on images as large as photographs of lesions.

The benchmark draws images with one ellipse each and their masks, writes them as PNG files, and starts the command. The
system notes the largest resident memory of each process; the benchmark adds up those of the command and of all that it
starts, which is exact for one process and an upper bound for several. With ``--quarter``, a second run with a quarter
of the images shows whether memory grows with their number.

    python benchmarks/memory.py                          # 200 images of 384x288, the goal is at most 2 GB
    python benchmarks/memory.py --images 24 --methods deterministic --out /tmp/memory.json
"""

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from harness import RESULTS, write


def draw_images(folder: Path, count: int, width: int, height: int) -> None:
    """Write images of noise with a brighter ellipse, and the masks of the ellipses."""
    random = np.random.default_rng(0)
    y, x = np.mgrid[:height, :width]
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True)
    for number in range(count):
        centre = random.uniform(0.25, 0.75, 2) * (height, width)
        radius = random.uniform(0.07, 0.19, 2) * height
        mask = ((y - centre[0]) / radius[0]) ** 2 + ((x - centre[1]) / radius[1]) ** 2 < 1
        image = random.normal(120, 25, (height, width, 3)) + mask[..., None] * random.uniform(20, 70)
        Image.fromarray(image.clip(0, 255).astype(np.uint8)).save(folder / "images" / f"case{number:04}.png")
        Image.fromarray(mask.astype(np.uint8)).save(folder / "masks" / f"case{number:04}.png")


def peaks(root: int) -> dict[int, int]:
    """Return the largest resident memory so far, in kilobytes, of a process and of all that it has started."""
    found: dict[int, int] = {}
    todo = [root]
    while todo:
        number = todo.pop()
        try:
            lines = Path(f"/proc/{number}/status").read_text().splitlines()
            found[number] = next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
            todo += map(int, Path(f"/proc/{number}/task/{number}/children").read_text().split())
        except (OSError, StopIteration):  # the process has ended
            continue
    return found


def measured(command: list[str]) -> dict[str, float]:
    """Run a command, and return the peak of its memory in megabytes and how long it took."""
    begin = time.perf_counter()
    process = subprocess.Popen(command)
    largest: dict[int, int] = {}
    while process.poll() is None:
        largest |= peaks(process.pid)
        time.sleep(0.25)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    megabytes = round(sum(largest.values()) / 1024)
    return {"peak_megabytes": megabytes, "processes": len(largest), "seconds": round(time.perf_counter() - begin)}


def main() -> None:
    """Measure each method with all images and with a quarter of them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--height", type=int, default=288)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--methods", nargs="+", default=["deterministic", "ensemble:members=2", "lean", "partial"])
    parser.add_argument("--quarter", action="store_true", help="measure a quarter of the images too")
    parser.add_argument("--out", type=Path, default=RESULTS / "memory.json")
    options = parser.parse_args()
    results: list[dict[str, Any]] = []
    counts = [options.images // 4, options.images] if options.quarter else [options.images]
    for count in counts:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            draw_images(folder / "data", count, options.width, options.height)
            data = ["--data", str(folder / "data" / "images"), "--masks", str(folder / "data" / "masks")]
            command = [sys.executable, "-m", "leanbayes.lab.cli", "compare", *data, "--methods", *options.methods]
            command += ["--epochs", str(options.epochs), "--out", str(folder / "out"), "--quiet"]
            results.append({"images": count, "methods": options.methods} | measured(command))
            print(results[-1], flush=True)
    settings = {name: getattr(options, name) for name in ("images", "width", "height", "epochs", "methods")}
    write(options.out, results, settings)


if __name__ == "__main__":
    main()
