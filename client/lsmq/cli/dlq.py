"""``lsmq dlq``: dead letters of work queues."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Any

import click

from lsmq import Client
from lsmq.cli.options import TOPIC, asks_a_node, asks_first, json_option
from lsmq.cli.render import counted, print_json, print_table, progress
from lsmq.dead_letters import Choice, DeadLetter, DeadLetters, choice
from lsmq.errors import InvalidRequest, LsmqError, UnknownMessage, UnknownQueue, UnknownTopic
from lsmq.topics import DEAD_LETTER_SUFFIX, dead_letter_topic

_BATCH = 500
_SHOWN_BODY = 60
_NAMED = 20

_dead_letter = click.option(
    "--dead-letter", metavar="TOPIC", help=f"Topic of dead letters.  [default: TOPIC{DEAD_LETTER_SUFFIX}]"
)
_group = click.option("--group", help="Only those of this group's consumers.")
_ids = click.option("--id", "ids", multiple=True, help="Only this one, by its id or that of the message it was.")


@click.group()
def dlq() -> None:
    """Look at dead letters, send them again, delete them.

    A message of a work queue that failed max_deliveries times is a dead letter: a message of TOPIC.dlq that says
    where it comes from and why.
    """


@dlq.command("list")
@click.argument("topic", type=TOPIC)
@_dead_letter
@_group
@click.option("--limit", type=click.IntRange(1), default=1_000, show_default=True, help="Show so many at most.")
@json_option
@asks_a_node
async def list_letters(
    client: Client, topic: str, dead_letter: str | None, group: str | None, limit: int, as_json: bool
) -> None:
    """List the dead letters of TOPIC.

    \b
      lsmq dlq list orders --group kitchen
      lsmq dlq list orders --json | jq -r .body
    """
    letters: list[DeadLetter] = []
    chosen = choice(group, ())
    async with aclosing(_read(DeadLetters(client, dead_letter or dead_letter_topic(topic)), topic)) as read:
        async for letter in read:
            if chosen(letter):
                letters.append(letter)
                if len(letters) > limit:
                    break
    more, letters = len(letters) > limit, letters[:limit]
    if not letters:
        click.echo(f"no dead letters in {dead_letter or dead_letter_topic(topic)}", err=True)
        return
    if as_json:
        for letter in letters:
            print_json(letter.to_dict())
    else:
        _show(letters)
    if more:
        click.echo(f"there are more than {limit}; --limit shows more", err=True)


async def _read(letters: DeadLetters, topic: str) -> AsyncGenerator[DeadLetter, None]:
    """All of them; none where the topic for those of ``topic`` is not there, since there never were any."""
    try:
        with progress("dead letters read", None) as shown:
            async for letter in letters.read():
                yield letter
                shown.advance(1)
    except UnknownTopic:
        options = (await letters.client.topic(topic)).options
        if letters.name not in (dead_letter_topic(topic), options.get("expired_to"), options.get("dropped_to")):
            raise


def _show(letters: Sequence[DeadLetter]) -> None:
    now_ms = time.time() * 1000
    print_table(
        ["id", "queue", "offset", "group", "deliveries", "age", "kind", "reason", "body"],
        [
            [
                letter.message.id,
                letter.queue,
                letter.offset,
                letter.group,
                letter.deliveries,
                _age(now_ms - letter.message.stored_ms),
                letter.kind,
                letter.reason,
                letter.message.body[:_SHOWN_BODY],
            ]
            for letter in letters
        ],
    )


def _age(age_ms: float) -> str:
    seconds = max(0, round(age_ms / 1000))
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def _of_these(question: str) -> Callable[[Callable[..., Awaitable[None]]], click.Command]:
    """A command for chosen letters. It is given the name of their topic, too."""

    def asks(topic: str, dead_letter: str | None, group: str | None, ids: Sequence[str], **_: Any) -> str:
        return question.format(which=_which(group, ids), name=dead_letter or dead_letter_topic(topic))

    def decorate(command: Callable[..., Awaitable[None]]) -> click.Command:
        run = asks_first(asks)(asks_a_node(command))
        for option in (_ids, _group, _dead_letter, click.argument("topic", type=TOPIC)):
            run = option(run)
        return dlq.command()(run)

    return decorate


@_of_these("Send {which} of {name} again?")
async def replay(client: Client, topic: str, dead_letter: str | None, group: str | None, ids: Sequence[str]) -> None:
    """Send dead letters of TOPIC again, to the queues they come from, and delete them here.

    Every group that reads TOPIC gets them. One whose queue is not there any more is left, and named. Letters whose body
    was cut are left, and those that say that they come from another topic: whoever may write to the topic of dead
    letters can have them say so.
    """
    letters = DeadLetters(client, dead_letter or dead_letter_topic(topic))
    chosen, sent, left, others = choice(group, ids), 0, 0, set[str]()

    def can_be_sent(letter: DeadLetter) -> bool:
        nonlocal left
        if not chosen(letter):
            return False
        can = letter.topic == topic and not letter.is_cut
        left += not can
        if letter.topic not in ("", topic):
            others.add(letter.topic)
        return can

    refused: list[LsmqError] = []

    async def send(some: Sequence[DeadLetter]) -> None:
        nonlocal sent
        try:
            sent += await letters.replay(some, topics=[topic])
        except (InvalidRequest, UnknownQueue) as error:
            sent += error.details["sent"]
            refused.append(error)

    _check_found(letters, ids, await _batched(letters, topic, can_be_sent, send) + left)
    click.echo(f"{counted(sent, 'dead letter')} of {letters.name} sent again", err=True)
    if left:
        from_others = f", or say that they come from {', '.join(sorted(others)[:5])}" if others else ""
        click.echo(f"{left} were left: they were cut, or do not say where they come from{from_others}", err=True)
    if refused:
        not_sent = [id for error in refused for id in error.details["not_sent"]]
        more = f" and {len(not_sent) - _NAMED} more" if len(not_sent) > _NAMED else ""
        click.echo(f"not sent: {', '.join(not_sent[:_NAMED])}{more}", err=True)
        raise refused[0]


@_of_these("Delete {which} of {name}?")
async def purge(client: Client, topic: str, dead_letter: str | None, group: str | None, ids: Sequence[str]) -> None:
    """Delete dead letters of TOPIC. Their space comes back with merges."""
    letters = DeadLetters(client, dead_letter or dead_letter_topic(topic))
    if group is not None or ids:
        count = await _batched(letters, topic, choice(group, ids), letters.delete)
        _check_found(letters, ids, count)
    else:
        try:
            if letters.name != dead_letter_topic(topic):
                await _check_are_letters(letters)
            count = await letters.purge()
        except UnknownTopic:
            await client.topic(topic if dead_letter is None else letters.name)
            count = 0
    click.echo(f"{counted(count, 'dead letter')} of {letters.name} deleted", err=True)


async def _check_are_letters(letters: DeadLetters) -> None:
    """Raises ``InvalidRequest`` where the topic begins with another message: then it is not for dead letters."""
    async for letter in letters.read():
        if not letter.topic:
            raise InvalidRequest(
                f"topic {letters.name!r} has messages that are no dead letters, such as {letter.message.id}; nothing "
                f"was deleted. lsmq topic purge {letters.name} deletes all that a topic has"
            )
        return


async def _batched(
    letters: DeadLetters, topic: str, chosen: Choice, do: Callable[[Sequence[DeadLetter]], Awaitable[None]]
) -> int:
    """Do something with the chosen letters, some at a time; with how many."""
    batch: list[DeadLetter] = []
    count = 0
    async with aclosing(_read(letters, topic)) as read:
        async for letter in read:
            if chosen(letter):
                batch.append(letter)
                if len(batch) == _BATCH:
                    await do(batch)
                    count, batch = count + len(batch), []
    await do(batch)
    return count + len(batch)


def _check_found(letters: DeadLetters, ids: Sequence[str], found: int) -> None:
    """Raises ``UnknownMessage`` where none of those that were named is there."""
    if ids and not found:
        named = ", ".join(ids[:5])
        raise UnknownMessage(f"there is no dead letter {named} in {letters.name}; lsmq dlq list shows those there are")


def _which(group: str | None, ids: Sequence[str]) -> str:
    """In words."""
    if ids:
        return counted(len(ids), "dead letter")
    return "all dead letters" if group is None else f"the dead letters of group {group}"
