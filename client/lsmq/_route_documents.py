"""The route documents in ZooKeeper, as a client reads them, and the copy of them on this machine's disk.

``docs/formats/routes.md`` describes them field by field. Fields that are not known are passed over, so that a newer
cluster may add some; a document that lacks a known one raises ``ValueError``.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from lsmq.topics import DEFAULT_MAX_MESSAGE_BYTES, Route, Topic

COPY_FORMAT = 1


class ShardLeadership(NamedTuple):
    """Who leads a shard: the URL of its node, or ``None`` while nobody is known to; and since which epoch.

    ``followers`` are the URLs of the other replicas in sync; ``None``: whoever said so did not say.
    """

    url: str | None
    epoch: int
    followers: tuple[str, ...] | None = ()


@dataclass(frozen=True, slots=True)
class ClusterDocument:
    """``/lsmq/<cluster>/cluster``: ``urls`` of nodes, and for each shard the leader's URL (or ``None``), epoch, and
    the URLs of the followers in sync."""

    version: int
    urls: tuple[str, ...]
    leaders: Mapping[int, ShardLeadership]

    @classmethod
    def from_dict(cls, fields: Any) -> ClusterDocument:
        """Raises ``ValueError`` when it is no cluster document."""
        try:
            urls = {str(id): str(node["url"]).rstrip("/") for id, node in fields["nodes"].items()}
            leaders = {
                int(shard): ShardLeadership(urls.get(entry["leader"]), int(entry["epoch"]), _followers(entry, urls))
                for shard, entry in fields["shards"].items()
            }
            return cls(int(fields["version"]), tuple(urls.values()), leaders)
        except (AttributeError, KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"not a cluster document: {error!r}") from error


def _followers(entry: Mapping[str, Any], urls: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(urls[node] for node in entry.get("in_sync") or () if node != entry["leader"] and node in urls)


@dataclass(frozen=True, slots=True)
class TopicDocument:
    """``/lsmq/<cluster>/topics/<name>``: ``ranges`` are ``(first, end, shard)``, half-open, covering all queues."""

    name: str
    id: int
    queues: int
    options: Mapping[str, Any]
    created_ms: int
    ranges: tuple[tuple[int, int, int], ...]
    named: bool = False

    @classmethod
    def from_dict(cls, fields: Any) -> TopicDocument:
        """Raises ``ValueError`` when it is no topic document."""
        try:
            return cls(
                str(fields["name"]),
                int(fields["id"]),
                int(fields["queues"]),
                dict(fields["options"]),
                int(fields["created_ms"]),
                tuple((int(first), int(end), int(shard)) for first, end, shard in fields["ranges"]),
                bool(fields.get("named", False)),
            )
        except (AttributeError, KeyError, TypeError, OverflowError) as error:
            raise ValueError(f"not a topic document: {error!r}") from error

    def with_leaders(self, leaders: Mapping[int, ShardLeadership], known: Topic | None) -> Topic:
        """The topic with its routes. ``known`` is what a node has said of it before, with the nodes' limits."""
        message_limit = DEFAULT_MAX_MESSAGE_BYTES if known is None else known.max_message_bytes
        message_limit = self.options.get("max_message_bytes") or message_limit
        batch_limit = None if known is None else known.max_batch_bytes
        routes = tuple(
            Route(first, end, shard, led.url, led.epoch, led.followers or ())
            for first, end, shard in sorted(self.ranges)
            for led in (leaders.get(shard, ShardLeadership(None, 0)),)
        )
        return Topic(
            self.name,
            self.id,
            self.queues,
            self.options,
            self.created_ms,
            routes,
            message_limit,
            batch_limit,
            self.named,
        )


@dataclass(frozen=True, slots=True)
class RouteDocuments:
    """What was read at one time: the cluster's document and those of the topics in use.

    A ``hint`` is from the copy on disk: anything that was heard from the cluster itself wins over it.
    """

    cluster: ClusterDocument
    topics: tuple[TopicDocument, ...]
    hint: bool = False


class DiskCopy:
    """The documents last read, kept in one file for the next start without ZooKeeper.

    The file is replaced as a whole: written, synced, renamed. One that cannot be read counts as none, and failing to
    write is no failure of the client: ``save`` raises ``OSError`` for its caller to note.
    """

    def __init__(self, directory: Path, hosts: str, cluster: str) -> None:
        mark = hashlib.sha256(f"{hosts}\0{cluster}".encode()).hexdigest()[:12]
        readable = re.sub(r"[^A-Za-z0-9._-]", "_", cluster)[:64]
        self.path = directory / f"routes-{readable}-{mark}.json"
        self._saved: dict[str, Any] | None = None

    def load(self) -> RouteDocuments | None:
        """What was kept, as a hint."""
        try:
            fields = json.loads(self.path.read_bytes())
            if fields["format"] != COPY_FORMAT:
                return None
            topics = tuple(TopicDocument.from_dict(topic) for topic in fields["topics"].values())
            return RouteDocuments(ClusterDocument.from_dict(fields["cluster"]), topics, hint=True)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return None

    def save(self, cluster: dict[str, Any], topics: dict[str, dict[str, Any]]) -> None:
        """Keep these documents. Does nothing when they are the same as last time."""
        fields = {"format": COPY_FORMAT, "cluster": cluster, "topics": topics}
        if fields == self._saved:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor, temporary = tempfile.mkstemp(dir=self.path.parent, prefix=f"{self.path.name}.")
        try:
            with os.fdopen(descriptor, "w") as file:
                json.dump(fields, file, sort_keys=True)
                file.flush()
                os.fsync(file.fileno())
            Path(temporary).replace(self.path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
        directory = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        self._saved = fields


def default_cache_directory() -> Path:
    """Where copies are kept unless told otherwise: ``$XDG_CACHE_HOME/lsmq`` or ``~/.cache/lsmq``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "lsmq"
