"""``lsmq work``: messages of a work queue, printed and acknowledged."""

from __future__ import annotations

import sys

import click

from lsmq import Client, WorkQueue
from lsmq._retries import Deadline
from lsmq.cli._formats import formatter
from lsmq.cli.options import DURATION, TOPIC, asks_a_node
from lsmq.errors import Unavailable

_DEFAULT_WAIT = "2s"
#: So long at least it takes until a node has answered.
_LEAST_MS = 500
_AT_ONCE = 100


@click.command()
@click.argument("topic", type=TOPIC)
@click.option("--group", required=True, help="Whose work it is.")
@click.option("--max", "limit", type=click.IntRange(min=1), help="Stop after this many messages.")
@click.option("--tag", "tags", multiple=True, help="Only messages with this tag; again for others.")
@click.option("--type", "types", multiple=True, help="Only messages of this type; again for others.")
@click.option("--filter", "condition", metavar="CONDITION", help="Only messages that meet it, as for consume.")
@click.option(
    "--wait", "wait_ms", type=DURATION, default=_DEFAULT_WAIT, show_default=True, help="Wait so long for more."
)
@click.option("--format", "format_text", default="text", show_default=True, help="As for consume.")
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@asks_a_node
async def work(
    client: Client,
    topic: str,
    group: str,
    limit: int | None,
    tags: tuple[str, ...],
    types: tuple[str, ...],
    condition: str | None,
    wait_ms: int,
    format_text: str,
    as_json: bool,
) -> None:
    """Take messages of TOPIC from the work queue of a group: print them, and acknowledge what was printed.

    With --tag, --type and --filter all others stay for other consumers of the group.

    \b
      lsmq work orders --group kitchen --max 10
      lsmq work orders --group kitchen --tag gpu --json
    """
    try:
        form = formatter("json" if as_json else format_text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--format") from error
    picks = {"tag": tags or None, "type": types or None, "filter": condition}
    async with WorkQueue(client, topic, group, deadline_ms=client.deadline_ms, **picks) as queue:  # type: ignore[arg-type]
        await client.topic(topic)  # from here on it is waited for messages, not for nodes
        done, gives_up = 0, Deadline(client.deadline_ms)
        while limit is None or done < limit:
            tasks = await queue.poll(_AT_ONCE if limit is None else min(_AT_ONCE, limit - done), wait_ms or _LEAST_MS)
            if not tasks:
                if not client._router.outages.is_failing:
                    return
                if gives_up.passed:
                    raise Unavailable(f"not all of topic {topic!r} can be had now, and there may be more work in it")
                continue
            gives_up = Deadline(client.deadline_ms)
            for task in tasks:
                sys.stdout.buffer.write(form(task.message))
            sys.stdout.buffer.flush()
            for task in tasks:
                await task.ack()
            done += len(tasks)
