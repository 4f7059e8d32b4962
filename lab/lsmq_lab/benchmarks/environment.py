"""The machine under a benchmark: what it is, what its disk needs for one fdatasync, what a process takes."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

PROBES = 100
PROBE_BYTES = 4096
#: The most that is warmed: it is taken back by the host after a while, so more would help nobody.
MAX_WARM_BYTES = 2 << 30
WARM_NOTE = (
    "Before each measurement up to 2 GiB of memory are touched and freed: the host of a virtual machine takes "
    "free memory back, and may need seconds to give a GiB again."
)
_TOUCH = "import sys; size = int(sys.argv[1]); memory = bytearray(size); memory[::4096] = b'1' * -(-size // 4096)"


def environment(directory: Path) -> dict[str, Any]:
    """Facts that every figure depends on. ``directory`` is where the benchmark keeps its files."""
    return {
        "lsmq": _version(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": _cpu_model(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "fdatasync_ms": fdatasync_ms(directory),
        "load": os.getloadavg()[0],
    }


def describe(facts: dict[str, Any]) -> str:
    """The facts in one line."""
    return (
        f"lsmq {facts['lsmq']}, Python {facts['python']}, {facts['cpu']}, {facts['cpus']} CPUs, "
        f"{facts['memory_bytes'] / 2**30:.0f} GiB, fdatasync {facts['fdatasync_ms']:.2f} ms, "
        f"load {facts['load']:.1f}"
    )


def warm_memory(size_bytes: int) -> None:
    """Have the system hold so much free memory, or ``MAX_WARM_BYTES``, that was used a moment ago.

    Touched by a process of its own, which is gone then: nothing is added to the caller's own memory.
    """
    size_bytes = min(size_bytes, MAX_WARM_BYTES, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES") // 2)
    subprocess.run([sys.executable, "-S", "-c", _TOUCH, str(size_bytes)], check=True, stdin=subprocess.DEVNULL)


def fdatasync_ms(directory: Path) -> float:
    """Median milliseconds of writing 4 KiB at the end of a file and syncing it."""
    path = directory / "fdatasync-probe"
    block = os.urandom(PROBE_BYTES)
    taken: list[float] = []
    descriptor = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_TRUNC, 0o600)
    try:
        for _ in range(PROBES):
            began = time.perf_counter()
            os.write(descriptor, block)
            os.fdatasync(descriptor)
            taken.append(time.perf_counter() - began)
    finally:
        os.close(descriptor)
        path.unlink()
    return statistics.median(taken) * 1e3


def resident_bytes(pid: int | None = None) -> int:
    """What a process has in RAM by itself: file pages, which the system may drop, are not counted."""
    return _status(pid, "RssAnon")


def peak_resident_bytes(pid: int | None = None) -> int:
    """The most memory a process ever had in RAM, file pages included."""
    return _status(pid, "VmHWM")


def cpu_seconds(pid: int) -> float:
    """Processor time that a process has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def pin(pid: int, cores: Iterable[int]) -> None:
    """Have a process, with all threads it has, run on these cores only."""
    chosen = set(cores)
    for task in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(task.name), chosen)


def disk_bytes(directory: Path) -> int:
    """What the files under ``directory`` occupy: allocated blocks."""
    return sum(path.stat().st_blocks * 512 for path in directory.rglob("*") if path.is_file())


def _status(pid: int | None, name: str) -> int:
    for line in Path(f"/proc/{pid or 'self'}/status").read_text().splitlines():
        field, _, value = line.partition(":")
        if field == name:
            return int(value.split()[0]) * 1024
    return 0


def _version() -> str:
    try:
        return importlib.metadata.version("lsmq")
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or "unknown CPU"
