"""``lsmq status``: what a node says of itself."""

from __future__ import annotations

from typing import Any

import click

from lsmq import Client
from lsmq.cli._options import json_option, url_option, with_client
from lsmq.cli._render import print_fields, print_json


@click.command()
@json_option
@url_option
def status(as_json: bool, url: str, deadline_ms: int) -> None:
    """Show version, uptime and the state of every shard of a node."""

    async def work(client: Client) -> dict[str, Any]:
        return await client.status()

    found = with_client(url, deadline_ms, work)
    if as_json:
        print_json(found)
        return
    shards = found.pop("shards", [])
    print_fields([(name.replace("_", " "), value) for name, value in found.items()])
    for place, shard in enumerate(shards):
        number = shard.pop("shard", shard.pop("id", place))
        click.echo(f"\nshard {number}")
        print_fields([(f"  {name.replace('_', ' ')}", value) for name, value in shard.items()])
