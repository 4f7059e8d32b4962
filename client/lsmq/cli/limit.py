"""``lsmq limit``: how much of each node a principal may take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from lsmq import Client, Rights
from lsmq.cli.options import SIZE, asks_a_node, json_option
from lsmq.cli.render import print_json, print_table

Decorated = TypeVar("Decorated", bound=Callable[..., Any])


class _Value(click.ParamType[int | str]):
    """A whole number, or ``default``."""

    name = "number"

    def __init__(self, of: click.ParamType[Any]) -> None:
        self._of = of

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        return value if value == "default" else int(self._of.convert(value, param, ctx))


_COUNT = _Value(click.IntRange(0))
_OPTIONS: dict[str, tuple[_Value, str]] = {
    "requests_per_s": (_COUNT, "Requests a second."),
    "bytes_per_s": (_Value(SIZE), "Bytes of requests and answers a second, such as 10M."),
    "open_requests": (_COUNT, "Requests that are not answered yet, long polls and streams among them."),
    "connections": (_COUNT, "Connections."),
    "topics": (_COUNT, "Topics that it made."),
    "queues": (_COUNT, "Queues of these; and queues with names, in a shard."),
    "groups": (_COUNT, "Consumer groups in a shard."),
    "transactions": (_COUNT, "Transactions in a shard that are not finished."),
    "producers": (_COUNT, "Idempotent producers that begin within producer_expiry_ms."),
    "schedules": (_COUNT, "Schedules in a shard."),
}


def _limit_options(command: Decorated) -> Decorated:
    for name, (kind, text) in reversed(_OPTIONS.items()):
        command = click.option(f"--{name.replace('_', '-')}", name, type=kind, help=text)(command)
    return command


@click.group()
def limit() -> None:
    """How much of each node a principal may take: of requests, bytes, connections.

    What holds for everybody are the settings principal_... of the nodes. Each node counts for itself.
    """


@limit.command("set")
@click.argument("principal")
@_limit_options
@asks_a_node
async def set_limits(client: Client, principal: str, **given: int | str | None) -> None:
    """Give PRINCIPAL limits of its own, beside those it has. 0 is none; 'default' what holds for everybody.

    \b
      lsmq limit set shop --requests-per-s 200 --connections 50
    """
    limits = {name: None if value == "default" else int(value) for name, value in given.items() if value is not None}
    if not limits:
        raise click.UsageError("say which limit, such as --requests-per-s 200")
    await Rights(client).alter_limits(principal, limits)
    click.echo(f"limits of {principal} set: {', '.join(limits)}", err=True)


@limit.command("list")
@json_option
@asks_a_node
async def list_limits(client: Client, as_json: bool) -> None:
    """List what holds for everybody, at the node that answers, and who has limits of his own."""
    found = await Rights(client).limits()
    if as_json:
        print_json({"defaults": found.defaults})
        for name, own in found.own.items():
            print_json({"name": name, "limits": own})
        return
    everybody = {name: value for name, value in found.defaults.items() if value}
    rows = [["(everybody)", _text(everybody) or "no limits"]]
    rows += [[name, _text(own)] for name, own in found.own.items()]
    print_table(["principal", "limits"], rows)


@limit.command()
@click.argument("principal")
@asks_a_node
async def remove(client: Client, principal: str) -> None:
    """Take the own limits of PRINCIPAL away: what holds for everybody holds for it again."""
    await Rights(client).remove_limits(principal)
    click.echo(f"{principal} has no limits of its own any more", err=True)


def _text(limits: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {value or 'no limit'}" for name, value in limits.items())
