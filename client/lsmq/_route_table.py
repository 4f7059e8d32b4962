"""What a client knows of topics, and of who leads which shard. Pure: it is told, and asks nobody.

News comes from nodes (topics, ``not_leader`` answers) and from ZooKeeper's documents, late and in any order. So:

- of a shard the **highest epoch** counts, whoever told it; of equal epochs the latest news, since a node may change its
  address;
- of a topic the **highest id** counts: ids are never used twice, and a higher one means that the topic was deleted and
  made anew;
- only a cluster founded anew may go back: its topics have lower ids and were created later. Then everything known of
  shards is forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from lsmq._route_documents import RouteDocuments, ShardLeadership
from lsmq.topics import Topic

MAX_LEARNED_NODES = 1024


NOBODY = ShardLeadership(None, -1)


class RouteTable:
    """``generation`` counts changes; listeners are called after each."""

    def __init__(self) -> None:
        self.generation = 0
        self._topics: dict[str, Topic] = {}
        self._shards: dict[int, ShardLeadership] = {}
        self._urls: dict[str, None] = {}
        self._documents_version = -1
        self._listeners: dict[Callable[[], None], None] = {}

    # Asking

    @property
    def urls(self) -> list[str]:
        """All nodes that were named, oldest first."""
        return list(self._urls)

    def topic(self, name: str) -> Topic | None:
        """The topic with the leaders known by now."""
        return self._topics.get(name)

    def topic_by_id(self, id: int) -> Topic | None:
        return next((topic for topic in self._topics.values() if topic.id == id), None)

    def leadership(self, shard: int) -> ShardLeadership:
        return self._shards.get(shard, NOBODY)

    def listen(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called after each change, until :meth:`unlisten`."""
        self._listeners[callback] = None

    def unlisten(self, callback: Callable[[], None]) -> None:
        self._listeners.pop(callback, None)

    # Being told

    def learn_topic(self, topic: Topic) -> Topic:
        """A node has described a topic; what is known of it now."""
        before = self.generation
        self._take_topic(topic)
        self._tell(before)
        return self._topics[topic.name]

    def learn_leaders(self, topic: Topic) -> Topic:
        """The topic with the best leaders known; of what it says only its leaders are kept."""
        before = self.generation
        for route in topic.routes:
            self._take_leader(route.shard, ShardLeadership(route.leader, route.epoch, route.followers))
        self._tell(before)
        return self._led(topic)

    def learn_leader(self, shard: int, url: str | None, epoch: int) -> None:
        """Somebody has said who leads a shard."""
        before = self.generation
        self._take_leader(shard, ShardLeadership(url, epoch, None))
        self._tell(before)

    def learn_documents(self, documents: RouteDocuments) -> None:
        """ZooKeeper has, or the copy on disk had, these documents. Older ones than before are passed over."""
        before = self.generation
        cluster = documents.cluster
        if not documents.hint:
            if cluster.version < self._documents_version:
                return
            self._documents_version = cluster.version
        for url in cluster.urls:
            self._take_url(url)
        # Epochs begin at 1, so any news wins over a hint.
        leaders = {
            shard: leadership._replace(epoch=0) if documents.hint else leadership
            for shard, leadership in cluster.leaders.items()
        }
        for document in documents.topics:
            known = self._topics.get(document.name)
            if known is not None and documents.hint:
                continue
            same = known if known is not None and known.id == document.id else None
            self._take_topic(document.with_leaders(leaders, same))
        for shard, leadership in leaders.items():
            self._take_leader(shard, leadership)
        self._tell(before)

    def forget_topic(self, name: str) -> None:
        self._topics.pop(name, None)

    def _take_topic(self, topic: Topic) -> None:
        known = self._topics.get(topic.name)
        if known is not None and not topic.is_same(known) and topic.id <= known.id:
            if topic.created_ms <= known.created_ms:
                return  # News from before the topic was made anew.
            self._shards.clear()  # A cluster founded anew.
            self._documents_version = -1
        for route in topic.routes:
            self._take_leader(route.shard, ShardLeadership(route.leader, route.epoch, route.followers))
        if known is not None and topic.is_same(known) and topic.queues < known.queues:
            return  # News from before it grew.
        taken = self._led(topic)
        if taken != known:
            self._topics[topic.name] = taken
            self.generation += 1

    def _take_leader(self, shard: int, news: ShardLeadership) -> None:
        known = self.leadership(shard)
        if news.followers is None:
            news = news._replace(followers=tuple(url for url in known.followers or () if url != news.url))
        if news.epoch < known.epoch or news == known:
            return
        if news.epoch == known.epoch and news.url is None:
            return  # Whoever said so knows less.
        self._shards[shard] = news
        self.generation += 1
        if news.url is not None:
            self._take_url(news.url)
        for name, topic in self._topics.items():
            if any(route.shard == shard for route in topic.routes):
                self._topics[name] = self._led(topic)

    def _take_url(self, url: str) -> None:
        if len(self._urls) < MAX_LEARNED_NODES:
            self._urls.setdefault(url)

    def _led(self, topic: Topic) -> Topic:
        routes = tuple(
            replace(route, leader=leadership.url, epoch=leadership.epoch, followers=leadership.followers or ())
            for route in topic.routes
            for leadership in (self.leadership(route.shard),)
        )
        return topic if routes == topic.routes else topic.with_routes(routes)

    def _tell(self, before: int) -> None:
        if self.generation != before:
            for callback in list(self._listeners):
                callback()


class RouteSource(Protocol):
    """Where documents come from, besides nodes. Everything but ``heard`` is called in the client's event loop."""

    def start(self, heard: Callable[[RouteDocuments], None]) -> None:
        """Begin, and have ``heard`` called in the running loop with what was read."""

    def follow(self, names: frozenset[str]) -> None:
        """Read the documents of these topics from now on."""

    def look(self) -> None:
        """Read soon."""

    def trouble(self) -> str:
        """In words, why there may be nothing yet."""

    async def stop(self) -> None: ...
