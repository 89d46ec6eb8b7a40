"""Damage files and read them: ``python -m tests.fuzz --mutations 5000 --seed 0``.

A reader may accept a damaged file, or raise a `LeanBayesError`. Any other error, a hang and a gigabyte of memory are
failures. The n-th mutation of a reader depends on the seed, its name and n alone; ``--only "npz/17"`` repeats one.
"""

import argparse
import contextlib
import io
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

import torch

from leanbayes.errors import LeanBayesError
from tests.fuzz.reader import Reader
from tests.fuzz.readers import all_readers

GIGABYTE = 2**30
WORK, WAIT = 20, 100  # seconds of computing and of the clock for one file of a few kilobytes: far more than any takes


class Hang(BaseException):
    """A reader took too long. It derives from BaseException, so that no reader catches it."""


def limit_memory() -> None:
    """Let the process have one gigabyte more than it has now; what asks for more gets a MemoryError."""
    status = Path("/proc/self/statm")
    if status.exists():
        now = int(status.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (now + GIGABYTE, now + GIGABYTE))


def _peak_megabytes() -> int:
    """The largest memory of this program. ``ru_maxrss`` would count that of the process which started it, too."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) // 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def attack(name: str, reader: Reader, whole: bytes, number: int, seed: int) -> str | None:
    """Read one damaged file, and return what went wrong."""
    reader.file.parent.mkdir(parents=True, exist_ok=True)
    reader.file.write_bytes(reader.damage(whole, random.Random(f"{seed}/{name}/{number}")))
    signal.setitimer(signal.ITIMER_PROF, WORK)
    signal.alarm(WAIT)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            reader.read()
    except LeanBayesError as error:
        return None if str(error) else "an error without words"
    except Hang:
        return f"a hang: more than {WORK} seconds of computing or {WAIT} of waiting"
    except BaseException:
        return traceback.format_exc(limit=-6)
    finally:
        signal.alarm(0)
        signal.setitimer(signal.ITIMER_PROF, 0)
    return None


def run(mutations: int, seed: int, only: str | None) -> dict[str, object]:
    """Spread the mutations over all readers, and return how many there were and which failed."""

    def stop(*_: object) -> None:
        raise Hang

    signal.signal(signal.SIGALRM, stop)
    signal.signal(signal.SIGPROF, stop)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    failures: dict[str, str] = {}
    counts: dict[str, int] = {}
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        readers = all_readers(Path(folder))
        wholes = {name: reader.file.read_bytes() for name, reader in readers.items()}
        for name, reader in readers.items():  # a command may remove what it has read
            unharmed = Reader(reader.file, reader.read, lambda data, _: data)
            assert attack(name, unharmed, wholes[name], 0, 0) is None
        limit_memory()
        shares = sum(reader.share for reader in readers.values())
        for name, reader in readers.items():
            whole = wholes[name]
            wanted = max(1, round(mutations * reader.share / shares))
            numbers = range(wanted)
            if only is not None:
                chosen, _, number = only.rpartition("/")
                numbers = range(int(number), int(number) + 1) if chosen == name else range(0)
            for number in numbers:
                wrong = attack(name, reader, whole, number, seed)
                counts[name] = counts.get(name, 0) + 1
                if wrong is not None:
                    failures[f"{name}/{number}"] = wrong
            reader.file.parent.mkdir(parents=True, exist_ok=True)  # a command may have removed the folder
            reader.file.write_bytes(whole)
    return {
        "seed": seed,
        "mutations": sum(counts.values()),
        "readers": counts,
        "failures": failures,
        "megabytes": _peak_megabytes(),
        "seconds": round(time.perf_counter() - start, 1),
    }


def main() -> int:
    """Run and print the findings as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutations", type=int, default=5000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one mutation, as reader/number")
    options = parser.parse_args()
    result = run(options.mutations, options.seed, options.only)
    sys.stdout.write(json.dumps(result, indent=1) + "\n")
    return 1 if result["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
