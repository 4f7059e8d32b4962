"""``lsmq transaction``: transactions of producer groups, for those who have to finish them by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import click

from lsmq import Client
from lsmq.cli._options import json_option, url_option, with_client
from lsmq.cli._render import print_fields, print_json, print_table, size_text, time_text
from lsmq.producer_groups import ProducerGroup, ProducerGroupInfo, TransactionInfo, list_producer_groups

_STATES = ("open", "undelivered", "committed", "rolled_back")


@click.group()
def transaction() -> None:
    """See transactions of producer groups, and finish them by hand."""


@transaction.command()
@json_option
@url_option
def groups(as_json: bool, url: str, deadline_ms: int) -> None:
    """List producer groups: their members, and transactions that are not finished."""

    async def work(client: Client) -> list[ProducerGroupInfo]:
        return await list_producer_groups(client)

    found = with_client(url, deadline_ms, work)
    if as_json:
        print_json([asdict(each) for each in found])
        return
    print_table(
        ["group", "members", "unfinished", "coordinated by"],
        [[each.group, each.members, each.unfinished, f"the leader of shard {each.shard}"] for each in found],
    )


@transaction.command("list")
@click.option("--group", "name", help="Only this producer group.")
@click.option(
    "--state",
    type=click.Choice((*_STATES, "all")),
    default="open",
    show_default=True,
    help="undelivered: committed, and not in all their shards yet. Finished ones are remembered for a while.",
)
@json_option
@url_option
def list_command(name: str | None, state: str, as_json: bool, url: str, deadline_ms: int) -> None:
    """List transactions, oldest first.

    \b
      lsmq transaction list --group billing
    """

    async def work(client: Client) -> list[TransactionInfo]:
        names = [name] if name is not None else [each.group for each in await list_producer_groups(client)]
        wanted = None if state == "all" else state
        return [found for each in names for found in await ProducerGroup(client, each).transactions(wanted)]

    found = with_client(url, deadline_ms, work)
    if as_json:
        print_json([each.to_dict() for each in found])
        return
    print_table(
        ["group", "transaction", "reference", "state", "begun", "messages", "checks"],
        [
            [
                each.group,
                each.id,
                each.reference or None,
                _state(each),
                time_text(each.begun_ms),
                sum(each.messages.values()),
                f"{each.checks} of {each.max_checks}",
            ]
            for each in found
        ],
    )


def _state(found: TransactionInfo) -> str:
    return f"{found.state}, not delivered" if found.state == "committed" and not found.delivered else found.state


@transaction.command()
@click.argument("group")
@click.argument("id")
@json_option
@url_option
def describe(group: str, id: str, as_json: bool, url: str, deadline_ms: int) -> None:
    """Show transaction ID of producer group GROUP."""

    async def work(client: Client) -> TransactionInfo:
        return await ProducerGroup(client, group).transaction(id)

    _show(with_client(url, deadline_ms, work), as_json)


def _show(found: TransactionInfo, as_json: bool) -> None:
    if as_json:
        print_json(found.to_dict())
        return
    decided: Sequence[tuple[str, Any]] = ()
    if found.state != "open":
        decided = [("decided", time_text(found.decided_ms)), ("decided by", found.decided_by)]
    if found.waiting_shards:
        decided = [*decided, ("waits for shards", ", ".join(map(str, found.waiting_shards)))]
    sequence = [("sequence", f"{found.sequence}, at {found.position}")] if found.sequence else []
    print_fields(
        [
            ("transaction", found.id),
            ("group", found.group),
            ("reference", found.reference or None),
            ("state", _state(found)),
            ("begun", time_text(found.begun_ms)),
            ("begun by", found.member),
            *sequence,
            ("messages", ", ".join(f"{topic}: {count}" for topic, count in found.messages.items())),
            ("size", size_text(found.size_bytes)),
            ("asked about", f"{found.checks} of {found.max_checks} times"),
            *decided,
        ]
    )


@transaction.command()
@click.argument("group")
@click.argument("id")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@url_option
def commit(group: str, id: str, yes: bool, as_json: bool, url: str, deadline_ms: int) -> None:
    """Commit transaction ID of producer group GROUP. Make sure that its local step was done."""
    if not yes:
        click.confirm(f"Was the local step of transaction {id} done?", abort=True, err=True)

    async def work(client: Client) -> TransactionInfo:
        return await ProducerGroup(client, group).commit(id, wait_ms=2_000)

    _show(with_client(url, deadline_ms, work), as_json)


@transaction.command()
@click.argument("group")
@click.argument("id")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
@url_option
def rollback(group: str, id: str, yes: bool, as_json: bool, url: str, deadline_ms: int) -> None:
    """Roll back transaction ID of producer group GROUP. Make sure that its local step was not done, and will not be."""
    if not yes:
        click.confirm(f"Will the local step of transaction {id} never be done?", abort=True, err=True)

    async def work(client: Client) -> TransactionInfo:
        return await ProducerGroup(client, group).roll_back(id)

    _show(with_client(url, deadline_ms, work), as_json)
