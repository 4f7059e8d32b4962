"""Backups that a node makes itself, where its administrator said: started by whoever may read everything.

One at a time of a node, and of a place. What is known of it is in memory: after a restart none is under way, what was
fetched is there for the next one, and the backups there are are those of the place.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial

import structlog

from lsmq import runtime
from lsmq.errors import InvalidRequest, LsmqError, ShuttingDown
from lsmq_node.broker import Broker
from lsmq_node.broker.background import Background
from lsmq_node.broker.backup_source import BackupSource
from lsmq_node.broker.loop_work import to_its_end
from lsmq_node.settings import InvalidConfig

from .create import BackupMade, create_backup
from .own_reader import OwnReader, SnapshotCalls
from .repository import Repository

_log = structlog.get_logger("lsmq.backups")

#: So many of a place's backups are told of, the newest.
MAX_TOLD = 100
#: A place is not asked what it has more often than this, but after a backup.
_LOOK_AGAIN_S = 60.0
#: So long who asks waits for it.
_LOOK_S = 5.0


@dataclass(slots=True)
class RunningBackup:
    """``total_bytes`` is None until all shards have been taken; ``done_bytes`` of them are in the place."""

    began_ms: int
    total_bytes: int | None = None
    done_bytes: int = 0


@dataclass(frozen=True, slots=True)
class EndedBackup:
    """What came of the last one since the node's start: ``made``, or why not in ``error``."""

    began_ms: int
    ended_ms: int
    made: BackupMade | None
    error: str | None


class NodeBackups:
    """One for each node. Loop thread only."""

    def __init__(self, broker: Broker, source: BackupSource) -> None:
        """Raises ``InvalidConfig`` where ``backup_to`` is no place."""
        config = broker.config
        self.place = config.backup_to
        self.keep = config.backup_keep
        self.running: RunningBackup | None = None
        self.last: EndedBackup | None = None
        #: Why the place did not say what it has, when it was asked last.
        self.problem: str | None = None
        self._calls = SnapshotCalls(broker, source)
        self._background = Background("backups")
        self._task: asyncio.Task[None] | None = None
        self._stopping = False
        self._ids: list[str] = []
        self._looked_s: float | None = None
        #: A place that does not answer keeps its own thread, and nobody else's.
        self._looker = runtime.ThreadPoolExecutor(1, "lsmq-backups")
        self._look: asyncio.Future[list[str]] | None = None
        try:
            self._repository = None if self.place is None else Repository.at(self.place)
        except LsmqError as error:
            raise InvalidConfig(f"backup_to: {error.message}", setting="backup_to") from error

    def start(self) -> None:
        """Everything begins with a request."""

    async def begin_stop(self) -> None:
        """What is under way ends; what it fetched is kept."""
        self._stopping = True
        await self._background.stop()

    async def stop(self) -> None:
        await self.begin_stop()
        self._looker.shutdown(wait=False)

    def begin(self) -> bool:
        """Have one made, unless one is under way; False where one is. Raises ``InvalidRequest``, ``ShuttingDown``."""
        repository = self._given()
        if self._stopping:
            raise ShuttingDown("the node is stopping; come again, here or elsewhere")
        if self.running is not None:
            return False
        self.running = RunningBackup(runtime.wall_ms())
        self._task = self._background.start(self._make(repository, self.running))
        return True

    async def cancel(self) -> None:
        """End the one that is under way, if any; what was fetched is kept. Raises ``InvalidRequest``."""
        self._given()
        task = self._task
        if task is not None:
            if not task.cancelling():
                task.cancel()
            await asyncio.wait((task,))

    def _given(self) -> Repository:
        if self._repository is None:
            raise InvalidRequest(
                "this node makes no backups: its setting backup_to is not set. Set it to a directory or "
                "s3://BUCKET/PREFIX and start the node again, or run `lsmq backup create --to PLACE` on any machine",
                setting="backup_to",
            )
        return self._repository

    async def ids(self) -> list[str]:
        """Of the place's backups, the newest first, :data:`MAX_TOLD` at most; as of a minute ago or less."""
        if self._repository is None:
            return []
        if self._look is None and (self._looked_s is None or runtime.monotonic() > self._looked_s + _LOOK_AGAIN_S):
            self._look = asyncio.get_running_loop().run_in_executor(self._looker, _ids, self._repository)
            self._look.add_done_callback(partial(self._seen, self.last))
        if self._look is not None:
            await asyncio.wait((self._look,), timeout=_LOOK_S)
        if self._look is not None:
            self.problem = "it has not answered for some seconds"
        return self._ids

    def _seen(self, last: EndedBackup | None, look: asyncio.Future[list[str]]) -> None:
        """``last``: of those there were when the look began."""
        self._look, self._looked_s = None, runtime.monotonic() if last is self.last else None
        if look.cancelled():
            return
        error = look.exception()
        self._ids = [] if error is not None else look.result()
        self.problem = error.message if isinstance(error, LsmqError) else None if error is None else repr(error)

    async def _make(self, repository: Repository, running: RunningBackup) -> None:
        _log.info("backup_begun", place=self.place)
        made: BackupMade | None = None
        error: str | None = "it was stopped; what was fetched is kept, and the next one goes on from there"
        try:
            made = await self._made(repository, running)
            error = None
        except LsmqError as failure:
            error = f"{failure.code}: {failure.message}"
        except Exception as failure:
            error = f"internal: {failure!r}; the node's log has more"
            raise
        finally:
            self.running, self._task, self._looked_s = None, None, None
            self.last = EndedBackup(running.began_ms, runtime.wall_ms(), made, error)
            if made is None:
                _log.error("backup_failed", place=self.place, reason=error)
            else:
                _log.info("backup_made", place=self.place, id=made.backup.id, fetched_bytes=made.fetched_bytes)
                if made.unread:
                    _log.warning("backups_unreadable", place=self.place, ids=made.unread, costs="no file is removed")

    async def _made(self, repository: Repository, running: RunningBackup) -> BackupMade:
        def advance(size: int) -> None:
            running.done_bytes += size

        def begin(total: int) -> Callable[[int], None]:
            running.total_bytes = total
            return advance

        changing = repository.changing()
        entered = asyncio.ensure_future(asyncio.to_thread(changing.__enter__))
        try:
            await asyncio.shield(entered)
            return await create_backup(OwnReader(self._calls), repository, keep=self.keep or None, begin=begin)
        finally:
            await _left(changing, entered)


@to_its_end  # Who is cancelled, and once more, lets go of the place as well.
async def _left(changing: AbstractContextManager[None], entered: asyncio.Future[None]) -> None:
    await asyncio.wait((entered,))
    if entered.exception() is None:
        await asyncio.to_thread(changing.__exit__, None, None, None)


def _ids(repository: Repository) -> list[str]:
    return repository.ids()[: -MAX_TOLD - 1 : -1] if repository.place.there() else []
