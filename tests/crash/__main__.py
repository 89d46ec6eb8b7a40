"""Kill trainings and commands at random moments, let each of their writes fail, and compare where they end.

    python -m tests.crash --kills 110 --seed 17                                  (everything; `make test-crash`)
    python -m tests.crash --kills 10 --failures 20 --scenarios plain train       (a sample)
    python -m tests.crash --kills 0 --scenarios tune --changes 1 200             (a part, of several side by side)

There are two kinds of disturbance:

* a kill (SIGKILL) after a random time, or just before a call that changes a file. Of scenarios with workers, every
  second kill hits the whole process group, and every second one the first process alone;
* a call that changes a file and fails, with ENOSPC or EIO. By default each call of each scenario fails once with each.

A disturbed run must end with one line of LeanBayes or not at all, and every file with a usual name must be whole. Then
the same work runs again until it ends, and what it leaves must be the same as after an undisturbed run: records without
times, tensors bit for bit, no other files. The last line of the output has the counts, the seed, and under "ended"
what ended the harness. Once a minute a line on the standard error says how far it is.
"""

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path

from tests.crash.control import start_again_under_control

if __name__ == "__main__":
    start_again_under_control("tests.crash", sys.argv[1:])

    from tests.crash.commands import COMMAND_SCENARIOS
    from tests.crash.ending import last_line, times
    from tests.crash.harness import Campaign, Report, adopt_orphans
    from tests.crash.trainings import TRAININGS

    scenarios = {scenario.name: scenario for scenario in (*TRAININGS, *COMMAND_SCENARIOS)}
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=110, help="in all")
    parser.add_argument("--failures", type=int, help="in all; by default each change of a file fails twice")
    parser.add_argument("--changes", type=int, nargs=2, metavar=("FIRST", "LAST"), help="fail only at these changes")
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--scenarios", nargs="+", default=list(scenarios), choices=list(scenarios))
    asked = parser.parse_args()

    adopt_orphans()
    started = time.monotonic()
    report = Report(asked.seed)
    chance = random.Random(asked.seed)
    memory = Path("/dev/shm")  # a disk would need a moment for each flush, and the runs have thousands of them
    with last_line(report, started), tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as top:
        campaigns = [Campaign(scenarios[name], Path(top), report) for name in asked.scenarios]
        # Real workers take seconds to start, so the scenarios with workers have fewer kills.
        rounds = range(5)
        turns = [campaign for turn in rounds for campaign in campaigns if turn == 0 or not campaign.scenario.workers]
        for campaign in campaigns:
            campaign.kill(chance, [turns[kill % len(turns)] for kill in range(asked.kills)].count(campaign))
        sys.stderr.write(f"kills: {json.dumps(vars(report) | times(started))}\n")
        for index, campaign in enumerate(campaigns):
            share = len(range(index, asked.failures or 0, len(campaigns)))
            campaign.fail_at_each_change(chance, None if asked.failures is None else share, asked.changes)
            sys.stderr.write(f"{campaign.scenario.name}: {json.dumps(vars(report) | times(started))}\n")
