"""Leases: one holder for each generation, and silence that is judged by one's own clock."""

import os
import threading
import time
from pathlib import Path

import pytest

from leanbayes.lab.jobs.leases import Lease, Leases, Patience

WATCHING = Patience(beat=0.02, silence=0.3, look=0.01, ask_system=False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("leases", "workers"):
        (tmp_path / name).mkdir()
    return tmp_path


def silent_after(watcher: Leases, lease: Lease, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if watcher.is_silent(lease):
            return True
        time.sleep(0.02)
    return False


def test_a_generation_has_one_holder(folder: Path) -> None:
    """Of 8 threads that want the same generation again and again, one gets each."""
    everyone = [Leases(folder, WATCHING) for _ in range(8)]
    taken: list[tuple[int, str]] = []

    def grab(leases: Leases) -> None:
        for generation in range(1, 40):
            if leases.take(Lease("job", generation)):
                taken.append((generation, leases.worker))

    threads = [threading.Thread(target=grab, args=(leases,)) for leases in everyone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(generation for generation, _ in taken) == list(range(1, 40))
    assert everyone[0].newest() == {"job": Lease("job", 39)}


def test_a_living_holder_is_not_silent_and_a_dead_one_is(folder: Path) -> None:
    holder, watcher, lease = Leases(folder, WATCHING), Leases(folder, WATCHING), Lease("job", 1)
    with holder.living():
        assert holder.take(lease)
        assert not silent_after(watcher, lease, 3 * WATCHING.silence)
    assert silent_after(watcher, lease, 30)
    assert not watcher.is_mine(lease.next)


def test_wall_clocks_and_times_of_files_do_not_matter(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    holder, watcher, lease = Leases(folder, WATCHING), Leases(folder, WATCHING), Lease("job", 1)
    monkeypatch.setattr(time, "time", lambda: pytest.fail("a lease asked the wall clock"))
    with holder.living():
        assert holder.take(lease)
        for path in folder.rglob("*"):
            os.utime(path, (1e9, 1e9))
        assert not silent_after(watcher, lease, 2 * WATCHING.silence)
    os.utime(folder / "leases" / lease.name, (4e9, 4e9))
    assert silent_after(watcher, lease, 30)


def test_a_watcher_that_was_stopped_itself_does_not_count_that_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Machines that sleep and wake together must not take each other for dead."""
    holder, watcher, lease = Leases(folder, WATCHING), Leases(folder, WATCHING), Lease("job", 1)
    assert holder.take(lease)
    now = [0.0]
    monkeypatch.setattr("leanbayes.lab.jobs.leases.time.monotonic", lambda: now[0])
    looks = 0
    while not watcher.is_silent(lease):
        now[0] += 3600.0
        looks += 1
    assert looks >= 5


def test_the_system_knows_at_once_who_has_ended(folder: Path) -> None:
    process = os.fork()
    if process == 0:
        Leases(folder, Patience()).take(Lease("job", 1))
        os._exit(0)
    os.waitpid(process, 0)
    assert Leases(folder, Patience()).is_silent(Lease("job", 1))


def test_a_lease_that_was_given_back_is_no_death(folder: Path) -> None:
    leases = Leases(folder, WATCHING)
    for generation in (1, 2, 3):
        assert leases.take(Lease("job", generation))
    leases.give_back(Lease("job", 1))
    assert leases.is_free(Lease("job", 1))
    assert not leases.is_free(Lease("job", 2))
    assert leases.deaths(Lease("job", 3)) == 1
    assert [leases.is_mine(Lease("job", generation)) for generation in (2, 3)] == [False, True]


def test_one_at_a_time(folder: Path) -> None:
    inside, most = 0, 0

    def visit() -> None:
        nonlocal inside, most
        leases = Leases(folder, WATCHING)
        with leases.living():
            for _ in range(3):
                with leases.alone("room"):
                    inside += 1
                    most = max(most, inside)
                    time.sleep(0.005)
                    inside -= 1

    threads = [threading.Thread(target=visit) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1


def test_whoever_dies_inside_is_replaced(folder: Path) -> None:
    dead, next_one = Leases(folder, WATCHING), Leases(folder, WATCHING)
    assert dead.take(Lease("@room", 1))
    with next_one.living(), next_one.alone("room"):
        assert next_one.newest()["@room"].generation == 2
