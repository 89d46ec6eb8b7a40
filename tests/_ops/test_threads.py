"""Pieces of work in the threads of torch and in those of Python."""

import os
import threading

import pytest
import torch

from leanbayes._ops import threads
from leanbayes._ops.threads import share_out


@pytest.fixture(params=["region", "pool"], autouse=True)
def way(request, monkeypatch):
    if request.param == "pool":
        monkeypatch.setattr(threads, "_parallel_region", lambda process: None)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield request.param
    torch.set_num_threads(before)


def test_each_piece_is_done_once():
    done = []
    share_out(done.append, range(1000))
    assert sorted(done) == list(range(1000))


def test_two_threads_work_at_the_same_time():
    both, names = threading.Barrier(2, timeout=60), set()

    def work(_):
        both.wait()  # passes only when two threads are here
        names.add(threading.get_ident())

    share_out(work, range(2))
    assert len(names) == 2


def test_an_error_reaches_the_caller_and_later_work_goes_on():
    def work(piece):
        if piece == 3:
            raise ValueError("piece 3")

    with pytest.raises(ValueError, match="piece 3"):
        share_out(work, range(10))
    test_each_piece_is_done_once()


def test_work_may_share_out_work_and_may_use_torch():
    done = []
    share_out(lambda i: share_out(lambda j: done.append((i, j, torch.ones(2**17).sum().item())), range(4)), range(4))
    assert sorted(done) == [(i, j, 2.0**17) for i in range(4) for j in range(4)]


def test_several_callers_at_once():
    totals = [[] for _ in range(4)]
    callers = [threading.Thread(target=share_out, args=(total.append, range(200))) for total in totals]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    assert all(sorted(total) == list(range(200)) for total in totals)


def test_one_thread_does_all_work_itself():
    torch.set_num_threads(1)
    names = set()
    share_out(lambda _: names.add(threading.get_ident()), range(5))
    assert names == {threading.get_ident()}


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_does_not_hang():
    share_out(lambda _: None, range(10))  # the threads are there before the fork, and not after it
    child = os.fork()
    if child == 0:
        done = []
        share_out(done.append, range(10))
        os._exit(0 if sorted(done) == list(range(10)) else 1)
    timer = threading.Timer(60, os.kill, (child, 9))
    timer.start()
    status = os.waitpid(child, 0)[1]
    timer.cancel()
    assert status == 0
