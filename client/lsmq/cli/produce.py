"""``lsmq produce``: send lines, JSON lines or files."""

from __future__ import annotations

import sys
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

import click

from lsmq import Client, Codec, InvalidRequest, Producer, Receipt, Sent
from lsmq.cli._input import STDIN, OutgoingMessage, from_file, from_json_line, from_line, lines, name_of
from lsmq.cli._process import drop_output
from lsmq.cli._queues import queue_of
from lsmq.cli.options import DURATION, TIME, TOPIC, asks_a_node, json_option
from lsmq.cli.render import ProgressBar, counted, print_json, progress, size_text
from lsmq.errors import UnknownQueue
from lsmq.topics import Ack, Flush

_FILES = click.Path(exists=True, dir_okay=False, readable=True, allow_dash=True)


@dataclass(slots=True)
class ProduceSummary:
    """What was sent."""

    messages: int = 0
    bytes: int = 0
    empty_skipped: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class InputOptions:
    """How inputs become messages, and what messages get that say nothing themselves."""

    files: tuple[str, ...]
    whole_files: bool
    json_lines: bool
    key_separator: str | None
    key: str | None
    tag: str | None
    queue: int | str | None
    type: str | None
    ttl_ms: int | None
    expires_at_ms: int | None
    dedupe_id: str | None
    delay_ms: int | None
    deliver_at_ms: int | None


@click.command()
@click.argument("topic", type=TOPIC)
@click.argument("files", nargs=-1, type=_FILES)
@click.option("--json-lines", is_flag=True, help="Each line is a JSON object; see above.")
@click.option("--file", "whole_files", is_flag=True, help="Each of FILES is one message, not its lines.")
@click.option("--key", help="Key of all messages: they go to one queue and keep their order.")
@click.option("--key-separator", metavar="TEXT", help="What stands in a line before the first TEXT is its key.")
@click.option("--tag", help="Tag of all messages.")
@click.option("--type", "kind", help="Type of all messages.")
@click.option("--ttl", "ttl_ms", type=DURATION, help="Deliver them for so long, such as 90s, and not afterwards.")
@click.option("--expires-at", type=TIME, help="Deliver them until then, as 2026-12-24T18:00, and not afterwards.")
@click.option("--queue", metavar="QUEUE", help="Send everything to this queue: a number, or in a named topic a name.")
@click.option("--dedupe-id", help="Store the message only if none with this id was, within the topic's window.")
@click.option("--delay", "delay_ms", type=DURATION, help="They come into their queues so much later, as 10m or 7d.")
@click.option(
    "--at",
    "deliver_at",
    type=TIME,
    help="When they come: 2026-12-24T18:00, local time unless it names a zone.",
)
@click.option("--ack", type=click.Choice(["quorum", "leader"]), help="When a write counts as stored.")
@click.option("--flush", type=click.Choice(["sync", "async"]), help="When a replica has it: on its disk, or written.")
@click.option("--compress", is_flag=True, help="Compress batches with zstd.")
@click.option("--linger", "linger_ms", type=DURATION, default="5ms", show_default=True, help="Wait for a batch.")
@click.option("--receipts", is_flag=True, help="Print queue, offset and id of each message as JSON lines.")
@json_option
@asks_a_node
async def produce(
    client: Client,
    topic: str,
    files: tuple[str, ...],
    json_lines: bool,
    whole_files: bool,
    key: str | None,
    key_separator: str | None,
    tag: str | None,
    kind: str | None,
    ttl_ms: int | None,
    expires_at: datetime | None,
    queue: str | None,
    dedupe_id: str | None,
    delay_ms: int | None,
    deliver_at: datetime | None,
    ack: Ack | None,
    flush: Flush | None,
    compress: bool,
    linger_ms: int,
    receipts: bool,
    as_json: bool,
) -> None:
    """Send messages to TOPIC: one a line of FILES, or of standard input.

    Lines go without their line end, empty ones are skipped. With --json-lines a line is an object with
    "body" (text; any other JSON is sent as JSON) or "body_b64", and optionally "key" or "key_b64", "tag", "queue",
    "priority", "subpriority", "type", "ttl_ms" or "expires_at_ms", "properties", "dedupe_id", "delay_ms" or
    "deliver_at_ms", and "headers" ([{"name": .., "value": ..}]); with "delete" it says that its key is gone, and has no
    body. It returns once every message is stored, and fails if one is not; a message whose answer got lost is sent
    again and stored once. A line that is wrong ends it; the lines before it are stored.

    \b
      echo 'one pizza' | lsmq produce orders --key 'table 7'
      lsmq produce logs --tag nginx access.log
      lsmq produce users --key-separator : /etc/passwd
      lsmq produce orders --json-lines <<< '{"key": "table 7", "body": {"pizzas": 1}}'
      lsmq produce images --file cat.jpg dog.jpg
      echo 'pay the bill' | lsmq produce reminders --delay 7d
      echo 'look around' | lsmq produce agents --queue agents.7.inbox
    """
    if key is not None and key_separator is not None:
        raise click.UsageError("--key gives all messages one key, --key-separator each its own: give one of the two")
    if key_separator == "":
        raise click.UsageError("--key-separator is empty: it is what stands between a key and its body")
    if whole_files and (json_lines or key_separator is not None):
        raise click.UsageError("--file takes files as they are: leave out --json-lines and --key-separator")
    if json_lines and key_separator is not None:
        raise click.UsageError("with --json-lines the key is a field: leave out --key-separator")
    if whole_files and (not files or STDIN in files):
        raise click.UsageError("--file needs the names of files")
    if delay_ms is not None and deliver_at is not None:
        raise click.UsageError("--delay says how much later messages come, --at when: give one of the two")
    if ttl_ms is not None and expires_at is not None:
        raise click.UsageError("--ttl says how long messages live, --expires-at until when: give one of the two")
    at_ms, expires_at_ms = (None if at is None else int(at.timestamp() * 1000) for at in (deliver_at, expires_at))
    to = None if queue is None else await queue_of(client, topic, queue)
    own = key, tag, to, kind, ttl_ms, expires_at_ms, dedupe_id, delay_ms, at_ms
    options = InputOptions(files or (STDIN,), whole_files, json_lines, key_separator, *own)
    summary = ProduceSummary()
    total = _size_bytes(options.files)
    started_s = time.monotonic()
    codec = Codec.ZSTD if compress else Codec.NONE
    producer = Producer(client, topic, ack=ack, flush=flush, linger_ms=linger_ms, codec=codec)
    with progress("sending", total, of_bytes=True, beside=STDIN in options.files and sys.stdin.isatty()) as shown:
        async with producer:
            await _send_all(producer, options, summary, shown, print_receipts=receipts)
    summary.seconds = round(time.monotonic() - started_s, 3)
    if as_json:
        print_json(asdict(summary))
    else:
        rate = summary.messages / max(summary.seconds, 0.001)
        skipped = f", {summary.empty_skipped} empty lines skipped" if summary.empty_skipped else ""
        click.echo(
            f"{counted(summary.messages, 'message')}, {size_text(summary.bytes)},"
            f" {summary.seconds:.1f} s, {rate:.0f} messages/s{skipped}",
            err=True,
        )


def _size_bytes(files: tuple[str, ...]) -> int | None:
    return None if STDIN in files else sum(Path(path).stat().st_size for path in files)


async def _send_all(
    producer: Producer, options: InputOptions, summary: ProduceSummary, shown: ProgressBar, *, print_receipts: bool
) -> None:
    async for portion in _portions(options):
        receipts: list[Receipt] = []
        try:
            for outgoing in portion:
                if outgoing is None:
                    shown.advance(1)
                    summary.empty_skipped += 1
                    continue
                shown.advance(len(outgoing.body) + 1)
                receipts.append(await _send(producer, outgoing, options))
                summary.messages += 1
                summary.bytes += len(outgoing.body)
        finally:  # A line that is wrong does not hide where those before it are.
            if print_receipts:
                try:
                    for receipt in receipts:
                        print_json(_receipt_fields(await receipt))
                except BrokenPipeError:  # Whoever reads receipts has seen enough; what is there is sent all the same.
                    drop_output()
                    print_receipts = False
        for receipt in receipts[-1:]:
            if receipt.done():
                receipt.result()  # A producer that fails should not read on to the end.


def _receipt_fields(sent: Sent) -> dict[str, int | str | None]:
    queue = sent.queue if sent.queue_name is None else sent.queue_name
    if sent.due_ms is None:
        repeated = {"duplicate": True} if sent.duplicate else {}
        if sent.dropped:
            return {"queue": queue, "offset": None, "id": None, "dropped": True}
        return {"queue": queue, "offset": sent.offset, "id": sent.id, **repeated}
    return {"queue": queue, "offset": None, "id": sent.id, "due_ms": sent.due_ms}


async def _send(producer: Producer, outgoing: OutgoingMessage, options: InputOptions) -> Receipt:
    try:
        return await producer.send(
            outgoing.body,
            key=outgoing.key if outgoing.key is not None else options.key,
            tag=outgoing.tag if outgoing.tag is not None else options.tag,
            queue=outgoing.queue if outgoing.queue is not None else options.queue,
            properties=outgoing.properties,
            headers=outgoing.headers,
            priority=outgoing.priority,
            subpriority=outgoing.subpriority,
            delete=outgoing.delete,
            type=outgoing.type if outgoing.type is not None else options.type,
            ttl_ms=outgoing.ttl_ms if outgoing.expires else options.ttl_ms,
            expires_at_ms=outgoing.expires_at_ms if outgoing.expires else options.expires_at_ms,
            dedupe_id=outgoing.dedupe_id if outgoing.dedupe_id is not None else options.dedupe_id,
            delay_ms=outgoing.delay_ms if outgoing.comes_later else options.delay_ms,
            deliver_at_ms=outgoing.deliver_at_ms if outgoing.comes_later else options.deliver_at_ms,
        )
    except (InvalidRequest, UnknownQueue) as error:
        raise type(error)(f"{outgoing.source}: {error.message}", **error.details) from error


async def _portions(options: InputOptions) -> AsyncIterator[Iterable[OutgoingMessage | None]]:
    """The messages of all inputs, each made when it is its turn; ``None`` for an empty line."""
    for path in options.files:
        if options.whole_files:
            yield [from_file(Path(path))]
            continue
        async for numbered in lines(path):
            yield (_from_line(line, number, path, options) for number, line in numbered)


def _from_line(line: bytes, number: int, path: str, options: InputOptions) -> OutgoingMessage | None:
    source = f"{name_of(path)}, line {number}"
    if not (line.strip() if options.json_lines else line):
        return None
    if options.json_lines:
        return from_json_line(line, source=source)
    return from_line(line, key_separator=options.key_separator, source=source)
