"""The held streams of a node: opens and closes them, keeps time for all of them together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog

from lsmq import runtime
from lsmq.client import Client
from lsmq.errors import (
    GroupHasMembers,
    GroupModeMismatch,
    InvalidRequest,
    LsmqError,
    ShuttingDown,
    SlowConsumer,
    TopicReplaced,
    Unavailable,
    UnknownStream,
)
from lsmq_node.broker import Broker, ByteBudget, SharedThing, asked_from
from lsmq_node.broker.meant_topic import deleted
from lsmq_node.groups import DeclaredGroups, GroupService, Mode
from lsmq_node.machines import MachineService
from lsmq_node.storage import StoredTopic

from .feed import Feed
from .held import HeldStream, Sink, StreamCounts
from .led_part import LedPart
from .options import PushStart, StreamOptions
from .relay import Relay
from .stream import PushStream

_log = structlog.get_logger("lsmq.push")

_STOP_S = 2.0

_SHARED = SharedThing(
    Unavailable, "streams held at this node", "max_push_streams", "use one for many queues, or another node"
)

FeedKey = tuple[str, int]


class PushService(MachineService[LedPart]):
    """One for each node. Loop thread only; ``start`` before anything else, ``stop`` at the end."""

    name = "push"

    def __init__(self, broker: Broker, groups: GroupService) -> None:
        super().__init__(broker, None)
        self.counts = StreamCounts()
        self.budget = ByteBudget(broker.config.max_push_bytes)
        self.streams: dict[str, HeldStream] = {}
        self._share = broker.allowances.addresses.share(broker.config.max_push_streams, _SHARED)
        self._addresses: dict[str, str | None] = {}  # of the streams, by their ids
        self.stopping = False
        self._groups = groups
        self._feeds: dict[FeedKey, Feed] = {}
        self._declared = DeclaredGroups(groups.declare_anywhere)
        self._declaring: asyncio.Task[None] | None = None
        self._client: Client | None = None
        self._empty = asyncio.Event()

    def start(self) -> None:
        self.broker.before_retiring.append(self.begin_stop)
        super().start()

    async def begin_stop(self) -> None:
        """End all streams, and wait a moment until what they acknowledged is committed. No others are opened."""
        self.stopping = True
        for stream in self.streams.values():
            stream.end(ShuttingDown("the node is stopping; come again, here or elsewhere"))
        try:
            async with asyncio.timeout(_STOP_S):
                while self.streams:
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            _log.warning("streams_not_ended", count=len(self.streams))

    async def stop(self) -> None:
        self.stopping = True
        await super().stop()
        if self._client is not None:
            await self._client.close()

    # Streams

    async def open(
        self, group: str, topic: StoredTopic, sink: Sink, options: StreamOptions, token: Callable[[], str | None]
    ) -> HeldStream:
        """A stream that sends once it is run; :meth:`close` it in any case.

        ``token`` gives what other nodes, by whom some of its queues are led, are to be shown now: None for nothing.

        Raises ``GroupModeMismatch``, ``ShuttingDown``, ``Unavailable`` when there are too many, and ``InvalidRequest``
        for what cannot be said of queues that come later.
        """
        self.check_room()
        is_kept = options.mode is Mode.PUSH or options.subscriber is not None
        if topic.named and is_kept and options.start is PushStart.LATEST:
            raise InvalidRequest(
                f"start is latest, and topic {topic.name!r} has queues with names, of which any that comes begins at "
                "its first message: leave it out, and set the group to the latest with 'lsmq group reset'",
                field="start",
            )
        await self._declared.declare(group, options.mode)
        self.check_room()
        here = all(self.broker.topology.leadership(part.shard).here for part in self.broker.ranges(topic))
        stream: HeldStream
        if options.whole and not here:
            client = self._client_for(token)
            stream = Relay(client, self.budget, group, topic, sink, options, self.counts, client is not self._client)
            self._hold(stream)
        else:
            stream = self._open_here(group, topic, sink, options)
        self.counts.opened += 1
        return stream

    def _open_here(self, group: str, topic: StoredTopic, sink: Sink, options: StreamOptions) -> PushStream:
        shared = options.mode is Mode.PUSH
        name = group if shared else f"{group}/{options.subscriber or ''}"
        kept = shared or options.subscriber is not None
        key = (name if kept else f"{name}{runtime.token_hex(8)}", topic.id)
        feed = self._feeds.get(key)
        if feed is None or feed.closed:
            feed = self._feeds[key] = Feed(self, key, name, topic, options.start, kept=kept)
        stream = PushStream(self.broker, self.budget, feed, sink, options, self.counts)
        self._hold(stream)
        feed.attach(stream)
        return stream

    def _client_for(self, token: Callable[[], str | None]) -> Client:
        """Finds leaders from this node on: one for all, or for whoever shows this to other nodes."""
        config = self.broker.config

        def made(token: Callable[[], str] | None) -> Client:
            return Client(
                config.public_url, ca=config.tls_ca, cert=config.tls_cert, cert_key=config.tls_key, token=token
            )

        if token() is not None:
            return made(lambda: token() or "")
        if self._client is None:
            self._client = made(None)
        return self._client

    def check_room(self) -> None:
        """Raises ``ShuttingDown``, ``Unavailable``."""
        limit = self.broker.config.max_push_streams
        if self.stopping:
            raise ShuttingDown("the node is stopping; come again, here or elsewhere")
        if len(self.streams) >= limit:
            raise Unavailable(
                f"{limit} streams are held already, which is the limit (max_push_streams); come again later, or to "
                "another node",
                limit=limit,
            )
        self._share.check(asked_from.get())

    def _hold(self, stream: HeldStream) -> None:
        address = self._addresses[stream.id] = asked_from.get()
        self._share.add(address)
        self.streams[stream.id] = stream

    async def close(self, stream: HeldStream) -> None:
        """The stream is over. Returns when what it acknowledged is committed.

        Raises ``Unavailable`` where that takes too long.
        """
        try:
            await stream.close()
        finally:
            if self.streams.pop(stream.id, None) is not None:
                self._share.remove(self._addresses.pop(stream.id))
            self._empty.set()
            if isinstance(stream, PushStream):
                self._forget_unused(stream.feed)

    def _forget_unused(self, feed: Feed) -> None:
        """A feed goes with its last stream, once all is committed that can be."""
        if not (feed.streams or feed.is_pending):
            feed.closed = True
            self.forget_all(lambda _, what: what[0] is feed)
            if self._feeds.get(feed.key) is feed:
                del self._feeds[feed.key]

    def stream(self, id: str, group: str) -> HeldStream:
        """Of the group. Raises ``UnknownStream``."""
        found = self.streams.get(id)
        if found is None or not found.hears or found.group.partition("/")[0] != group:
            raise UnknownStream(f"no stream {id!r} is held here; it has ended, or another node holds it")
        return found

    def streams_of(self, group: str) -> list[PushStream]:
        """Streams that are sent the queues of this node. One that is passed on is found where its queues are led."""
        return [
            stream
            for stream in self.streams.values()
            if isinstance(stream, PushStream)
            and (stream.group.partition("/")[0] if stream.options.mode is Mode.BROADCAST else stream.group) == group
        ]

    # What others do with the group

    def committing(self, group: str, topic: StoredTopic, *, reset: bool) -> None:
        """Somebody else commits for the group. Raises ``GroupHasMembers`` where streams do, unless it is a reset."""
        feed = self._feeds.get((group, topic.id))
        if feed is None or not feed.streams:
            return
        if not reset:
            raise GroupHasMembers(
                f"group {group!r} has {len(feed.streams)} streams, which commit for themselves: let them, or say reset",
                group=group,
                members=len(feed.streams),
            )
        self._end(feed, "offsets of the group were reset; come again")

    def forgetting(self, group: str) -> None:
        """The offsets of the group are being deleted; of a broadcast group those of its subscribers."""
        for (name, _), feed in list(self._feeds.items()):
            if feed.kept and (name == group or name.startswith(f"{group}/")):
                self._end(feed, "offsets of the group were deleted; come again")

    def _end(self, feed: Feed, why: str) -> None:
        feed.end_all(Unavailable(why, reset=True))

    async def _declare_again(self, feeds: Sequence[Feed]) -> None:
        """See that nobody shares the groups in another way: they may have been deleted since."""
        for feed in feeds:
            try:
                if feed.streams:  # Still: else it may have been deleted since, for good.
                    await self._declared.again(*feed.shared)
            except GroupModeMismatch as error:
                feed.end_all(error)

    # Time

    def look(self) -> None:
        mark = self._mark() if self._feeds else None
        for feed in list(self._feeds.values()):
            error = self._changed(feed.topic)
            if error is not None:
                feed.end_all(error)
            elif feed.refreshed_at != mark:
                feed.refresh()
                feed.refreshed_at = mark
            self._forget_unused(feed)
        due = [feed for feed in self._feeds.values() if feed.streams and self._declared.is_due(*feed.shared)]
        if due and (self._declaring is None or self._declaring.done()):
            self._declaring = self.background.start(self._declare_again(due))
        now = asyncio.get_running_loop().time()
        for stream in list(self.streams.values()):
            timeout_ms = stream.options.ack_timeout_ms
            if timeout_ms and stream.ledger.open_count and now - stream.progress_at > timeout_ms / 1000:
                self.counts.slow += 1
                stream.end(
                    SlowConsumer(
                        f"nothing of {stream.ledger.open_count} messages was acknowledged for {timeout_ms} ms "
                        "(ack_timeout_ms); they go to others, or come again"
                    )
                )

    def _mark(self) -> object:
        """Another one where somebody else leads a shard, or a part is to be begun anew: feeds are as they were else."""
        topology = self.broker.topology
        return self.lost, *map(topology.leadership, range(topology.shard_count))

    def _changed(self, topic: StoredTopic) -> LsmqError | None:
        found = self._groups.catalog(topic.name)
        if found is None:
            return deleted(topic.name, topic.id)
        id, queues = found
        if id != topic.id:
            return TopicReplaced(
                f"topic {topic.name!r} was deleted and made anew", topic=topic.name, expected_id=topic.id, id=id
            )
        if queues != topic.queues:
            return Unavailable(f"topic {topic.name!r} has {queues} queues now; come again")
        return None
