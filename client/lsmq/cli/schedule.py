"""``lsmq schedule``: messages again and again, by cron expressions."""

from __future__ import annotations

import click

from lsmq import Client, Schedules
from lsmq.cli._queues import queue_of
from lsmq.cli.options import DURATION, TOPIC, asks_a_node, json_option
from lsmq.cli.render import counted, print_json, print_table, zone_text
from lsmq.schedules import list_schedules

_SHOWN_BODY = 60


@click.group()
def schedule() -> None:
    """Send messages again and again, at the times that a cron expression says."""


@schedule.command()
@click.argument("name")
@click.option("--topic", type=TOPIC, required=True, help="Where the messages go.")
@click.option("--cron", required=True, help="minute hour day-of-month month day-of-week, or such as @daily.")
@click.option("--tz", default="UTC", show_default=True, help="Whose clocks count, such as Europe/Berlin.")
@click.option("--body", required=True, help="What is sent.")
@click.option("--key", help="Key of the messages, which chooses their queue.")
@click.option("--tag", help="Tag of the messages.")
@click.option("--type", "kind", help="Type of the messages.")
@click.option("--ttl", "ttl_ms", type=DURATION, help="They expire so long after they came.")
@click.option("--queue", metavar="QUEUE", help="Queue that they go to: a number, or in a named topic a name.")
@json_option
@asks_a_node
async def put(
    client: Client,
    name: str,
    topic: str,
    cron: str,
    tz: str,
    body: str,
    key: str | None,
    tag: str | None,
    kind: str | None,
    ttl_ms: int | None,
    queue: str | None,
    as_json: bool,
) -> None:
    """Make the schedule NAME, or put it in place of the one of this name.

    \b
      lsmq schedule put report --cron '0 9 * * 1-5' --tz Europe/Berlin --topic jobs --body 'make the report'
    """
    to = None if queue is None else await queue_of(client, topic, queue)
    made = await Schedules(client, topic).put(
        name, cron, body, tz=tz, key=key, tag=tag, queue=to, type=kind, ttl_ms=ttl_ms
    )
    if as_json:
        print_json(made.to_dict())
    else:
        click.echo(f"next: {zone_text(made.next_ms, made.tz)}")


@schedule.command("list")
@click.option("--topic", type=TOPIC, help="Only this topic's.")
@json_option
@asks_a_node
async def list_command(client: Client, topic: str | None, as_json: bool) -> None:
    """List schedules, with their next times."""
    if topic is not None:
        found = [each async for each in Schedules(client, topic).read()]
    else:
        found, not_readable = await list_schedules(client)
        if not_readable:
            click.echo(f"{counted(len(not_readable), 'topic')} left out, which you may not read", err=True)
    if as_json:
        for each in found:
            print_json(each.to_dict())
        return
    print_table(
        ["name", "topic", "cron", "tz", "next", "last", "times", "body"],
        [
            [
                each.name,
                each.message.topic,
                each.cron,
                each.tz,
                zone_text(each.next_ms, each.tz),
                zone_text(each.last_ms, each.tz) if each.last_ms else "",
                each.count,
                each.message.body[:_SHOWN_BODY],
            ]
            for each in found
        ],
    )


@schedule.command()
@click.argument("name")
@click.option("--topic", type=TOPIC, required=True, help="Whose schedule it is.")
@asks_a_node
async def delete(client: Client, name: str, topic: str) -> None:
    """Delete the schedule NAME."""
    await Schedules(client, topic).delete(name)
    click.echo(f"schedule {name} of topic {topic} deleted", err=True)
