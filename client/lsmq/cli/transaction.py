"""``lsmq transaction``: transactions of producer groups, for those who have to finish them by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import click

from lsmq import Client
from lsmq.cli.options import asks_a_node, asks_first, json_option
from lsmq.cli.render import print_fields, print_json, print_table, size_text, time_text
from lsmq.errors import UnknownProducerMember
from lsmq.producer_groups import ProducerGroup, TransactionInfo, list_producer_groups


def _which(command: Callable[..., None]) -> Callable[..., None]:
    return click.argument("group")(click.argument("id")(command))


_STATES = ("open", "undelivered", "committed", "rolled_back")


@click.group()
def transaction() -> None:
    """See transactions of producer groups, and finish them by hand."""


@transaction.command()
@json_option
@asks_a_node
async def groups(client: Client, as_json: bool) -> None:
    """List producer groups: their members, and transactions that are not finished."""
    found = await list_producer_groups(client)
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
@asks_a_node
async def list_command(client: Client, name: str | None, state: str, as_json: bool) -> None:
    """List transactions, oldest first.

    \b
      lsmq transaction list --group billing
    """
    names = [name] if name is not None else [each.group for each in await list_producer_groups(client)]
    wanted = None if state == "all" else state
    found = [each for group in names for each in await ProducerGroup(client, group).transactions(wanted)]
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


@transaction.command()
@click.argument("group")
@json_option
@asks_a_node
async def members(client: Client, group: str, as_json: bool) -> None:
    """Show members of producer group GROUP, when they were heard last, and which sequences they have.

    \b
      lsmq transaction members billing
    """
    found = await ProducerGroup(client, group).describe()
    if as_json:
        print_json(found)
        return
    taken = [(each["sequence"], each["member"]) for each in found["sequences"]]
    if not found["members"] and not taken:
        click.echo(f"producer group {group!r} has no members, and none of its sequences is known", err=True)
        return
    print_table(
        ["member", "client", "heard", "transactions", "sequences"],
        [
            [
                each["id"],
                each["client"],
                f"{each['heartbeat_age_ms'] / 1000:.1f} s ago",
                each["transactions"],
                ", ".join(name for name, member in taken if member == each["id"]) or None,
            ]
            for each in found["members"]
        ],
    )


@transaction.command()
@click.argument("group")
@click.argument("member")
@asks_first("Does {member} of {group} hang? Others will be asked about its transactions.")
@asks_a_node
async def end(client: Client, group: str, member: str) -> None:
    """End the session of MEMBER of producer group GROUP, which hangs: it must join anew under another id."""
    of = ProducerGroup(client, group)
    if member not in (each["id"] for each in (await of.describe())["members"]):
        raise UnknownProducerMember(
            f"producer group {group!r} has no member {member!r} now (lsmq transaction members shows them)",
            group=group,
            member=member,
        )
    await of.leave(member)


def _state(found: TransactionInfo) -> str:
    return f"{found.state}, not delivered" if found.state == "committed" and not found.delivered else found.state


@transaction.command()
@_which
@json_option
@asks_a_node
async def describe(client: Client, group: str, id: str, as_json: bool) -> None:
    """Show transaction ID of producer group GROUP."""
    _show(await ProducerGroup(client, group).transaction(id), as_json)


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
@_which
@asks_first("Was the local step of transaction {id} done?")
@json_option
@asks_a_node
async def commit(client: Client, group: str, id: str, as_json: bool) -> None:
    """Commit transaction ID of producer group GROUP. Make sure that its local step was done."""
    _show(await ProducerGroup(client, group).commit(id, wait_ms=2_000), as_json)


@transaction.command()
@_which
@asks_first("Will the local step of transaction {id} never be done?")
@json_option
@asks_a_node
async def rollback(client: Client, group: str, id: str, as_json: bool) -> None:
    """Roll back transaction ID of producer group GROUP. Make sure that its local step was not done, and will not be."""
    _show(await ProducerGroup(client, group).roll_back(id), as_json)
