"""Offsets of all queues of topics, as compact text: in a checkpoint, a manifest, an option, a task's description.

A column of offsets, one a queue, is written in one of two forms, whichever the offsets themselves ask for:

- *runs* while there are at most ``MAX_RUNS``: ``0-999999:0`` or ``0-3:17,4:18,5-15:17``; people can read and write
  them;
- *packed* else: ``z`` and the base64 of a zstd frame, in which stand the lowest offset (little-endian int64) and how
  far above it each offset is: the lowest bytes of all, then the next bytes of all, as many as the highest needs.

A million queues that all stand at 0 are 11 characters; a million that stand at random offsets below 1000 are about
1.7 MB, which is what they hold. Equal offsets always give equal text, since Spark compares the text.

A document is ``{"version": 1, "topics": {name: {"id", "queues", "offsets", "start"?, "gone"?}}}``. ``start``, a
column as well, stands in the end of a stream's batch that begins with a topic or with queues of it: no batch before
says from where. ``gone`` is true of a topic that was not there any more when a stream's batch ended. Topics whose
queues have names have ``shards`` in it, and no queues: see :mod:`.named_offsets`.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import zstandard
from numpy.typing import NDArray

I64 = NDArray[np.int64]

VERSION = 1
MAX_RUNS = 256
_LOW = struct.Struct("<q")
MAX_QUEUES = 1 << 26  # what a reader accepts: a few bytes could claim any number


@dataclass(frozen=True, slots=True)
class TopicOffsets:
    """An offset for each queue of a topic. ``topic_id`` tells the topic from one made anew under its name.

    ``start`` is where the batch of a stream that ends here reads from; None when that is where the one before ended.
    ``gone``: when a stream's batch ended here the topic was not there any more.
    """

    name: str
    topic_id: int
    offsets: I64
    start: I64 | None = None
    gone: bool = False

    @property
    def is_unread(self) -> bool:
        """Whether a stream has begun with the topic and read nothing of it."""
        return self.start is not None and np.array_equal(self.start, self.offsets)

    def to_dict(self) -> dict[str, Any]:
        fields = {"id": self.topic_id, "queues": len(self.offsets), "offsets": pack(self.offsets)}
        start = {} if self.start is None else {"start": pack(self.start)}
        return {**fields, **start, **({"gone": True} if self.gone else {})}

    @classmethod
    def from_dict(cls, name: str, fields: Mapping[str, Any]) -> TopicOffsets:
        """The reverse of :meth:`to_dict`. Raises ``KeyError``, ``ValueError``."""
        queues, start = int(fields["queues"]), fields.get("start")
        offsets = unpack(str(fields["offsets"]), queues)
        begun = None if start is None else unpack(str(start), queues)
        return cls(name, int(fields["id"]), offsets, begun, gone=bool(fields.get("gone")))


class Documented(Protocol):
    """Of a topic: what a document says of it."""

    def to_dict(self) -> dict[str, Any]: ...


def to_document(topics: Mapping[str, Documented]) -> dict[str, Any]:
    """The offsets of several topics as plain data, in order of name."""
    return {"version": VERSION, "topics": {name: topics[name].to_dict() for name in sorted(topics)}}


def is_document(given: Mapping[str, Any]) -> bool:
    """Whether it is a document, and not offsets by topic, one of which may be called ``version``."""
    return "version" in given and not isinstance(given["version"], Mapping)


def from_document(document: Mapping[str, Any]) -> dict[str, TopicOffsets]:
    """What a document says of topics whose queues have numbers. Raises ``ValueError`` that says what is wrong."""
    if document.get("version") != VERSION:
        raise ValueError(f"offsets of version {document.get('version')!r}; this release reads {VERSION}")
    try:
        topics = document["topics"].items()
        return {str(name): TopicOffsets.from_dict(str(name), entry) for name, entry in topics if "shards" not in entry}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(f"not a document of offsets: {error!r}") from error


def pack(offsets: I64) -> str:
    """A column of offsets as text."""
    if len(offsets) == 0:
        return ""
    cuts = np.flatnonzero(offsets[1:] != offsets[:-1]) + 1
    if len(cuts) < MAX_RUNS:
        firsts = [0, *cuts.tolist()]
        lasts = [*(cut - 1 for cut in cuts.tolist()), len(offsets) - 1]
        return ",".join(
            f"{first}:{offsets[first]}" if first == last else f"{first}-{last}:{offsets[first]}"
            for first, last in zip(firsts, lasts, strict=True)
        )
    low = int(offsets.min())
    above = (offsets - low).astype("<i8").view(np.uint8).reshape(len(offsets), 8)
    planes = above.T[: max(1, ((int(offsets.max()) - low).bit_length() + 7) // 8)]
    return "z" + base64.b64encode(zstandard.compress(_LOW.pack(low) + planes.tobytes(), 3)).decode()


def unpack(text: str, queues: int) -> I64:
    """The column that :func:`pack` made ``text`` of. Raises ``ValueError``."""
    if not 0 <= queues <= MAX_QUEUES:
        raise ValueError(f"offsets of {queues} queues; at most {MAX_QUEUES} are possible")
    if text.startswith("z"):
        return _unpack_planes(text, queues)
    offsets = np.full(queues, -1, np.int64)
    for run in filter(None, text.split(",")):
        place, colon, offset = run.partition(":")
        first, dash, last = place.partition("-")
        if not colon or not first.isdecimal() or (dash and not last.isdecimal()):
            raise ValueError(f"{run!r} is not queues and an offset such as 0-99:17")
        offsets[int(first) : (int(last) if dash else int(first)) + 1] = int(offset)
    if (offsets < 0).any():
        raise ValueError(f"the offsets do not name queue {int(np.argmax(offsets < 0))} of {queues}")
    return offsets


def _unpack_planes(text: str, queues: int) -> I64:
    try:
        raw = zstandard.decompress(base64.b64decode(text[1:], validate=True), max_output_size=_LOW.size + 8 * queues)
    except zstandard.ZstdError as error:
        raise ValueError(f"packed offsets are damaged: {error}") from error
    count, rest = divmod(len(raw) - _LOW.size, max(1, queues))
    if len(raw) < _LOW.size or rest or not 1 <= count <= 8:
        raise ValueError(f"packed offsets are {len(raw)} bytes, which does not fit {queues} queues")
    above = np.zeros((queues, 8), np.uint8)
    above.T[:count] = np.frombuffer(raw, np.uint8, offset=_LOW.size).reshape(count, queues)
    offsets: I64 = above.view("<i8").reshape(queues).astype(np.int64)
    offsets += _LOW.unpack_from(raw)[0]
    return offsets
