"""Names of queues, in topics that are made with ``queues="named"``.

Such a topic has as many queues as names were used. For placement, and where members of a group share it, it is a topic
of :data:`SLOTS` *slots*, and a name lies in the one that its hash says. Inside a shard a name has a number, which
record batches, message ids and commits carry: the place of the shard's range of slots among the topic's ranges in the
upper 8 bits, and a number of the shard's own in the lower 24 (:data:`NUMBER_BITS`).
"""

from __future__ import annotations

import re
from typing import Final

import xxhash

from lsmq.errors import InvalidQueueName

#: What a topic says in place of a number of queues.
NAMED: Final = "named"
SLOTS: Final = 4096
MAX_NAME_BYTES: Final = 255
#: Characters of a topic's name.
MAX_TOPIC_NAME: Final = 200
#: Of a queue's number, those that count within its range of slots.
NUMBER_BITS: Final = 24
#: In which a batch has names in place of numbers, beside the names themselves.
SEPARATOR: Final = "\0"
#: Of a name's hash, what is left when it is shifted so far.
SLOT_SHIFT: Final = 64 - (SLOTS - 1).bit_length()
#: What no name has any of.
CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SHOWN = 60


def queue_slot(name: str) -> int:
    """The slot of a name: the upper 12 bits of the XXH3 of its UTF-8 bytes."""
    return xxhash.xxh3_64_intdigest(name.encode()) >> SLOT_SHIFT


def check_queue_name(name: object, called: str = "queue name", **where: str) -> str:
    """The name. Raises ``InvalidQueueName`` unless it is text of 1 to 255 bytes of UTF-8 without control characters.

    ``.`` and ``..`` are refused as well, which mean something else in a path. ``called``: what a refusal calls it, and
    ``where`` are details of that.
    """
    if not isinstance(name, str):
        raise InvalidQueueName(f"queue is {name!r}; the queues of a named topic have names, which are text", **where)
    try:
        size = len(name.encode())
    except UnicodeEncodeError as error:
        raise InvalidQueueName(f"the {called} {_shown(name)} has no bytes in UTF-8: {error.reason}", **where) from error
    if not 1 <= size <= MAX_NAME_BYTES:
        raise InvalidQueueName(
            f"the {called} {_shown(name)} has {size} bytes; it must have 1 to {MAX_NAME_BYTES}",
            limit=MAX_NAME_BYTES,
            **where,
        )
    if CONTROL.search(name) is not None:
        raise InvalidQueueName(f"the {called} {_shown(name)} has a control character; leave it out", **where)
    if name in (".", ".."):
        raise InvalidQueueName(f"the {called} {name!r} means a place in a path; choose another", **where)
    return name


def check_pattern(pattern: object) -> str:
    """The pattern. Raises ``InvalidQueueName`` unless its parts between dots are text, or ``*``, and the last ``**``.

    ``*`` stands for one part of a name, ``**`` for any rest: ``agents.**`` are all names that begin with ``agents.``.
    """
    if not isinstance(pattern, str) or not pattern:
        raise InvalidQueueName(
            f"the pattern is {pattern!r}; it must be text, such as '**' for all queues", field="pattern"
        )
    checked = check_queue_name(pattern, "pattern", field="pattern")
    *parts, last = checked.split(".")
    if any("*" in part and part != "*" for part in parts) or ("*" in last and last not in ("*", "**")):
        raise InvalidQueueName(
            f"the pattern {_shown(checked)} has a '*' that is not a whole part: write * for one part between dots, and"
            " ** at the end for any rest",
            field="pattern",
        )
    return checked


def pattern_prefix(pattern: str) -> str:
    """What all names begin with that a pattern matches."""
    return pattern.partition("*")[0]


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """What matches, as a whole, the names that a pattern means. Raises ``InvalidQueueName``."""
    *parts, last = check_pattern(pattern).split(".")
    found = ["[^.]*" if part == "*" else re.escape(part) for part in parts]
    found.append(".*" if last == "**" else "[^.]*" if last == "*" else re.escape(last))
    return re.compile(r"\.".join(found), re.DOTALL)


def _shown(name: str) -> str:
    return repr(name if len(name) <= _SHOWN else f"{name[:_SHOWN]}...")
