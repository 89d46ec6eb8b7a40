"""The program: its help, its errors and its exit codes."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import leanbayes_cli
from leanbayes.lab.cli import COMMANDS, Command, Session, main
from tests.lab.cli.shell import complaint

BAD: dict[str, tuple[list[str], str]] = {
    "no command": ([], "a command must come first"),
    "an option before the command": (["--epochs", "3"], "a command must come first"),
    "an unknown command": (["fly"], "fly"),
    "an unknown option": (["compare", "--color", "red"], "--color"),
    "an unknown method": (["compare", "--methods", "magic"], "unknown recipe 'magic'"),
    "a method twice": (["compare", "--methods", "vi", "vi"], "twice"),
    "no number": (["train", "--epochs", "many"], "--epochs must be"),
    "no epochs": (["train", "--epochs", "0"], "--epochs must be at least 1"),
    "no data": (["train", "--data", "nowhere"], "nowhere"),
    "an unknown model": (["train", "--model", "huge"], "unknown model 'huge'"),
    "a module that is not there": (["train", "--model", "not_there:net"], "not_there"),
    "no such file": (["predict", "none.lb", "x.npz"], "none.lb"),
    "no such folder": (["report", "nowhere"], "nowhere"),
    "no such config": (["train", "--config", "nowhere.yaml"], "nowhere.yaml"),
    "samples": (["predict", "none.lb", "x.npz", "--samples", "0"], "--samples must be"),
    "a misspelt option": (["train", "--epoch", "3"], "perhaps you meant --epochs"),
    "a missing argument": (["predict", "none.lb"], "INPUTS is missing; leanbayes predict --help"),
    "two missing arguments": (["predict"], "FILE and INPUTS are missing"),
    "an argument too many": (["report", "a", "b"], "unrecognized options: b"),
    "an option without a value": (["train", "--lr"], "'--lr'"),
    "an empty list": (["compare", "--methods"], "--methods needs at least one value"),
    "an option of other data": (["train", "--data", "cifar10", "--masks", "m"], "leave --masks out"),
    "a rate that cannot be": (["compare", "--methods", "partial:rate=-0.1"], "partial:rate must lie in (0, 1]"),
    "a rate that is no number": (["train", "--recipe", "dropout:rate=nan"], "dropout:rate must be a finite number"),
    "a searched rate": (["tune", "--method", "partial", "--search", "rate=-1..2"], "must lie in (0, 1], got -1.0"),
    "an unknown propagation": (["compare", "--methods", "vi:propagate=magic"], "unknown propagation 'magic'"),
    "a negative learning rate": (["compare", "--lr", "-0.1"], "--lr must be"),
    "an infinite learning rate": (["compare", "--lr", "inf"], "--lr must be"),
    "an unknown optimizer": (["compare", "--optimizer", "magic"], "unknown optimizer 'magic'"),
    "an unknown schedule": (["compare", "--schedule", "magic"], "'magic'"),
    "a negative clip": (["compare", "--clip", "-1"], "--clip must be"),
    "no patience": (["compare", "--patience", "0"], "--patience must be"),
    "a negative weight decay": (["compare", "--weight-decay", "-1"], "--weight-decay must be"),
    "a number without end": (["train", "--epochs", "1e300"], "--epochs must be a whole number"),
    "members without end": (["train", "--recipe", "ensemble:members=1e300"], "members must be a whole number"),
    "a superscript": (["predict", "none.lb", "x.npz", "--samples", "²"], "--samples must be"),
    "a tolerance": (["predict", "none.lb", "x.npz", "--tolerance", "nan"], "--tolerance must be"),
    "a seed": (["predict", "none.lb", "x.npz", "--seed", "-1"], "--seed must be"),
    "a file for a folder, train": (["train", "--out", "digits.npz"], "--out digits.npz cannot be a folder"),
    "a file for a folder, compare": (["compare", "--out", "digits.npz"], "--out digits.npz cannot be a folder"),
    "a file for a folder, tune": (["tune", "--out", "digits.npz/x"], "because digits.npz is a file"),
    "an option in the words of the shell": (["train", "--data", "digits.npz", "--size", "3"], "--size 3 is for"),
}


@pytest.mark.parametrize("command", [[], ["compare"], ["train"], ["tune"], ["predict"], ["report"]])
def test_help_is_complete_and_fits_a_terminal(
    command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert main([*command, "--help"]) == 0
    help_text = capsys.readouterr().out
    assert max(map(len, help_text.splitlines()[1:])) <= 80  # the usage is one line, which the terminal wraps
    if not command:
        for name in COMMANDS:
            assert f"\n  {name} " in help_text
    if command in (["compare"], ["train"], ["tune"]):
        for word in ("--data", "--epochs", "--model", "--out", "partial", "rate=0.01", "swag", "--config", "--json"):
            assert word in help_text


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_two(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("digits.npz", x=np.zeros((4, 2)), y=np.zeros(4))
    arguments, expected = BAD[name]
    assert expected in complaint(capsys, *arguments)


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., dict[str, Any]]], None]:
    """Add a command called stub that runs the given function."""

    def add(work: Callable[..., dict[str, Any]]) -> None:
        assert "stub" not in COMMANDS
        record = Command("stub", "Do nothing.", Nothing, work, lambda *_: None, lambda result: result["failed"])
        monkeypatch.setitem(COMMANDS._members, "stub", record)

    return add


@dataclass(frozen=True)
class Nothing:
    """No options."""


def test_exit_codes(stub: Any, capsys: pytest.CaptureFixture[str]) -> None:
    outcomes = iter([{"failed": False}, {"failed": True}])
    stub(lambda options, session: next(outcomes))
    assert [main(["stub"]), main(["stub", "--json"])] == [0, 1]
    assert capsys.readouterr().out == '{"failed": true}\n'


def test_an_interrupted_command_says_how_to_continue(stub: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(options: Nothing, session: Session) -> dict[str, Any]:
        raise KeyboardInterrupt

    stub(interrupted)
    assert main(["stub"]) == 130
    assert capsys.readouterr().err == "leanbayes: interrupted; run the same command again to continue\n"


def test_a_bug_is_not_hidden(stub: Any) -> None:
    def broken(options: Nothing, session: Session) -> dict[str, Any]:
        raise ZeroDivisionError

    stub(broken)
    with pytest.raises(ZeroDivisionError):
        main(["stub"])


def test_records_hold_the_command_as_it_was_typed(stub: Any, capsys: pytest.CaptureFixture[str]) -> None:
    stub(lambda options, session: {"failed": False, "typed": session.command_line})
    assert main(["stub", "--json", "--quiet"]) == 0
    assert '"typed": "leanbayes stub --json --quiet"' in capsys.readouterr().out


def test_help_needs_neither_figures_nor_data() -> None:
    """The start of the program is quick, because commands import what is slow only when they run."""
    code = "import sys; from leanbayes.lab.cli import main; main(['--help']); main(['train', '--help'])"
    code += "; sys.exit(' '.join({'matplotlib', 'sklearn', 'optuna', 'transformers'} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=500)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_list_of_commands_needs_no_torch_and_is_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    """The program reads the names and the help of the commands from their files, those of other packages too."""
    assert leanbayes_cli.commands() == {name: command.help for name, command in COMMANDS.items()}
    code = "import sys, leanbayes_cli; code = leanbayes_cli.main(); slow = {'torch', 'numpy', 'numba', 'scipy'}"
    code += "; sys.exit(' '.join(slow & set(sys.modules)) or code)"
    words = [sys.executable, "-c", code, "--help"]
    environment = os.environ | {"COLUMNS": "80"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=500, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert main(["--help"]) == 0
    assert done.stdout.split() == capsys.readouterr().out.split()
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_command_whose_help_is_computed_is_listed_the_slow_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "odd_package").mkdir()
    (tmp_path / "odd_package" / "__init__.py").write_text("raise ImportError('nobody imports this')")
    (tmp_path / "odd_package" / "odd.py").write_text("COMMAND = Command('odd', 'computed ' + 'help', None, None, None)")
    monkeypatch.syspath_prepend(tmp_path)
    point = EntryPoint("odd", "odd_package.odd:COMMAND", "leanbayes.commands")
    monkeypatch.setattr(leanbayes_cli, "entry_points", lambda group: [point])
    assert leanbayes_cli.commands() is None
    (tmp_path / "odd_package" / "odd.py").write_text("COMMAND = Command('odd', 'plain ' 'help', None, None, None)")
    assert (leanbayes_cli.commands() or {})["odd"] == "plain help"
    monkeypatch.setattr(sys, "argv", ["leanbayes", "-h"])
    assert leanbayes_cli.main() == 0
    assert "plain help" in capsys.readouterr().out
