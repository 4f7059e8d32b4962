"""The ways in which a Python client writes and reads, beside each other: how fast, and the processor time they take."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lsmq_lab.benchmarks.node_clients import Share, rate_of, run_shares
from lsmq_lab.benchmarks.node_servers import LSMQ, Server
from lsmq_lab.benchmarks.report import TextTable, rate_text

WAYS_TOPIC = "ways"
WAYS = ("send", "send_many", "send_batch", "poll", "poll_batch")


def measure_ways(values: Mapping[str, Any], server: Server, queues: tuple[int, ...]) -> dict[str, float]:
    """Of each way messages a second, and nanoseconds of processor time a message: of the client, and of the node.

    The topic is there, and empty.
    """
    found: dict[str, float] = {}
    for way in WAYS:
        share = Share(
            LSMQ,
            server.address,
            way.startswith("send"),
            queues,
            values["messages"],
            values["message_bytes"],
            values["in_flight"],
            way,
            WAYS_TOPIC,
        )
        before_ns = _processor_ns(server.pid)
        [outcome] = done = run_shares([share])
        found[f"{way}_per_s"] = rate_of(done)
        found[f"{way}_client_ns"] = outcome.processor_ns / outcome.messages
        found[f"{way}_node_ns"] = (_processor_ns(server.pid) - before_ns) / outcome.messages
    return found


def ways_table(servers: Sequence[Mapping[str, Any]]) -> TextTable:
    """A row for each way, of servers that have them."""
    table = TextTable(
        "one Python client, way by way: processor time a message (of the node to the nearest 10 ms in all)",
        ("server", "way", "rate", "client", "node"),
        [],
    )
    for each in servers:
        for way in WAYS if "send_per_s" in each else ():
            spent = (f"{each[f'{way}_{who}_ns']['median'] / 1000:.2f} us" for who in ("client", "node"))
            table.rows.append((f"{each['server']} {each['durability']}", way, rate_text(each[f"{way}_per_s"]), *spent))
    return table


def _processor_ns(pid: int) -> int:
    """What a process has used, in the kernel as well, since it began."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
