"""The giving side of backups: snapshots of the shards that this node leads, for whoever asks over the API."""

from __future__ import annotations

from lsmq import runtime
from lsmq.errors import InvalidRequest

from .broker import Broker
from .snapshot_sessions import SnapshotSession, SnapshotSessions
from .throttle import Throttle
from .topology import ShardPort

_THREADS = 2


class BackupSource:
    """One for each node. Loop thread only."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._threads = runtime.ThreadPoolExecutor(_THREADS, "lsmq-backup")  # their own: a flush is waited for in them
        #: For all that is read for backups here, sent or only compared.
        self.throttle = Throttle(broker.config.backup_bytes_per_s)
        self.sessions = SnapshotSessions(lambda shard: self._led(shard).store, self._threads)

    def start(self) -> None:
        """Everything begins with a request."""

    def begin_stop(self) -> None:
        """What is being read ends with the node; its reader is told to begin again."""

    async def stop(self) -> None:
        await self.sessions.close()
        self._threads.shutdown(wait=False)

    def _led(self, shard: int) -> ShardPort:
        """Raises ``NotLeader``, ``Unavailable``, ``InvalidRequest`` for a shard that there is not."""
        count = self._broker.topology.shard_count
        if shard >= count:
            raise InvalidRequest(f"shard is {shard}; there are {count}, from 0 on", field="shard", limit=count - 1)
        port = self._broker.topology.port(shard)
        port.check_readable()
        return port

    async def begin(self, shard: int, holder: str) -> SnapshotSession:
        """A snapshot of all that was acknowledged before. Raises what :meth:`.SnapshotSessions.begin` raises, and
        ``NotLeader``."""
        return await self.sessions.begin(shard, holder, self._led(shard).store.committed_lsn)

    def get(self, shard: int, id: str) -> SnapshotSession:
        """A session here. Raises ``SnapshotGone``, or ``NotLeader`` where another node leads, which may have it."""
        if (session := self.sessions.find(shard, id)) is not None:
            return session
        self._led(shard)
        return self.sessions.get(shard, id)
