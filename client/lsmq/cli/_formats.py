"""How messages are printed: as text, JSON lines, raw bodies, or by a template."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from lsmq._wire_values import content_fields
from lsmq.cli.render import time_text
from lsmq.record_batch import Message

Formatter = Callable[[Message], bytes]

TEMPLATE_HELP = (
    "%t topic, %q queue, %o offset, %k key, %g tag, %y type, %b body, %i id, %p properties as JSON, %s stored at in"
    " ms, %S stored at as local time, %% a percent sign; \\n, \\t and \\0 as usual"
)

_FIELDS: dict[str, Formatter] = {
    "t": lambda message: message.topic.encode(),
    "q": lambda message: (message.queue_name or str(message.queue)).encode(),
    "o": lambda message: b"%d" % message.offset,
    "k": lambda message: message.key if isinstance(message.key, bytes) else (message.key or "").encode(),
    "g": lambda message: (message.tag or "").encode(),
    "y": lambda message: (message.type or "").encode(),
    "b": lambda message: message.body,
    "i": lambda message: message.id.encode(),
    "p": lambda message: json.dumps(dict(message.properties), ensure_ascii=False).encode(),
    "s": lambda message: b"%d" % message.stored_ms,
    "S": lambda message: time_text(message.stored_ms).encode(),
}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\"}


def formatter(text: str) -> Formatter:
    """The formatter that ``--format`` names, or that its template describes.

    Raises ``ValueError`` saying what is wrong with it.
    """
    match text:
        case "text":
            return lambda message: message.body + b"\n"
        case "json":
            return lambda message: json.dumps(to_dict(message), ensure_ascii=False).encode() + b"\n"
        case "raw":
            return lambda message: message.body
        case _ if "%" in text:
            return _template(text)
        case _:
            raise ValueError(f"{text!r} is not text, json, raw or a template; a template has {TEMPLATE_HELP}")


def to_dict(message: Message) -> dict[str, Any]:
    """The message as the HTTP API's JSON has it, and its topic."""
    return {
        "topic": message.topic,
        "queue": message.queue if message.queue_name is None else message.queue_name,
        "offset": message.offset,
        "id": message.id,
        "stored_ms": message.stored_ms,
        **content_fields(message),
    }


def _template(text: str) -> Formatter:
    parts: list[Formatter] = []
    for piece in re.findall(r"%.?|\\.|[^%\\]+|\\", text, re.DOTALL):
        if piece == "%%":
            parts.append(_literal("%"))
        elif piece.startswith("%"):
            if piece[1:] not in _FIELDS:
                raise ValueError(f"the template has {piece!r}; there are {TEMPLATE_HELP}")
            parts.append(_FIELDS[piece[1:]])
        elif piece.startswith("\\"):
            parts.append(_literal(_ESCAPES.get(piece[1:], piece)))
        else:
            parts.append(_literal(piece))
    return lambda message: b"".join([part(message) for part in parts])


def _literal(text: str) -> Formatter:
    encoded = text.encode()
    return lambda message: encoded
