"""``lsmq disk``: the disks of a node that does not run."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from lsmq.cli._node import need_node, private_files
from lsmq.cli.render import counted, progress
from lsmq.errors import InvalidRequest

_DIRECTORY = click.Path(file_okay=False, path_type=Path)


def _of_node(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--config",
            type=click.Path(exists=True, dir_okay=False, path_type=Path),
            envvar="LSMQ_CONFIG",
            show_envvar=True,
            help="The node's configuration, as lsmq serve takes it.",
        ),
        click.option("--data", metavar="DIR[,DIR2...]", help="All directories of the node, the first one first."),
    ):
        command = option(command)
    return command


def _disks(config: Path | None, data: str | None) -> tuple[Path, ...]:
    with need_node("lsmq disk"):
        node_config = importlib.import_module("lsmq_node.config").NodeConfig
    try:
        disks: tuple[Path, ...] = node_config.load(config, os.environ, data=data).disks
    except InvalidRequest as error:
        raise click.UsageError(error.message) from error
    return disks


@click.group()
def disk() -> None:
    """Look after the disks of a node that does not run.

    A node has a disk for each directory of its setting data. lsmq status shows them while it runs.
    """


@disk.command()
@click.argument("shard", type=click.IntRange(min=0))
@click.option("--to", required=True, metavar="DIR", type=_DIRECTORY, help="The directory of the node that it goes to.")
@_of_node
def move(shard: int, to: Path, data: str | None, config: Path | None) -> None:
    """Bring SHARD of a node that does not run to another of its disks.

    It is copied as a whole before it goes from where it was. Cut short it is where it was, or has moved: do it again.

    \b
      lsmq disk move 3 --to /disk2/lsmq --data /disk1/lsmq,/disk2/lsmq
    """
    disks = _disks(config, data)
    moving: Any = importlib.import_module("lsmq_node.disks.moving")
    with private_files(), ExitStack() as shown:

        def begin(total: int) -> Callable[[int], None]:
            return shown.enter_context(progress("moving", total, of_bytes=True)).advance

        place = moving.move_shard(disks, shard, to, begin=begin)
    click.echo(f"shard {shard} lies in {place}")


@disk.command()
@click.argument("directory", metavar="DIR", type=_DIRECTORY)
@click.option("--accept-loss", is_flag=True, help="Also where nobody else has its shards: of one of --processes.")
@_of_node
def forget(directory: Path, accept_loss: bool, data: str | None, config: Path | None) -> None:
    """Have a node that does not run do without the disk of DIR, for good.

    One that can be used must hold no shard any more; leave it out of data afterwards. What a lost one had is given
    up: a member of a cluster fills its replicas again from the others, and a node of its own refuses; so do its
    processes without --accept-loss. Should it come back it is not used before it is emptied.
    """
    disks = _disks(config, data)
    moving: Any = importlib.import_module("lsmq_node.disks.moving")
    with private_files():
        left = moving.forget_disk(disks, directory, accept_loss=accept_loss)
    click.echo(f"{directory} is forgotten; the node has {counted(len(left), 'shard')} on its other disks")
