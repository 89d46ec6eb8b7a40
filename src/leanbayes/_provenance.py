"""The commit and the machine, for records of what was measured."""

import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import torch

__all__ = ["git", "surroundings"]

_ROOT = Path(__file__).parents[2]


def surroundings(*folders: str) -> dict[str, Any]:
    """Return the commit, whether the code has changed since, and the machine.

    Args:
        folders: folders of the repository, beside ``src``, in which a change counts.
    """
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
    """Run git in the repository of this package and return its answer; None outside of a repository."""
    if not (_ROOT / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", "-C", str(_ROOT), *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
