"""Commands that take something away for good ask before they do, and say in the docs that they do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from lsmq.cli import root
from support.node_process import NodeProcess

DOCUMENT = Path(__file__).parents[2] / "docs" / "cli.md"
#: Values of arguments and options that must be given.
VALUES = {"before": "1", "offset": "1", "how": "again", "ids": "1", "id": "g-1", "member": "5d41402abc4b2a76"}


def commands(group: click.Group = root, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    with click.Context(group) as context:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            if isinstance(command, click.Group):
                yield from commands(command, (*path, name))
            elif command is not None:
                yield (*path, name), command


ASKING = {path: command for path, command in commands() if any(option.name == "yes" for option in command.params)}


def required(command: click.Command) -> list[str]:
    words = []
    for param in command.params:
        if param.required:
            value = VALUES.get(param.name or "", "x")
            words += [value] if isinstance(param, click.Argument) else [param.opts[0], value]
    return words


@pytest.mark.parametrize("path", sorted(ASKING), ids=" ".join)
def test_who_says_no_has_nothing_done(shared_node: NodeProcess, path: tuple[str, ...]) -> None:
    """Nothing of what is named is there: who went on without an answer would say so."""
    told = CliRunner().invoke(root, [*path, *required(ASKING[path]), "--url", shared_node.url], input="n\n")
    if path == ("group", "reset"):  # It looks first at what would change.
        assert told.exit_code != 0 and "Traceback" not in told.output
        return
    assert isinstance(told.exception, SystemExit | click.Abort), told.exception
    assert told.exit_code == 1 and "[y/N]" in told.output, told.output
    assert "there is no" not in told.output


def test_the_docs_name_those_that_ask_and_no_others() -> None:
    section = DOCUMENT.read_text().split("## What asks first\n")[1].split("\n## ")[0]
    assert set(re.findall(r"`([a-z]+ [a-z]+)`", section)) == {" ".join(path) for path in ASKING}
