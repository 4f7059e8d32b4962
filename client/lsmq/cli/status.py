"""``lsmq status``: whether all is well, and what a node says of itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from lsmq import Client
from lsmq._health import Problem, examine
from lsmq.admin import ClusterInfo
from lsmq.cli.options import json_option, url_option, with_client
from lsmq.cli.render import counted, print_fields, print_json, print_table, size_text

_SHOWN = ("role", "leader", "epoch", "state", "topics", "queues", "records_written_total", "pressure", "damage")
_MOST_PROBLEMS = 10


@click.command()
@click.option("--verbose", "-v", is_flag=True, help="Every figure of every shard, and the configuration.")
@json_option
@url_option
def status(verbose: bool, as_json: bool, url: str, deadline_ms: int) -> None:
    """Show whether all is well; then version, uptime and the state of every shard of a node.

    The first line is about the whole cluster: well, or what is not, where, and what to do. It exits with 1 when
    anything is not well.
    """

    async def work(client: Client) -> tuple[dict[str, Any], ClusterInfo, list[Problem]]:
        return await client.status(), *await examine(client)

    found, cluster, problems = with_client(url, deadline_ms, work)
    if as_json:
        print_json({"well": not problems, "problems": [problem.to_dict() for problem in problems], **found})
    else:
        print_health(cluster, problems)
        _print_node(found, verbose)
    if problems:
        click.get_current_context().exit(1)


def print_health(cluster: ClusterInfo, problems: Sequence[Problem]) -> None:
    """A line: all is well, or the worst that is not; and lines of what else is not."""
    if not problems:
        nodes = [node for node in cluster.nodes if node.state != "removed"]
        click.echo(f"well: {counted(len(nodes), 'node')}, {counted(len(cluster.shards), 'shard')}\n")
        return
    for place, problem in enumerate(problems[:_MOST_PROBLEMS]):
        click.echo(f"{'          ' if place else 'not well: '}{problem}")
    if len(problems) > _MOST_PROBLEMS:
        click.echo(f"          ... and {len(problems) - _MOST_PROBLEMS} more; --json has all")
    click.echo()


def _print_node(found: dict[str, Any], verbose: bool) -> None:
    shards, disks = found.pop("shards", []), found.pop("disks", [])
    if not verbose:
        found.pop("config", None)
    print_fields([(name.replace("_", " "), value) for name, value in found.items()])
    if len(disks) > 1:
        print_table(["disk", "free", "size", "shards", "problem"], [_disk_row(disk) for disk in disks])
    if not verbose:
        names = [name for name in _SHOWN if any(name in shard for shard in shards)]
        rows = [[shard.get("shard"), *(_shown(shard.get(name)) for name in names)] for shard in shards]
        print_table(["shard", *(name.removesuffix("_total").replace("_", " ") for name in names)], rows)
        return
    for place, shard in enumerate(shards):
        number = shard.pop("shard", shard.pop("id", place))
        click.echo(f"\nshard {number}")
        print_fields([(f"  {name.replace('_', ' ')}", value) for name, value in shard.items()])


def _disk_row(disk: dict[str, Any]) -> list[Any]:
    sizes = [None, None] if disk["problem"] else [size_text(disk["free_bytes"]), size_text(disk["size_bytes"])]
    return [disk["path"], *sizes, ", ".join(map(str, disk["shards"])), disk["problem"]]


def _shown(value: Any) -> Any:
    """None where there is nothing; a number is something."""
    return None if value in ("", [], {}) else value
