"""The parser: it reads the options of a command, which are a dataclass, from the command line and from a YAML file.

The library tyro builds the parser. For each dataclass of options we give tyro a form: a dataclass with the same fields,
whose defaults come from the YAML file and whose values are read as everywhere else in LeanBayes. The options themselves
are built from the filled form, so their own checks run outside tyro, and every error is one line.
"""

import io
import re
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, make_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import tyro
from tyro.constructors import PrimitiveConstructorSpec

from leanbayes.errors import InputError, LeanBayesError
from leanbayes.lab.cli.command import Command
from leanbayes.lab.cli.config import read_config
from leanbayes.lab.recipes import option, parse_value

__all__ = ["OutputOptions", "argument", "in_shell_words", "option_names", "parse_arguments"]

T = TypeVar("T")
_OUTPUT = "output"
_METAVARS = {int: "INT", float: "FLOAT", str: "TEXT"}


@dataclass(frozen=True)
class OutputOptions:
    """What the command reads and prints besides its work."""

    config: str | None = option(
        None, "Read options from this YAML file. Options on the command line take precedence over those of the file."
    )
    json: bool = option(False, "Print the result as JSON on standard output, and nothing else there.")
    quiet: bool = option(False, "Show no progress bars.")


def argument(help: str, default: Any = MISSING) -> Any:
    """Declare a field that is a positional argument of a command, together with its help text.

    Args:
        help: a sentence that says what the argument is.
        default: the value where the user gives none; without a default the user must give one.

    Returns:
        A dataclass field.
    """
    return field(default=default, metadata={"help": help, "positional": True})


def parse_arguments(command: Command[T], arguments: Sequence[str]) -> tuple[T, OutputOptions]:
    """Read the options of a command.

    Args:
        command: the command.
        arguments: what follows its name on the command line.

    Returns:
        The options of the command, and those that every command has.

    Raises:
        InputError: something is wrong with the arguments; the message is one line.
        SystemExit: the arguments ask for help, which has been printed.
    """
    names = option_names(command)
    path = _config_path(arguments)
    values = {} if path is None else read_config(Path(path), names)
    form = _form(command.options, values, {_OUTPUT: OutputOptions})
    filled = _ask_tyro(form, command, arguments)
    return _build(command.options, filled), _build(OutputOptions, getattr(filled, _OUTPUT))


def option_names(command: Command[Any]) -> list[str]:
    """Return the names of all options of a command, those of its sections included."""
    return [*_names(command.options), *_names(OutputOptions)]


def in_shell_words(message: str, names: Sequence[str]) -> str:
    """Name options as the shell does in a message that names them as Python does.

    >>> in_shell_words("batch_size must be at least 1, got 0", ["batch_size"])
    '--batch-size must be at least 1, got 0'
    >>> in_shell_words("leave size=3 out", ["size"])
    'leave --size 3 out'
    """
    for name in names:
        flag = "--" + name.replace("_", "-")
        message = re.sub(rf"^{name}(?= must\b)", flag, message)
        message = re.sub(rf"(?<![\w:,.'\"-]){name}=(?=\S)", f"{flag} ", message)
        message = re.sub(rf"(?<![\w:,.'\"-]){name}=(?=\s|$)", flag, message)
    return message


def _names(options: type[Any]) -> list[str]:
    hints, names = get_type_hints(options), []
    for item in fields(options):
        names += _names(hints[item.name]) if is_dataclass(hints[item.name]) else [item.name]
    return names


def _config_path(arguments: Sequence[str]) -> str | None:
    """Return the file that ``--config`` names, which must be read before the parser with its defaults is built."""
    path = None
    for word, following in zip(arguments, [*arguments[1:], ""], strict=False):
        if word == "--config" and following and not following.startswith("--"):
            path = following
        elif word.startswith("--config="):
            path = word.removeprefix("--config=")
    return path


def _form(options: type[Any], values: Mapping[str, Any], sections: Mapping[str, type[Any]] | None = None) -> type[Any]:
    hints = get_type_hints(options)
    entries: list[Any] = []
    for item in fields(options):
        kind = hints[item.name]
        if is_dataclass(kind):
            entries.append((item.name, _form(kind, values)))  # type: ignore[arg-type]
            continue
        default = item.default
        if default is MISSING and item.default_factory is not MISSING:
            default = item.default_factory()
        if item.name in values:
            default = _read(values[item.name], kind, f"--{item.name.replace('_', '-')}")
        annotation = _annotation(item.name, kind, default, item.metadata)
        entries.append((item.name, annotation, field(default=default)))
    entries += [(name, _form(section, values)) for name, section in (sections or {}).items()]
    form = make_dataclass(options.__name__, entries, kw_only=True)
    form.__doc__ = (options.__doc__ or "").strip().partition("\n")[0]
    return form


def _annotation(name: str, kind: Any, default: Any, metadata: Mapping[Any, Any]) -> Any:
    positional = metadata.get("positional", False)
    flag = name.upper() if positional else f"--{name.replace('_', '-')}"
    look = {"help": metadata.get("help", ""), "help_behavior_hint": _hint(default, kind)}
    if kind is bool:
        return Annotated[bool, tyro.conf.arg(**look)]

    def from_words(words: list[str]) -> Any:
        try:
            return _read(words if _is_list(kind) else words[0], kind, flag)
        except InputError as error:  # tyro would print a ValueError, as this is, in its own words
            raise LeanBayesError(str(error)) from error

    placeholder = name.upper() if default is MISSING else f"[{name.upper()}]"
    spec = PrimitiveConstructorSpec(
        nargs="*" if _is_list(kind) else 1,
        metavar=placeholder if positional else _metavar(kind),
        instance_from_str=from_words,
        is_instance=lambda value: True,  # noqa: ARG005
        str_from_instance=lambda value: list(map(str, value)) if isinstance(value, tuple) else [str(value)],
    )
    markers = (spec, tyro.conf.arg(metavar=spec.metavar, **look))
    if positional:
        return Annotated[kind, *markers, tyro.conf.Positional]
    return Annotated[kind, *markers]


def _hint(default: Any, kind: Any) -> str:
    if default is MISSING:
        return "(required)"
    if default is None or default == ():
        return ""
    if kind is bool:
        return f"(default: {'yes' if default else 'no'})"
    return f"(default: {' '.join(map(str, default)) if isinstance(default, tuple) else default})"


def _metavar(kind: Any) -> str:
    if _is_list(kind):
        return f"{_metavar(get_args(kind)[0])} ..."
    if get_origin(kind) is Literal:
        return "{" + ",".join(map(str, get_args(kind))) + "}"
    kinds = [alternative for alternative in get_args(kind) or (kind,) if alternative is not type(None)]
    return _METAVARS.get(kinds[0], "VALUE")


def _is_list(kind: Any) -> bool:
    return get_origin(kind) is tuple


def _read(value: Any, kind: Any, name: str) -> Any:
    if not _is_list(kind):
        return parse_value(value, kind, name)
    items = value if isinstance(value, list | tuple) else [value]
    if not items:
        raise InputError(f"{name} needs at least one value")
    return tuple(parse_value(item, get_args(kind)[0], name) for item in items)


def _ask_tyro(form: type[Any], command: Command[Any], arguments: Sequence[str]) -> Any:
    program = f"leanbayes {command.name}"
    complaint = io.StringIO()
    try:
        with redirect_stderr(complaint):
            return tyro.cli(
                form,
                prog=program,
                description=command.help,
                args=list(arguments),
                config=(tyro.conf.OmitArgPrefixes,),
            )
    except SystemExit as end:
        if end.code:
            message = _missing(form, complaint.getvalue()) or _one_line(complaint.getvalue())
            raise InputError(f"{message}; {program} --help lists the options") from None
        if command.epilog is not None:
            sys.stdout.write(f"\n{command.epilog()}\n")
        raise


def _missing(form: type[Any], box: str) -> str | None:
    """Say which positional arguments are missing; tyro repeats the help of each, which makes a long line."""
    required = [item.name.upper() for item in fields(form) if item.default is MISSING and item.name != _OUTPUT]
    absent = [name for name in required if re.search(rf"\b{name}\b", box)]
    if "Missing from" not in box or not absent:
        return None
    return f"{' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} missing"


def _one_line(box: str) -> str:
    r"""Return what tyro says in a box with several parts: its first part, and the option that it guesses was meant.

    >>> _one_line("╭─ Error ─╮\n│ Unrecognized options: --epoch │\n│ ── │\n│ Perhaps you meant: │\n│   --epochs INT │")
    'unrecognized options: --epoch; perhaps you meant --epochs'
    """
    lines = re.sub(r"\x1b\[[0-9;]*m", "", box).splitlines()  # without the colours of a terminal
    parts: list[list[str]] = [[]]
    for line in lines:
        text = line.strip("│ ")
        if text and not text.strip("─-╮╯"):
            parts.append([])
        elif not text.startswith(("╭", "╰")):
            parts[-1].append(text)
    if lines and not lines[0].startswith("╭"):  # without the signs of a box, the title is a part
        parts.pop(0)
    message, *others = (" ".join(" ".join(part).split()) for part in parts or [["bad arguments"]])
    guess = next((re.search(r"--[\w-]+", part) for part in others if part.startswith("Perhaps you meant")), None)
    message = message[:1].lower() + message[1:].rstrip(".")
    return message if guess is None else f"{message}; perhaps you meant {guess[0]}"


def _build(options: type[T], filled: Any) -> T:
    hints = get_type_hints(options)
    values = {}
    for item in fields(options):  # type: ignore[arg-type]
        value = getattr(filled, item.name)
        values[item.name] = _build(hints[item.name], value) if is_dataclass(hints[item.name]) else value
    return options(**values)
