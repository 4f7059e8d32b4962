"""How many values a body may hold: what unpacking costs follows their number, not the bytes that say them.

Eight mebibytes are a message or two, or eight million empty maps, which take half a gigabyte and the interpreter for a
second. So values are counted before they are made (JSON), or while they are (msgpack).
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgpack

from lsmq.errors import TooManyItems

#: Values in one body: members of lists, and keys and values of maps. What is packed into bytes counts as one.
MAX_ITEMS: Final = 500_000
#: A smaller body cannot hold more.
_FEW_BYTES: Final = MAX_ITEMS

#: A string, or what begins as one: to its end, or to the end of all.
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_MARKS = (b",", b":", b"[", b"{")


def check_json_items(body: bytes) -> None:
    """Raises ``TooManyItems``. What is no JSON may pass."""
    if len(body) <= _FEW_BYTES:
        return
    # Each value but the first has one of these before it; in text they say nothing.
    count = _count_marks(body)
    if count <= MAX_ITEMS:
        return
    for text in _STRING.finditer(body):
        count -= _count_marks(text[0])
        if count <= MAX_ITEMS:
            return
    raise _too_many()


def _count_marks(text: bytes) -> int:
    return sum(text.count(mark) for mark in _MARKS)


def unpack_msgpack(body: bytes) -> Any:
    """The value of a msgpack body. Raises ``TooManyItems``, and what msgpack raises for what is none."""
    if len(body) <= _FEW_BYTES:
        return msgpack.unpackb(body)
    made = 0

    def count(found: Any) -> Any:
        nonlocal made
        made += len(found) + 1
        if made > MAX_ITEMS:
            raise _too_many()
        return found

    limits: dict[str, Any] = {"max_array_len": MAX_ITEMS, "max_map_len": MAX_ITEMS // 2}
    try:
        return msgpack.unpackb(body, object_hook=count, list_hook=count, **limits)
    except ValueError as error:
        if "exceeds max_" in str(error):
            raise _too_many() from error
        raise


def _too_many() -> TooManyItems:
    return TooManyItems(
        f"the body holds more than {MAX_ITEMS} values, the limit of one request; send it in parts, or lists of numbers "
        "as msgpack bin",
        limit=MAX_ITEMS,
    )
