"""Named queues as tests ask for them: sending, reading, listing and fetching by name."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from lsmq.record_batch import Column, Flag, split_batches

from .calls import Answer, Api


def named_topic(api: Api, topic_name: str) -> str:
    """A topic with named queues of the test's own."""
    created = api.call("PUT", f"/v1/topics/{topic_name}", {"queues": "named"}, status=201).json()
    assert created["queues"] == "named" and created["named"] is True and "named" not in created["options"]
    assert [(route["first"], route["end"]) for route in created["routes"]] == [(0, 4096)]
    return topic_name


def send(api: Api, topic: str, *items: tuple[str, str], status: int = 200) -> Answer:
    return api.send(topic, *({"queue": queue, "body": body} for queue, body in items), status=status)


def path(topic: str, queue: str) -> str:
    return f"/v1/topics/{topic}/queues/{quote(queue, safe='')}"


def bodies(api: Api, topic: str, queue: str) -> list[str]:
    return [message["body"] for message in api.get(f"{path(topic, queue)}/messages").json()["messages"]]


def listed(api: Api, topic: str, query: str = "") -> list[str]:
    return [row["name"] for row in api.get(f"/v1/topics/{topic}/queues{query}").json()["queues"]]


class Found:
    """A fetch's answer: by queue name the messages, from where each begins."""

    def __init__(self, answer: Answer) -> None:
        self.session = answer.headers.get("Lsmq-Fetch-Session")
        self.positions: dict[int, int] = {}
        self.messages: dict[str, list[str]] = {}
        names: dict[int, tuple[str, int]] = {}
        for batch in split_batches(answer.body, source="answer"):
            flags = list(batch.column(Column.FLAGS))
            queues, offsets = list(batch.column(Column.QUEUE)), list(batch.column(Column.OFFSET))
            ends = 0
            for at, (queue, offset) in enumerate(zip(queues, offsets, strict=True)):
                begin, ends = ends, ends + list(batch.column(Column.LENGTH))[at]
                body_at = begin + list(batch.column(Column.HEADER_LENGTH))[at]
                if flags[at] == Flag.POSITION:
                    self.positions[queue] = offset
                elif flags[at] == Flag.NAMES:
                    names[queue] = bytes(batch.payload[begin:ends]).decode(), offset
                elif queue in names and offset >= names[queue][1]:
                    self.messages.setdefault(names[queue][0], []).append(bytes(batch.payload[body_at:ends]).decode())


def fetch(api: Api, topic: str, **document: Any) -> Found:
    return Found(api.call("POST", f"/v1/topics/{topic}/fetch", document, status=200))
