"""``lsmq delayed``: messages that are to come later."""

from __future__ import annotations

from datetime import datetime

import click

from lsmq import Client, DelayedMessage, DelayedMessages
from lsmq.cli.options import DURATION, TIME, TOPIC, asks_a_node, json_option, one_by_one
from lsmq.cli.render import print_json, print_table, time_text
from lsmq.errors import AlreadyDelivered, InvalidRequest, NotEnoughReplicas, ShardStopped, TimedOut, UnknownMessage

_SHOWN_BODY = 60
#: What fails of one message, while others can be cancelled.
_OF_ONE_MESSAGE = (AlreadyDelivered, UnknownMessage, InvalidRequest, NotEnoughReplicas, ShardStopped, TimedOut)


@click.group()
def delayed() -> None:
    """See messages that are to come later, cancel them, put them at another time.

    They are sent with lsmq produce --delay, or --at.
    """


@delayed.command("list")
@click.argument("topic", type=TOPIC)
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="Show this many.")
@json_option
@asks_a_node
async def list_command(client: Client, topic: str, limit: int, as_json: bool) -> None:
    """List messages of TOPIC that are not due yet, those that are due next first.

    \b
      lsmq delayed list reminders
    """
    found: list[DelayedMessage] = []
    more = False
    async for message in DelayedMessages(client, topic).read():
        if len(found) == limit:
            more = True
            break
        found.append(message)
    if as_json:
        for message in found:
            print_json(message.to_dict())
    else:
        print_table(
            ["id", "due", "queue", "key", "tag", "body"],
            [
                [
                    each.id,
                    time_text(each.due_ms),
                    each.message.queue if each.message.queue_name is None else each.message.queue_name,
                    each.message.key,
                    each.message.tag,
                    each.message.body[:_SHOWN_BODY],
                ]
                for each in found
            ],
        )
    if more:
        click.echo(f"there are more than {limit}; --limit shows more", err=True)


@delayed.command()
@click.argument("topic", type=TOPIC)
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@asks_a_node
async def cancel(client: Client, topic: str, ids: tuple[str, ...]) -> None:
    """Cancel messages of TOPIC by the IDs that sending and listing show: they never come.

    One that cannot be cancelled, since it has come or is not there, is named, and the others are cancelled all the
    same; the exit status is 1 then.

    \b
      lsmq delayed cancel reminders 4000019ab3c41d270000000000001f3a
    """
    messages = DelayedMessages(client, topic)

    async def one(id: str) -> None:
        await messages.cancel(id)
        click.echo(f"cancelled {id}", err=True)

    await one_by_one(ids, one, _OF_ONE_MESSAGE)


@delayed.command()
@click.argument("topic", type=TOPIC)
@click.argument("id")
@click.option("--delay", "delay_ms", type=DURATION, help="So long from now, such as 10m.")
@click.option("--at", "deliver_at", type=TIME, help="When: 2026-12-24T18:00, local time unless it names a zone.")
@asks_a_node
async def reschedule(client: Client, topic: str, id: str, delay_ms: int | None, deliver_at: datetime | None) -> None:
    """Put a message of TOPIC at another time, and print the id that it has from then on.

    \b
      lsmq delayed reschedule reminders 4000019ab3c41d270000000000001f3a --delay 1d
    """
    if (delay_ms is None) == (deliver_at is None):
        raise click.UsageError("give --delay or --at: when the message is to come")
    at_ms = None if deliver_at is None else int(deliver_at.timestamp() * 1000)
    sent = await DelayedMessages(client, topic).reschedule(id, delay_ms=delay_ms, deliver_at_ms=at_ms)
    click.echo(sent.id)
