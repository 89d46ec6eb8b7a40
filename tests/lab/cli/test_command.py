"""Commands are found by lying in a folder, and each is a complete record."""

import dataclasses

import pytest

from leanbayes.lab.cli import COMMANDS
from leanbayes.lab.cli.parser import option_names


def test_our_commands_are_there() -> None:
    assert {"compare", "predict", "report", "train", "tune"} <= set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_explains_itself(name: str) -> None:
    command = COMMANDS[name]
    assert command.help.endswith(".")
    assert len(command.help) <= 80
    assert len(set(option_names(command))) == len(option_names(command)), "two options have the same name"
    groups = [command.options]
    for group in groups:
        for item in dataclasses.fields(group):
            if dataclasses.is_dataclass(item.type):
                groups.append(item.type)
            else:
                text = item.metadata["help"]
                assert text[0].isupper(), f"{item.name}: {text}"
                assert text.endswith("."), f"{item.name}: {text}"
