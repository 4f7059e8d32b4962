"""``lsmq group configure``: how a work queue behaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from lsmq import Client, WorkQueue
from lsmq.cli.options import DURATION, TOPIC, asks_a_node, json_option
from lsmq.cli.render import print_fields, print_json
from lsmq.units import is_whole_number


@click.command()
@click.argument("name")
@click.option("--topic", type=TOPIC, required=True, help="The topic that the group works on.")
@click.option(
    "--order",
    type=click.Choice(["none", "key", "priority"]),
    help="key: of each key one message at a time, in order. priority: higher ones first.",
)
@click.option("--fair-by", metavar="WHAT", help="What takes turns: queue, key, tag, type or properties.NAME.")
@click.option("--weight", "weights", multiple=True, metavar="NAME=N", help="How many messages one gets in its turn.")
@click.option("--max-in-flight-per", type=click.IntRange(min=1), help="Messages of one of them in flight, a shard.")
@click.option("--max-deliveries", type=click.IntRange(1, 1_000), help="After so many a message is a dead letter.")
@click.option("--visibility", "visibility_ms", type=DURATION, help="How long a delivery hides its message: 30s.")
@click.option("--retry-first", "retry_first_ms", type=DURATION, help="The first delay of what failed; it doubles.")
@click.option("--retry-max", "retry_max_ms", type=DURATION, help="The longest delay.")
@click.option("--dead-letter", metavar="TOPIC", help="Topic of dead letters.")
@click.option("--delete-on-ack", is_flag=True, default=None, help="Delete what is settled, for every group.")
@click.option("--max-rate-per", type=click.FloatRange(min=0.001), help="Deliveries of one of them a second, a shard.")
@click.option("--priority-ageing", "priority_ageing_ms", type=DURATION, help="A message counts one higher each 10s.")
@json_option
@asks_a_node
async def configure(
    client: Client, name: str, topic: str, as_json: bool, weights: Sequence[str], **settings: Any
) -> None:
    """Say how the work queue of group NAME on a topic behaves. What is left out is the default again.

    \b
      lsmq group configure kitchen --topic orders --order key --max-deliveries 5
      lsmq group configure kitchen --topic orders --fair-by tag --weight gold=5
    """
    async with WorkQueue(client, topic, name) as work:
        await work.configure(weights=dict(map(_weight, weights)), **settings)
        state = await work.describe()
    if as_json:
        print_json(state.to_dict())
        return
    found = state.to_dict()["settings"]
    print_fields([(setting.replace("_", " "), value) for setting, value in found.items()])


def _weight(text: str) -> tuple[str, int]:
    name, _, number = text.rpartition("=")
    if not name or not is_whole_number(number):
        raise click.UsageError(f"--weight {text}: write a name and a number, such as gold=5")
    return name, int(number)
