"""The documents that machines are kept in: msgpack with a version, as ``version`` or the first of a list. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgpack

from lsmq.errors import CorruptFile, UnsupportedFormat

T = TypeVar("T")


def pack(fields: Any) -> bytes:
    body: bytes = msgpack.packb(fields)
    return body


def decode(body: bytes, key: str, what: str, version: int, build: Callable[[Any], T]) -> T:
    """What ``build`` makes of the fields, lists among which are tuples; ``what`` it is to be, for errors.

    Raises ``UnsupportedFormat`` for a version above ``version``, and ``CorruptFile``, naming the document, for what
    is none.
    """
    try:
        fields = msgpack.unpackb(body, strict_map_key=False, use_list=False)
        found = fields["version"] if isinstance(fields, dict) else fields[0]
        if int(found) > version:
            raise UnsupportedFormat(
                f"document {key!r} has version {found}; this release reads {version}. Start the release that wrote "
                "it, or a newer one.",
                key=key,
                format=found,
            )
        return build(fields)
    except (KeyError, IndexError, TypeError, ValueError, msgpack.UnpackException) as error:
        raise CorruptFile(f"document {key!r} is no {what}: {error!r}", file=key, position=0) from error
