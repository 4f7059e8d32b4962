"""``lsmq dump``: look into the node's files. Never modifies them."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from lsmq.cli._node import need_node
from lsmq.cli._options import json_option
from lsmq.cli._render import print_json, print_table

_FILE = click.Path(exists=True, dir_okay=False, readable=True, path_type=Path)
_ROWS_AT_A_TIME = 1000


@click.group()
def dump() -> None:
    """Look into a node's files: WAL and its mark, SSTable, manifest, checkpoint, snapshot, the control journal.

    Reads the file and nothing else; the node may be running. Damage is reported by name, as an error.
    """


@dump.command()
@click.argument("file", type=_FILE)
@json_option
def wal(file: Path, as_json: bool) -> None:
    """Print the entries of a WAL segment."""
    _print(_dumper("dump_wal")(file), as_json)


@dump.command()
@click.argument("file", type=_FILE)
@click.option("--records", is_flag=True, help="Every record, not only the blocks.")
@json_option
def sstable(file: Path, records: bool, as_json: bool) -> None:
    """Print properties and blocks of an SSTable, or its records."""
    _print(_dumper("dump_sstable")(file, records), as_json)


@dump.command()
@click.argument("file", type=_FILE)
@json_option
def manifest(file: Path, as_json: bool) -> None:
    """Print a manifest: the place of the log, and the tables."""
    _print(_dumper("dump_manifest")(file), as_json)


@dump.command()
@click.argument("file", type=_FILE)
@json_option
def checkpoint(file: Path, as_json: bool) -> None:
    """Print a file of a checkpoint: what changed of topics, groups, documents and producers."""
    _print(_dumper("dump_checkpoint")(file), as_json)


@dump.command()
@click.argument("file", type=_FILE)
@json_option
def snapshot(file: Path, as_json: bool) -> None:
    """Print what a downloaded snapshot of a shard is made of."""
    _print(_dumper("dump_snapshot")(file), as_json)


@dump.command()
@click.argument("file", type=_FILE)
@json_option
def mark(file: Path, as_json: bool) -> None:
    """Print what is noted of a log's end (LOG_MARK)."""
    _print(_dumper("dump_log_mark")(file), as_json)


@dump.command()
@click.argument("file", type=_FILE)
@json_option
def journal(file: Path, as_json: bool) -> None:
    """Print a voter's journal: terms and votes, commands of the control plane, its snapshot."""
    _print(_dumper("dump_journal", "lsmq_coordinator.journal_dump")(file), as_json)


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
