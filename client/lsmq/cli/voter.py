"""``lsmq voter``: the nodes that vote in a cluster's control plane."""

from __future__ import annotations

import click

from lsmq import Client
from lsmq.admin import ClusterAdmin, ClusterInfo
from lsmq.cli._progress import wait_options, watch
from lsmq.cli.options import asks_a_node, json_option
from lsmq.cli.render import print_json, print_table, yes_or_no

_STEPS = {"filling": 2, "joining": 1, "leaving": 1}


@click.group()
def voter() -> None:
    """List the voters of a cluster's control plane, and have another node take one's place."""


@voter.command("list")
@json_option
@asks_a_node
async def list_voters(client: Client, as_json: bool) -> None:
    """List the nodes that vote, or are about to, and which of them leads the control plane."""
    info = await ClusterAdmin(client).overview()
    change = info.voter_change
    concerned = set() if change is None else {change.old, change.new}
    rows = [
        [node.id, node.url, node.alive, node.voter, node.id == info.control_leader, _change(info, node.id)]
        for node in info.nodes
        if node.voter or node.id in concerned
    ]
    names = ["node", "url", "alive", "votes", "leads", "change"]
    if as_json:
        print_json([dict(zip(names, row, strict=True)) for row in rows])
        return
    shown = [
        ["unknown" if value is None else yes_or_no(value) for value in row[:-1]] + [row[-1] or "-"] for row in rows
    ]
    print_table(names, shown)


def _change(info: ClusterInfo, node: str) -> str | None:
    change = info.voter_change
    if change is None:
        return None
    if node == change.old:
        return f"{change.new} takes its place"
    return f"takes the place of {change.old}: {change.step}" if node == change.new else None


@voter.command()
@click.argument("old", metavar="OLD")
@click.argument("new", metavar="NEW")
@wait_options
@asks_a_node
async def replace(client: Client, old: str, new: str, wait: bool, wait_ms: int) -> None:
    """Have node NEW vote in the place of OLD, which may be gone.

    NEW is a node of the cluster that runs and does not vote. It is sent the control plane's log first and votes when
    it has all of it; you may interrupt this command: the cluster goes on. One change at a time. Where NEW is gone
    before it votes, have another node take its place in turn, or call it off with `lsmq voter keep OLD`.
    """
    admin = ClusterAdmin(client)
    await admin.replace_voter(old, new)
    if wait:
        seen = False

        def left(info: ClusterInfo) -> int:
            """Steps. A node that answers may not have heard of the change yet, and one that was called off is over."""
            nonlocal seen
            change = info.voter_change
            seen |= change is not None
            voting = any(node.id == new and node.voter for node in info.nodes)
            return _STEPS[change.step] if change is not None else 0 if seen or voting else max(_STEPS.values())

        info = await watch(admin, f"{new} takes the vote of {old}", left, wait_ms)
        if not any(node.id == new and node.voter for node in info.nodes):
            raise click.ClickException(
                f"node {new} does not vote: this was called off, or another node takes its place"
            )
    click.echo(f"node {new} {'votes' if wait else 'is about to vote'} in the place of {old}", err=True)


@voter.command()
@click.argument("old", metavar="OLD")
@asks_a_node
async def keep(client: Client, old: str) -> None:
    """Let OLD go on voting: call off that another node takes its place, as long as that one does not vote yet."""
    await ClusterAdmin(client).keep_voter(old)
    click.echo(f"node {old} goes on voting", err=True)
