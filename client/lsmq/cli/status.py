"""``lsmq status``: whether all is well, and what a node says of itself."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import click

from lsmq import Client
from lsmq._health import SILENCE_S, Problem, ask_node, examine
from lsmq.admin import ClusterInfo
from lsmq.cli._process import exits_with
from lsmq.cli.options import json_option, url_option, with_client
from lsmq.cli.render import counted, print_fields, print_json, print_table, size_text
from lsmq.errors import LsmqError

_SHOWN = ("role", "leader", "epoch", "state", "topics", "queues", "records_written_total", "pressure", "damage")
_OF_A_PROCESS = ("url", "pid", "uptime s", "waiters", "inflight bytes")
_MOST_PROBLEMS = 10


@click.command()
@click.option("--verbose", "-v", is_flag=True, help="Every figure of every shard, and the configuration.")
@json_option
@url_option
def status(verbose: bool, as_json: bool, url: str, deadline_ms: int) -> None:
    """Show whether all is well; then version, uptime and the state of every shard of a node.

    The first line is about the whole cluster: well, or what is not, where, and what to do. It exits with 1 when
    anything is not well. Of a node of several processes all of them are shown, with the disks and shards of each.
    """

    async def work(client: Client) -> tuple[dict[str, Any], ClusterInfo, list[Problem]]:
        found = await client.status()
        found["processes"] = await _processes(client, found)
        return found, *await examine(client)

    found, cluster, problems = with_client(url, deadline_ms, work)
    with exits_with(1 if problems else 0):
        _print(found, cluster, problems, verbose, as_json)


def _print(found: dict[str, Any], cluster: ClusterInfo, problems: list[Problem], verbose: bool, as_json: bool) -> None:
    if as_json:
        print_json({"well": not problems, "problems": [problem.to_dict() for problem in problems], **found})
    else:
        print_health(cluster, problems)
        _print_node(found, verbose)


async def _processes(client: Client, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The processes of a node of several, each with its ``status``; None where it does not answer."""

    async def asked(process: dict[str, Any]) -> dict[str, Any]:
        if process["pid"] == found["pid"]:
            return {**process, "status": {name: value for name, value in found.items() if name != "processes"}}
        try:
            said = await ask_node(client, process["url"].rstrip("/"), "/v1/status", SILENCE_S, {})
        except LsmqError as error:
            return {**process, "problem": process["problem"] or error.message, "status": None}
        said.pop("processes", None)
        return {**process, "status": said}

    return await asyncio.gather(*map(asked, found.get("processes", ())))


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
    """What a node says; of one of several processes, what each of these says."""
    processes, shards, disks = found.pop("processes"), found.pop("shards", []), found.pop("disks", [])
    if not verbose:
        found.pop("config", None)
    if processes:
        shown = {name: found[name] for name in ("version", "config") if name in found}
        print_fields(list(shown.items()))
        print_table(["process", *_OF_A_PROCESS, "problem"], [_process_row(process) for process in processes])
        said = [(process["name"], process["status"]) for process in processes if process["status"] is not None]
        disks = [{"process": name, **disk} for name, each in said for disk in each.get("disks", ())]
        shards = [{"process": name, **shard} for name, each in said for shard in each["shards"]]
    else:
        print_fields([(name.replace("_", " "), value) for name, value in found.items()])
    of = ["process"] if processes else []
    if len({disk["path"] for disk in disks}) > 1:
        rows = [[*(disk[name] for name in of), *_disk_row(disk)] for disk in disks]
        print_table([*of, "disk", "free", "size", "shards", "problem"], rows)
    if not verbose:
        names = [*of, *(name for name in _SHOWN if any(name in shard for shard in shards))]
        rows = [[shard.get("shard"), *(_shown(shard.get(name)) for name in names)] for shard in shards]
        if rows:
            print_table(["shard", *(name.removesuffix("_total").replace("_", " ") for name in names)], rows)
        else:
            click.echo("it has no shards")
        return
    for place, shard in enumerate(shards):
        number = shard.pop("shard", shard.pop("id", place))
        click.echo(f"\nshard {number}")
        print_fields([(f"  {name.replace('_', ' ')}", value) for name, value in shard.items()])


def _process_row(process: dict[str, Any]) -> list[Any]:
    figures = {**(process["status"] or {}), "url": process["url"], "pid": process["pid"]}
    return [process["name"], *(figures.get(name.replace(" ", "_")) for name in _OF_A_PROCESS), process["problem"]]


def _disk_row(disk: dict[str, Any]) -> list[Any]:
    sizes = [None, None] if disk["problem"] else [size_text(disk["free_bytes"]), size_text(disk["size_bytes"])]
    return [disk["path"], *sizes, ", ".join(map(str, disk["shards"])), disk["problem"]]


def _shown(value: Any) -> Any:
    """None where there is nothing; a number is something."""
    return None if value in ("", [], {}) else value
