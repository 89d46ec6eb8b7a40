"""Tools that all benchmarks share: `race` measures in turns, `timing` takes the best, and `write` makes a record."""

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


def race(
    works: dict[str, Callable[[], object]], rounds: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Measure several pieces of work in turns, so that a busy machine slows all of them alike.

    Every piece runs once in each round. Each round begins with another piece, and one more round before the first is
    not counted.

    Args:
        works: the pieces of work by name.
        rounds: how many rounds count.
        clock: what tells the seconds.

    Returns:
        The seconds of each round, for each piece of work.
    """
    names = list(works)
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds + 1):
        for position in range(len(names)):
            name = names[(position + turn) % len(names)]
            begin = clock()
            works[name]()
            if turn > 0:
                times[name].append(clock() - begin)
    return times


def timing(name: str, times: list[float], base: list[float]) -> dict[str, float]:
    """Return the best and the median seconds, and the ratio of the best to the best of ``base``."""
    return {
        f"{name}_seconds": min(times),
        f"{name}_median_seconds": statistics.median(times),
        f"{name}_ratio": min(times) / min(base),
    }


def write(out: Path, results: Any, settings: dict[str, Any]) -> None:
    """Write results to a JSON file, with everything that is needed to repeat them."""
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(record_of(results, settings), indent=2) + "\n")
    print(f"written to {out.name}")


def record_of(results: Any, settings: dict[str, Any]) -> dict[str, Any]:
    """Return results together with the command, the commit and the machine."""
    record = {"command": "python " + " ".join(_own_arguments()), **surroundings("benchmarks"), "settings": settings}
    return record | {"results": results}


def _own_arguments() -> list[str]:
    script = Path(sys.argv[0]).resolve()
    arguments = sys.argv[1:]
    if "--out" in arguments:  # the path of the results belongs to one machine and changes no result
        position = arguments.index("--out")
        arguments = arguments[:position] + arguments[position + 2 :]
    if "--data-dir" in arguments:  # the same is true of the path of the data
        position = arguments.index("--data-dir") + 1
        if Path(arguments[position]).is_absolute():
            arguments[position] = "DIRECTORY"
    return [str(script.relative_to(ROOT)) if script.is_relative_to(ROOT) else script.name, *arguments]
