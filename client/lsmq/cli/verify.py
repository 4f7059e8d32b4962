"""``lsmq verify``: read everything there is, and say what is whole."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from lsmq.cli._findings import FindingsReport
from lsmq.cli._node import disks_of, need_node
from lsmq.cli._process import exits_with
from lsmq.cli.options import json_option, url_option, with_client
from lsmq.cli.render import counted, print_json, progress


@click.command()
@click.argument("place", metavar="[PLACE]", required=False)
@click.option("--id", metavar="ID", help="Of a place of backups: this one alone.")
@json_option
@url_option
def verify(place: str | None, id: str | None, as_json: bool, url: str, deadline_ms: int) -> None:
    """Read everything in PLACE, hold it against its checksums, and say what is whole.

    PLACE has backups (a directory, or s3://BUCKET/PREFIX), or is the data of a node, of one shard or of a QueueStore
    that nothing has open. Of a node with several disks its first directory will do, or all of them with commas between.
    It is never written to. Without it, the nodes that run read their files: of each shard those
    of its leader.

    Exits with 0 when nothing is damaged, with 1 when something is.
    """
    with need_node("lsmq verify"):
        module: Any = importlib.import_module("lsmq_node.backups.check")
        findings: Any = importlib.import_module("lsmq_node.storage.repair")
    of_data = place is not None and "://" not in place and not module.is_repository(Path(place))
    disks = disks_of(place) if place is not None and of_data else []
    report = FindingsReport(print_json if as_json else None)

    def tell(found: Any) -> None:
        report.add(findings.as_dict(found))

    with ExitStack() as shown:

        def begin(total: int) -> Callable[[int], None]:
            return shown.enter_context(progress("verifying", total, of_bytes=True)).advance

        if place is None:
            summary = with_client(url, deadline_ms, lambda client: module.verify_nodes(client, tell=tell, begin=begin))
        elif of_data:
            summary = module.verify_directory(*disks, tell=tell, begin=begin)
        else:
            repository = importlib.import_module("lsmq_node.backups.repository").Repository.at(place)
            summary = module.verify_repository(repository, backup=id, tell=tell, begin=begin)
    with exits_with(1 if summary.damaged else 0):
        if as_json:
            print_json({**findings.as_dict(summary), "damaged": summary.damaged})
        else:
            report.show()
            click.echo(_verdict(summary, of_data))


def _verdict(summary: Any, of_data: bool) -> str:
    messages = f"{counted(summary.messages, 'message')} are whole; " if of_data else ""
    if not summary.damaged:
        return f"{messages}nothing is damaged"
    remedy = "; lsmq repair says what is lost, and saves the rest" if of_data else ""
    return f"{messages}{counted(summary.damages, 'place')} damaged{remedy}"
