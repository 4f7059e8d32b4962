"""Who votes, as a node knew it last: the file ``voters.json`` in its data directory, once that was changed.

A node that is started again asks these for the agreed state, and knows by it whether it votes itself: its configuration
names the voters of the founding, who may all be gone.

::

    {"format": 1, "membership": {"number": 3, "voters": {"n2": "10.0.0.2:7602", ..}, ..},
     "urls": {"n2": "http://10.0.0.2:7601", ..}}
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lsmq.errors import CorruptFile

from .raft_membership import Electorate

FILE = "voters.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class KnownVoters:
    """``urls``: the internal URL of each voter and learner that is known."""

    membership: Electorate
    urls: Mapping[str, str]

    @classmethod
    def load(cls, directory: Path) -> KnownVoters | None:
        """None where nothing was changed yet, or this node has not heard of it. Raises ``CorruptFile``."""
        path = directory / FILE
        try:
            content = json.loads(path.read_text())
            if content["format"] != _FORMAT:
                raise ValueError(f"format {content['format']}")
            return cls(Electorate.from_dict(content["membership"]), dict(content["urls"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptFile(
                f"{path} cannot be read: {error}. Remove it: the node then asks the voters that its configuration "
                "names, of whom one must still vote",
                file=str(path),
            ) from error

    def store(self, directory: Path) -> None:
        """Durable on return. Raises ``OSError``."""
        content = {"format": _FORMAT, "membership": self.membership.to_dict(), "urls": dict(sorted(self.urls.items()))}
        path, temporary = directory / FILE, directory / f"{FILE}.new"
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.pwrite(fd, json.dumps(content, indent=2).encode() + b"\n", 0)
            os.fsync(fd)
        finally:
            os.close(fd)
        temporary.rename(path)
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
