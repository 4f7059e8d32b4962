"""``lsmq status``: what a node says of itself."""

from __future__ import annotations

from typing import Any

import click

from lsmq import Client
from lsmq.cli.options import asks_a_node, json_option
from lsmq.cli.render import print_fields, print_json, print_table

_SHOWN = ("role", "leader", "epoch", "state", "topics", "queues", "records_written_total", "pressure", "damage")


@click.command()
@click.option("--verbose", "-v", is_flag=True, help="Every figure of every shard, and the configuration.")
@json_option
@asks_a_node
async def status(client: Client, verbose: bool, as_json: bool) -> None:
    """Show version, uptime and the state of every shard of a node."""
    found = await client.status()
    if as_json:
        print_json(found)
        return
    shards = found.pop("shards", [])
    if not verbose:
        found.pop("config", None)
    print_fields([(name.replace("_", " "), value) for name, value in found.items()])
    if not verbose:
        names = [name for name in _SHOWN if any(name in shard for shard in shards)]
        rows = [[shard.get("shard"), *(_shown(shard.get(name)) for name in names)] for shard in shards]
        print_table(["shard", *(name.removesuffix("_total").replace("_", " ") for name in names)], rows)
        return
    for place, shard in enumerate(shards):
        number = shard.pop("shard", shard.pop("id", place))
        click.echo(f"\nshard {number}")
        print_fields([(f"  {name.replace('_', ' ')}", value) for name, value in shard.items()])


def _shown(value: Any) -> Any:
    """None where there is nothing; a number is something."""
    return None if value in ("", [], {}) else value
