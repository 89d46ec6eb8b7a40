"""Progress: nothing stale in a terminal of 80 columns, and one line a stage elsewhere."""

import io

import pytest
from rich.console import Console
from rich.progress import Progress

import leanbayes.lab.cli.progress as module
from leanbayes.lab.cli.progress import Bars, bars
from leanbayes.lab.compare import Event
from leanbayes.train import Epoch


def epoch(number: int, validation: float | None = 0.25) -> Epoch:
    return Epoch(number, 1.75 - number / 10, 1.25 - number / 10, 0.5, 1.0, validation, 2.0)


def screen(shown: Progress, width: int = 80) -> list[str]:
    """What the terminal shows now."""
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system=None)
    console.print(shown.get_renderable())
    return [line.rstrip() for line in console.file.getvalue().splitlines() if line.strip()]  # type: ignore[attr-defined]


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Bars:
    """Bars of a terminal that is 80 columns wide and that nobody refreshes."""
    made = {}

    class Still(Progress):
        def start(self) -> None:
            made["progress"] = self

        def stop(self) -> None:
            pass

    console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system=None)
    monkeypatch.setattr(module, "Progress", Still)
    monkeypatch.setattr(module, "Console", lambda stderr: console)
    with bars(hidden=False) as all_bars:
        return all_bars


def test_a_terminal_shows_the_whole_the_stage_and_the_nll(shown: Bars) -> None:
    shown.begin("methods", 2, [4, 8])
    shown(Event("lean", 0, "plain", 1, 3, epoch(0)))
    lines = screen(shown.progress)
    assert len(lines) == 3
    assert lines[0].startswith("methods")
    assert "0/2" in lines[0]
    assert lines[0].endswith("left")
    assert lines[1].startswith("lean, seed 0: plain")
    assert "1/3" in lines[1]
    assert lines[2].strip() == "NLL 1.25, validation 0.25"
    assert all(len(line) <= 80 for line in lines)


def test_a_long_method_is_cut_and_not_wrapped(shown: Bars) -> None:
    shown.begin("methods", 1)
    shown(Event("lean:rate=0.01,predict=moments,calibrate=false+temperature", 12, "calibration", 1, 3))
    lines = screen(shown.progress)
    assert len(lines) == 2
    assert "…" in lines[1]
    assert all(len(line) <= 80 for line in lines)


def test_nothing_of_an_earlier_stage_or_run_stays(shown: Bars) -> None:
    assert list(shown.track([1, 2], "reading images")) == [1, 2]
    assert screen(shown.progress) == []
    shown.begin("methods", 2, [3, 3])
    shown(Event("a", 0, "plain", 1, 1, epoch(0)))
    shown(Event("a", 0, "evaluate", 1, 4))
    lines = screen(shown.progress)
    assert len(lines) == 2
    assert "loss" not in "".join(lines)
    shown(Event("a", 0, "end", 1, 1, run_done=True))
    lines = screen(shown.progress)
    assert len(lines) == 1
    assert "1/2" in lines[0]
    shown.begin("trials", 5)
    assert len(screen(shown.progress)) == 1


def test_a_bar_that_somebody_leaves_early_goes_too(shown: Bars) -> None:
    for _ in shown.track([1, 2, 3], "reading images"):
        break
    else:
        raise AssertionError
    import gc

    gc.collect()
    assert screen(shown.progress) == []


def test_the_whole_bar_moves_by_epochs_and_never_ends_early(shown: Bars) -> None:
    shown.begin("methods", 2, [3, 5])

    def whole() -> float:
        return next(task.completed for task in shown.progress.tasks if task.id == shown.whole)

    for number in range(4):
        shown(Event("a", 0, "plain", number + 1, 4, epoch(number)))
    assert whole() == 2
    shown(Event("a", 0, "end", 1, 1, run_done=True))
    assert whole() == 3
    shown(Event("b", 0, "plain", 1, 4, epoch(0)))
    assert whole() == 4
    for _ in range(3):
        shown(Event("b", 0, "end", 1, 1, run_done=True))
    assert whole() == 8


def test_without_a_terminal_each_stage_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    with bars(hidden=False) as all_bars:
        all_bars.begin("methods", 2)
        for number in range(3):
            all_bars(Event("lean", 1, "plain", number + 1, 3, epoch(number, None)))
        all_bars(Event("lean", 1, "evaluate", 1, 2))
        all_bars(Event("lean", 1, "evaluate", 2, 2))
        all_bars(Event("lean", 1, "end", 1, 1, run_done=True))
        assert list(all_bars.track([1], "reading images")) == [1]
    written = capsys.readouterr()
    assert written.out == ""
    lines = written.err.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("leanbayes: lean, seed 1: plain, 3 of 3, NLL 1.05, ")
    assert lines[0].endswith("s (methods: 0 of 2 done)")
    assert lines[1].startswith("leanbayes: lean, seed 1: evaluate, 2 of 2, ")
    assert "loss" not in lines[1]


def test_hidden_progress_writes_nothing_but_remarks(capsys: pytest.CaptureFixture[str]) -> None:
    with bars(hidden=True) as all_bars:
        all_bars.begin("methods", 1)
        all_bars(Event("lean", 1, "plain", 1, 1, epoch(0)))
        all_bars.remark("2 of 5 masks are [empty]")
    assert capsys.readouterr().err == "leanbayes: note: 2 of 5 masks are [empty]\n"
