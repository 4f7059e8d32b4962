"""``lsmq topic``: create, grow, spread, alter, list, describe, trim and delete topics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any, Literal, TypeVar

import click

from lsmq import Client, InvalidRequest, Topic, TopicUsage, UnknownTopic
from lsmq.cli.options import (
    DURATION,
    QUEUE_COUNT,
    QUEUES,
    SIZE,
    TIME,
    TOPIC,
    DurationOrForever,
    asks_a_node,
    asks_first,
    json_option,
)
from lsmq.cli.render import counted, print_fields, print_json, print_table, time_text
from lsmq.queue_names import NAMED

Command = TypeVar("Command", bound=Callable[..., Any])

_SHOWN_QUEUES = 100


@click.group()
def topic() -> None:
    """Create, grow, spread, alter, list, describe, trim and delete topics."""


_COUNT = click.IntRange(min=1)
_OVERFLOW = click.Choice(["refuse", "drop_oldest", "drop_newest", "drop_lowest_priority", "drop_nearest_deadline"])
_ON_DISK_FULL = click.Choice(["refuse", "drop_oldest"])
#: Options of a topic that can be given when it is made, and changed later.
_ALTERABLE: tuple[Callable[[Command], Command], ...] = (
    click.option(
        "--retention", "--retention-ms", "retention_ms", type=DURATION, help="Keep messages this long, such as 7d."
    ),
    click.option("--retention-bytes", type=SIZE, help="Keep at most this much of the topic, such as 10GiB."),
    click.option("--ack", type=click.Choice(["quorum", "leader"]), help="When a write counts as stored."),
    click.option(
        "--flush", type=click.Choice(["sync", "async"]), help="When a replica has it: on its disk, or written."
    ),
    click.option("--max-message-bytes", type=SIZE, help="Refuse larger messages, such as 64KiB."),
    click.option(
        "--cleanup", type=click.Choice(["delete", "compact"]), help="compact: keep the last message of each key."
    ),
    click.option(
        "--delete-retention",
        "--delete-retention-ms",
        "delete_retention_ms",
        type=DURATION,
        help="Of a compacted topic: keep for so long that a key is gone, such as 1d.",
    ),
    click.option(
        "--dedupe-window",
        "--dedupe-window-ms",
        "dedupe_window_ms",
        type=DurationOrForever(),
        help="Store a message with the --dedupe-id of another once within so long, such as 1d, or forever.",
    ),
    click.option("--retention-messages", type=_COUNT, help="Keep the newest so many messages of each queue."),
    click.option("--max-messages", type=_COUNT, help="Hold at most so many messages; see --overflow."),
    click.option("--max-bytes", type=SIZE, help="Hold at most so much, such as 10GiB; see --overflow."),
    click.option("--queue-max-messages", type=_COUNT, help="Hold at most so many in each queue; see --overflow."),
    click.option("--queue-max-bytes", type=SIZE, help="Hold at most so much in each queue; see --overflow."),
    click.option("--overflow", type=_OVERFLOW, help="What gives way at those limits."),
    click.option("--on-disk-full", type=_ON_DISK_FULL, help="The same on a disk that is nearly full."),
    click.option("--ttl", "ttl_ms", type=DURATION, help="Deliver messages for so long after they are stored, as 1h."),
    click.option("--expired-to", metavar="TOPIC", help="Move what expires to this topic."),
    click.option("--dropped-to", metavar="TOPIC", help="Move what --overflow drops to this topic."),
    click.option(
        "--forget-empty", "forget_empty_ms", type=DURATION, help="Of a named topic: forget names empty for so long."
    ),
    click.option(
        "--delete-consumed/--keep-consumed", default=None, help="Delete what all groups of the topic have committed."
    ),
)


def _alterable(command: Command) -> Command:
    for option in reversed(_ALTERABLE):
        command = option(command)
    return command


@topic.command()
@click.argument("name")
@click.option("--queues", type=QUEUE_COUNT, default=1, show_default=True, help="How many; or named: see above.")
@_alterable
@click.option("--order", type=click.Choice(["ordinary", "strict"]), help="strict: keys keep their queues for ever.")
@click.option("--new", is_flag=True, help="Fail if the topic is there already, even with the same options.")
@json_option
@asks_a_node
async def create(
    client: Client,
    name: str,
    queues: int | Literal["named"],
    order: Literal["ordinary", "strict"] | None,
    new: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Create topic NAME.

    Creating a topic again with the same options succeeds; with others it fails with topic_exists. An idle
    queue costs next to nothing, so take as many as there are things whose messages must keep their order. With
    --queues named these have names, such as agents.7.inbox, and a queue is there once something is sent to it.

    \b
      lsmq topic create orders --queues 4096 --retention 7d
      lsmq topic create agents --queues named
    """
    created = await client.create_topic(name, queues=queues, exist_ok=not new, order=order, **options)
    _show_size(created, as_json)


def _show_size(found: Topic, as_json: bool) -> None:
    if as_json:
        print_json(found.to_dict())
    else:
        click.echo(f"topic {found.name}: {_queues(found)}")


def _queues(found: Topic) -> str:
    return "queues with names" if found.named else counted(found.queues, "queue")


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


@topic.command()
@click.argument("name", type=TOPIC)
@click.option(
    "--keys",
    type=click.Choice(["stay", "move"]),
    default="stay",
    show_default=True,
    help="stay: keys keep their queues, for ever; move: they go to others, as when it grows.",
)
@json_option
@asks_a_node
async def spread(client: Client, name: str, keys: Literal["stay", "move"], as_json: bool) -> None:
    """Have topic NAME use shards that came after it.

    It gets queues on them, as many on each as on those it lies on. No queue moves, and nothing is copied: messages,
    offsets and groups stay. Messages without a key use the new queues at once.

    \b
      lsmq shard grow 6
      lsmq topic spread orders
    """
    found = await client.spread_topic(name, keys=keys)
    _show_size(found, as_json)
    if not as_json:
        _show_routes(found, "queues")


@topic.command()
@click.argument("name", type=TOPIC)
@_alterable
@click.option("--unset", multiple=True, metavar="OPTION", help="Take an option away, such as retention-bytes.")
@json_option
@asks_a_node
async def alter(client: Client, name: str, unset: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Change options of topic NAME.

    What is not named stays as it is. Messages that are beyond a new limit go within moments.

    \b
      lsmq topic alter orders --retention 1d --unset retention-bytes
    """
    changes = {option: value for option, value in options.items() if value is not None}
    names = {text.removeprefix("--").replace("-", "_") for text in unset}
    taken = {f"{each}_ms" if f"{each}_ms" in options else each for each in names}
    for wrong in sorted(taken - options.keys()):
        raise click.UsageError(f"--unset {wrong}: there is no such option to take away; there are {', '.join(options)}")
    for both in sorted(taken & changes.keys()):
        raise click.UsageError(f"{both} is both set and taken away; give one of the two")
    if not changes and not taken:
        raise click.UsageError("say what to change, such as --retention 1d; see --help")
    altered = await client.alter_topic(name, **changes, **dict.fromkeys(taken))
    if as_json:
        print_json(altered.to_dict())
    else:
        click.echo(f"topic {altered.name}: {_set_options(altered) or 'defaults'}")


@topic.command("list")
@json_option
@asks_a_node
async def list_topics(client: Client, as_json: bool) -> None:
    """List all topics."""
    topics = await client.topics()
    if as_json:
        print_json([found.to_dict() for found in topics])
        return
    rows = [
        [found.name, NAMED if found.named else found.queues, time_text(found.created_ms), _set_options(found)]
        for found in topics
    ]
    print_table(["topic", "queues", "created", "options"], rows)


@topic.command()
@click.argument("name", type=TOPIC)
@click.option("--offsets", "with_offsets", is_flag=True, help="Also the offsets of every queue with messages.")
@json_option
@asks_a_node
async def describe(client: Client, name: str, with_offsets: bool, as_json: bool) -> None:
    """Show options, routes and how much topic NAME holds."""
    found = await client.topic(name)
    if found.named:
        await _describe_named(client, found, with_offsets, as_json)
        return
    offsets, usage = await client.offsets(name), await _usage(client, name)
    held = [(queue, earliest, latest) for queue, earliest, latest in offsets.rows() if latest > 0]
    if as_json:
        fields = {
            **found.to_dict(),
            "messages": usage.messages,
            "bytes": usage.size_bytes,
            "dropped": usage.dropped,
            "refused": usage.refused,
            "group_count": usage.group_count,
            "queues_used": len(held),
        }
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
            ("messages", usage.messages),
            ("bytes", f"about {usage.size_bytes}"),
            *_losses(usage),
            ("groups", usage.group_count),
            ("created", time_text(found.created_ms)),
            ("options", _set_options(found) or "defaults"),
        ]
    )
    _show_routes(found, "queues")
    if with_offsets:
        print_table(["queue", "earliest", "latest"], held[:_SHOWN_QUEUES])
        if len(held) > _SHOWN_QUEUES:
            click.echo(f"... and {len(held) - _SHOWN_QUEUES} more queues; --json prints all")


async def _usage(client: Client, name: str) -> TopicUsage:
    """Without the names of its groups, which may be many."""
    try:
        return await client.topic_usage(name, groups=0)
    except InvalidRequest:  # A node of a release before lists them all.
        return await client.topic_usage(name)


def _show_routes(found: Topic, of: str) -> None:
    rows = [[f"{route.first}-{route.end - 1}", route.shard, route.leader, route.epoch] for route in found.routes]
    print_table([of, "shard", "leader", "epoch"], rows)


async def _describe_named(client: Client, found: Topic, with_offsets: bool, as_json: bool) -> None:
    """Of a topic that may have millions of queues nothing is counted."""
    if as_json:
        fields = found.to_dict()
        if with_offsets:
            fields["offsets"] = [asdict(queue) for queue in await client.queues(found.name)]
        print_json(fields)
        return
    print_fields(
        [
            ("topic", found.name),
            ("id", found.id),
            ("queues", f"by name: lsmq queue list {found.name}"),
            ("created", time_text(found.created_ms)),
            ("options", _set_options(found) or "defaults"),
        ]
    )
    _show_routes(found, "slots")
    if with_offsets:
        queues = await client.queues(found.name, limit=_SHOWN_QUEUES + 1)
        rows = [[queue.name, queue.earliest, queue.latest] for queue in queues[:_SHOWN_QUEUES]]
        print_table(["queue", "earliest", "latest"], rows)
        if len(queues) > _SHOWN_QUEUES:
            click.echo("... and more queues; --json prints all")


@topic.command()
@click.argument("name", type=TOPIC)
@click.option("--before", type=TIME, help="What was stored before then: an ISO time, or -7d for seven days ago.")
@click.option("--queue", "--queues", "queues", type=QUEUES, help="Of these queues, such as 0-99,200.  [default: all]")
@click.option("--offset", type=click.IntRange(min=0), help="What lies below this offset, of the queues named.")
@asks_first(lambda name, **_: f"Delete the older messages of topic {name}, for every group?")
@asks_a_node
async def trim(
    client: Client, name: str, before: datetime | None, queues: Sequence[int] | None, offset: int | None
) -> None:
    """Delete the beginning of topic NAME: what is older than a time, or below an offset of a queue.

    \b
      lsmq topic trim orders --before 2026-11-01
      lsmq topic trim orders --queue 7 --offset 100
    """
    if (before is None) == (offset is None):
        raise click.UsageError("say --before or --offset, one of the two; 'lsmq topic purge' deletes all there is")
    if before is not None:
        await client.trim_topic(name, before=before, queues=queues)
    elif queues is None:
        raise click.UsageError("--offset needs --queue: an offset counts within a queue")
    else:
        await client.trim_topic(name, dict.fromkeys(queues, offset or 0))
    click.echo(f"topic {name} trimmed", err=True)


@topic.command()
@click.argument("name", type=TOPIC)
@click.option("--queue", "--queues", "queues", type=QUEUES, help="Of these queues, such as 0-99,200.  [default: all]")
@asks_first(lambda name, **_: f"Delete all messages of topic {name}, for every group?")
@asks_a_node
async def purge(client: Client, name: str, queues: Sequence[int] | None) -> None:
    """Delete all messages of topic NAME that are there now. The topic, its offsets and its groups stay."""
    messages = await client.purge_topic(name, queues=queues)
    click.echo(f"topic {name} purged: {counted(messages, 'message')} deleted", err=True)


@topic.command()
@click.argument("name", type=TOPIC)
@asks_first("Delete topic {name} and all its messages?")
@click.option("--missing-ok", is_flag=True, help="Succeed if there is no such topic.")
@asks_a_node
async def delete(client: Client, name: str, missing_ok: bool) -> None:
    """Delete topic NAME and all its messages."""
    try:
        await client.delete_topic(name, missing_ok=missing_ok)
    except UnknownTopic as error:
        raise UnknownTopic(f"there is no topic {name!r}; lsmq topic list shows those there are", topic=name) from error
    click.echo(f"topic {name} deleted", err=True)


def _losses(usage: TopicUsage) -> list[tuple[str, str]]:
    """What a person should know of, if there is anything."""
    dropped = ", ".join(f"{counted(count, 'message')} {_WENT[why]}" for why, count in usage.dropped.items() if count)
    refused = f"{counted(usage.refused, 'request')} at a limit" if usage.refused else ""
    return [(name, text) for name, text in (("dropped", dropped), ("refused", refused)) if text]


_WENT = {
    "expired": "expired",
    "lapsed": "expired and were moved",
    "overflow": "went at a limit",
    "consumed": "were consumed",
    "disk": "made room on a full disk",
}


def _set_options(found: Topic) -> str:
    return " ".join(f"{name}={value}" for name, value in found.options.items() if value is not None)
