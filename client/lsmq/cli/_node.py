"""Commands that need the node's code, which plain ``pip install lsmq`` does not bring."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lsmq.errors import LsmqError


class NodeNotInstalled(LsmqError):
    """The command needs ``lsmq[node]``."""

    code = "node_not_installed"


@contextmanager
def private_files() -> Iterator[None]:
    """What is made inside is for the user alone, as a node's own files are: messages of all who use it are in them."""
    before = os.umask(0o077)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def need_node(command: str) -> Iterator[None]:
    """Turn a failed import of the node, or of what it needs, into an error that says what to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise NodeNotInstalled(
            f'{command} needs the node, and {error.name} is not installed; run: pip install "lsmq[node]"',
            missing=error.name,
        ) from error


def disks_of(place: str) -> list[Path]:
    """The directories that an argument names: one, or several with commas between."""
    whole = Path(place)
    return [whole] if whole.exists() else [Path(text.strip()) for text in place.split(",")]
