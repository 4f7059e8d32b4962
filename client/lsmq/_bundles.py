"""Batches of several producers on their way to one shard, together: many small topics pay for one request.

Batches that set out for the same shard in the same turn of the event loop, and are acknowledged alike, go in one
request, each with a fate of its own. One that sets out by itself goes as a request of its own, and so does what is
large, is in a trace that is kept, has little time left, or goes to a node that refused a bundle: one of a release
that takes none, or that takes no requests of that size.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import cycle
from typing import Any, NamedTuple
from urllib.parse import urlencode

from lsmq import runtime
from lsmq._paths import topic_path
from lsmq._router import Router
from lsmq._transport import BATCH, MSGPACK, NAMED_BATCH
from lsmq.background_tasks import BackgroundTasks
from lsmq.errors import InvalidBatch, LsmqError, NotLeader, Unavailable, from_dict
from lsmq.topics import Topic

_SMALL_BYTES = 32 * 1024
_MOST = 256
_MOST_MESSAGES = 5_000  # Half of what nodes take, unless they are told.
_MOST_BYTES = 1024 * 1024  # As one batch may have: well below what nodes take in a request.
_PATIENT_S = 1.0  # Who waits for less is not waited for by others.
_ALONE_S = 60.0  # A node that takes no bundles may be upgraded, or given room for them.


class AnsweredBatch(NamedTuple):
    """A node's answer to a batch: what it says as it is packed, and whether it had been stored before."""

    packed: bytes
    duplicate: bool


class _Setting(NamedTuple):
    """A batch that sets out; ``outcome`` is None where it is to go by itself."""

    topic: Topic
    batch: bytes
    record_count: int
    timeout_s: float
    outcome: asyncio.Future[AnsweredBatch | None]


class _Way(NamedTuple):
    """Batches with the same can go together. ``promised``: what their topics say where the request does not."""

    leader: str
    shard: int
    asked: str
    promised: tuple[Any, Any]


class Bundles:
    """One for each client. Belongs to its event loop."""

    def __init__(self, router: Router) -> None:
        self.router = router
        self._senders: Counter[int] = Counter()  # that there are, by shard
        self._waiting: dict[_Way, list[_Setting]] = {}
        self._alone: dict[str, float] = {}  # nodes that take no bundles, and until when that is believed
        self._requests = BackgroundTasks()  # Whoever waits for one is told how it ends.

    @contextmanager
    def sender(self, shard: int) -> Iterator[None]:
        """Somebody sends to a shard meanwhile."""
        self._senders[shard] += 1
        try:
            yield
        finally:
            self._senders[shard] -= 1

    async def send(
        self,
        topic: Topic,
        leader: str,
        shard: int,
        batch: bytes,
        record_count: int,
        *,
        asked: Mapping[str, str],
        timeout_s: float,
        trace: Mapping[str, str] | None,
    ) -> AnsweredBatch:
        """Have the shard's leader store a batch, once. ``asked``: of the request, ``ack`` and ``flush``.

        Raises as :meth:`Router.attempt`, and ``InvalidBatch``.
        """
        query = f"?{urlencode(asked)}" if asked else ""
        ordinary = len(batch) <= _SMALL_BYTES and timeout_s >= _PATIENT_S and not _is_kept(trace)
        if ordinary and self._senders[shard] > 1 and not self._goes_alone(leader):
            way = _Way(leader, shard, query, (topic.options.get("ack"), topic.options.get("flush")))
            waiting = self._waiting.get(way)
            if waiting is None:
                waiting = self._waiting[way] = []
                asyncio.get_running_loop().call_soon(self._set_out, way)
            outcome: asyncio.Future[AnsweredBatch | None] = asyncio.get_running_loop().create_future()
            waiting.append(_Setting(topic, batch, record_count, timeout_s, outcome))
            if (stored := await outcome) is not None:
                return stored
        answer = await self.router.attempt(
            topic,
            leader,
            (shard,),
            "POST",
            f"{topic_path(topic.name)}/batches{query}",
            timeout_s=timeout_s,
            body=batch,
            content_type=NAMED_BATCH if topic.named else BATCH,
            accept=BATCH,
            trace=trace,
        )
        return AnsweredBatch(answer.body, "Lsmq-Duplicate" in answer.headers)

    async def close(self) -> None:
        """End what is under way."""
        await self._requests.end()

    def _goes_alone(self, leader: str) -> bool:
        until_s = self._alone.get(leader)
        if until_s is not None and until_s < runtime.monotonic():
            del self._alone[leader]
        return leader in self._alone

    def _set_out(self, way: _Way) -> None:
        setting = [each for each in self._waiting.pop(way) if not each.outcome.done()]
        for bundle in _bundled(setting):
            if len(bundle) == 1:
                bundle[0].outcome.set_result(None)
            else:
                self._requests.begin(self._carry(way, bundle), f"lsmq bundle for shard {way.shard}")

    async def _carry(self, way: _Way, bundle: Sequence[_Setting]) -> None:
        outcomes: Sequence[AnsweredBatch | LsmqError | None] = [
            Unavailable("the request that had this batch ended before its answer", sent=True) for _ in bundle
        ]
        try:
            outcomes = await self._ask(way, bundle)
        except LsmqError as error:
            if error.retriable:
                outcomes = [from_dict(error.to_dict()) for _ in bundle]
            else:  # What is said of all together says nothing of each: no such path, more bytes than are taken.
                self._alone[way.leader] = runtime.monotonic() + _ALONE_S
                outcomes = [None] * len(bundle)
        finally:
            for each, outcome in zip(bundle, outcomes, strict=True):
                if each.outcome.done():
                    continue  # Nobody waits for it any more.
                if isinstance(outcome, LsmqError):
                    each.outcome.set_exception(outcome)
                else:
                    each.outcome.set_result(outcome)

    async def _ask(self, way: _Way, bundle: Sequence[_Setting]) -> list[AnsweredBatch | LsmqError]:
        parts = [
            {
                "topic": each.topic.name,
                "topic_id": each.topic.id,
                "topic_created_ms": each.topic.created_ms,
                "batch": each.batch,
            }
            for each in bundle
        ]
        topics = cycle(each.topic.name for each in bundle)  # Some may be gone: of these nobody says who leads.
        answer = await self.router.attempt(
            None,
            way.leader,
            (way.shard,),
            "POST",
            f"/v1/batches{way.asked}",
            timeout_s=min(each.timeout_s for each in bundle),
            look=lambda: self.router.glance(next(topics), beside=way.leader),
            value={"batches": parts},
            accept=MSGPACK,
        )
        outcomes = answer.parsed(lambda found: [self._outcome(way, each) for each in found["results"]])
        if len(outcomes) != len(bundle):
            raise InvalidBatch(f"{way.leader} answers {len(outcomes)} batches of {len(bundle)}")
        return outcomes

    def _outcome(self, way: _Way, result: Mapping[str, Any]) -> AnsweredBatch | LsmqError:
        if (refused := result.get("error")) is None:
            return AnsweredBatch(bytes(result["batch"]), bool(result["duplicate"]))
        error = from_dict(refused)
        if isinstance(error, NotLeader):
            self.router.heed(error, (way.shard,))
        return error


def _is_kept(trace: Mapping[str, str] | None) -> bool:
    """Whether a batch is in a trace that is sampled, by the flags at the end of ``traceparent``."""
    flags = "" if trace is None else trace.get("traceparent", "").rpartition("-")[2]
    return bool(flags) and int(flags, 16) & 1 == 1


def _bundled(setting: Iterable[_Setting]) -> Iterator[list[_Setting]]:
    """In their order, so many and so large as a request may have."""
    bundle: list[_Setting] = []
    size_bytes = count = 0
    for each in setting:
        size_bytes += len(each.batch)
        count += each.record_count
        if len(bundle) == _MOST or (bundle and (size_bytes > _MOST_BYTES or count > _MOST_MESSAGES)):
            yield bundle
            bundle, size_bytes, count = [], len(each.batch), each.record_count
        bundle.append(each)
    if bundle:
        yield bundle
