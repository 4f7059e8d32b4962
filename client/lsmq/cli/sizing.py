"""``lsmq sizing``: what a load takes of disks, memory and networks. Arithmetic alone: no node is asked."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import click

from lsmq.cli.options import DURATION, SIZE, json_option
from lsmq.cli.render import counted, print_fields, print_json

#: Of a message besides its body, key, tag and properties: columns, checksums and the index.
RECORD_BYTES = 16
#: Merges begin when 30 % of the tables is garbage; another part is for what they write meanwhile.
SPACE_FACTOR = 1.6
#: Of a queue that was used: with a number, and with a name of some 20 letters.
QUEUE_BYTES = 24
NAMED_QUEUE_BYTES = 85
#: Of a shard, with the settings' defaults: two memtables and a cache of 64 MiB; a log of up to 512 MiB kept for others.
SHARD_MEMORY_BYTES = 3 * (64 << 20)
SHARD_LOG_BYTES = (512 << 20) + 4 * (64 << 20)
PROCESS_BYTES = 200 << 20


@dataclass(frozen=True, slots=True)
class Sizing:
    """Of the fullest node, where shards are spread evenly; bits and bytes a second in and out."""

    disk_bytes: int
    memory_bytes: int
    disk_write_bytes_per_s: int
    network_in_bits_per_s: int
    network_out_bits_per_s: int
    replicas_per_node: int
    survives: int  # nodes that may be lost while writes go on


def sizing_of(
    messages_per_s: float,
    message_bytes: int,
    retention_ms: int,
    *,
    queues: int = 0,
    named: bool = False,
    nodes: int = 3,
    replicas: int = 3,
    shards: int = 3,
    readers: float = 1,
) -> Sizing:
    """Raises ``ValueError`` where there are fewer nodes than replicas."""
    if replicas > nodes:
        raise ValueError(f"{replicas} replicas need as many nodes, and there are {nodes}")
    kept_bytes = messages_per_s * retention_ms / 1000 * (message_bytes + RECORD_BYTES)
    in_bytes = messages_per_s * (message_bytes + RECORD_BYTES)
    per_node = -(-shards * replicas // nodes)
    share = per_node / shards  # of all messages, as a node has them
    leads = 1 / nodes
    memory = PROCESS_BYTES + per_node * SHARD_MEMORY_BYTES
    memory += int(queues * share * (NAMED_QUEUE_BYTES if named else QUEUE_BYTES))
    return Sizing(
        disk_bytes=int(kept_bytes * share * SPACE_FACTOR) + per_node * SHARD_LOG_BYTES,
        memory_bytes=memory,
        # The log, the flush, and a merge or two.
        disk_write_bytes_per_s=int(4 * in_bytes * share),
        network_in_bits_per_s=int(8 * in_bytes * share),
        network_out_bits_per_s=int(8 * in_bytes * leads * (replicas - 1 + readers)),
        replicas_per_node=per_node,
        survives=(replicas - 1) // 2,
    )


@click.command()
@click.option("--messages-per-s", type=click.FloatRange(min=0), required=True, help="On average, over all topics.")
@click.option("--bytes", "message_bytes", type=SIZE, required=True, help="Of one message with key and properties.")
@click.option("--retention", "retention_ms", type=DURATION, default="7d", show_default=True, help="How long they stay.")
@click.option("--queues", type=click.IntRange(min=0), default=0, show_default=True, help="Queues that are used.")
@click.option("--named", is_flag=True, help="Queues have names.")
@click.option("--nodes", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--replicas", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--shards", type=click.IntRange(min=1), default=3, show_default=True)
@click.option("--readers", type=click.FloatRange(min=0), default=1, show_default=True, help="Groups that read it all.")
@json_option
def sizing(as_json: bool, **load: Any) -> None:
    """Say what a load takes of each node: disk, memory, network.

    Arithmetic with the settings' defaults, no measurement: how many messages a second a processor takes is measured
    by lsmq bench node. docs/sizing.md has the formulas.

    \b
      lsmq sizing --messages-per-s 2000 --bytes 500 --retention 30d --queues 1000000 --named
    """
    try:
        found = sizing_of(**load)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        print_json(asdict(found))
        return
    print_fields(
        [
            ("disk", f"{_size(found.disk_bytes)} on each node"),
            ("memory", f"{_size(found.memory_bytes)} on each node"),
            ("disk writes", f"{_size(found.disk_write_bytes_per_s)}/s on each node"),
            ("network in", f"{_bits(found.network_in_bits_per_s)} to each node"),
            ("network out", f"{_bits(found.network_out_bits_per_s)} from each node"),
            ("replicas", f"{found.replicas_per_node} of shards on each node"),
            ("survives", f"{counted(found.survives, 'node')} lost while writes go on"),
        ]
    )


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}"
        count /= 1024
    return f"{count:.4g} TiB"


def _bits(count: float) -> str:
    for unit in ("bit/s", "kbit/s", "Mbit/s"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} Gbit/s"
