"""``lsmq message``: single messages by their id, and messages by their key or by what they have."""

from __future__ import annotations

import sys
from datetime import datetime

import click

from lsmq import Client, UnknownMessage
from lsmq.cli._formats import formatter
from lsmq.cli._queues import queue_of
from lsmq.cli.options import TIME, TOPIC, asks_a_node, json_option
from lsmq.cli.render import print_fields, progress, time_text

#: Messages that are asked for at a time.
_PAGE = 1_000


@click.group()
def message() -> None:
    """Look at single messages, and find them."""


@message.command()
@click.argument("id")
@click.option("--format", "format_text", help="text, json, raw or a template, as for consume.")
@json_option
@asks_a_node
async def get(client: Client, id: str, format_text: str | None, as_json: bool) -> None:
    """Show the message with this ID, which sending it printed and consuming it shows (%i).

    \b
      lsmq message get 00000001000000070000000000000042
      lsmq message get 00000001000000070000000000000042 --format raw > body
    """
    if as_json:
        format_text = "json"
    try:
        form = formatter(format_text) if format_text is not None else None
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--format") from error
    found = await client.message(id.lower())
    if form is not None:
        sys.stdout.buffer.write(form(found))
        sys.stdout.buffer.flush()
        return
    print_fields(
        [
            ("id", found.id),
            ("topic", found.topic),
            ("queue", found.queue if found.queue_name is None else found.queue_name),
            ("offset", found.offset),
            ("key", found.key),
            ("tag", found.tag),
            *([("type", found.type)] if found.type is not None else []),
            ("priority", found.priority),
            *([("subpriority", found.subpriority)] if found.subpriority else []),
            ("properties", dict(found.properties)),
            *([("headers", dict(found.headers))] if found.headers else []),
            *([("delete", True)] if found.delete else []),
            ("stored", time_text(found.stored_ms)),
            *([("expires", time_text(found.expires_ms))] if found.expires_ms is not None else []),
            ("bytes", len(found.body)),
            ("body", found.body),
        ]
    )


@message.command()
@click.argument("topic", type=TOPIC)
@click.argument("key")
@click.option("--format", "format_text", help="text, json, raw or a template, as for consume.")
@json_option
@asks_a_node
async def latest(client: Client, topic: str, key: str, format_text: str | None, as_json: bool) -> None:
    """Show the last message of KEY in TOPIC, which is its value where the topic is used as a table.

    \b
      lsmq message latest prices LSMQ
    """
    try:
        form = formatter("json" if as_json else format_text or "text")
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--format") from error
    found = await client.latest(topic, key)
    if found is None:
        raise UnknownMessage(f"topic {topic!r} has no message of the key {key!r}, or the last one says that it is gone")
    sys.stdout.buffer.write(form(found))
    sys.stdout.buffer.flush()


@message.command()
@click.argument("topic", type=TOPIC)
@click.option("--key", help="The key of the messages; without it look through the topic.")
@click.option("--from", "from_time", type=TIME, help="Stored at or after this time, or -2h for so long ago.")
@click.option("--to", "to_time", type=TIME, help="Stored before this time.")
@click.option("--queue", help="In this queue alone: a number, or in a named topic a name.")
@click.option("--tag", "tags", multiple=True, help="Only messages with this tag; again for others.")
@click.option("--type", "types", multiple=True, help="Only messages of this type; again for others.")
@click.option("--filter", "condition", metavar="CONDITION", help="Only messages that meet it, as for consume.")
@click.option("--limit", type=click.IntRange(min=1), default=32, show_default=True, help="At most so many messages.")
@click.option("--explain", is_flag=True, help="Say on standard error what each shard looked at.")
@click.option("--format", "format_text", help="text, json, raw or a template, as for consume.")
@json_option
@asks_a_node
async def find(
    client: Client,
    topic: str,
    key: str | None,
    from_time: datetime | None,
    to_time: datetime | None,
    queue: str | None,
    tags: tuple[str, ...],
    types: tuple[str, ...],
    condition: str | None,
    limit: int,
    explain: bool,
    format_text: str | None,
    as_json: bool,
) -> None:
    """Find messages in all queues of TOPIC: of a key, newest first; or all that meet --tag, --type, --filter, --from
    and --to, queue after queue and in each the oldest first.

    \b
      lsmq message find orders --key anna
      lsmq message find orders --type refund --filter 'amount > 1000'
      lsmq message find orders --key anna --from -2h --limit 5 --format json
      lsmq message find orders --from -15m
    """
    if key is None and not tags and not types and all(given is None for given in (condition, from_time, to_time)):
        raise click.UsageError("say what to find: --key, or one of --tag, --type, --filter, --from and --to")
    try:
        form = formatter("json" if as_json else format_text or "%S  %i  %q/%o  %b\\n")
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--format") from error
    after, left, looked_at = None, limit, 0
    while left:
        with progress("messages looked at", None, beside=key is not None) as shown:  # It is gone when some are printed.
            shown.advance(looked_at)
            found = await client.find_messages(
                topic,
                key,
                from_time=from_time,
                to_time=to_time,
                limit=min(left, _PAGE),
                after=after,
                queue=None if queue is None else await queue_of(client, topic, queue),
                tag=tags or None,
                type=types or None,
                filter=condition,
                explain=explain or key is None,
            )
            looked_at += sum(work.get("looked_at", 0) for work in found.explain)
        sys.stdout.buffer.write(b"".join(map(form, found.messages)))
        sys.stdout.buffer.flush()
        for work in found.explain if explain else ():
            click.echo(", ".join(f"{name} {count}" for name, count in work.items()), err=True)
        left, after = left - len(found.messages), found.next
        if after is None:
            break
