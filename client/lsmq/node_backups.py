"""Backups that a node makes itself, where its setting ``backup_to`` says: started, looked at, ended.

Each is of one node, the one that is asked: its place may be a directory of its machine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lsmq._known_fields import of_known
from lsmq.client import Client

__all__ = ["BackupAdmin", "BackupEnd", "BackupProgress", "NodeBackupState"]

_PATH = "/v1/backups"


@dataclass(frozen=True, slots=True)
class BackupProgress:
    """A backup that is under way. ``total_bytes`` is None until all shards have been taken."""

    began_ms: int
    total_bytes: int | None
    done_bytes: int


@dataclass(frozen=True, slots=True)
class BackupEnd:
    """What came of a backup: its ``id``, or why there is none in ``error``. Of ``size_bytes`` no earlier backup had
    ``fetched_bytes``; ``removed`` are ids of those that were removed then, ``unread`` of those that cannot be read:
    while these are there, no file is removed."""

    began_ms: int
    ended_ms: int
    id: str | None
    size_bytes: int | None
    fetched_bytes: int | None
    removed: tuple[str, ...]
    error: str | None
    unread: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeBackupState:
    """Of a node. ``place`` is None where it makes none; ``keep`` 0 where it removes none. ``last`` is the last one that
    was begun since its start and is over. ``backups`` are ids, the newest first; ``problem`` says why they are not
    known."""

    place: str | None
    keep: int
    running: BackupProgress | None
    last: BackupEnd | None
    backups: tuple[str, ...]
    problem: str | None

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> NodeBackupState:
        running, last = fields["running"], fields["last"]
        return cls(
            fields["place"],
            fields["keep"],
            None if running is None else of_known(BackupProgress, running),
            None if last is None else _end(last),
            tuple(fields["backups"]),
            fields["problem"],
        )


def _end(fields: Mapping[str, Any]) -> BackupEnd:
    lists = {name: tuple(fields.get(name, ())) for name in ("removed", "unread")}
    return of_known(BackupEnd, {**fields, **lists})


class BackupAdmin:
    """Of the node at ``url``: without it, the first of the client's. Requests are not repeated elsewhere."""

    def __init__(self, client: Client, url: str | None = None) -> None:
        self._client = client
        self._url = url

    async def state(self) -> NodeBackupState:
        """How far a backup is, what came of the last one, and which there are."""
        return await self._ask("GET", _PATH)

    async def start(self) -> NodeBackupState:
        """Have the node make a backup, unless one is under way. It goes on by itself.

        Raises ``InvalidRequest`` where the node has no ``backup_to``, ``Forbidden`` for who may not read everything.
        """
        return await self._ask("POST", _PATH)

    async def stop(self) -> NodeBackupState:
        """End the one that is under way, if any. What it fetched is kept, and the next one goes on from there."""
        return await self._ask("DELETE", f"{_PATH}/running")

    async def _ask(self, method: str, path: str) -> NodeBackupState:
        url = (self._url or self._client.urls[0]).rstrip("/")
        answer = await self._client._transport.request(
            method, url + path, timeout_s=self._client.request_timeout_ms / 1000
        )
        return answer.parsed(NodeBackupState.from_dict)
