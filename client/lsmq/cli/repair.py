"""``lsmq repair``: say what is damaged of a store, and save what is whole into a new one."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from lsmq.cli._findings import FindingsReport
from lsmq.cli._node import disks_of, need_node, private_files
from lsmq.cli._process import exits_with
from lsmq.cli.options import json_option
from lsmq.cli.render import counted, print_json, progress, size_text


@click.command()
@click.argument("directory", metavar="DIR")
@click.option("--out", metavar="DIR2", type=click.Path(path_type=Path), help="Save what is whole here: new or empty.")
@json_option
def repair(directory: str, out: Path | None, as_json: bool) -> None:
    """Say what is damaged in DIR, and with --out save what is whole into a new store.

    DIR is the directory of a QueueStore, of one shard, or of a node; nothing may have it open. It is never written to.
    Of a node with several disks it is the first directory, or all with commas between; DIR2 has all shards then.
    A member of a cluster is better filled again from the others.

    Exits with 0 when nothing is damaged, with 1 when something is.
    """
    with need_node("lsmq repair"):
        module: Any = importlib.import_module("lsmq_node.broker.repair")
        findings: Any = importlib.import_module("lsmq_node.storage.repair")
    report = FindingsReport(print_json if as_json else None)
    disks = disks_of(directory)
    for disk in disks:
        if not disk.is_dir():
            raise click.UsageError(f"Invalid value for 'DIR': Directory '{disk}' does not exist.")
    with private_files(), ExitStack() as shown:

        def begin(total: int) -> Callable[[int], None]:
            label = "examining" if out is None else "saving"
            return shown.enter_context(progress(label, total, of_bytes=True)).advance

        summary = module.repair_directory(
            disks[0], out, *disks[1:], tell=lambda found: report.add(findings.as_dict(found)), begin=begin
        )
    with exits_with(1 if summary.damaged else 0):
        if as_json:
            print_json({**findings.as_dict(summary), "damaged": summary.damaged})
        else:
            report.show()
            _show_summary(summary, out)


def _show_summary(summary: Any, out: Path | None) -> None:
    whole = f"{counted(summary.messages, 'message')} are whole"
    if out is None:
        click.echo(f"{whole}; --out DIR2 saves them" if summary.damaged else f"{whole}; nothing is damaged")
    else:
        click.echo(f"{whole}, and in {out} now ({size_text(summary.size_bytes)})")
    if summary.damaged:
        click.echo(
            f"{counted(summary.damages, 'place')} damaged, {counted(summary.lost, 'message')} lost at least"
            + (f", and {summary.maybe_lost} more offsets lost or deleted before" if summary.maybe_lost else "")
        )
