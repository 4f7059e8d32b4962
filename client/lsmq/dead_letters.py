"""Dead letters: messages of a work queue that failed for the last time. To look at, send again, and delete.

They are messages like others, of the topic ``<topic>.dlq`` unless the work queue says otherwise, with properties that
say where they come from.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lsmq._paths import topic_path
from lsmq._receipts import Receipt
from lsmq._wire_values import content_fields, message_from_dict
from lsmq.client import Client
from lsmq.errors import InvalidRequest, LsmqError, UnknownQueue
from lsmq.producer import Producer
from lsmq.record_batch import Message, parse_message_id
from lsmq.topics import dead_letter_topic

PROPERTY_PREFIX = "lsmq-dlq-"
_PAGE = 500
#: What stands before a worker's reason, in the property that says why.
_REFUSED = "negative acknowledgement"


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """``message`` is the letter; the rest is where it comes from and why. What it does not say is empty, or -1."""

    message: Message

    def _of(self, name: str) -> str:
        return self.message.properties.get(PROPERTY_PREFIX + name, "")

    def _number(self, name: str) -> int:
        text = self._of(name)
        return int(text) if text.isdecimal() else -1

    @property
    def topic(self) -> str:
        """Where it was sent to."""
        return self._of("topic")

    @property
    def queue(self) -> int:
        return self._number("queue")

    @property
    def queue_name(self) -> str | None:
        """Of the queue, where it has one."""
        return self._of("queue-name") or None

    @property
    def offset(self) -> int:
        return self._number("offset")

    @property
    def source_id(self) -> str:
        """Of the message it was."""
        return self._of("id")

    @property
    def group(self) -> str:
        """Whose consumers failed."""
        return self._of("group")

    @property
    def deliveries(self) -> int:
        return self._number("deliveries")

    @property
    def kind(self) -> str:
        """Why it is here: ``negative acknowledgement``, ``visibility timeout``, ``expired``, ``overflow``."""
        return self._why[0]

    @property
    def reason(self) -> str:
        """What the worker said that refused it last; empty where it said nothing, or nobody was asked."""
        return self._why[1]

    @property
    def _why(self) -> tuple[str, str]:
        kind, separator, said = self._of("reason").partition(": ")
        return (kind, said) if not separator or kind == _REFUSED else (self._of("reason"), "")

    @property
    def is_cut(self) -> bool:
        """Whether the body lost its end, since it did not fit with all this."""
        return bool(self._of("cut"))

    def to_dict(self) -> dict[str, Any]:
        """For JSON: bytes that are no text are base64, under a name that ends in ``_b64``."""
        message = self.message
        return {
            "id": message.id,
            "topic": self.topic,
            "queue": self.queue if self.queue_name is None else self.queue_name,
            "offset": self.offset,
            "source_id": self.source_id,
            "group": self.group,
            "deliveries": self.deliveries,
            "kind": self.kind,
            "reason": self.reason,
            "cut": self.is_cut,
            "dead_since_ms": message.stored_ms,
            **content_fields(message),
            "properties": own_properties(message),
        }


def own_properties(message: Message) -> dict[str, str]:
    """Those that the message had before it was a dead letter."""
    return {name: text for name, text in message.properties.items() if not name.startswith(PROPERTY_PREFIX)}


class DeadLetters:
    """The dead letters in one topic. Raises ``UnknownTopic`` where there never were any."""

    def __init__(self, client: Client, name: str) -> None:
        """``name``: of the topic of dead letters."""
        self.client = client
        self.name = name

    async def read(self) -> AsyncGenerator[DeadLetter, None]:
        """All there are by now, by queue and age."""
        topic = await self.client.topic(self.name)
        bounds = await self.client.offsets(self.name)
        for queue, earliest, latest in bounds.rows():
            offset = earliest
            while offset < latest:
                answer = await self.client._router.ask_leader(
                    topic,
                    topic.route(queue).shard,
                    "GET",
                    f"{topic_path(self.name)}/queues/{queue}/messages",
                    params={"offset": str(offset), "max": str(min(_PAGE, latest - offset))},
                    deadline=self.client._deadline(),
                )
                letters, following = answer.parsed(self._page)
                for letter in letters:
                    yield letter
                if following <= offset:
                    break
                offset = following

    def _page(self, fields: Mapping[str, Any]) -> tuple[list[DeadLetter], int]:
        found = [DeadLetter(message_from_dict({**each, "topic": self.name})) for each in fields["messages"]]
        return found, int(fields["next_offset"])

    async def replay(self, letters: Sequence[DeadLetter], *, topics: Collection[str] | None = None) -> int:
        """Send them again to where they come from, as they were, and delete them here; how many.

        Durable on return. If it fails midway, some may be in both places: replayed again, they come twice. One that
        cannot be sent, as its queue is not there any more, holds up no other: it stays, and is named when the others
        are sent.

        Args:
            topics: where they may be sent. Without it, of ``orders.dlq`` that is ``orders``, and of any other topic
                nowhere. For a letter itself says where it comes from: whoever may write here could have anything sent
                anywhere, by the rights of whoever replays it.

        Raises ``InvalidRequest`` for a letter of another topic, before anything is sent; ``UnknownQueue``,
        ``InvalidRequest``, or what else sending raises, for the first that was not sent: its ``details`` say how many
        were, ``sent``, and the ids of all that were not, ``not_sent``.
        """
        if topics is None:
            topics = {letter.topic for letter in letters if dead_letter_topic(letter.topic) == self.name} - {""}
        by_topic: dict[str, list[DeadLetter]] = {}
        for letter in letters:
            if letter.topic not in topics:
                says = (
                    f"says that it comes from {letter.topic!r}" if letter.topic else "does not say where it comes from"
                )
                raise InvalidRequest(
                    f"the letter {letter.message.id} in {self.name!r} {says}; name in topics where letters may be sent",
                    field="topics",
                )
            by_topic.setdefault(letter.topic, []).append(letter)
        count = 0
        refused: list[tuple[str, LsmqError]] = []
        for name, some in by_topic.items():
            sent: list[DeadLetter] = []
            async with Producer(self.client, name) as producer:
                receipts = []
                for letter in some:
                    try:
                        receipts.append((letter, await _send(producer, letter)))
                    except (InvalidRequest, UnknownQueue) as error:  # The others are not to be sent with each attempt.
                        said = f"the letter {letter.message.id} cannot be sent again: {error.message}"
                        refused.append((letter.message.id, type(error)(said, **error.details)))
                for letter, receipt in receipts:
                    try:
                        await receipt
                    except LsmqError as error:
                        refused.append((letter.message.id, error))
                    else:
                        sent.append(letter)
            await self.delete(sent)
            count += len(sent)
        if refused:
            first = refused[0][1]
            first.details |= {"sent": count, "not_sent": [id for id, _ in refused]}
            raise first
        return count

    async def delete(self, letters: Iterable[DeadLetter]) -> None:
        """Delete these. Durable on return. Those of a topic that was deleted, and made anew since, went with it."""
        topic = await self.client.topic(self.name)
        messages = [letter.message for letter in letters]
        places = [(each.queue, each.offset) for each in messages if parse_message_id(each.id)[0] >= topic.id]
        await self.client.delete_messages(self.name, places)

    async def purge(self) -> int:
        """Delete all there are by now; how many. Durable on return."""
        count = 0
        async for _ in self.read():
            count += 1
        bounds = await self.client.offsets(self.name)
        ends = {queue: latest for queue, earliest, latest in bounds.rows() if latest > earliest}
        await self.client.trim_topic(self.name, ends)
        return count


async def _send(producer: Producer, letter: DeadLetter) -> Receipt:
    message = letter.message
    return await producer.send(
        message.body,
        key=message.key,
        tag=message.tag,
        queue=letter.queue_name or (letter.queue if letter.queue >= 0 else None),
        properties=own_properties(message),
        headers=message.headers,
        priority=message.priority,
        subpriority=message.subpriority,
        delete=message.delete,
        type=message.type,
    )


Choice = Callable[[DeadLetter], bool]


def choice(group: str | None, ids: Sequence[str]) -> Choice:
    """Letters of a group's consumers, or with these ids; all, where neither is given."""
    wanted = set(ids)

    def chosen(letter: DeadLetter) -> bool:
        return (group is None or letter.group == group) and (
            not wanted or letter.message.id in wanted or letter.source_id in wanted
        )

    return chosen
