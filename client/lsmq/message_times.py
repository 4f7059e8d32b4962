"""When a message comes and when it expires, as it is sent, in milliseconds: a time from now on, or a moment. Pure."""

from __future__ import annotations

from typing import cast

from lsmq.errors import InvalidRequest
from lsmq.messages import MAX_DELAY_MS, MAX_TTL_MS, described

AS_SECONDS = "which are seconds since 1970, it seems; give milliseconds, a thousand times as many"


def is_seconds(time_ms: object) -> bool:
    """Whether it can only be a time in seconds: of 2001 to 2286, where milliseconds are of January to April 1970."""
    return type(time_ms) is int and 10**9 <= time_ms < 10**10


def check_ttl(ttl_ms: object) -> None:
    """Raises ``InvalidRequest`` unless it is a time to live that a record can hold."""
    if type(ttl_ms) is not int or not 1 <= ttl_ms <= MAX_TTL_MS:
        raise InvalidRequest(
            f"ttl_ms is {_numbered(ttl_ms)}; it must be a whole number of milliseconds from 1 to {MAX_TTL_MS} (ten "
            "years): leave it out for a message that does not expire",
            field="ttl_ms",
            limit=MAX_TTL_MS,
        )


def expiry_value(ttl_ms: object, expires_at_ms: object, due_ms: int, now_ms: int) -> int:
    """When a message expires, as a record that is sent says it: a time to live, or milliseconds since 1970; 0: never.

    ``due_ms`` is its :func:`due_value`. Raises ``InvalidRequest`` for both, for what is none, for a moment that is over
    or further away than ``MAX_TTL_MS``, and for one before the message comes.
    """
    if ttl_ms is not None:
        check_ttl(ttl_ms)
    if expires_at_ms is None:
        return cast(int, ttl_ms or 0)
    if ttl_ms is not None:
        raise InvalidRequest("expires_at_ms is given beside ttl_ms; give one of the two", field="expires_at_ms")
    if type(expires_at_ms) is not int or not now_ms < expires_at_ms <= now_ms + MAX_TTL_MS:
        late = type(expires_at_ms) is int and expires_at_ms <= now_ms
        how = f", {AS_SECONDS}" if is_seconds(expires_at_ms) else ", which is over" if late else ""
        raise InvalidRequest(
            f"expires_at_ms is {_numbered(expires_at_ms)}{how}; it must be a moment from "
            f"{now_ms + 1} to {now_ms + MAX_TTL_MS}, milliseconds since 1970, by the clock here: not over yet, and "
            "within ten years",
            field="expires_at_ms",
            limit=now_ms + MAX_TTL_MS,
        )
    if due_ms and expires_at_ms <= (now_ms + due_ms if due_ms <= MAX_DELAY_MS else due_ms):
        raise InvalidRequest(
            f"expires_at_ms is {expires_at_ms}, before the message comes by its delay_ms or deliver_at_ms: it would "
            "never be delivered; let it expire later",
            field="expires_at_ms",
        )
    return expires_at_ms


def due_value(delay_ms: object, deliver_at_ms: object, now_ms: int) -> int:
    """When a message comes, as a record says it: a delay, or milliseconds since 1970; 0 for at once.

    Raises ``InvalidRequest`` for both, for what is no whole number, and for more than ``MAX_DELAY_MS``.
    """
    for name, value in (("delay_ms", delay_ms), ("deliver_at_ms", deliver_at_ms)):
        if value is not None and (type(value) is not int or value < 0):
            raise InvalidRequest(f"{name} is {_numbered(value)}; it must be a whole number, 0 or more", field=name)
    if delay_ms and deliver_at_ms:
        raise InvalidRequest("delay_ms is given beside deliver_at_ms; give one of the two", field="delay_ms")
    if is_seconds(deliver_at_ms):
        raise InvalidRequest(f"deliver_at_ms is {deliver_at_ms}, {AS_SECONDS}", field="deliver_at_ms")
    delay, at = int(delay_ms or 0), int(deliver_at_ms or 0)  # type: ignore[call-overload]  # Checked above.
    if delay > MAX_DELAY_MS or at > now_ms + MAX_DELAY_MS:
        name, limit = ("delay_ms", MAX_DELAY_MS) if delay else ("deliver_at_ms", now_ms + MAX_DELAY_MS)
        raise InvalidRequest(
            f"{name} is {delay or at}; the limit is {limit}, ten years: send it later", field=name, limit=limit
        )
    return delay or (at if at > MAX_DELAY_MS else 0)  # What looks like a delay was due before 1981.


def due_time(value: int, stored_ms: int) -> int:
    """When a record with :func:`due_value` is due that was stored then; 0 where it was at once."""
    due_ms = value + stored_ms if value <= MAX_DELAY_MS else value
    return due_ms if value and due_ms > stored_ms else 0


def _numbered(value: object) -> str:
    """:func:`.messages.described` of what must be a whole number: of one it is said alone."""
    return described(value).removesuffix(" of type int")
