"""Starts are counted, so that an older copy of a disk is told from the disk.

Of a node of its own nobody else has what it acknowledged: a further disk that went back lacks messages, and gives their
offsets a second time; a first one that went back has the topics of the others deleted that it never heard of. So each
start gives itself a number, higher than all before, and writes it on the disks that it uses:

1. ``node.json`` says, of each of them, the number that its mark has and the one that it is to have;
2. each mark gets the new one;
3. ``node.json`` says the new one alone.

A disk that is away keeps its number in both places. Cut short anywhere, ``node.json`` has what each mark has. A mark
with a lower number is of an older copy; one with a higher number is of a disk that has seen starts which the first has
not.

Not supported: a copy that was made since the node started last; and members of a cluster, where each replica is known
by its own starts (``docs/replication.md``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from lsmq.errors import CorruptFile, DataDirectoryUnusable, DiskFull, UnsupportedFormat
from lsmq_node.settings import InvalidConfig

from .mark import DiskMark
from .node_file import NodeFile


def count_start(first: Path, file: NodeFile, disks: Mapping[str, Path], lose: Callable[[str, str], None]) -> NodeFile:
    """Let all disks of a node know of this start, durably; what ``node.json`` says then.

    ``disks`` are those beside the ``first`` that can be used, by id, ``file`` is what ``node.json`` says. ``lose(id,
    why)`` is called for one that is not to be used: an older copy, or one that cannot be written. A full disk is told
    at a later start.

    Raises :class:`InvalidConfig` where the first disk is the older copy, and ``DataDirectoryUnusable``.
    """
    found = dict(_marks(disks, lose))
    for id, mark in list(found.items()):
        if has_seen_more(mark, file):
            raise InvalidConfig(
                f"{first} is an older copy: the node has started since with {disks[id]}, which has what was stored "
                f"then. Bring back the newer one; or restore a backup, or have 'lsmq repair {first},... --out NEW', "
                "with all directories of the node, save what is there",
                setting="data",
            )
        if mark.start not in (file.starts.get(id) or (mark.start,)):
            lose(id, _older(disks[id], first))
            del found[id]
    if not found:
        return file
    counted = [start for starts in file.starts.values() for start in starts]
    number = 1 + max([0, *counted, *(mark.start for mark in found.values())])
    with suppress(DiskFull):
        before = {id: mark.start for id, mark in found.items()}
        file = _stored(file, first, {id: (start, number) for id, start in before.items()})
        file = _stored(file, first, {id: (start,) for id, start in _told(found, disks, number, lose)})
    return file


def has_seen_more(mark: DiskMark, first: NodeFile) -> bool:
    """Whether a disk has been used in starts of which the ``first`` one does not know: that is an older copy."""
    return mark.start > max(first.starts.get(mark.disk) or (mark.start,))


def _marks(disks: Mapping[str, Path], lose: Callable[[str, str], None]) -> Sequence[tuple[str, DiskMark]]:
    found = []
    for id, path in disks.items():
        try:
            mark = DiskMark.load(path)
        except (CorruptFile, DataDirectoryUnusable, UnsupportedFormat) as error:
            lose(id, error.message)
            continue
        if mark is None:
            lose(id, f"{path} is not the disk any more that was there a moment ago")
        else:
            found.append((id, mark))
    return found


def _told(
    marks: Mapping[str, DiskMark], disks: Mapping[str, Path], number: int, lose: Callable[[str, str], None]
) -> Sequence[tuple[str, int]]:
    """What each disk's mark says afterwards."""
    said = []
    for id, mark in marks.items():
        try:
            replace(mark, start=number).store(disks[id])
            said.append((id, number))
        except DiskFull:
            said.append((id, mark.start))
        except DataDirectoryUnusable as error:  # It may say either.
            lose(id, error.message)
    return said


def _stored(file: NodeFile, first: Path, starts: Mapping[str, tuple[int, ...]]) -> NodeFile:
    return replace(file, starts=MappingProxyType({**file.starts, **starts})).store(first)


def _older(path: Path, first: Path) -> str:
    return (
        f"{path} is an older copy of a disk of this node, which has stored more since: bring back the newer one. Where "
        f"there is none any more, 'lsmq repair {first},{path} --out NEW', with all directories of the node, saves what "
        "is there"
    )
