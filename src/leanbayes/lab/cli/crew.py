"""The option ``--executor``, which says where the jobs of a command run."""

import shlex
from typing import TYPE_CHECKING

from leanbayes.lab.cli.command import Session

if TYPE_CHECKING:  # slow to import, and not needed for help
    from leanbayes.lab.jobs import Crew

__all__ = ["EXECUTOR", "make_crew"]

EXECUTOR = (
    "Where the jobs run: local (this process), local:4 (four processes of this machine), shared (this process, together "
    "with all others that start the same command on the same folder, on any machine), slurm:partition=gpu,gpus=1 "
    "(through submitit) or ray:address."
)


def make_crew(text: str, session: Session) -> "Crew | None":
    """Return the workers that ``--executor`` asks for; None if this process does all jobs itself."""
    from leanbayes.lab.jobs import crew_of, plan_of

    return crew_of(plan_of(text), shlex.split(session.command_line)[1:], session.bars.remark)
