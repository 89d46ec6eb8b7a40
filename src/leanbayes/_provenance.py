"""Where and by which code a record was made: commit, changes since, machine."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

__all__ = ["git", "surroundings"]

_ROOT = Path(__file__).parents[2]


def surroundings(*folders: str) -> dict[str, Any]:
    """For a record; changes are looked for in ``src`` and in these other folders of the repository."""
    return {
        "commit": git("rev-parse", "HEAD"),
        "changed_since_commit": bool(git("diff", "--name-only", "HEAD", "--", "src", *folders)),
        "machine": {
            "platform": platform.platform(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "python": platform.python_version(),
            "torch": str(torch.__version__),
        },
    }


def git(*arguments: str) -> str | None:
    """What git says of the package's own repository, where it is used from one."""
    if not (_ROOT / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
