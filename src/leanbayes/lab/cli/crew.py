"""The option ``--executor``, which says where the jobs of a command run."""

import os
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING

from leanbayes.errors import InputError
from leanbayes.lab.cli.command import Session

if TYPE_CHECKING:  # slow to import, and not needed for help
    from leanbayes.lab.jobs import Crew

__all__ = ["EXECUTOR", "make_crew"]

EXECUTOR = (
    "Where the jobs run: local (this process), local:4 (four processes of this machine), shared (this process, with "
    "all others that start the same command on the same folder, on any machine), slurm:partition=gpu,gpus=1 (through "
    "submitit) or ray:address."
)


def make_crew(text: str, session: Session, instead: Mapping[str, str] | None = None) -> "Crew | None":
    """Return the workers that ``--executor`` asks for; None if this process does all jobs itself.

    Args:
        text: the value of ``--executor``.
        session: has the command that the user typed.
        instead: words of the command that are others for a worker.
    """
    from leanbayes.lab.jobs import crew_of, plan_of

    plan = plan_of(text)
    if not plan.is_plain and os.environ.get("WORLD_SIZE", "1") != "1":
        raise InputError(
            f"--executor {text} has workers of its own; start the command without accelerate launch and torchrun"
        )
    words = [(instead or {}).get(word, word) for word in shlex.split(session.command_line)[1:]]
    return crew_of(plan, words, session.bars.remark)
