"""File systems of a test's own. Where nobody may mount any, the test is skipped."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def tmpfs(directory: Path, options: str) -> Iterator[None]:
    """One in memory."""
    with _mounted("-t", "tmpfs", "-o", options, "tmpfs", directory):
        yield


@contextmanager
def ext4(directory: Path, image: Path, size_bytes: int) -> Iterator[None]:
    """One in a file, which becomes read-only when it meets an error."""
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("there is no mkfs.ext4")
    with image.open("wb") as stream:
        stream.truncate(size_bytes)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    with _mounted("-o", "loop,errors=remount-ro", image, directory):
        yield


@contextmanager
def bound(directory: Path, real: Path) -> Iterator[None]:
    """Another name of a directory."""
    with _mounted("--bind", real, directory):
        yield


@contextmanager
def _mounted(*arguments: str | Path) -> Iterator[None]:
    """On the last of these, a directory."""
    if shutil.which("mount") is None:
        pytest.skip("there is no mount command")
    directory = Path(arguments[-1])
    directory.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        why = done.stderr.strip()
        assert any(each in why for each in ("permission denied", "not permitted", "superuser", "loop device")), why
        pytest.skip(f"mounting is not allowed: {why}")
    try:
        yield
    except BaseException:
        # Whoever uses it still is ended later: what went wrong is to be seen, not this.
        subprocess.run(["umount", "--lazy", str(directory)], check=True)
        raise
    subprocess.run(["umount", str(directory)], check=True)
