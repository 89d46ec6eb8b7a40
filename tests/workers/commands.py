"""The commands themselves: by two worker processes they must give what they give in one process."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["same_by_workers"]

_QUICK = "--data data.npz --batch-size 32 --samples 2 --quiet"
LINES = {
    "compare": f"compare --methods deterministic partial:rate=0.1 --seeds 0 1 --epochs 2 --out OUT {_QUICK}",
    "tune": f"tune --method vi --search kl_weight=0.1,1.0 --trials 3 --epochs 2 --out OUT {_QUICK}",
    "reproduce": "reproduce subnetworks-toy --size smoke --workers 1 --out OUT --cache OUT/cache --quiet",
}
_TIMES = {"finished", "date", "commit", "command", "jobs", "minutes_taken", "minutes_of_jobs", "seconds"}


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(item) for key, item in value.items() if key not in _TIMES and "_seconds" not in key}
    return [_timeless(item) for item in value] if isinstance(value, list) else value


def _left(folder: Path, out: str) -> dict[str, Any]:
    """What a command left: the records without times, and the other files by name."""
    files = sorted(path for path in (folder / out).rglob("*") if path.is_file() and not path.name.endswith(".lock"))
    return {
        path.relative_to(folder / out).as_posix(): _timeless(json.loads(path.read_text()))
        if path.suffix == ".json"
        else "a file"
        for path in files
    }


def same_by_workers(folder: Path, command: str, executor: str = "local:2") -> dict[str, Any]:
    """Run a command in one process and by workers, and compare what they leave."""
    x = np.random.default_rng(0).normal(size=(120, 3))
    np.savez(folder / "data.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
    for out, more in (("alone", []), ("together", ["--executor", executor])):
        words = LINES[command].replace("OUT", out).split()
        done = subprocess.run(
            [sys.executable, "-m", "leanbayes.lab.cli", *words, *more],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        assert done.returncode == 0, done.stderr
    alone, together = _left(folder, "alone"), _left(folder, "together")
    assert alone.keys() == together.keys(), alone.keys() ^ together.keys()
    for name, content in alone.items():
        assert content == together[name], f"{name} differs"
    return {"command": command, "executor": executor, "files": len(alone), "identical": True}
