"""Workers on the machines of a Ray cluster, through ``ray.remote``. Every machine must have the shared folder."""

import os
from typing import Any

from leanbayes.errors import InputError
from leanbayes.lab.jobs.executor import Executor, Order, cluster_package
from leanbayes.lab.jobs.leases import PARENT

__all__ = ["RAY"]

_AGAIN = 3  # how often Ray starts a worker anew whose machine is lost


def _ray() -> Any:
    return cluster_package("ray", "ray")


class _Tasks:
    """Workers that are tasks of Ray."""

    def __init__(self, order: Order) -> None:
        self.ray = _ray()
        address = order.options.get("address", "auto")
        try:
            self.ray.init(address=address, log_to_driver=False, ignore_reinit_error=True, configure_logging=False)
        except (ConnectionError, ValueError, RuntimeError, OSError) as error:
            raise InputError(
                f"--executor ray cannot reach a cluster at {address}: {(str(error).strip().splitlines() or [''])[0]}; "
                "start one with: ray start --head"
            ) from error
        needs = order.needs
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}

        def run(command: list[str], folder: str, environment: dict[str, str], parent: str) -> tuple[int, str]:
            import os
            import subprocess

            own = environment | {parent: str(os.getpid())}
            done = subprocess.run(command, cwd=folder, env=own, capture_output=True, text=True, check=False)
            return done.returncode, done.stderr[-2000:]

        cores = int(self.ray.cluster_resources().get("CPU", 1))
        count = order.workers or max(1, min(order.jobs, cores // needs.cores))
        wanted: dict[str, Any] = {"num_cpus": needs.cores, "num_gpus": needs.gpus, "max_retries": _AGAIN}
        if needs.memory:
            wanted["memory"] = int(needs.memory * 1e9)
        task = self.ray.remote(**wanted)(run)
        words = (list(order.command), os.getcwd(), environment, PARENT)  # noqa: PTH109
        self.tasks = [task.remote(*words) for _ in range(count)]

    def living(self) -> int:
        """Return how many workers have not ended."""
        return len(self._left())

    def last_words(self) -> str:
        """Return the last line of a worker that ended in an error."""
        left = set(self._left())
        for task in self.tasks:
            if task in left:
                continue
            try:
                code, text = self.ray.get(task)
            except self.ray.exceptions.RayError as error:
                return (str(error).strip().splitlines() or [""])[0]
            lines = text.strip().splitlines()
            if code and lines:
                return str(lines[-1]).removeprefix("leanbayes: ")
        return "the workers of Ray have ended without an error"

    def stop(self) -> None:
        """End the workers that still live, and leave the cluster."""
        for task in self._left():
            self.ray.cancel(task, force=True)
        self.ray.shutdown()

    def _left(self) -> list[Any]:
        _, left = self.ray.wait(self.tasks, num_returns=len(self.tasks), timeout=0)
        return list(left)


RAY = Executor("ray", _Tasks, ("address",), "address", _ray)
