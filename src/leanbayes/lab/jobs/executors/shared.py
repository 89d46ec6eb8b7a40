"""This process is a worker. Other workers are the same command, started on any machine that has the folder."""

from leanbayes.lab.jobs.executor import Executor

__all__ = ["SHARED", "WORKER"]

SHARED = Executor("shared", None)

WORKER = Executor("worker", None)
"""The same, but it ends when no job is left: the command that started it collects the results."""
