"""Requests that came to a node which does not lead the shard: passed on to the one that does, or sent there.

A handler needs to know nothing of it: where it raises ``NotLeader``, before anything was done, the leader is asked in
its stead; and again, where who leads is just taking over. A request whose parts belong to several leaders is split by
its handler, see :func:`each_at_leader`.

Between the nodes the request is signed, see :mod:`lsmq_node.cluster.peers`. What a client may do and have is checked
where it arrived: origin, host, and its share of memory; limits of the request itself hold at the leader as well.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from yarl import URL

from lsmq.errors import LsmqError, NotLeader, Unavailable, from_dict
from lsmq.topics import FETCH_SESSION_HEADER, FORWARD_HEADER
from lsmq_coordinator.http_status import status_of
from lsmq_node.broker import PassedBack, PassedOn, asked_from
from lsmq_node.broker.forwarding import shard_to_ask
from lsmq_node.broker.stages import stage
from lsmq_node.config import Forward

from .codec import JSON_TYPE, MSGPACK_TYPE, Format, answer_format, decode
from .failures import error_answer, failures
from .routing import Call

#: Headers of a request that mean something to whoever answers it; those of our own beside.
_HEADERS = frozenset({"accept", "authorization", "content-type", "traceparent", "tracestate"})
_OWN = "lsmq-"
_NOT_PASSED = (FORWARD_HEADER.lower(), "lsmq-auth", "lsmq-anti-forgery", "lsmq-address")
#: Of a request that is passed on: the address that it came from, for the shares of addresses.
_ADDRESS_HEADER = "Lsmq-Address"


async def answered_elsewhere(call: Call, refusal: LsmqError) -> web.StreamResponse:
    """The leader's answer to a request that was refused here. Raises the refusal where it is to be heard."""
    shard = shard_to_ask(refusal)
    if call.forward is Forward.REFUSE or shard is None or call.route.is_stream:
        raise refusal
    request, broker = call.request, call.broker
    if call.forward is Forward.REDIRECT:
        return _redirection(call, refusal)
    body = await call.body() if request.body_exists else b""
    # What HEAD leaves out is left out by this node: the answer's signature is that of its body.
    method = "GET" if request.method == "HEAD" else request.method
    passed = PassedOn(method, request.rel_url.raw_path_qs, _passed_headers(call), body)
    with stage("leader"):
        found = await broker.forwarder.at_leader(
            shard, lambda: call.route.handler(call), passed, _refusal_in, repeatable=method == "GET"
        )
    if not isinstance(found, PassedBack):
        return found
    call.hold.resize_made(len(body) + len(found.body))
    headers = {name: value for name, value in found.headers.items() if name != FETCH_SESSION_HEADER}
    return web.Response(status=found.status, headers=headers, body=found.body)


def _redirection(call: Call, refusal: LsmqError) -> web.Response:
    leader = refusal.details.get("leader")
    if leader is None or leader == call.broker.config.public_url:
        raise refusal
    response = error_answer(call.request, refusal, 307)
    response.headers["Location"] = f"{leader}{call.request.path_qs}"
    return response


def _passed_headers(call: Call) -> dict[str, str]:
    found = {
        name: value
        for name, value in call.request.headers.items()
        if (low := name.lower()) in _HEADERS or (low.startswith(_OWN) and not low.startswith(_NOT_PASSED))
    }
    if (address := asked_from.get()) is not None:
        found[_ADDRESS_HEADER] = address
    if "Authorization" not in call.request.headers and (token := call.asker.token()) is not None:
        found["Authorization"] = f"Bearer {token}"  # He showed a cookie, or a certificate, which this node cannot show.
    return found


def told_address(request: web.Request) -> str | None:
    """Where a request came from that another node passed on, as that one says; None: a release that does not say."""
    return request.headers.get(_ADDRESS_HEADER) or None


def _refusal_in(answer: PassedBack) -> LsmqError | None:
    """``NotLeader``, or ``Unavailable`` of who takes over, where the answer says that and that nothing was done."""
    if answer.status not in (status_of(NotLeader), status_of(Unavailable)):
        return None
    error = _error_in(answer)
    return error if shard_to_ask(error) is not None else None


def _error_in(answer: PassedBack) -> LsmqError:
    return from_dict(decode(answer.body, _form(answer))["error"])


@dataclass(frozen=True, slots=True)
class ShardPart:
    """What of a request belongs to one shard: done ``here``, or by the same operation there, with this ``body`` in
    msgpack, or with this ``path`` and query."""

    shard: int
    here: Callable[[], Awaitable[dict[str, Any]]]
    body: Callable[[], bytes] = bytes
    path: str | None = None


def is_split(call: Call, shards: Iterable[int]) -> bool:
    """Whether what belongs to these shards is to be done at each one's leader, see :func:`each_at_leader`.

    Else the request is one: for this node, for a leader that it goes to as it is, or to be refused. One for several
    leaders redirects nobody from here on.
    """
    leaders = [call.broker.topology.leadership(shard) for shard in shards]
    if call.forward is Forward.REFUSE or len(leaders) < 2 or all(led.here for led in leaders):
        return False
    if call.forward is Forward.REDIRECT:  # There is no one node to send the client to.
        call.forward = Forward.REFUSE
    return call.forward is Forward.PASS


async def each_at_leader(call: Call, parts: Sequence[ShardPart]) -> list[dict[str, Any]]:
    """The answers to all parts, in their order, each of its shard's leader.

    Raises what the first part that failed raises, once all are done: the others are. Then its details say ``sent``.
    """
    answers = await asyncio.gather(*(_at_leader(call, part) for part in parts), return_exceptions=True)
    failed = [answer for answer in answers if isinstance(answer, BaseException)]
    if failed:
        error = failed[0]
        if isinstance(error, LsmqError) and len(failed) < len(parts):
            error.details["sent"] = True
        raise error
    return [answer for answer in answers if not isinstance(answer, BaseException)]


async def _at_leader(call: Call, part: ShardPart) -> dict[str, Any]:
    if call.broker.topology.leadership(part.shard).here:
        try:
            return await part.here()
        except (NotLeader, Unavailable) as refusal:
            if shard_to_ask(refusal) is None:
                raise
    headers = {**_passed_headers(call), "Content-Type": MSGPACK_TYPE, "Accept": MSGPACK_TYPE}
    method, path = call.request.method, part.path or call.request.rel_url.raw_path_qs
    passed = PassedOn(method, path, headers, part.body())
    at_leader = call.broker.forwarder.at_leader
    return _document(await at_leader(part.shard, part.here, passed, _refusal_in, repeatable=method == "GET"))


async def asked_at_leader(
    call: Call, shard: int, here: Callable[[], Awaitable[dict[str, Any]]], path: str
) -> dict[str, Any]:
    """What ``here`` finds where this node leads the shard, or else its leader at ``path``, in the caller's format.

    For reads of several shards, which no client can ask of one node otherwise: whatever it says of passing on.
    """
    if call.proof is not None:
        return await here()
    form = answer_format(call.request)
    passed = PassedOn("GET", path, {**_passed_headers(call), "Accept": form.value}, b"")
    return _document(await call.broker.forwarder.at_leader(shard, here, passed, _refusal_in, repeatable=True))


def _document(found: dict[str, Any] | PassedBack) -> dict[str, Any]:
    if not isinstance(found, PassedBack):
        return found
    if found.status >= 400:
        raise _error_in(found)
    answer: dict[str, Any] = decode(found.body, _form(found))
    return answer


def _form(answer: PassedBack) -> Format:
    return Format.JSON if answer.headers.get("Content-Type", "").startswith(JSON_TYPE) else Format.MSGPACK


def answering_passed_on(app: web.Application) -> Callable[[web.Request, str], Awaitable[web.StreamResponse]]:
    """What answers the requests that other nodes pass on: as the application does, without the checks of its door."""

    async def answer(request: web.Request, path: str) -> web.StreamResponse:
        inner = request.clone(rel_url=URL(path, encoded=True))
        match = await app.router.resolve(inner)
        match.add_app(app)
        match.freeze()
        inner._match_info = match  # There is no other way to have a request handled that another server read.
        return await failures(inner, match.handler)

    return answer
