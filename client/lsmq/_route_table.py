"""What a client knows of topics, and of who leads which shard. Pure: it is told, and asks nobody.

News comes from nodes (topics, ``not_leader`` answers) and from ZooKeeper's documents, late and in any order. So:

- of a shard the **highest epoch** counts, whoever told it; of equal epochs the latest news, since a node may change its
  address;
- of a topic the **highest id** counts: ids are never used twice, and a higher one means that the topic was deleted and
  made anew;
- only a cluster founded anew may go back: its topics have lower ids and were created later. Then everything known of
  shards is forgotten.

A client may run for years, and use many topics. So addresses that nobody names any more are forgotten, all but the last
few; topics that nobody follows, all but the last thousands; and news of a shard costs the same however many topics lie
in it: a topic is brought up to date when somebody asks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import replace
from typing import NamedTuple, Protocol

from lsmq._route_documents import RouteDocuments, ShardLeadership
from lsmq.topics import Topic

MAX_LEARNED_NODES = 1024
FORMER_NODES = 4
UNFOLLOWED_TOPICS = 4096
NOBODY = ShardLeadership(None, -1)


class _KnownTopic(NamedTuple):
    """``moves``: how many changes of leaders its routes have in them."""

    topic: Topic
    moves: int


class RouteTable:
    """``generation`` counts changes; listeners are called after each."""

    def __init__(self, followed: Container[str] = ()) -> None:
        """``followed``: names of topics that are never forgotten, as they are when it is looked at."""
        self.generation = 0
        self._followed = followed
        self._topics: dict[str, _KnownTopic] = {}
        self._names: dict[int, str] = {}  # of topics, by their ids
        self._topics_room = 2 * UNFOLLOWED_TOPICS
        self._shards: dict[int, ShardLeadership] = {}
        self._moves = 0
        self._urls: dict[str, None] = {}
        self._urls_room = 2 * FORMER_NODES
        self._cluster_urls: tuple[str, ...] = ()  # of the latest document
        self._documents_version = -1
        self._listeners: dict[Callable[[], None], None] = {}
        self._topic_listeners: dict[str, dict[Callable[[], None], None]] = {}
        self._changed_topics: dict[str, None] = {}  # since listeners were called

    # Asking

    @property
    def urls(self) -> list[str]:
        """All nodes that are named, and the last that were; oldest first."""
        return list(self._urls)

    def topic(self, name: str) -> Topic | None:
        """The topic with the leaders known by now: the same object until something of it changes."""
        known = self._topics.get(name)
        if known is None:
            return None
        if known.moves != self._moves:
            known = self._topics[name] = _KnownTopic(self._led(known.topic), self._moves)
        return known.topic

    def topic_by_id(self, id: int) -> Topic | None:
        name = self._names.get(id)
        return None if name is None else self.topic(name)

    def leadership(self, shard: int) -> ShardLeadership:
        return self._shards.get(shard, NOBODY)

    def listen(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called after each change, until :meth:`unlisten`."""
        self._listeners[callback] = None

    def unlisten(self, callback: Callable[[], None]) -> None:
        self._listeners.pop(callback, None)

    def listen_to_topic(self, name: str, callback: Callable[[], None]) -> None:
        """Have ``callback`` called after each change of this topic but for its leaders, until
        :meth:`unlisten_to_topic`."""
        self._topic_listeners.setdefault(name, {})[callback] = None

    def unlisten_to_topic(self, name: str, callback: Callable[[], None]) -> None:
        callbacks = self._topic_listeners.get(name, {})
        callbacks.pop(callback, None)
        if not callbacks:
            self._topic_listeners.pop(name, None)

    # Being told

    def learn_topic(self, topic: Topic) -> Topic:
        """A node has described a topic; what is known of it now."""
        before = self.generation
        self._take_topic(topic)
        taken = self.topic(topic.name)
        assert taken is not None, "the last ones are kept"
        self._tell(before)
        return taken

    def learn_leaders(self, topic: Topic) -> Topic:
        """The topic with the best leaders known; of one that nobody here uses only its leaders are kept."""
        before = self.generation
        if topic.name in self._topics:
            self._take_topic(topic)
        else:
            self._take_leaders(topic)
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
        if not documents.hint or self._documents_version < 0:
            self._cluster_urls = cluster.urls
        for url in cluster.urls:
            self._take_url(url)
        # Epochs begin at 1, so any news wins over a hint.
        leaders = {
            shard: leadership._replace(epoch=0) if documents.hint else leadership
            for shard, leadership in cluster.leaders.items()
        }
        for document in documents.topics:
            known = self.topic(document.name)
            if known is not None and documents.hint:
                continue
            same = known if known is not None and known.id == document.id else None
            self._take_topic(document.with_leaders(leaders, same))
        for shard, leadership in leaders.items():
            self._take_leader(shard, leadership)
        self._tell(before)

    def forget_topic(self, name: str) -> None:
        known = self._topics.pop(name, None)
        if known is not None and self._names.get(known.topic.id) == name:
            del self._names[known.topic.id]

    def _take_topic(self, topic: Topic) -> None:
        known = self.topic(topic.name)
        if known is not None and not topic.is_same(known) and topic.id <= known.id:
            if topic.created_ms <= known.created_ms:
                return  # News from before the topic was made anew.
            self._shards.clear()  # A cluster founded anew.
            self._documents_version = -1
        self._take_leaders(topic)
        if known is not None and topic.is_same(known) and topic.queues < known.queues:
            return  # News from before it grew.
        taken = self._led(topic)
        if taken != known:
            self.forget_topic(topic.name)
            self._topics[topic.name] = _KnownTopic(taken, self._moves)
            self._names[topic.id] = topic.name
            self.generation += 1
            self._changed_topics[topic.name] = None
            if len(self._topics) > self._topics_room:
                self._forget_topics()

    def _forget_topics(self) -> None:
        """Those that nobody follows, but for the last; whoever uses one again asks for it again."""
        others = [name for name in self._topics if name not in self._followed]
        for name in others[:-UNFOLLOWED_TOPICS]:
            self.forget_topic(name)
        self._topics_room = len(self._topics) + UNFOLLOWED_TOPICS

    def _take_leaders(self, topic: Topic) -> None:
        for route in topic.routes:
            self._take_leader(route.shard, ShardLeadership(route.leader, route.epoch, route.followers))

    def _take_leader(self, shard: int, news: ShardLeadership) -> None:
        known = self.leadership(shard)
        if news.followers is None:
            news = news._replace(followers=tuple(url for url in known.followers or () if url != news.url))
        if news.epoch < known.epoch or news == known:
            return
        if news.epoch == known.epoch and news.url is None:
            return  # Whoever said so knows less.
        self._shards[shard] = news
        self._moves += 1
        self.generation += 1
        if news.url is not None:
            self._take_url(news.url)

    def _take_url(self, url: str) -> None:
        if url in self._urls:
            return
        if len(self._urls) >= self._urls_room:
            self._forget_urls()
        if len(self._urls) < MAX_LEARNED_NODES:
            self._urls[url] = None

    def _forget_urls(self) -> None:
        """Addresses that neither the cluster's document nor any shard names, but for the last of them."""
        named = set(self._cluster_urls)
        for leadership in self._shards.values():
            named.update([leadership.url] if leadership.url else (), leadership.followers or ())
        former = [url for url in self._urls if url not in named]
        for url in former[:-FORMER_NODES]:
            del self._urls[url]
        self._urls_room = len(self._urls) + FORMER_NODES

    def _led(self, topic: Topic) -> Topic:
        routes = tuple(
            replace(route, leader=leadership.url, epoch=leadership.epoch, followers=leadership.followers or ())
            for route in topic.routes
            for leadership in (self.leadership(route.shard),)
        )
        return topic if routes == topic.routes else topic.with_routes(routes)

    def _tell(self, before: int) -> None:
        if self.generation == before:
            return
        changed, self._changed_topics = self._changed_topics, {}
        for callback in [*self._listeners, *(each for name in changed for each in self._topic_listeners.get(name, ()))]:
            callback()


class RouteSource(Protocol):
    """Where documents come from, besides nodes. Everything but ``heard`` is called in the client's event loop."""

    def start(self, heard: Callable[[RouteDocuments], None]) -> None:
        """Begin, and have ``heard`` called in the running loop with what was read."""

    def follow(self, name: str) -> None:
        """Read the document of this topic, too, from now on."""

    def unfollow(self, name: str) -> None:
        """And from now on no more."""

    def look(self) -> None:
        """Read soon."""

    def trouble(self) -> str:
        """In words, why there may be nothing yet."""

    async def stop(self) -> None: ...
