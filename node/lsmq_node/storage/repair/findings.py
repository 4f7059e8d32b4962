"""What a repair finds, told as it is found: nobody keeps a list of it, however long it gets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes ``[first_byte, end_byte)`` of a file that are not what was written there.

    ``kind`` is ``damaged``, ``missing`` (the file, or its end) or ``misplaced`` (whole, and not of this place).
    """

    file: str
    first_byte: int
    end_byte: int
    kind: str
    part: str
    consequence: str


@dataclass(frozen=True, slots=True)
class Loss:
    """Messages ``[first, end)`` of a queue that are nowhere any more. ``certain``: none of them had been deleted.

    ``name`` is the queue's, in a queue store.
    """

    topic: str
    topic_id: int
    queue: int
    name: str | None
    first: int
    end: int
    certain: bool


@dataclass(frozen=True, slots=True)
class Unknown:
    """Something beside messages that cannot be known any more, or only as of an earlier moment."""

    what: str


@dataclass(frozen=True, slots=True)
class Renamed:
    """A queue, or a topic (``queue`` is None), whose name is lost, and the one it has instead."""

    topic_id: int
    queue: int | None
    name: str


@dataclass(frozen=True, slots=True)
class Unplaced:
    """A whole log entry with records of which nobody knows any more which offsets they had."""

    file: str
    position: int
    lsn: int
    topic_id: int
    records: int


@dataclass(frozen=True, slots=True)
class Remark:
    """Something that is no damage: a write that was cut short by a kill, files that are part of nothing."""

    what: str


Finding = Damage | Loss | Unknown | Renamed | Unplaced | Remark
Tell = Callable[[Finding], None]


def as_dict(finding: Finding | Summary) -> dict[str, Any]:
    """For scripts: its kind under ``finding``, and its fields."""
    return {"finding": type(finding).__name__.lower(), **asdict(finding)}


@dataclass(slots=True)
class Summary:
    """What a repair came to.

    Attributes:
        messages: that are whole: what was saved, or would be.
        size_bytes: of the tables that were written; 0 for an examination.
        damages: places that are damaged, missing files among them.
        lost: messages that are lost for certain.
        maybe_lost: offsets of which nobody knows whether they had been deleted before.
    """

    messages: int = 0
    size_bytes: int = 0
    damages: int = 0
    lost: int = 0
    maybe_lost: int = 0
    unknown: int = 0
    renamed: int = 0
    unplaced: int = 0

    @property
    def damaged(self) -> bool:
        return bool(self.damages or self.lost or self.unknown)


class FindingsBook:
    """Passes findings on, and counts them. One of a shard."""

    def __init__(self, root: Path, tell: Tell, summary: Summary, where: str = "") -> None:
        """``root`` is what files are named from; ``where`` stands before what is said in words."""
        self._root = root
        self._where = f"{where}: " if where else ""
        self._tell = tell
        self.summary = summary
        self._told: set[tuple[str, int]] = set()

    def name(self, path: Path) -> str:
        """A file as findings name it."""
        return str(path.relative_to(self._root))

    def damage(self, path: Path, first_byte: int, end_byte: int, kind: str, part: str, consequence: str) -> None:
        """Told once of each place, however often it is met."""
        name = self.name(path)
        if (name, first_byte) in self._told:
            return
        self._told.add((name, first_byte))
        self.summary.damages += 1
        self._tell(Damage(name, first_byte, end_byte, kind, part, consequence))

    def add(self, finding: Loss | Unknown | Renamed | Unplaced | Remark) -> None:
        summary = self.summary
        match finding:
            case Loss():
                if finding.certain:
                    summary.lost += finding.end - finding.first
                else:
                    summary.maybe_lost += finding.end - finding.first
            case Unknown(what):
                summary.unknown += 1
                finding = Unknown(self._where + what)
            case Renamed():
                summary.renamed += 1
            case Unplaced():
                summary.unplaced += 1
            case Remark(what):
                finding = Remark(self._where + what)
        self._tell(finding)
