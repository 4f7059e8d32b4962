"""``lsmq request``: one message, and the reply to it."""

from __future__ import annotations

import sys

import click

from lsmq import Client
from lsmq.cli._formats import formatter
from lsmq.cli._queues import queue_of
from lsmq.cli.options import TOPIC, asks_a_node, pairs_of


@click.command()
@click.argument("topic", type=TOPIC)
@click.argument("body", required=False)
@click.option("--key", help="Key of the message.")
@click.option("--tag", help="Tag of the message.")
@click.option(
    "--property",
    "properties",
    metavar="NAME=VALUE",
    multiple=True,
    help="Property of the message; repeat it for others.",
)
@click.option("--dedupe-id", help="Store the message only if none with this id was, within the topic's window.")
@click.option("--queue", metavar="QUEUE", help="Send it to this queue: a number, or in a named topic a name.")
@click.option("--reply-topic", default="lsmq-replies", show_default=True, help="Where the reply comes.")
@click.option("--format", "format_text", default="text", show_default=True, help="As for consume.")
@asks_a_node
async def request(
    client: Client,
    topic: str,
    body: str | None,
    key: str | None,
    tag: str | None,
    properties: tuple[str, ...],
    dedupe_id: str | None,
    queue: str | None,
    reply_topic: str,
    format_text: str,
) -> None:
    """Send a message with BODY, or what standard input holds, to TOPIC; wait for the reply and print it.

    Whoever handles the message answers it with reply(). It fails when no reply comes within --timeout.

    \b
      lsmq request prices 'one pizza' --timeout 5s
    """
    try:
        form = formatter(format_text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--format") from error
    named = pairs_of(properties, "--property")
    content = sys.stdin.buffer.read() if body is None else body.encode(errors="surrogateescape")
    to = None if queue is None else await queue_of(client, topic, queue)
    reply = await client.request(
        topic,
        content,
        timeout_ms=client.deadline_ms,
        reply_topic=reply_topic,
        key=key,
        tag=tag,
        queue=to,
        properties=named,
        dedupe_id=dedupe_id,
    )
    sys.stdout.buffer.write(form(reply))
    sys.stdout.buffer.flush()
