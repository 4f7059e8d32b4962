"""``lsmq queue``: single queues: those that stand out, and those with names one by one."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Literal

import click

from lsmq import Client, NamedQueue, QueueChanges
from lsmq.cli.options import DURATION, SIZE, TOPIC, OrUnlimited, asks_a_node, asks_first, json_option
from lsmq.cli.render import counted, print_fields, print_json, print_table, time_text
from lsmq.queue_names import compile_pattern, pattern_prefix
from lsmq.units import is_whole_number

_LISTED = 1_000
#: Names that are looked at for a pattern at a time.
_PAGE = 10_000


@click.group()
def queue() -> None:
    """Find queues that stand out, give any one options; list, describe, declare, trim, delete those that have names."""


@queue.command("list")
@click.argument("topic", type=TOPIC)
@click.option("--prefix", default="", help="Only names that begin so.")
@click.option("--pattern", help="Only names that match, such as 'agents.*.inbox' or 'agents.**'.")
@click.option("--after", help="Only names after this one.")
@click.option("--limit", type=click.IntRange(min=1), default=_LISTED, show_default=True, help="At most so many.")
@click.option("--all", "everything", is_flag=True, help="However many there are.")
@json_option
@asks_a_node
async def list_queues(
    client: Client,
    topic: str,
    prefix: str,
    pattern: str | None,
    after: str | None,
    limit: int,
    everything: bool,
    as_json: bool,
) -> None:
    """List the queues of the named topic TOPIC, in order of names.

    \b
      lsmq queue list agents --prefix agents.7.
      lsmq queue list agents --pattern 'agents.*.inbox'
    """
    if prefix and pattern is not None:
        raise click.UsageError("--prefix and --pattern both say which: give one")
    wanted = None if everything else limit
    if pattern is None:
        found = await client.queues(topic, prefix=prefix, after=after, limit=wanted)
    else:
        found = await _matching(client, topic, pattern, after, wanted)
    if as_json:
        print_json([asdict(one) for one in found])
        return
    rows = [[one.name, one.earliest, one.latest, one.count] for one in found]
    print_table(["queue", "earliest", "latest", "messages"], rows)
    if not everything and len(found) == limit:
        click.echo(f"there may be more: go on with --after {found[-1].name!r}, or give --all", err=True)


async def _matching(client: Client, topic: str, pattern: str, after: str | None, limit: int | None) -> list[NamedQueue]:
    """Up to so many queues whose names match, in order of names. Raises ``InvalidQueueName``."""
    matches, found = compile_pattern(pattern), list[NamedQueue]()
    while limit is None or len(found) < limit:
        page = await client.queues(topic, prefix=pattern_prefix(pattern), after=after, limit=_PAGE)
        found += [one for one in page if matches.fullmatch(one.name)]
        if len(page) < _PAGE:
            break
        after = page[-1].name
    return found[:limit]


@queue.command()
@click.argument("topic", type=TOPIC)
@click.option(
    "--by", type=click.Choice(["depth", "rate", "age"]), default="depth", show_default=True, help="The order."
)
@click.option("--limit", type=click.IntRange(1, _LISTED), default=20, show_default=True, help="At most so many.")
@json_option
@asks_a_node
async def top(client: Client, topic: str, by: Literal["depth", "rate", "age"], limit: int, as_json: bool) -> None:
    """Show which queues of TOPIC, named or numbered, have the most messages, get the most, or have the oldest.

    \b
      lsmq queue top orders
      lsmq queue top agents --by age
    """
    found = await client.top_queues(topic, by=by, limit=limit)
    if as_json:
        print_json(asdict(found))
        return
    rows = [
        [str(one.queue), one.count, one.in_per_s, None if one.oldest_ms is None else time_text(one.oldest_ms)]
        for one in found.queues
    ]
    print_table(["queue", "messages", "new in a second", "oldest stored"], rows)
    click.echo(f"{counted(found.with_messages, 'queue')} of topic {topic} with messages", err=True)
    if found.partial:
        click.echo("there are too many to look at the oldest message of each: these are of the deepest", err=True)


@queue.command()
@click.argument("topic", type=TOPIC)
@click.argument("name")
@json_option
@asks_a_node
async def describe(client: Client, topic: str, name: str, as_json: bool) -> None:
    """Show what queue NAME of the named topic TOPIC holds."""
    _show(await client.queue(topic, name), as_json)


def _show(found: NamedQueue, as_json: bool) -> None:
    if as_json:
        print_json(asdict(found))
        return
    print_fields(
        [
            ("queue", found.name),
            ("earliest", found.earliest),
            ("latest", found.latest),
            ("messages", found.count),
            ("number", found.number),
        ]
    )


@queue.command()
@click.argument("topic", type=TOPIC)
@click.argument("names", nargs=-1, required=True)
@asks_a_node
async def declare(client: Client, topic: str, names: tuple[str, ...]) -> None:
    """Have queues NAMES in the named topic TOPIC, before anything is sent to them.

    Sending to a queue makes it as well.
    """
    for name in names:
        await client.declare_queue(topic, name)
    click.echo(f"{counted(len(names), 'queue')} declared", err=True)


@queue.command()
@click.argument("topic", type=TOPIC)
@click.argument("name")
@click.option("--before", type=click.IntRange(min=0), required=True, help="The first offset that is kept.")
@json_option
@asks_first("Delete the messages of queue {name} of topic {topic} below offset {before}, for every group?")
@asks_a_node
async def trim(client: Client, topic: str, name: str, before: int, as_json: bool) -> None:
    """Delete the messages of queue NAME of the named topic TOPIC that lie before an offset."""
    _show(await client.trim_queue(topic, name, before), as_json)


@queue.command()
@click.argument("topic", type=TOPIC)
@click.argument("name")
@asks_first("Delete queue {name} of topic {topic} and all its messages?")
@click.option("--missing-ok", is_flag=True, help="Succeed if there is no such queue.")
@asks_a_node
async def delete(client: Client, topic: str, name: str, missing_ok: bool) -> None:
    """Delete queue NAME of the named topic TOPIC and all its messages."""
    await client.delete_queue(topic, name, missing_ok=missing_ok)
    click.echo(f"queue {name} of topic {topic} deleted", err=True)


@queue.command()
@click.argument("topic", type=TOPIC)
@click.argument("called", metavar="QUEUE")
@click.option(
    "--retention", "retention_ms", type=OrUnlimited(DURATION), help="Keep its messages this long, such as 7d."
)
@click.option("--retention-bytes", type=OrUnlimited(SIZE), help="Keep at most this much of it, such as 1GiB.")
@click.option("--retention-messages", type=OrUnlimited(click.IntRange(min=1)), help="Keep its newest so many messages.")
@click.option("--unset", multiple=True, metavar="OPTION", help="Have it as the topic says again, such as retention.")
@json_option
@asks_a_node
async def alter(client: Client, topic: str, called: str, unset: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Have QUEUE of TOPIC, a number or a name, keep more or less than the topic says.

    unlimited is no limit, whatever the topic says. What is not named stays as it is.

    \b
      lsmq queue alter agents agents.7.inbox --retention 90d
      lsmq queue alter orders 17 --retention unlimited --unset retention-bytes
    """
    changes = {option: value for option, value in options.items() if value is not None}
    names = {text.removeprefix("--").replace("-", "_") for text in unset}
    taken = {"retention_ms" if each == "retention" else each for each in names}
    for wrong in sorted(taken - options.keys()):
        raise click.UsageError(f"--unset {wrong}: there is no such option to take away; there are {', '.join(options)}")
    for both in sorted(taken & changes.keys()):
        raise click.UsageError(f"{both} is both set and taken away; give one of the two")
    if not changes and not taken:
        raise click.UsageError("say what to change, such as --retention 1d; see --help")
    which = await _called(client, topic, called)
    _show_options(called, await client.alter_queue(topic, which, **changes, **dict.fromkeys(taken)), as_json)


@queue.command("options")
@click.argument("topic", type=TOPIC)
@click.argument("called", metavar="QUEUE")
@json_option
@asks_a_node
async def show_options(client: Client, topic: str, called: str, as_json: bool) -> None:
    """Show what QUEUE of TOPIC, a number or a name, keeps otherwise than the topic."""
    _show_options(called, await client.queue_options(topic, await _called(client, topic, called)), as_json)


async def _called(client: Client, topic: str, called: str) -> int | str:
    if (await client.topic(topic)).named:
        return called
    if not is_whole_number(called):
        raise click.UsageError(f"{called!r:.80} is not a number, and the queues of topic {topic!r} have numbers")
    return int(called)


def _show_options(called: str, found: QueueChanges, as_json: bool) -> None:
    if as_json:
        print_json(found)
    else:
        said = ", ".join(f"{name}={value}" for name, value in found.items())
        click.echo(f"queue {called}: {said or 'as the topic says'}")
