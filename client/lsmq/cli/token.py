"""``lsmq token`` and ``lsmq whoami``: what clients show to nodes that ask who they are."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import click

from lsmq import Client, GrantedRole, NewToken, Rights
from lsmq.cli.options import DURATION, DurationType, asks_a_node, asks_first, json_option
from lsmq.cli.render import print_fields, print_json, print_table, time_text, yes_or_no

_out_option = click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write the token into this new file, for its owner alone, and print nothing of it.",
)
_expires_option = click.option("--expires", "ttl_ms", type=DURATION, help="Good for so long.  [default: for ever]")


@click.group()
def token() -> None:
    """Tokens that clients show to nodes with auth = 'token'.

    A command shows the one in --token-file, LSMQ_TOKEN_FILE or LSMQ_TOKEN. The first is written by each node into
    DATA/admin.token; docs/security.md has more.
    """


@token.command()
@click.argument("name")
@_expires_option
@click.option("--role", help="What it may, such as producer, consumer, monitor, tenant, admin.")
@click.option("--prefix", default="", help="With --role: only for names that begin with it.")
@_out_option
@json_option
@asks_a_node
async def create(
    client: Client, name: str, ttl_ms: int | None, role: str | None, prefix: str, out: Path | None, as_json: bool
) -> None:
    """Make a token for NAME, who has none. It is shown this once.

    \b
      lsmq token create shop --expires 90d --role producer --prefix shop. --out shop.token
    """
    if prefix and role is None:
        raise click.UsageError("--prefix goes with --role")
    roles = [] if role is None else [GrantedRole(role, prefix)]
    _check_new(out)
    _give(await Rights(client).create_token(name, ttl_ms=ttl_ms, roles=roles), out, as_json)


@token.command()
@click.argument("name")
@_expires_option
@click.option(
    "--overlap",
    "overlap_ms",
    type=DurationType(),
    default="1d",
    show_default=True,
    help="How long the one before is good.",
)
@click.option("--now", is_flag=True, help="The one before is good no longer.")
@_out_option
@json_option
@asks_a_node
async def rotate(
    client: Client, name: str, ttl_ms: int | None, overlap_ms: int, now: bool, out: Path | None, as_json: bool
) -> None:
    """Make another token for NAME. The one before goes on for a while, so that it can be exchanged."""
    _check_new(out)
    made = await Rights(client).rotate_token(name, ttl_ms=ttl_ms, overlap_ms=0 if now else overlap_ms)
    _give(made, out, as_json)


@token.command("list")
@json_option
@asks_a_node
async def list_command(client: Client, as_json: bool) -> None:
    """List tokens, without what is secret of them."""
    found = await Rights(client).tokens()
    if as_json:
        for each in found:
            print_json(asdict(each))
        return
    print_table(
        ["name", "id", "good", "created", "expires", "made by"],
        [
            [
                each.name,
                each.id,
                yes_or_no(each.good),
                time_text(each.created_ms),
                "" if each.expires_ms is None else time_text(each.expires_ms),
                each.by,
            ]
            for each in found
        ],
    )


@token.command()
@click.argument("name")
@click.option("--id", help="This one alone.")
@asks_first("Revoke tokens of {name}?")
@asks_a_node
async def revoke(client: Client, name: str, id: str | None) -> None:
    """Revoke the tokens of NAME: on all nodes within a second. What was granted stays."""
    await Rights(client).revoke_tokens(name, id)


@click.command()
@json_option
@asks_a_node
async def whoami(client: Client, as_json: bool) -> None:
    """Whom the node takes you for, and what was granted to you."""
    found = await Rights(client).whoami()
    if as_json:
        print_json(asdict(found))
        return
    if found.name is None:
        click.echo("nobody in particular: this node asks nobody who he is, and lets everybody do everything")
        return
    print_fields(
        [
            ("name", found.name),
            ("known by", found.by or "token"),
            ("expires", "never" if found.expires_ms is None else time_text(found.expires_ms)),
            ("roles", ", ".join(map(str, found.roles)) or "none"),
            ("rights", ", ".join(map(str, found.rights)) or "none"),
        ]
    )


def _check_new(out: Path | None) -> None:
    """Before a token is made that could not be written."""
    if out is not None and out.exists():
        raise click.UsageError(f"{out} is there already; choose another --out, or move it away")


def _give(made: NewToken, out: Path | None, as_json: bool) -> None:
    if out is not None:
        fd = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w") as file:
            file.write(f"{made.token}\n")
    if as_json:
        shown = {"name": made.name, "id": made.id, "created_ms": made.created_ms, "expires_ms": made.expires_ms}
        print_json(shown if out is not None else {**shown, "token": made.token})
    elif out is None:
        click.echo(made.token)
