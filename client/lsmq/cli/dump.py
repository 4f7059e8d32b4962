"""``lsmq dump``: look into the node's files. Never modifies them."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from lsmq.cli._node import need_node
from lsmq.cli.options import json_option
from lsmq.cli.render import print_json, print_table

_FILE = click.Path(exists=True, dir_okay=False, readable=True, path_type=Path)
_ROWS_AT_A_TIME = 1000


@click.group()
def dump() -> None:
    """Look into a node's files: WAL and its mark, SSTable, manifest, checkpoint, snapshot, the control journal.

    Reads the file and nothing else; the node may be running. Damage is reported by name, as an error.
    """


def _add(name: str, dumper: str, summary: str, module: str = "lsmq_node.storage.dump") -> None:
    """The command ``name`` prints what the ``dumper`` of that ``module`` finds in a file."""

    def command(file: Path, as_json: bool) -> None:
        _print(_dumper(dumper, module)(file), as_json)

    dump.command(name, help=summary)(click.argument("file", type=_FILE)(json_option(command)))


_add("wal", "dump_wal", "Print the entries of a WAL segment.")
_add("manifest", "dump_manifest", "Print a manifest: the place of the log, and the tables.")
_add(
    "checkpoint",
    "dump_checkpoint",
    "Print a file of a checkpoint: what changed of topics, groups, documents and producers.",
)
_add("snapshot", "dump_snapshot", "Print what a downloaded snapshot of a shard is made of.")
_add("mark", "dump_log_mark", "Print what is noted of a log's end (LOG_MARK).")
_add(
    "journal",
    "dump_journal",
    "Print a voter's journal: terms and votes, commands of the control plane, its snapshot.",
    module="lsmq_coordinator.journal_dump",
)


@dump.command()
@click.argument("file", type=_FILE)
@click.option("--records", is_flag=True, help="Every record, not only the blocks.")
@json_option
def sstable(file: Path, records: bool, as_json: bool) -> None:
    """Print properties and blocks of an SSTable, or its records."""
    _print(_dumper("dump_sstable")(file, records), as_json)


def _dumper(name: str, module: str = "lsmq_node.storage.dump") -> Any:
    with need_node("lsmq dump"):
        return getattr(importlib.import_module(module), name)


def _print(entries: Iterable[Mapping[str, Any]], as_json: bool) -> None:
    if as_json:
        for entry in entries:
            print_json(entry)
        return
    for columns, rows in _tables(entries):
        print_table(columns, rows)


def _tables(entries: Iterable[Mapping[str, Any]]) -> Iterator[tuple[list[str], list[list[Any]]]]:
    """Entries with the same fields that follow one another make a table."""
    columns: list[str] = []
    rows: list[list[Any]] = []
    for entry in entries:
        if rows and (list(entry) != columns or len(rows) >= _ROWS_AT_A_TIME):
            yield columns, rows
            rows = []
        columns = list(entry)
        rows.append([entry[column] for column in columns])
    if rows:
        yield columns, rows
