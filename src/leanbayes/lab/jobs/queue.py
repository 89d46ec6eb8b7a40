"""A queue of jobs in a folder that any number of processes on any number of machines may share.

    queue.json                              which version made the queue, and what it is about
    jobs/<digest>.json                      lists of jobs
    leases/, workers/                       who does which job; see `leanbayes.lab.jobs.leases`
    attempts/<key>.<generation>.<worker>/   what a worker has written so far for a job
    done/<key>/                             what a job gave: its files, and outcome.json

A job is published by renaming the folder of its attempt to ``done/<key>``. The file system does this at once, and
refuses it if the name is taken. So each job is published exactly once, also if a worker was stopped for so long that
another took its job over. A worker that takes a job over renames the folder of the last attempt as well. It goes on
from the checkpoints there, and the worker before it can publish nothing any more.
"""

import errno
import json
import os
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from leanbayes._files import checksum, discard, sweep, write_text
from leanbayes.errors import FileError, ForeignFile, InputError
from leanbayes.lab.jobs.job import Job, Needs, Outcome
from leanbayes.lab.jobs.leases import Lease, Leases, Patience

__all__ = ["Claim", "Queue", "is_full_disk"]

_FORMAT = 1
_OUTCOME = "outcome.json"
_TAKEN = (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT, errno.EACCES, errno.EPERM)  # as systems refuse a rename
_FULL = (errno.ENOSPC, errno.EDQUOT)


class Queue:
    """The jobs of one run, and who does them.

    Args:
        folder: the folder of the queue. It is made if it does not exist.
        about: what the run is about, as JSON. A queue that is about something else is refused.
        patience: how soon a silent worker counts as dead.
        most_deaths: a job that so many workers did not survive has failed.
        done: the folder of what is done, on the same file system; by default it lies in the queue.

    Raises:
        InputError: the queue was made by another version, or is about something else.
    """

    def __init__(
        self,
        folder: Path,
        about: Mapping[str, Any],
        *,
        patience: Patience | None = None,
        most_deaths: int = 5,
        done: Path | None = None,
    ) -> None:
        self.folder, self.most_deaths = folder, most_deaths
        self.finished = folder / "done" if done is None else done
        self.leases = Leases(folder, patience or Patience())
        self.identity = self._make_or_join(json.loads(json.dumps(about)))
        self._lists: dict[str, list[Job]] = {}

    def add(self, jobs: Sequence[Job]) -> None:
        """Add jobs. Jobs that are there already are added only once, whoever adds them."""
        text = json.dumps([job.record() for job in jobs])
        file = self.folder / "jobs" / f"{checksum(text.encode())}.json"
        if jobs and not file.exists():
            write_text(file, text)

    def jobs(self) -> dict[str, Job]:
        """Return all jobs by key."""
        for file in sorted((self.folder / "jobs").glob("*.json")):
            if file.name not in self._lists:
                self._lists[file.name] = [Job.of(record, file) for record in _read(file)]
        return {job.key: job for jobs in self._lists.values() for job in jobs}

    def done(self) -> set[str]:
        """Return the keys of the jobs that are done or have failed."""
        try:
            return set(os.listdir(self.finished))  # noqa: PTH208  (many names, and no paths are needed)
        except FileNotFoundError:
            return set()

    def is_complete(self) -> bool:
        """Return whether every job is done or has failed."""
        return self.done() >= self.jobs().keys()

    def is_current(self) -> bool:
        """Return whether this queue is still there: the process that has collected all results removes it."""
        try:
            return bool(_read(self.folder / "queue.json").get("identity") == self.identity)
        except (FileError, AttributeError):
            return False

    def outcome(self, key: str) -> Outcome:
        """Return what came of a job that is done."""
        file = self.finished / key / _OUTCOME
        return Outcome.of(_read(file), file)

    def forget_failures(self) -> None:
        """Let the jobs that have failed be done again."""
        for key in self.done() & self.jobs().keys():
            if self.outcome(key).error is not None:
                discard(self.finished / key)

    def claim(self, machine: Needs) -> "Claim | None":
        """Take a job that fits this machine and that no living worker does; None if there is none at present."""
        newest = self.leases.newest()  # before the list of what is done, which a worker leaves after its lease
        done = self.done()
        waiting = [job for job in self.jobs().values() if job.key not in done and job.needs.fits(machine)]
        held = []
        for job in waiting:
            last = newest.get(job.key, Lease(job.key, 0))
            if last.generation and not self.leases.is_free(last):
                held.append((job, last))
            elif claim := self._take(job, last):
                return claim
        for job, last in held:
            if self.leases.is_silent(last) and (claim := self._take(job, last)):
                return claim
        return None

    def too_large(self, machine: Needs) -> list[Job]:
        """Return the jobs that are not done and do not fit a machine."""
        done = self.done()
        return [job for job in self.jobs().values() if job.key not in done and not job.needs.fits(machine)]

    @contextmanager
    def alone(self, name: str) -> Iterator[None]:
        """Keep other workers of this queue out of the block of this name. The process must be `living`."""
        with self.leases.alone(name):
            yield

    def remove(self) -> None:
        """Remove the queue, when all that it holds has been collected."""
        discard(self.folder)
        for remains in self.folder.parent.glob(f".{self.folder.name}.*.new"):  # of processes that were killed
            shutil.rmtree(remains, ignore_errors=True)

    def _take(self, job: Job, last: Lease) -> "Claim | None":
        if not self.leases.take(last.next):
            return None
        lease, deaths = last.next, self.leases.deaths(last.next)
        attempt = self.folder / "attempts" / f"{lease.name}.{self.leases.worker}"
        claim = Claim(self, job, lease, attempt, time.perf_counter(), time.process_time())
        try:
            if not self._inherit(lease, attempt):
                attempt.mkdir()
        except FileNotFoundError:
            return None  # the queue is finished and gone
        except OSError:
            claim.give_back()
            raise
        if (self.finished / job.key).exists():  # the worker before us was quicker after all
            claim.drop()
            claim.give_back()
            return None
        if deaths >= self.most_deaths:
            claim.publish(
                None,
                f"{deaths} workers ended while they did this job; if their memory was too small, give them more, and "
                "run the same command again",
            )
            return None
        return claim

    def _inherit(self, lease: Lease, attempt: Path) -> bool:
        """Move what earlier workers have written for a job to the folder of its new worker."""
        attempts: list[tuple[int, Path]] = []
        for path in attempt.parent.iterdir():
            name, _, _ = path.name.rpartition(".")
            key, _, generation = name.rpartition(".")
            if key == lease.key and generation.isdigit() and int(generation) < lease.generation:
                attempts.append((int(generation), path))
        for _, path in sorted(attempts, reverse=True):
            with suppress(FileNotFoundError):
                path.rename(attempt)
                for name in (_OUTCOME, ".lock"):
                    (attempt / name).unlink(missing_ok=True)
                for folder in [attempt, *(inside for inside in attempt.rglob("*") if inside.is_dir())]:
                    sweep(folder, alone=True)  # what the other had begun to write, though it may only be stopped
                return True
        return False

    def _make_or_join(self, about: Mapping[str, Any]) -> str:
        mine = {
            "kind": "queue",
            "format": _FORMAT,
            "identity": secrets.token_hex(8),
            "leanbayes": _version(),
            "torch": str(torch.__version__),
            "about": about,
        }
        while True:
            if not (self.folder / "queue.json").exists():
                self._make(mine)
            with suppress(FileNotFoundError):  # another process has just removed it, because all is done
                return self._checked(mine)

    def _make(self, header: Mapping[str, Any]) -> None:
        """Make the whole folder beside its place and rename it. If another process was quicker, its folder stays."""
        new = self.folder.with_name(f".{self.folder.name}.{secrets.token_hex(4)}.new")
        try:
            for name in ("jobs", "leases", "workers", "attempts", "done"):
                (new / name).mkdir(parents=True, exist_ok=True)
            if self.finished.parent != self.folder:
                self.finished.mkdir(parents=True, exist_ok=True)
            (new / "queue.json").write_text(json.dumps(header, indent=1), encoding="utf-8")
            new.rename(self.folder)
        except OSError as error:
            if error.errno not in _TAKEN:
                raise FileError(f"cannot make the queue {self.folder}: {error}; give another folder") from error
        finally:
            shutil.rmtree(new, ignore_errors=True)

    def _checked(self, mine: Mapping[str, Any]) -> str:
        path = self.folder / "queue.json"
        try:
            header = json.loads(path.read_text(encoding="utf-8"))
            if header["kind"] != "queue":
                raise KeyError("kind")
            differ = [name for name in ("format", "leanbayes", "torch") if header[name] != mine[name]]
            same = header["about"] == mine["about"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ForeignFile(f"{path} is no queue of leanbayes; give another folder") from error
        for name in differ:
            what = "the format of queues" if name == "format" else name
            raise InputError(
                f"the workers of {self.folder} have {what} {str(header[name])[:40]}, and this one has {mine[name]}; "
                f"install the same version on every machine, or remove {self.folder} to do its jobs again"
            )
        if not same:
            raise InputError(
                f"{self.folder} is the queue of another run; give another folder, or remove the queue if nobody uses it"
            )
        return str(header["identity"])


@dataclass(frozen=True)
class Claim:
    """A job that this process has taken.

    Args:
        queue: the queue that it is from.
        job: the job.
        lease: says that it is ours.
        folder: where to write the files of the job. What an earlier worker wrote is there already.
        began: the clock at the beginning of the attempt.
        processor: the processor time at the beginning of the attempt.
    """

    queue: Queue
    job: Job
    lease: Lease
    folder: Path
    began: float
    processor: float

    def publish(self, result: dict[str, Any] | None, error: str | None = None) -> bool:
        """Make the result and the files known to all, at once. The attempt is over.

        Returns:
            False if another worker had taken the job over: nothing of this attempt is published then.
        """
        outcome = Outcome(
            key=self.job.key,
            result=result,
            error=error,
            seconds=time.perf_counter() - self.began,
            processor_seconds=time.process_time() - self.processor,
            memory=_largest_memory(),
            attempts=self.lease.generation,
            host=socket.gethostname(),
            worker=self.queue.leases.worker,
            needs=asdict(self.job.needs),
            finished=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
        text = json.dumps(asdict(outcome), allow_nan=False)
        target = self.queue.finished / self.job.key
        if not self.queue.leases.is_mine(self.lease) or not self.folder.is_dir():
            self.drop()
            return False
        try:
            write_text(self.folder / _OUTCOME, text)
            self.folder.rename(target)
        except OSError as problem:
            if self._is_published():  # a network file system may report an error for a rename that it has done
                return True
            if self.folder.is_dir() and not target.exists():
                raise FileError(f"cannot publish the job {self.job.key}: {problem}") from problem
            self.drop()
            return False
        self.give_back()
        return True

    def drop(self) -> None:
        """Remove what was written, because another worker does the job or has done it."""
        with suppress(FileError):
            discard(self.folder)

    def give_back(self) -> None:
        """Let another worker do the job, from what this one has written."""
        self.queue.leases.give_back(self.lease)

    def _is_published(self) -> bool:
        with suppress(FileError):
            return self.queue.outcome(self.job.key).worker == self.queue.leases.worker
        return False


def is_full_disk(error: BaseException | None) -> bool:
    """Return whether an error, or the one behind it, says that there is no more space."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL:
            return True
        error = error.__cause__ or error.__context__
    return False


def _read(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ForeignFile(f"{file} is damaged; remove the folder {file.parent} to do its jobs again") from error
    except OSError as error:
        raise FileError(f"cannot read {file}: {error}") from error


def _version() -> str:
    try:
        return version("leanbayes")
    except PackageNotFoundError:
        return "unknown"


def _largest_memory() -> float:
    """Return the largest memory of this process so far, in gigabytes."""
    try:
        import resource
    except ImportError:  # Windows
        return 0.0
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
