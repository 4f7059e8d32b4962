"""``lsmq topic``: create, grow, list, describe and delete topics."""

from __future__ import annotations

from typing import Literal

import click

from lsmq import Client, Topic
from lsmq.cli.options import DURATION, SIZE, TOPIC, asks_a_node, asks_first, json_option
from lsmq.cli.render import counted, print_fields, print_json, print_table, time_text
from lsmq.topics import Ack

_SHOWN_QUEUES = 100


@click.group()
def topic() -> None:
    """Create, grow, list, describe and delete topics."""


@topic.command()
@click.argument("name")
@click.option("--queues", type=click.IntRange(min=1), default=1, show_default=True, help="Number of queues.")
@click.option("--retention", "retention_ms", type=DURATION, help="Keep messages this long, such as 7d.")
@click.option("--retention-bytes", type=SIZE, help="Keep at most this much of the topic, such as 10GiB.")
@click.option("--ack", type=click.Choice(["quorum", "leader"]), help="When a write counts as stored.")
@click.option("--max-message-bytes", type=SIZE, help="Refuse larger messages, such as 64KiB.")
@click.option("--order", type=click.Choice(["ordinary", "strict"]), help="strict: keys keep their queues for ever.")
@click.option("--new", is_flag=True, help="Fail if the topic is there already, even with the same options.")
@json_option
@asks_a_node
async def create(
    client: Client,
    name: str,
    queues: int,
    retention_ms: int | None,
    retention_bytes: int | None,
    ack: Ack | None,
    max_message_bytes: int | None,
    order: Literal["ordinary", "strict"] | None,
    new: bool,
    as_json: bool,
) -> None:
    """Create topic NAME.

    Creating a topic again with the same options succeeds; with others it fails with topic_exists. An idle
    queue costs next to nothing, so take as many as there are things whose messages must keep their order.

    \b
      lsmq topic create orders --queues 4096 --retention 7d
    """
    created = await client.create_topic(
        name,
        queues=queues,
        exist_ok=not new,
        retention_ms=retention_ms,
        retention_bytes=retention_bytes,
        ack=ack,
        max_message_bytes=max_message_bytes,
        order=order,
    )
    _show_size(created, as_json)


def _show_size(found: Topic, as_json: bool) -> None:
    if as_json:
        print_json(found.to_dict())
    else:
        click.echo(f"topic {found.name}: {counted(found.queues, 'queue')}")


@topic.command()
@click.argument("name", type=TOPIC)
@click.option("--queues", type=click.IntRange(min=1), required=True, help="How many it is to have.")
@json_option
@asks_a_node
async def grow(client: Client, name: str, queues: int, as_json: bool) -> None:
    """Give topic NAME more queues.

    No queue moves, and nothing is copied. Keys go to other queues from then on, so that for a moment a key's messages
    may be handled out of order; not in a topic of strict order, where keys keep their queues.

    \b
      lsmq topic grow orders --queues 8192
    """
    _show_size(await client.grow_topic(name, queues), as_json)


@topic.command("list")
@json_option
@asks_a_node
async def list_topics(client: Client, as_json: bool) -> None:
    """List all topics."""
    topics = await client.topics()
    if as_json:
        print_json([found.to_dict() for found in topics])
        return
    rows = [[found.name, found.queues, time_text(found.created_ms), _set_options(found)] for found in topics]
    print_table(["topic", "queues", "created", "options"], rows)


@topic.command()
@click.argument("name", type=TOPIC)
@click.option("--offsets", "with_offsets", is_flag=True, help="Also the offsets of every queue with messages.")
@json_option
@asks_a_node
async def describe(client: Client, name: str, with_offsets: bool, as_json: bool) -> None:
    """Show options, routes and how much topic NAME holds."""
    found, offsets = await client.topic(name), await client.offsets(name)
    held = [(queue, earliest, latest) for queue, earliest, latest in offsets.rows() if latest > 0]
    stored = sum(latest - earliest for _, earliest, latest in held)
    if as_json:
        fields = {**found.to_dict(), "messages": stored, "queues_used": len(held)}
        if with_offsets:
            fields["offsets"] = [
                {"queue": queue, "earliest": earliest, "latest": latest} for queue, earliest, latest in held
            ]
        print_json(fields)
        return
    print_fields(
        [
            ("topic", found.name),
            ("id", found.id),
            ("queues", found.queues),
            ("queues used", len(held)),
            ("messages", stored),
            ("created", time_text(found.created_ms)),
            ("options", _set_options(found) or "defaults"),
        ]
    )
    rows = [[f"{route.first}-{route.end - 1}", route.shard, route.leader, route.epoch] for route in found.routes]
    print_table(["queues", "shard", "leader", "epoch"], rows)
    if with_offsets:
        print_table(["queue", "earliest", "latest"], held[:_SHOWN_QUEUES])
        if len(held) > _SHOWN_QUEUES:
            click.echo(f"... and {len(held) - _SHOWN_QUEUES} more queues; --json prints all")


@topic.command()
@click.argument("name", type=TOPIC)
@asks_first("Delete topic {name} and all its messages?")
@click.option("--missing-ok", is_flag=True, help="Succeed if there is no such topic.")
@asks_a_node
async def delete(client: Client, name: str, missing_ok: bool) -> None:
    """Delete topic NAME and all its messages."""
    await client.delete_topic(name, missing_ok=missing_ok)
    click.echo(f"topic {name} deleted", err=True)


def _set_options(found: Topic) -> str:
    return " ".join(f"{name}={value}" for name, value in found.options.items() if value is not None)
