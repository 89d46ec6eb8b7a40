"""Workers on the machines of a SLURM cluster, through submitit.

Submitit hands the words of the command to the cluster in a pickle of its own, which only it writes and reads, in the
folder of the logs.
"""

from typing import Any

from leanbayes.errors import InputError
from leanbayes.lab.jobs.executor import Executor, Order, cluster_package

__all__ = ["SLURM"]

_MOST = 32  # workers, if the user has not said how many
_MINUTES = 24 * 60
_SLURM_OPTIONS = ("partition", "account", "qos", "constraint")


def _submitit() -> Any:
    return cluster_package("submitit", "slurm")


class _Submitted:
    """Workers that SLURM starts when it has machines for them."""

    def __init__(self, order: Order) -> None:
        submitit, options = _submitit(), order.options
        cluster = options.get("cluster", "slurm")
        try:
            executor = submitit.AutoExecutor(folder=order.logs / "%j", cluster=cluster)
        except RuntimeError as error:
            raise InputError(
                f"--executor slurm cannot reach a cluster: {' '.join(str(error).split())}; start the command where "
                "sbatch works"
            ) from error
        parameters: dict[str, Any] = {"timeout_min": self._minutes(options), "cpus_per_task": order.needs.cores}
        if order.needs.gpus:
            parameters["gpus_per_node"] = order.needs.gpus
        if order.needs.memory:
            parameters["mem_gb"] = order.needs.memory
        parameters |= {f"slurm_{name}": options[name] for name in _SLURM_OPTIONS if name in options}
        executor.update_parameters(**parameters)
        work = submitit.helpers.CommandFunction(list(order.command), verbose=False)
        count = order.workers or min(order.jobs, _MOST)
        with executor.batch():
            self.jobs = [executor.submit(work) for _ in range(max(1, count))]

    def living(self) -> int:
        """Return how many workers have not ended."""
        return sum(not job.done() for job in self.jobs)

    def last_words(self) -> str:
        """Return the last line of a worker that ended in an error."""
        for job in self.jobs:
            if job.done() and job.exception() is not None:
                lines = (job.stderr() or str(job.exception())).strip().splitlines()
                ours = [line for line in lines if line.startswith("leanbayes: ")] or lines
                return ours[-1].removeprefix("leanbayes: ") if ours else "see the logs"
        return "the workers of SLURM have ended; see the logs"

    def stop(self) -> None:
        """Cancel the workers that have not ended."""
        for job in self.jobs:
            if not job.done():
                job.cancel()

    @staticmethod
    def _minutes(options: Any) -> int:
        text = options.get("minutes", str(_MINUTES))
        if not text.isdigit() or int(text) < 1:
            raise InputError(f"--executor slurm: minutes must be a whole number from 1 on, got {text!r}")
        return int(text)


SLURM = Executor("slurm", _Submitted, (*_SLURM_OPTIONS, "minutes", "cluster"), "partition", _submitit)
