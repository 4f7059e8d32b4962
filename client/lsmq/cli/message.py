"""``lsmq message``: single messages by their id."""

from __future__ import annotations

import sys

import click

from lsmq import Client
from lsmq.cli._formats import formatter
from lsmq.cli.options import asks_a_node, json_option
from lsmq.cli.render import print_fields, time_text


@click.group()
def message() -> None:
    """Look at single messages."""


@message.command()
@click.argument("id")
@click.option("--format", "format_text", help="text, json, raw or a template, as for consume.")
@json_option
@asks_a_node
async def get(client: Client, id: str, format_text: str | None, as_json: bool) -> None:
    """Show the message with this ID, which sending it printed and consuming it shows (%i).

    \b
      lsmq message get 00000001000000070000000000000042
      lsmq message get 00000001000000070000000000000042 --format raw > body
    """
    if as_json:
        format_text = "json"
    try:
        form = formatter(format_text) if format_text is not None else None
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--format") from error
    found = await client.message(id.lower())
    if form is not None:
        sys.stdout.buffer.write(form(found))
        sys.stdout.buffer.flush()
        return
    print_fields(
        [
            ("id", found.id),
            ("topic", found.topic),
            ("queue", found.queue),
            ("offset", found.offset),
            ("key", found.key),
            ("tag", found.tag),
            ("priority", found.priority),
            ("properties", dict(found.properties)),
            *([("headers", dict(found.headers))] if found.headers else []),
            *([("delete", True)] if found.delete else []),
            ("stored", time_text(found.stored_ms)),
            ("bytes", len(found.body)),
            ("body", found.body),
        ]
    )
