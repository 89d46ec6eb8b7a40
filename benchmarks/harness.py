"""What every benchmark shares: turns instead of blocks, the best of several, and a record of where it ran."""

import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from leanbayes._provenance import surroundings

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "docs" / "results"


def race(works: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each work's turns. All take one in every round, each round begins with another, the first is lost."""
    names = list(works)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds + 1):
        for position in range(len(names)):
            name = names[(position + turn) % len(names)]
            begin = time.perf_counter()
            works[name]()
            if turn > 0:
                times[name].append(time.perf_counter() - begin)
    return times


def timing(name: str, times: list[float], base: list[float]) -> dict[str, float]:
    """Best and median seconds, and the best against the base's."""
    return {
        f"{name}_seconds": min(times),
        f"{name}_median_seconds": statistics.median(times),
        f"{name}_ratio": min(times) / min(base),
    }


def write(out: Path, results: Any, settings: dict[str, Any]) -> None:
    """Write results with what is needed to repeat them."""
    record = {"command": "python " + " ".join(_own_arguments()), **surroundings("benchmarks"), "settings": settings}
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record | {"results": results}, indent=2) + "\n")
    print(f"written to {out.name}")


def _own_arguments() -> list[str]:
    script = Path(sys.argv[0]).resolve()
    given = sys.argv[1:]
    if "--out" in given:  # where it was written is of one machine, and changes no figure
        at = given.index("--out")
        given = given[:at] + given[at + 2 :]
    if "--data-dir" in given and Path(given[given.index("--data-dir") + 1]).is_absolute():  # and so is where data are
        given[given.index("--data-dir") + 1] = "DIRECTORY"
    return [str(script.relative_to(ROOT)) if script.is_relative_to(ROOT) else script.name, *given]
