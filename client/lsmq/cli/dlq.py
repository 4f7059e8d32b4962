"""``lsmq dlq``: dead letters of work queues."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence

import click

from lsmq import Client
from lsmq.cli._options import TOPIC, json_option, url_option, with_client
from lsmq.cli._render import counted, print_json, print_table
from lsmq.dead_letters import SUFFIX, DeadLetter, DeadLetters, choice
from lsmq.errors import UnknownTopic

_BATCH = 500
_SHOWN_BODY = 60

_dead_letter = click.option("--dead-letter", metavar="TOPIC", help=f"Topic of dead letters.  [default: TOPIC{SUFFIX}]")
_group = click.option("--group", help="Only those of this group's consumers.")
_ids = click.option("--id", "ids", multiple=True, help="Only this one, by its id or that of the message it was.")
_yes = click.option("--yes", is_flag=True, help="Do not ask.")


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
@url_option
def list_letters(
    topic: str, dead_letter: str | None, group: str | None, limit: int, as_json: bool, url: str, deadline_ms: int
) -> None:
    """List the dead letters of TOPIC.

    \b
      lsmq dlq list orders --group kitchen
      lsmq dlq list orders --json | jq -r .body
    """

    async def work(client: Client) -> list[DeadLetter]:
        found: list[DeadLetter] = []
        chosen = choice(group, ())
        async for letter in _read(DeadLetters(client, dead_letter or topic + SUFFIX), topic):
            if chosen(letter):
                found.append(letter)
                if len(found) > limit:
                    break
        return found

    letters = with_client(url, deadline_ms, work)
    more, letters = len(letters) > limit, letters[:limit]
    if not letters:
        click.echo(f"no dead letters in {dead_letter or topic + SUFFIX}", err=True)
        return
    if as_json:
        for letter in letters:
            print_json(letter.to_dict())
    else:
        _show(letters)
    if more:
        click.echo(f"there are more than {limit}; --limit shows more", err=True)


async def _read(letters: DeadLetters, topic: str) -> AsyncIterator[DeadLetter]:
    """All of them; none where the topic for those of ``topic`` is not there, since there never were any."""
    try:
        async for letter in letters.read():
            yield letter
    except UnknownTopic:
        if letters.name != topic + SUFFIX:
            raise
        await letters.client.topic(topic)


def _show(letters: Sequence[DeadLetter]) -> None:
    now_ms = time.time() * 1000
    print_table(
        ["id", "queue", "offset", "group", "deliveries", "age", "reason", "body"],
        [
            [
                letter.message.id,
                letter.queue,
                letter.offset,
                letter.group,
                letter.deliveries,
                _age(now_ms - letter.message.stored_ms),
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


@dlq.command()
@click.argument("topic", type=TOPIC)
@_dead_letter
@_group
@_ids
@_yes
@url_option
def replay(
    topic: str, dead_letter: str | None, group: str | None, ids: Sequence[str], yes: bool, url: str, deadline_ms: int
) -> None:
    """Send dead letters of TOPIC again, to the queues they come from, and delete them here.

    Every group that reads TOPIC gets them. Letters whose body was cut are left.
    """
    name = dead_letter or topic + SUFFIX
    if not yes:
        click.confirm(f"Send {_which(group, ids)} of {name} again?", abort=True, err=True)

    async def work(client: Client) -> tuple[int, int]:
        letters, batch, sent, left = DeadLetters(client, name), list[DeadLetter](), 0, 0
        chosen = choice(group, ids)
        async for letter in _read(letters, topic):
            if not chosen(letter):
                continue
            if letter.is_cut or not letter.topic:
                left += 1
                continue
            batch.append(letter)
            if len(batch) == _BATCH:
                await letters.replay(batch)
                sent, batch = sent + len(batch), []
        await letters.replay(batch)
        return sent + len(batch), left

    sent, left = with_client(url, deadline_ms, work)
    click.echo(f"{counted(sent, 'dead letter')} of {name} sent again", err=True)
    if left:
        click.echo(f"{left} were left: they were cut, or do not say where they come from", err=True)


@dlq.command()
@click.argument("topic", type=TOPIC)
@_dead_letter
@_group
@_ids
@_yes
@url_option
def purge(
    topic: str, dead_letter: str | None, group: str | None, ids: Sequence[str], yes: bool, url: str, deadline_ms: int
) -> None:
    """Delete dead letters of TOPIC. Their space comes back with merges."""
    name = dead_letter or topic + SUFFIX
    if not yes:
        click.confirm(f"Delete {_which(group, ids)} of {name}?", abort=True, err=True)

    async def work(client: Client) -> int:
        letters = DeadLetters(client, name)
        if group is None and not ids:
            try:
                return await letters.purge()
            except UnknownTopic:
                await client.topic(topic if dead_letter is None else name)
                return 0
        chosen, batch, count = choice(group, ids), list[DeadLetter](), 0
        async for letter in _read(letters, topic):
            if chosen(letter):
                batch.append(letter)
                if len(batch) == _BATCH:
                    await letters.delete(batch)
                    count, batch = count + len(batch), []
        await letters.delete(batch)
        return count + len(batch)

    count = with_client(url, deadline_ms, work)
    click.echo(f"{counted(count, 'dead letter')} of {name} deleted", err=True)


def _which(group: str | None, ids: Sequence[str]) -> str:
    """In words."""
    if ids:
        return counted(len(ids), "dead letter")
    return "all dead letters" if group is None else f"the dead letters of group {group}"
