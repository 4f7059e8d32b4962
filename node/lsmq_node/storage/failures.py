"""What ends the work of a store, for a while or for good, in words."""

from __future__ import annotations

import errno
from pathlib import Path

from lsmq.errors import CorruptFile, DiskFull, LsmqError, ShardStopped, StoreBusy, UnsupportedFormat
from lsmq_node.descriptors import SHORTAGE, shares

FULL = (errno.ENOSPC, errno.EDQUOT)
#: Want of space or of a file descriptor: nothing was done, that is sure, and it can be tried again.
WANT = (*FULL, *SHORTAGE)


def damaged(source: object, what: str, position: int = 0) -> CorruptFile:
    """A file is not what was written there, from the byte at ``position`` on."""
    return CorruptFile(f"{source}: {what}", file=str(source), position=position)


def newer(source: object, what: str, version: int, known: int) -> UnsupportedFormat:
    """A file is whole, and of another release. ``what`` stands before the number: ``table version``."""
    return UnsupportedFormat(
        f"{source}: {what} {version}; this release reads {known}. Start the release that wrote it, or a newer one."
    )


def disappeared(what: str, error: FileNotFoundError) -> CorruptFile:
    """A file that the manifest names is gone while the store is open."""
    remedy = how_to_repair(Path(error.filename).parents[1])
    return damaged(error.filename, f"{what} of the manifest has disappeared from the disk. {remedy}.")


def again(error: LsmqError) -> LsmqError:
    """An error that is raised to many, to be raised once more: without the frames of all who had it before."""
    return error.with_traceback(None)


def how_to_repair(path: Path) -> str:
    """The remedy for damage of the store in a directory."""
    return (
        f"'lsmq repair {path} --out NEW' saves what is whole, or restore a backup; a member of a cluster is filled "
        "again from the others"
    )


def refused(path: Path, damage: CorruptFile, *, untouched: bool) -> CorruptFile:
    """A store that is damaged is not opened: what its owner is told. ``untouched``: its files are as they were."""
    end = "; nothing was changed" if untouched else ""
    return CorruptFile(f"{damage.message.rstrip('.')}. {how_to_repair(path)}{end}.", **damage.details)


def no_space(path: Path) -> DiskFull:
    """A write was dropped for want of space; nothing of it stayed behind."""
    return DiskFull(
        f"no space is left for the log of {path}; free some or add a disk. Reads go on, and writes are taken again "
        "when there is space.",
        path=str(path),
    )


def no_descriptor(path: Path) -> StoreBusy:
    """Work on ``path`` ended in an ``OSError`` of :data:`SHORTAGE`."""
    limit = shares().limit
    return StoreBusy(
        f"all {limit} file descriptors of this process are in use (ulimit -n), also those kept back for {path}. Try "
        "again in a moment; close connections, or raise the limit.",
        path=str(path),
        limit=limit,
    )


def want(path: Path, error: OSError) -> LsmqError:
    """A write was dropped for want of what ``error``, one of :data:`WANT`, names."""
    return no_space(path) if error.errno in FULL else no_descriptor(path)


def may_pass(failure: BaseException) -> bool:
    """Whether it comes of a want of space or of descriptors: what was tried may succeed later, if the store goes on."""
    found: BaseException | None = failure
    while found is not None and not isinstance(found, ShardStopped):
        if isinstance(found, OSError) and found.errno in WANT:
            return True
        found = found.__cause__
    return False


def disk_failed(path: Path, error: OSError) -> ShardStopped:
    """What the disk holds is not known any more."""
    return ShardStopped(
        f"writing the log of {path} failed: {error}. Nothing more is written, since what the disk holds is not known; "
        "check the disk and restart the node.",
        path=str(path),
    )


def torn(path: Path, error: BaseException | None) -> LsmqError:
    """A thread left its work in the middle, by ``error`` where that is known."""
    if isinstance(error, LsmqError):
        return error
    return ShardStopped(
        f"writing to {path} failed in the middle ({error!r}): what is in memory is not what is in the log any more. "
        "Nothing more is written; what was acknowledged is safe: open the store again.",
        path=str(path),
    )
