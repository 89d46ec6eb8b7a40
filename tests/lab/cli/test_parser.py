"""The parser: every kind of option, where values come from, and the words of errors."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from leanbayes.errors import InputError, LeanBayesError
from leanbayes.lab.cli import Command, argument
from leanbayes.lab.cli.parser import OutputOptions, in_shell_words, option_names, parse_arguments
from leanbayes.lab.recipes import option


@dataclass(frozen=True)
class Inner:
    """A section of options."""

    rate: float = option(0.5, "A number: 50 % by default.")
    flag: bool = option(True, "A switch.")

    def __post_init__(self) -> None:
        if self.rate < 0:
            raise InputError(f"rate must not be negative, got {self.rate}")


@dataclass(frozen=True)
class Options:
    """Every kind of option."""

    file: str = argument("A file.")
    other: str | None = argument("Another file.", default=None)
    count: int = option(3, "A whole number.")
    limit: int | None = option(None, "A whole number, or none.")
    kind: Literal["a", "b"] = option("a", "One of two.")
    names: tuple[str, ...] = option(("x", "y"), "Several texts.")
    seed_list: tuple[int, ...] = option((), "Several numbers.")
    inner: Inner = field(default_factory=Inner)


COMMAND: Command[Any] = Command("probe", "Probe.", Options, lambda *_: {}, lambda *_: None)


def parsed(*words: str) -> Options:
    options, _ = parse_arguments(COMMAND, words)
    assert isinstance(options, Options)
    return options


def test_defaults_are_those_of_the_dataclass() -> None:
    assert parse_arguments(COMMAND, ["f"]) == (Options("f"), OutputOptions())


def test_every_kind_of_value() -> None:
    words = "f g --count 1e2 --limit 7 --kind b --names p q:r=1 --seed-list 0 1 --rate 1e-3 --no-flag"
    expected = Options("f", "g", 100, 7, "b", ("p", "q:r=1"), (0, 1), Inner(1e-3, False))
    assert parsed(*words.split()) == expected
    assert parsed("f", "--limit", "none", "--flag", "--rate=-0").limit is None


def test_a_file_gives_defaults_and_the_command_line_takes_precedence(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("seed-list: [4, 5]\nnames: one\nflag: false\ncount: 8\nfile: of the config\nlimit: none\n")
    options = parsed("--config", str(file), "--count", "9")
    assert options == Options("of the config", count=9, names=("one",), seed_list=(4, 5), inner=Inner(flag=False))
    assert parsed(f"--config={file}", "mine", "--flag").inner.flag
    assert parsed(f"--config={file}", "mine").file == "mine"
    file.write_text("count: many")
    with pytest.raises(InputError, match=r"^--count must be a whole number, got 'many'$"):
        parsed("f", "--config", str(file))


def test_the_help_shows_the_defaults_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "c.yaml").write_text("count: 77")
    with pytest.raises(SystemExit) as end:
        parsed("--config", str(tmp_path / "c.yaml"), "--help")
    assert not end.value.code
    help_text = capsys.readouterr().out
    for part in ("(default: 77)", "(default: x y)", "{a,b}", "--flag, --no-flag", "50 % by default", "(required)"):
        assert part in help_text
    assert "A section of options." in help_text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("f --count 1.5", "--count must be a whole number, got '1.5'"),
        ("f --kind c", "unknown --kind 'c'"),
        ("f --seed-list 1 b", "--seed-list must be a whole number, got 'b'"),
        ("f --names", "--names needs at least one value"),
        ("f --rate -1", "rate must not be negative"),
        ("f --cuont 1", "unrecognized options: --cuont, 1; perhaps you meant --count; leanbayes probe --help"),
        ("", "FILE is missing; leanbayes probe --help lists the options"),
    ],
)
def test_errors_are_one_line(words: str, message: str) -> None:
    with pytest.raises(LeanBayesError) as caught:
        parsed(*words.split())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_colours_of_a_terminal_do_not_reach_the_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    with pytest.raises(InputError, match=r"^unrecognized options: --colour, red; leanbayes probe --help"):
        parsed("f", "--colour", "red")


def test_messages_of_the_library_get_the_words_of_the_shell() -> None:
    names = option_names(COMMAND)
    assert names[:2] == ["file", "other"]
    assert {"rate", "flag", "config", "json", "quiet"} < set(names)
    assert (
        in_shell_words("give seed_list=... or leave count= out", names) == "give --seed-list ... or leave --count out"
    )
    assert in_shell_words("'partial:rate=2' has a rate of 2", names) == "'partial:rate=2' has a rate of 2"
