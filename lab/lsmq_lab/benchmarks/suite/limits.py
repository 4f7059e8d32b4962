"""What the machine allows, measured in the same run: the disk, its fdatasync, the loopback interface, the processor.

From them follows for each case the most, or the soonest, that could be had, and which of them is nearest.
"""

from __future__ import annotations

import os
import socket
import statistics
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..environment import environment

_WRITE_BYTES = 256 << 20
_CHUNK = 1 << 20
_LOOPBACK_BYTES = 512 << 20
_ROUND_TRIPS = 2_000
_PING = b"x" * 100


def measure_limits(directory: Path, *, quick: bool = False) -> dict[str, Any]:
    """Facts of the machine as :func:`.environment.environment` has them, and bytes a second and times beside them."""
    share = 16 if quick else 1
    written, read = _disk(directory, _WRITE_BYTES // share)
    return {
        **environment(directory),
        "disk_write_bytes_per_s": written,
        "disk_read_bytes_per_s": read,
        "loopback_bytes_per_s": _loopback(_LOOPBACK_BYTES // share),
        "loopback_round_trip_ms": _round_trip_ms(_ROUND_TRIPS // share),
    }


def describe_limits(facts: Mapping[str, Any]) -> str:
    """In one line."""
    return (
        f"disk write {facts['disk_write_bytes_per_s'] / 2**20:,.0f} MiB/s, read past the cache "
        f"{facts['disk_read_bytes_per_s'] / 2**20:,.0f} MiB/s, fdatasync {facts['fdatasync_ms']:.2f} ms; loopback "
        f"{facts['loopback_bytes_per_s'] / 2**20:,.0f} MiB/s, a round trip {facts['loopback_round_trip_ms']:.3f} ms"
    )


def ceilings(facts: Mapping[str, Any], figures: Mapping[str, float], message_bytes: int) -> list[dict[str, Any]]:
    """The most messages a second that each resource allows a case, least first; empty for one without a rate."""
    if "per_s" not in figures:
        return []
    found = []
    if spent_us := figures.get("processor_us", 0.0):
        text = f"{spent_us:.2f} us of processor a message on {facts['cpus']} cores"
        found.append({"what": "processor", "text": text, "per_s": facts["cpus"] * 1e6 / spent_us})
    if written := figures.get("written_bytes", 0.0):
        disk = facts["disk_write_bytes_per_s"]
        text = f"{written:,.0f} bytes a message to a disk that takes {disk / 2**20:,.0f} MiB/s"
        found.append({"what": "disk", "text": text, "per_s": disk / written})
    if message_bytes and "is_remote" in figures:
        text = f"{message_bytes:,} bytes a message at {facts['loopback_bytes_per_s'] / 2**20:,.0f} MiB/s"
        found.append({"what": "loopback", "text": text, "per_s": facts["loopback_bytes_per_s"] / message_bytes})
    if figures.get("waits_for_each"):
        least_ms = facts["fdatasync_ms"] + (facts["loopback_round_trip_ms"] if "is_remote" in figures else 0.0)
        text = f"one after the other, {least_ms:.3f} ms each for an fdatasync and a round trip"
        found.append({"what": "fdatasync", "text": text, "per_s": 1000 / least_ms})
    return sorted(found, key=lambda each: each["per_s"])


def _disk(directory: Path, size: int) -> tuple[float, float]:
    """Bytes a second: written and synced, and read past the page cache."""
    path, block = directory / "disk-probe", os.urandom(_CHUNK)
    descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_TRUNC, 0o600)
    try:
        began = time.perf_counter()
        for _ in range(size // _CHUNK):
            os.write(descriptor, block)
        os.fdatasync(descriptor)
        written = size / (time.perf_counter() - began)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        began, buffer = time.perf_counter(), bytearray(_CHUNK)
        for position in range(0, size, _CHUNK):
            os.preadv(descriptor, [buffer], position)
        return written, size / (time.perf_counter() - began)
    finally:
        os.close(descriptor)
        path.unlink()


def _loopback(size: int) -> float:
    """Bytes a second from one thread to another."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        sender = threading.Thread(target=_send, args=(server.getsockname()[1], size), daemon=True)
        sender.start()
        connection, _ = server.accept()
        with connection:
            buffer, taken, began = bytearray(_CHUNK), 0, time.perf_counter()
            while count := connection.recv_into(buffer):
                taken += count
            rate = taken / (time.perf_counter() - began)
        sender.join()
        return rate


def _send(port: int, size: int) -> None:
    block = bytes(_CHUNK)
    with socket.create_connection(("127.0.0.1", port)) as connection:
        for _ in range(size // _CHUNK):
            connection.sendall(block)


def _round_trip_ms(count: int) -> float:
    """Median of a request and an answer of a hundred bytes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        echo = threading.Thread(target=_echo, args=(server,), daemon=True)
        echo.start()
        taken = []
        with socket.create_connection(server.getsockname()[:2]) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(count):
                began = time.perf_counter()
                connection.sendall(_PING)
                connection.recv(len(_PING))
                taken.append(time.perf_counter() - began)
        echo.join()
    return statistics.median(taken) * 1000


def _echo(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while received := connection.recv(len(_PING)):
            connection.sendall(received)
