"""Streams of topics whose queues have names: a place in each shard, and what lies between two of them.

The nodes say which queues got messages between two places, and which: the same at each repeat, whoever leads by then.
So nothing is kept here of queues but what belongs to the batch that is planned.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from lsmq.topics import Topic
from lsmq_pipeline.client import Arrivals, PipelineClient
from lsmq_pipeline.named import BEGINNING, joined, kept, lost, picking, places_at, shards_of
from lsmq_pipeline.named_offsets import UNKNOWN, NamedOffsets, ShardPlace
from lsmq_pipeline.options import ReadOptions
from lsmq_pipeline.splits import Portion

ShardPlaces = Mapping[int, ShardPlace]


class NamedStream:
    """Of one query, on the driver."""

    def __init__(self, options: ReadOptions, connected: Callable[[], PipelineClient], *, with_names: bool) -> None:
        self._options = options
        self._connected = connected
        self._with_names = with_names
        self._picking = picking(options)
        #: What came between two places, of the batch that is about to be planned.
        self._windows: dict[tuple[int, int, ShardPlace, ShardPlace], Arrivals] = {}
        self._now: dict[int, dict[int, ShardPlace]] = {}

    def now(self, topic: Topic) -> dict[int, ShardPlace]:
        """A moment of each shard: all that is acknowledged by now lies before it."""
        cluster = self._connected()
        futures = {shard: cluster.note_moment(topic, shard) for shard in shards_of(topic)}
        found = {shard: ShardPlace(*future.result()) for shard, future in futures.items()}
        self._now[topic.id] = found
        return found

    def known(self, topic: Topic) -> dict[int, ShardPlace] | None:
        """What :meth:`now` said last; None where it was not asked yet."""
        return self._now.get(topic.id)

    def initial(self, topic: Topic) -> NamedOffsets:
        """Where a new query starts. Raises ``InvalidOption``."""
        wanted = places_at(self._options.start, topic)
        if isinstance(wanted, Mapping):
            places = dict(wanted)
        else:
            now = self.now(topic)
            places = now if wanted == "latest" else self._since(topic, now, 0 if isinstance(wanted, str) else wanted)
        return NamedOffsets(topic.name, topic.id, places, start=places)

    def beginning(self, topic: Topic, now: ShardPlaces) -> dict[int, ShardPlace]:
        """Before all that is kept of a topic that is new to the query."""
        return self._since(topic, now, BEGINNING.time_ms)

    def _since(self, topic: Topic, now: ShardPlaces, time_ms: int) -> dict[int, ShardPlace]:
        """A place at a time: messages before it are what is not behind it."""
        found = {}
        for shard, moment in now.items():
            messages = UNKNOWN
            if time_ms <= moment.time_ms:
                begin = ShardPlace(time_ms)
                behind = self._connected().arrivals(topic, shard, begin, moment, {}, pages=1).result()
                messages = moment.messages - behind.messages
            found[shard] = ShardPlace(time_ms, messages)
        return found

    def end(self, topic: Topic, begin: ShardPlaces, now: ShardPlaces) -> dict[int, ShardPlace]:
        """All that there is: ``now``, but in shards of which nothing came that is asked for."""
        ends = {}
        for shard, moment in now.items():
            known = begin[shard]
            later = moment.time_ms > known.time_ms if known.until_ms is None else moment.time_ms >= known.until_ms
            ends[shard] = moment if later and self.waiting_in(topic, shard, known, moment) else known
        return ends

    def waiting_in(self, topic: Topic, shard: int, begin: ShardPlace, end: ShardPlace) -> int:
        """Messages between two places of a shard that are asked for."""
        if begin == end:
            return 0
        if not self._picking and UNKNOWN not in (begin.messages, end.messages):
            return end.messages - begin.messages
        return self._window(topic, shard, begin, end).wanted

    def cut(self, topic: Topic, shard: int, begin: ShardPlace, end: ShardPlace, limit: int) -> ShardPlace:
        """A place with at most ``limit`` messages between it and ``begin``, that are asked for."""
        if limit >= self.waiting_in(topic, shard, begin, end):
            return end
        until = begin.until or end
        window = self._window(topic, shard, begin, until)
        starts = window.starts
        if not self._options.fail_on_data_loss:  # What is gone takes nothing of a batch.
            starts = np.maximum(starts, np.minimum(window.earliest, window.ends))
        total = np.cumsum(np.maximum(window.ends - starts, 0))
        if not len(total) or int(total[-1]) <= limit:
            # Of these two moments that is the rest; what comes between the later one and the end is for the next batch.
            return until if len(total) else self.cut(topic, shard, until, end, limit)
        if limit <= 0:
            return begin
        at = int(total.searchsorted(limit))
        before = int(total[at - 1]) if at else 0
        place = ShardPlace(
            begin.time_ms,
            UNKNOWN,
            until.time_ms,
            until.messages,
            int(window.queues[at]),
            int(starts[at]) + limit - before,
        )
        rest = self._connected().arrivals(topic, shard, place, until, {}, pages=1).result()
        return replace(place, messages=until.messages - rest.messages)

    def portion(self, topic: Topic, begin: ShardPlaces, until: NamedOffsets) -> Portion:
        """What a batch reads of a topic. Raises ``DataLoss``."""
        parts, fail = [], self._options.fail_on_data_loss
        for shard, end in until.places.items():
            start = begin[shard]
            if start == end:
                continue
            window = self._window(topic, shard, start, end)
            parts.append(kept(topic, window, fail))
            missing = end.messages - start.messages - window.messages
            known = window.exact and UNKNOWN not in (start.messages, end.messages)
            if known and missing and parts[-1] is window:  # else it was said of one queue
                message = f"{missing} messages of topic {topic.name!r} on shard {shard} went before they were read"
                if missing < 0:
                    message = (
                        f"{-missing} messages of topic {topic.name!r} are not on shard {shard} any more that the "
                        "stream has gone past: the shard lost what it had committed"
                    )
                lost(message, topic, fail)
        self._windows.clear()
        queues = joined(topic, parts) if parts else joined(topic, [Arrivals.none()])
        return Portion(queues.by_place(), queues.starts, queues.ends, 0, queues)

    def standing(self, topic: Topic, since: ShardPlaces | None, until: ShardPlaces) -> dict[int, int]:
        """Of queues that got messages between two places, by number, how far the later one is; None: the beginning."""
        begin = dict.fromkeys(until, BEGINNING) if since is None else since
        futures = [
            self._connected().arrivals(topic, shard, begin[shard], end, self._picking)
            for shard, end in until.items()
            if begin[shard] != end
        ]
        queues = joined(topic, [Arrivals.none(), *(kept(topic, future.result(), None) for future in futures)])
        return dict(zip(queues.numbers.tolist(), queues.ends.tolist(), strict=True))

    def _window(self, topic: Topic, shard: int, begin: ShardPlace, end: ShardPlace) -> Arrivals:
        key = topic.id, shard, begin, end
        found = self._windows.get(key)
        if found is None:
            for other in [other for other in self._windows if other[:2] == key[:2]]:
                del self._windows[other]
            future = self._connected().arrivals(topic, shard, begin, end, self._picking, with_names=self._with_names)
            found = self._windows[key] = future.result()
        return found
