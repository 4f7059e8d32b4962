"""``lsmq backup``: make backups of running nodes, list and remove them, restore them."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from lsmq import Client, runtime
from lsmq.cli._node import disks_of, need_node, private_files
from lsmq.cli.options import TIME, asks_a_node, json_option
from lsmq.cli.render import counted, print_json, print_table, progress, size_text, time_text
from lsmq.errors import CorruptFile, InvalidRequest, UnsupportedFormat
from lsmq.node_backups import BackupAdmin, BackupEnd, NodeBackupState

_DIRECTORY = click.Path(file_okay=False, path_type=Path)
_LOOK_S = 0.2
_there = click.argument("place", metavar="PLACE")
_which = click.option("--id", metavar="ID", help="Of the backup.  [default: the latest]")


@click.group()
def backup() -> None:
    """Make backups of a node or a cluster that runs, restore them, look into them.

    A PLACE is a directory, or s3://BUCKET/PREFIX: there, AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID and
    AWS_SECRET_ACCESS_KEY in the environment say where and who. It holds any number of backups, which share the files
    that are the same in them.
    """


def _module(name: str) -> Any:
    with need_node("lsmq backup"):
        return importlib.import_module(f"lsmq_node.backups.{name}")


def _repository(place: str) -> Any:
    return _module("repository").Repository.at(place)


def _shown(shown: ExitStack, label: str) -> Callable[[int], Callable[[int], None]]:
    def begin(total: int) -> Callable[[int], None]:
        return shown.enter_context(progress(label, total, of_bytes=True)).advance

    return begin


@backup.command()
@click.option("--to", "place", metavar="PLACE", required=True, help="A directory, or s3://BUCKET/PREFIX.")
@click.option("--keep", type=click.IntRange(min=1), help="Then remove all but the newest so many.")
@click.option("--full", is_flag=True, help="Fetch every file, also those that an earlier backup has.")
@json_option
@asks_a_node
async def create(client: Client, place: str, keep: int | None, full: bool, as_json: bool) -> None:
    """Back up all that a node, or a cluster, has. Nobody's writes wait for it.

    Each shard is as it was at one moment: all that was acknowledged before the command, with groups, producers and
    transactions. Only files are sent that no earlier backup there has. When it is interrupted, the next one goes on.

    \b
      lsmq backup create --to /backups/lsmq --keep 7
      lsmq backup create --to s3://backups/lsmq --keep 7
    """
    repository = _repository(place)
    with private_files(), repository.changing(), ExitStack() as shown:
        reader = _module("sources").ApiReader(client, f"backup-{runtime.token_hex(8)}")
        made = await _module("create").create_backup(
            reader, repository, keep=keep, full=full, begin=_shown(shown, "backing up")
        )
    found = made.backup
    if as_json:
        came = {"fetched_bytes": made.fetched_bytes, "removed": made.removed, "unread": made.unread}
        print_json({**_fields(found), **came})
        return
    click.echo(
        f"backup {found.id}: {counted(len(found.shards), 'shard')}, {counted(len(found.topics), 'topic')}, "
        f"{size_text(found.size_bytes)}, of which {size_text(made.fetched_bytes)} were fetched"
    )
    if made.removed:
        click.echo(f"removed: {', '.join(made.removed)}")
    _tell_unread(place, made.unread)


def _tell_unread(place: str, ids: Sequence[str]) -> None:
    if ids:
        click.echo(
            f"warning: no file was removed, and no space is freed: {', '.join(ids)} cannot be read, so that nobody "
            f"knows which files are theirs. `lsmq backup list {place}` says why; remove what is damaged from "
            f"{place}/backups",
            err=True,
        )


def _fields(found: Any) -> dict[str, Any]:
    return {
        "id": found.id,
        "cluster": found.cluster,
        "made_ms": found.made_ms,
        "created_ms": found.created_ms,
        "product": found.product,
        "size_bytes": found.size_bytes,
        "shards": [{"shard": shard.shard, "lsn": shard.lsn, "taken_ms": shard.taken_ms} for shard in found.shards],
        "topics": [topic.name for topic in found.topics],
    }


@backup.command()
@click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until it is done.")
@json_option
@asks_a_node
async def start(client: Client, wait: bool, as_json: bool) -> None:
    """Have the node at --url make a backup itself, where its setting backup_to says.

    Of all that the node, or its cluster, has, as `lsmq backup create` does. It goes on when this command is
    interrupted; `lsmq backup status` shows how far it is, `lsmq backup stop` ends it.
    """
    admin = BackupAdmin(client)
    state = await admin.start()
    running = state.running
    if wait and running is not None:
        state = await _watched(admin, running.began_ms)
    if as_json:
        print_json(asdict(state))
    elif state.running is not None:
        click.echo(f"a backup is being made in {state.place}", err=True)
    elif state.last is not None:
        click.echo(_told(state.last))
        _tell_unread(str(state.place), state.last.unread)
    if not state.running and state.last is not None and state.last.error is not None:
        raise click.exceptions.Exit(1)


async def _watched(admin: BackupAdmin, began_ms: int) -> NodeBackupState:
    with ExitStack() as shown:
        bar, done = None, 0
        while True:
            state = await admin.state()
            running = state.running
            if running is None or running.began_ms != began_ms:
                return state
            if bar is None and running.total_bytes is not None:
                bar = shown.enter_context(progress("backing up", running.total_bytes, of_bytes=True))
            if bar is not None:
                bar.advance(running.done_bytes - done)
                done = running.done_bytes
            await asyncio.sleep(_LOOK_S)


def _told(last: BackupEnd) -> str:
    if last.id is None:
        return f"there is no backup: {last.error}"
    sizes = f"{size_text(last.size_bytes or 0)}, of which {size_text(last.fetched_bytes or 0)} were fetched"
    return f"backup {last.id}: {sizes}" + (f"\nremoved: {', '.join(last.removed)}" if last.removed else "")


@backup.command()
@json_option
@asks_a_node
async def status(client: Client, as_json: bool) -> None:
    """Show the backups that the node at --url makes itself: the one under way, the last one, those there are."""
    state = await BackupAdmin(client).state()
    if as_json:
        print_json(asdict(state))
        return
    if state.place is None:
        click.echo("the node makes none: its setting backup_to is not set")
        return
    click.echo(f"in {state.place}, of which {state.keep or 'all'} are kept")
    if state.running is not None:
        total = state.running.total_bytes
        of = "" if total is None else f" of {size_text(total)}"
        click.echo(f"under way since {time_text(state.running.began_ms)}: {size_text(state.running.done_bytes)}{of}")
    if state.last is not None:
        click.echo(f"the last one, over at {time_text(state.last.ended_ms)}: {_told(state.last)}")
        _tell_unread(state.place, state.last.unread)
    if state.problem is not None:
        click.echo(f"what is there is not known: {state.problem}")
    for id in state.backups:
        click.echo(id)


@backup.command()
@asks_a_node
async def stop(client: Client) -> None:
    """End the backup that the node at --url makes itself. What it fetched is kept for the next one."""
    await BackupAdmin(client).stop()


@backup.command("list")
@_there
@json_option
@click.pass_context
def list_backups(context: click.Context, place: str, as_json: bool) -> None:
    """List the backups there are, oldest first.

    Exits with 1 when there are some that cannot be read, and names them.
    """
    repository = _repository(place)
    backups, unread = [], []
    for id in repository.ids():
        try:
            backups.append(repository.load(id))
        except (CorruptFile, UnsupportedFormat) as error:
            unread.append(error)
        except InvalidRequest:  # Somebody removes it just now.
            if id in repository.ids():
                raise
    if as_json:
        print_json([_fields(found) for found in backups])
    else:
        _print_backups(backups)
    for damage in unread:
        click.echo(f"error: {damage.code}: {damage.message}", err=True)
    context.exit(1 if unread else 0)


def _print_backups(backups: list[Any]) -> None:
    rows = [
        [
            found.id,
            time_text(found.made_ms),
            found.cluster or "-",
            len(found.shards),
            len(found.topics),
            size_text(found.size_bytes),
        ]
        for found in backups
    ]
    print_table(["id", "made", "cluster", "shards", "topics", "size"], rows)


@backup.command()
@_there
@click.option("--keep", type=click.IntRange(min=1), required=True, help="Remove all but the newest so many.")
def prune(place: str, keep: int) -> None:
    """Remove old backups, and the files that none of the others has."""
    repository = _repository(place)
    repository.ids()  # Where there are none nothing is made.
    with private_files(), repository.changing():
        pruned = repository.prune(keep)
    click.echo(f"{counted(len(pruned.removed), 'backup')} removed", err=True)
    _tell_unread(place, pruned.unread)


@backup.command()
@_there
@click.option("--data", metavar="NEWDIR[,...]", help="The data directory to make; one a disk, where there are more.")
@click.option("--cluster", "of_cluster", is_flag=True, help="Of a node of a new cluster, on each of them.")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    envvar="LSMQ_CONFIG",
    show_envvar=True,
    help="With --cluster: the node's configuration, as lsmq serve takes it.",
)
@_which
def restore(place: str, data: str | None, of_cluster: bool, config: Path | None, id: str | None) -> None:
    """Make NEWDIR, which is new or empty, the data directory of a node with what a backup has.

    Everything that is copied is verified. Without --cluster it becomes a node of its own, with as many shards. With it,
    a node of a new cluster, whose configuration says where (NEWDIR may be left out), which cluster and which node: it
    gets the replicas that the cluster is founded with there. Do so on each of its nodes, with the same --id.

    \b
      lsmq backup restore /backups/lsmq --data ./restored
      lsmq serve --data ./restored
      lsmq backup restore s3://backups/lsmq --cluster --config /etc/lsmq.toml --id 20261123T205243.964Z
    """
    if of_cluster:
        _restore_member(place, data, config, id)
        return
    if data is None:
        raise click.UsageError("say where: --data NEWDIR, or --cluster with the configuration of a cluster's node")
    repository = _repository(place)
    with private_files(), ExitStack() as shown:
        found = _module("restore").restore_backup(repository, disks_of(data), id, begin=_shown(shown, "restoring"))
    count = len(found.shards)
    also = f" LSMQ_SHARDS={count}" if count > 1 else ""
    click.echo(f"{data} holds the backup {found.id}; start a node with{also} lsmq serve --data {data}", err=True)


def _restore_member(place: str, data: str | None, file: Path | None, id: str | None) -> None:
    with need_node("lsmq backup"):
        node_config = importlib.import_module("lsmq_node.config").NodeConfig
    try:
        config = node_config.load(file, os.environ, data=data)
    except InvalidRequest as error:
        raise click.UsageError(error.message) from error
    with private_files(), ExitStack() as shown:
        found = _module("restore_cluster").restore_member(
            _repository(place), config, id, begin=_shown(shown, "restoring")
        )
    state = found.state
    held = f"replicas of the shards {', '.join(map(str, found.shards))}" if found.shards else "no replicas"
    also = ", and the control state" if found.voter else ""
    others = [node for node in state.nodes if node != found.node]
    click.echo(
        f"{found.data} is of node {found.node} of cluster {state.settings.cluster}, restored from the backup "
        f"{found.backup.id} (mark {state.mark}): {held}{also}; {counted(len(state.topics), 'topic')}",
        err=True,
    )
    if others:
        click.echo(
            f"do the same at {', '.join(others)}, with --id {found.backup.id}; all must say mark {state.mark}. Then "
            "start them",
            err=True,
        )
    click.echo(
        "not restored: tokens, roles, grants and limits of clients (make them anew, the first by the first start), and "
        "settings of nodes, which are those of their configuration",
        err=True,
    )


@backup.command()
@_there
@click.option("--topic", required=True, help="Of the backup.")
@click.option("--as", "name", metavar="NAME", required=True, help="The new topic that messages are sent to.")
@click.option("--queue", "queues", multiple=True, help="Only this queue, by its number or name; may be repeated.")
@click.option("--from", "begin", metavar="TIME", type=TIME, help="Only what was stored at or after it.")
@click.option("--until", "end", metavar="TIME", type=TIME, help="Only what was stored before it.")
@click.option("--groups", is_flag=True, help="Groups go on in the new topic where they had been in the old one.")
@click.option("--work", type=_DIRECTORY, help="A directory with space for the topic's shards meanwhile.")
@_which
@asks_a_node
async def extract(
    client: Client,
    place: str,
    topic: str,
    name: str,
    queues: tuple[str, ...],
    begin: datetime | None,
    end: datetime | None,
    groups: bool,
    work: Path | None,
    id: str | None,
) -> None:
    """Send the messages that a topic had to a new topic of a node or cluster that runs, any node or cluster.

    With keys, tags, properties, headers and priorities, each to the queue it was in; offsets, ids and times are new.
    The property restored.stored_ms says when a message was stored first. With --groups, what consumer groups had
    committed is committed for them in the new topic, as the offset that the same message has there.

    \b
      lsmq backup extract /backups/lsmq --topic orders --until 2026-03-01T12:00 --as orders-restored
      lsmq backup extract /backups/lsmq --topic orders --as orders --groups --url http://other:7600
    """
    module = _module("extract")
    wanted = module.WantedMessages(topic, frozenset(queues) or None, _ms(begin) or 0, _ms(end))
    with private_files(), ExitStack() as shown:
        done = await module.extract_topic(
            client,
            _repository(place),
            wanted,
            name,
            id,
            work=work,
            groups=groups,
            begin=_shown(shown, "reading"),
        )
    click.echo(f"{counted(done.messages, 'message')} sent to {name}", err=True)
    for group, count in sorted(done.groups.items()):
        click.echo(f"group {group} goes on where it was in {counted(count, 'queue')}", err=True)
    if done.passed_over:
        click.echo(f"{done.passed_over} were passed over: their headers are nothing that a client makes", err=True)
    for group, why in sorted(done.refused.items()):
        click.echo(f"error: the offsets of group {group} were not set: {why}", err=True)
    for queue in sorted(done.missing):
        click.echo(f"error: the backup has no queue {queue!r} of {topic}", err=True)
    if done.refused or done.missing:
        click.get_current_context().exit(1)


def _ms(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp() * 1000)
