"""Every command that a page shows is one, with options that it has."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from lsmq.cli._root import root

TOP = Path(__file__).parents[2]
PAGES = sorted([*TOP.glob("*.md"), *(TOP / "docs").rglob("*.md"), TOP / "compose" / "README.md"])
OWN_ARGUMENTS = {"bench"}  # what stands behind its name is the benchmark's to know


def shown(page: Path) -> list[str]:
    """What stands behind ``lsmq`` in blocks of shell, comments and pipes left out."""
    found = []
    for block in re.findall(r"^```(?:sh|bash)?\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            found += re.findall(r"(?:^|[|&($]|-T|--rm)\s*(?:lsmq|cli) ([a-z][^|&<>#]*)", line)
    return found


def complaint(text: str) -> str | None:
    command: click.Command = root
    context = click.Context(root)
    words = text.partition(")")[0].split()
    while isinstance(command, click.Group) and words:
        found = command.get_command(context, words.pop(0))
        if found is None:
            return f"lsmq {text}: no such command"
        command = found
    if command.name in OWN_ARGUMENTS:
        return None
    options = {option for parameter in command.params for option in parameter.opts + parameter.secondary_opts} | {
        "--help"
    }
    unknown = [word for word in words if word.startswith("--") and word.partition("=")[0] not in options]
    return f"lsmq {text}: no option {unknown[0]}" if unknown else None


def test_commands_are_found() -> None:
    assert sum(len(shown(page)) for page in PAGES) > 100


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_a_page_shows_commands_that_there_are(page: Path) -> None:
    assert [wrong for wrong in map(complaint, shown(page)) if wrong] == []


def commands(command: click.Command, name: str) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for word in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), word)
            assert found is not None
            yield from commands(found, f"{name} {word}")


def test_no_command_has_an_option_twice() -> None:
    twice = {
        f"{name} {option}"
        for name, command in commands(root, "lsmq")
        for option, count in Counter(each for parameter in command.params for each in parameter.opts).items()
        if count > 1
    }
    assert twice == set()
