"""``lsmq drill``: hurt a cluster while it works, and check that nothing was lost."""

from __future__ import annotations

import importlib
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from lsmq.cli._node import NodeNotInstalled, need_node
from lsmq.cli.options import json_option
from lsmq.cli.render import print_json


def _drills() -> Any:
    with need_node("lsmq drill"):
        return importlib.import_module("lsmq_lab.drills")


def _complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    try:
        return [CompletionItem(name) for name in _drills().DRILLS if name.startswith(incomplete)]
    except NodeNotInstalled:
        return []


@click.command()
@click.argument("name", required=False, shell_complete=_complete)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="How often to do it.")
@click.option("--seed", type=int, help="Decides which shard, which node and when.  [default: a new one, printed]")
@click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Run it there, and keep logs and data.  [default: a temporary directory, kept when the drill fails]",
)
@click.option(
    "--compose",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Drill the containers of this Compose file instead of processes.",
)
@json_option
def drill(
    name: str | None, rounds: int, seed: int | None, directory: Path | None, compose: Path | None, as_json: bool
) -> None:
    """Run drill NAME; without a name, list what there is.

    A cluster of its own is started, producers write to it with idempotence and ack=quorum, consumers read all
    queues and commit. Each round something is broken, and mended once writes are acknowledged again. Then
    everything that was acknowledged is compared with what is stored, and all replicas with each other.

    \b
      lsmq drill
      lsmq drill kill-leader --rounds 30
      lsmq drill partition-leader --seed 7 --json

    Exits with 0 only when nothing was lost, doubled, reordered or different between replicas.
    """
    drills = _drills()
    known: Mapping[str, Any] = drills.DRILLS
    if name is None:
        for known_name, found in known.items():
            click.echo(f"{known_name:<20} {found.summary}")
        return
    if name not in known:
        raise click.UsageError(f"there is no drill {name!r}; there are: {', '.join(known)}")
    # A drill that is ended in any way takes its cluster down first.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    report = drills.run_drill(name, rounds=rounds, seed=seed, directory=directory, compose=compose)
    if as_json:
        print_json(report.to_dict())
    else:
        drills.print_report(report)
    click.get_current_context().exit(0 if report.ok else 1)
