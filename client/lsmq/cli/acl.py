"""``lsmq role`` and ``lsmq acl``: what who may do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any, TypeVar

import click

from lsmq import Client, GrantedRole, Right, Rights
from lsmq.cli.options import asks_a_node, asks_first, json_option, prefix_option
from lsmq.cli.render import print_json, print_table, yes_or_no

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
DENIED = 3  # The exit code of a question that was answered: no. 1 is an error, and 2 wrong usage.
Allowed = tuple[tuple[str, str, str], ...]

_allow_option = click.option(
    "--allow",
    type=(str, str, str),
    multiple=True,
    metavar="ACTION KIND PATTERN",
    help="Such as: write topic 'shop.*'. Kinds: topic, group, producer-group, cluster, rights. Actions: describe, "
    "read, write, create, alter, delete, all. Repeat it.",
)


def _grant_options(command: Decorated) -> Decorated:
    command = prefix_option(command)
    command = click.option("--role", help="A role, see 'lsmq role list'.")(command)
    return _allow_option(command)


def _rights(allow: Allowed) -> list[Right]:
    return [Right(kind, pattern, action) for action, kind, pattern in allow]


def _given(role: str | None, prefix: str | None, allow: Allowed) -> dict[str, Any]:
    if role is None and (prefix is not None or not allow):
        raise click.UsageError("say what with --role (and --prefix), or with --allow")
    return {"roles": [] if role is None else [GrantedRole(role, prefix or "")], "rights": _rights(allow)}


@click.group()
def role() -> None:
    """Roles: rights under a name. Grant them with 'lsmq acl grant' or 'lsmq token create'."""


@role.command("list")
@json_option
@asks_a_node
async def list_roles(client: Client, as_json: bool) -> None:
    """List roles and what they may."""
    found = await Rights(client).roles()
    if as_json:
        for each in found:
            print_json(asdict(each))
        return
    rows = [[each.name, yes_or_no(each.built_in), ", ".join(map(str, each.rights))] for each in found]
    print_table(["role", "built in", "rights"], rows)


@role.command()
@click.argument("name")
@_allow_option
@asks_a_node
async def put(client: Client, name: str, allow: Allowed) -> None:
    """Make the role NAME, or put these in place of its rights.

    \b
      lsmq role put biller --allow read topic 'orders.*' --allow write topic 'invoices.*' --allow read group billing
    """
    await Rights(client).put_role(name, _rights(allow))


@role.command()
@click.argument("name")
@asks_first("Delete the role {name}?")
@asks_a_node
async def delete(client: Client, name: str) -> None:
    """Delete the role NAME, which nobody has."""
    await Rights(client).delete_role(name)


@click.group()
def acl() -> None:
    """Who may do what. Whatever was not granted is refused."""


@acl.command()
@click.argument("name")
@_grant_options
@asks_a_node
async def grant(client: Client, name: str, role: str | None, prefix: str | None, allow: Allowed) -> None:
    """Let NAME do something, beside what it may already. Who was never heard of is granted it as well, with a warning.

    \b
      lsmq acl grant shop --role producer --prefix shop.
      lsmq acl grant shop --allow read topic prices --allow read group 'shop.*'
    """
    rights, given = Rights(client), _given(role, prefix, allow)
    is_known = name in {
        *(token.name for token in await rights.tokens()),
        *(each.name for each in await rights.grants()),
    }
    await rights.grant(name, **given)
    if not is_known:
        click.echo(
            f"warning: {name!r} has no token here, and nothing was granted to it before. Principals are called as "
            "their tokens are ('lsmq token create NAME'), or as nodes read their certificates (tls_principal) or "
            "signed tokens (oidc_principal_prefix and oidc_principal_claim): 'lsmq whoami' says how, asked by them",
            err=True,
        )


@acl.command()
@click.argument("name")
@_grant_options
@asks_a_node
async def revoke(client: Client, name: str, role: str | None, prefix: str | None, allow: Allowed) -> None:
    """Take back from NAME what was granted like this. On all nodes within a second."""
    await Rights(client).revoke(name, **_given(role, prefix, allow))


@acl.command("list")
@json_option
@asks_a_node
async def list_command(client: Client, as_json: bool) -> None:
    """List who was granted what."""
    found = await Rights(client).grants()
    if as_json:
        for each in found:
            print_json(asdict(each))
        return
    rows = [[each.name, ", ".join(map(str, each.roles)), ", ".join(map(str, each.rights))] for each in found]
    print_table(["name", "roles", "rights"], rows)


@acl.command()
@click.argument("name")
@click.argument("action")
@click.argument("kind")
@click.argument("resource", default="")
@asks_a_node
async def test(client: Client, name: str, action: str, kind: str, resource: str) -> None:
    """Whether NAME may do ACTION to the RESOURCE of a KIND. Exits with 3 when not.

    \b
      lsmq acl test shop write topic shop.orders
    """
    by = await Rights(client).test(name, kind, resource, action)
    click.echo(f"yes: {by}" if by is not None else "no")
    if by is None:
        raise click.exceptions.Exit(DENIED)
