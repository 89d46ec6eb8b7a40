"""One queue of jobs for `compare`, `tune`, `reproduce` and `predict`, and the executors that start its workers."""

from leanbayes.lab.jobs.crew import Crew, crew_of
from leanbayes.lab.jobs.executor import EXECUTORS, Executor, Plan, plan_of
from leanbayes.lab.jobs.job import Job, Needs, Outcome, this_machine
from leanbayes.lab.jobs.leases import Patience
from leanbayes.lab.jobs.queue import Claim, Queue, is_full_disk

__all__ = [
    "EXECUTORS",
    "Claim",
    "Crew",
    "Executor",
    "Job",
    "Needs",
    "Outcome",
    "Patience",
    "Plan",
    "Queue",
    "crew_of",
    "is_full_disk",
    "plan_of",
    "this_machine",
]
