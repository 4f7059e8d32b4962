"""``lsmq group``: consumer groups and how far they are."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import click

from lsmq import Client
from lsmq.cli._options import TOPIC, json_option, url_option, with_client
from lsmq.cli._render import print_json, print_table


@dataclass(frozen=True, slots=True)
class QueueLag:
    """How far a group is in one queue. ``lag`` counts the messages after the committed offset."""

    topic: str
    queue: int
    committed: int
    latest: int
    lag: int


@click.group()
def group() -> None:
    """See consumer groups and how far they are."""


@group.command("list")
@json_option
@url_option
def list_groups(as_json: bool, url: str, deadline_ms: int) -> None:
    """List the groups that have committed offsets."""

    async def work(client: Client) -> list[str]:
        return await client.groups()

    groups = with_client(url, deadline_ms, work)
    if as_json:
        print_json(groups)
    else:
        for name in groups:
            click.echo(name)


@group.command()
@click.argument("name")
@click.option("--topic", type=TOPIC, help="Only this topic.")
@json_option
@url_option
def offsets(name: str, topic: str | None, as_json: bool, url: str, deadline_ms: int) -> None:
    """Show committed offset and lag of group NAME in every queue it has committed for.

    \b
      lsmq group offsets kitchen --topic orders
    """

    async def work(client: Client) -> list[QueueLag]:
        topics = [topic] if topic is not None else [found.name for found in await client.topics()]
        return [row for each in topics for row in await _lags(client, name, each)]

    rows = with_client(url, deadline_ms, work)
    if as_json:
        print_json([asdict(row) for row in rows])
        return
    print_table(
        ["topic", "queue", "committed", "latest", "lag"],
        [[row.topic, row.queue, row.committed, row.latest, row.lag] for row in rows],
    )
    click.echo(f"{len(rows)} queues, lag {sum(row.lag for row in rows)} messages", err=True)


async def _lags(client: Client, group: str, topic: str) -> list[QueueLag]:
    committed = await client.committed_offsets(group, topic)
    if not committed:
        return []
    bounds = await client.offsets(topic, committed)
    return [
        QueueLag(topic, queue, committed[queue], latest, max(0, latest - max(committed[queue], earliest)))
        for queue, earliest, latest in bounds.rows()
    ]
