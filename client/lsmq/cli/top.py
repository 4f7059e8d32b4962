"""``lsmq top``: what the nodes of a cluster do now, again and again."""

from __future__ import annotations

import sys

import click

from lsmq import Client
from lsmq._health import SILENCE_S
from lsmq.cli._top_watch import ClusterWatch, Look, looks
from lsmq.cli.options import DURATION, json_option, url_option, with_client
from lsmq.cli.render import print_json

_SHORTEST_MS = 1_000
_PIPE_COLUMNS = 10_000
_ONCE_LINES = 60


@click.command()
@click.option(
    "--interval",
    "interval_ms",
    type=DURATION,
    default="5s",
    show_default=True,
    help="How often to look; nodes take a sample every five seconds.",
)
@click.option(
    "--sort",
    "order",
    type=click.Choice(["in", "out", "bytes-in", "bytes-out", "name"]),
    default="in",
    show_default=True,
    help="Order of the topics; s goes on to the next one.",
)
@click.option("--once", is_flag=True, help="Print one look and end, as it does where the output is no terminal.")
@json_option
@url_option
def top(interval_ms: int, order: str, once: bool, as_json: bool, url: str, deadline_ms: int) -> None:
    """Watch a node, or all nodes of a cluster: what is not well; messages, times, disks, memory; the busiest topics,
    and the groups that are furthest behind.

    It goes on until q or Ctrl-C; a node that goes away is shown as silent, until it comes back. --json prints an object
    a line at each look.

    \b
      lsmq top --interval 1s
      lsmq top --json | jq -c '.nodes[] | [.node, .in_per_s]'
    """
    if interval_ms < _SHORTEST_MS:
        raise click.BadParameter(f"nodes are asked once a second at most: {_SHORTEST_MS} ms", param_hint="--interval")
    interval_s = interval_ms / 1000

    async def work(client: Client) -> None:
        watch = ClusterWatch(client, min(interval_s, SILENCE_S))
        if as_json:
            print_json((await watch.look()).to_dict())
            if not once:
                async for look in looks(watch, interval_s):
                    print_json(look.to_dict())
        elif once or not sys.stdout.isatty():
            _print_once(await watch.look(), order)
        else:
            from lsmq.cli._top_live import LiveScreen

            await LiveScreen(watch, interval_s, order).run()

    try:
        with_client(url, deadline_ms, work)
    except KeyboardInterrupt:
        if once:
            raise


def _print_once(look: Look, order: str) -> None:
    from rich.console import Console

    from lsmq.cli._top_screen import screen

    console = Console(width=None if sys.stdout.isatty() else _PIPE_COLUMNS, highlight=False)
    console.print(screen(look, width=console.width, height=_ONCE_LINES, order=order))
