"""Repairing a node's data directory: all its shards, and the topics, of which each shard has a part.

Topics that one shard lost are taken from the others: the first shard is the authority when the node opens, and would
delete in the others what it does not know (:mod:`.catalog`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import msgpack

from lsmq.errors import CorruptFile, InvalidRequest, UnsupportedFormat
from lsmq_node.disks import NODE_FILE, NodeFile, shard_directory
from lsmq_node.disks.looking import DiskListing
from lsmq_node.disks.mark import MARK_FILE, DiskMark, is_marked
from lsmq_node.disks.starts import has_seen_more
from lsmq_node.storage import StoredTopic
from lsmq_node.storage.disk import Disk, OsDisk
from lsmq_node.storage.lock import unused_directory
from lsmq_node.storage.repair import (
    Advance,
    FindingsBook,
    Remark,
    ShardRepair,
    Summary,
    Tell,
    TopicHint,
    Unknown,
    empty_directory,
    is_shard,
    repair_store,
    spool,
    unusable,
    write_empty,
)

from .catalog import RANGES
from .placement import stored_range

_OURS = {NODE_FILE, MARK_FILE, "LOCK"}
_REFILL = (
    "this is a member of a cluster, which is repaired by filling it again from the others: stop it, move this "
    "directory away, and start it with an empty one. Save what is here only if no other member has it"
)


def repair_directory(
    path: Path,
    out: Path | None = None,
    *further: Path,
    tell: Tell = lambda finding: None,
    begin: Callable[[int], Advance] = lambda total: lambda size: None,
) -> Summary:
    """:func:`repair_store` for the data of a node as well, which has several.

    Its ``further`` disks are found where they were seen last if none is given.
    """
    if (
        further
        or (path / NODE_FILE).exists()
        or (path.is_dir() and not is_shard(path) and DiskListing([path]).shards())
    ):
        return _NodeRepair(path, further, out, tell).run(begin)
    return repair_store(path, out, tell=tell, begin=begin)


class _NodeRepair:
    def __init__(self, path: Path, further: Sequence[Path], out: Path | None, tell: Tell) -> None:
        self._path = path
        self._disks = [path, *further]
        self._out = out
        self._tell = tell
        self._disk: Disk = OsDisk()
        self.summary = Summary()
        self._book = FindingsBook(path, tell, self.summary)
        self._read: dict[int, ShardRepair] = {}
        self._lacks_topics = False  # the first disk is an older copy

    def run(self, begin: Callable[[int], Advance]) -> Summary:
        self._find_disks()
        self._look = DiskListing(self._disks)
        present = self._look.shards()
        places = [self._place(number) for number in present]
        with ExitStack() as held:
            for directory in (*self._disks, *places):
                held.enter_context(unused_directory(directory))
            for disk in self._disks:
                held.enter_context(empty_directory(disk, self._out))
            spool_directory = held.enter_context(spool(self._out))
            node = self._node(present)
            self._tell_left_out(node)
            try:
                for number in present:
                    self._read_shard(number, spool_directory, node.shards)
                missing = [] if node.cluster is not None else sorted(set(range(node.count)) - set(present))
                self._settle_topics(node.shards)
                advance = begin(sum(shard.table_bytes for shard in self._read.values()))
                for shard in self._read.values():
                    shard.save(advance)
                for number in missing:
                    self._make_up(number, node.shards)
            except OSError as error:
                raise unusable(self._path, self._out, error) from error
            if self._out is not None and node.cluster is None:
                NodeFile(node.shards, processes=node.processes, grown=node.grown).store(self._out)
        return self.summary

    def _find_disks(self) -> None:
        """Those that ``node.json`` names, where no others were given."""
        try:
            found = NodeFile.load(self._path)
        except CorruptFile:
            found = None
        if found is None:
            return
        if len(self._disks) > 1:
            for disk in self._disks[1:]:
                self._check_mark(disk, found)
            return
        for id, place in sorted(found.disks.items(), key=lambda item: item[1]):
            if is_marked(Path(place), found.token, id):
                self._disks.append(Path(place))
                self._check_mark(Path(place), found)
            else:
                self._book.add(Remark(f"the disk {place} is not there: name all directories where it is elsewhere"))

    def _check_mark(self, disk: Path, node: NodeFile) -> None:
        """What another node stored would be taken for this one's."""
        try:
            mark = DiskMark.load(disk)
        except (CorruptFile, UnsupportedFormat):
            mark = None
        if mark is not None and mark.node != node.token:
            raise InvalidRequest(f"{disk} is a disk of another node: name the directories of one")
        if mark is not None and has_seen_more(mark, node) and not self._lacks_topics:
            self._lacks_topics = True
            self._book.add(Remark(f"{self._path} is an older copy: topics that only the other disks know are kept"))

    def _place(self, number: int) -> Path:
        """Where a shard lies. Raises ``DataDirectoryUnusable`` for one that lies on two disks."""
        found = self._look.directory(number)
        return shard_directory(self._path, number) if found is None else found

    def _node(self, present: list[int]) -> NodeFile:
        file = self._path / NODE_FILE
        guessed = NodeFile(max(present, default=0) + 1)
        try:
            found = NodeFile.load(self._path)
        except CorruptFile:
            what = f"taken to be that of {guessed}"
            self._book.damage(file, 0, file.stat().st_size, "damaged", "whose the directory is", what)
            return guessed
        if found is None:
            self._book.damage(file, 0, 0, "missing", "whose the directory is", f"taken to be that of {guessed}")
        return found or guessed

    def _tell_left_out(self, node: NodeFile) -> None:
        if node.cluster is not None:
            self._book.add(Remark(_REFILL))
        places = [self._place(number) for number in self._look.shards()]
        for child in (child for disk in self._disks for child in sorted(disk.iterdir())):
            if child.name not in _OURS and child not in places:
                why = "the control plane's promises, which no copy may repeat" if child.name == "raft" else "no store"
                self._book.add(Remark(f"{child.name} is left out: {why}"))

    # -- shards ------------------------------------------------------------------------------------------

    def _read_shard(self, number: int, spool_directory: Path, shards: int) -> None:
        path = self._place(number)
        own = spool_directory / path.name
        own.mkdir()
        book = FindingsBook(path.parent, self._tell, self.summary, path.name)
        out = None if self._out is None else shard_directory(self._out, number)
        shard = ShardRepair(self._disk, path, out, own, book, queue_store=False)
        shard.read({topic.id: self._hint(topic, number, shards) for topic in self._topics()})
        self._read[number] = shard

    def _topics(self) -> Iterator[StoredTopic]:
        """Topics whose name some shard knows, with the ranges that they have grown to."""
        seen: set[int] = set()
        for shard in self._read.values():
            for topic_id, item in shard.known.state.topics.items():
                if topic_id not in seen and topic_id not in shard.known.nameless:
                    seen.add(topic_id)
                    yield replace(item.topic, ranges=self._ranges(topic_id))

    def _ranges(self, topic_id: int) -> tuple[tuple[int, int, int], ...]:
        first = self._read.get(0)
        packed = None if first is None else first.known.state.documents.get(f"{RANGES}{topic_id}")
        return () if packed is None else tuple((low, high, shard) for low, high, shard in msgpack.unpackb(packed))

    @staticmethod
    def _hint(topic: StoredTopic, number: int, shards: int) -> TopicHint:
        """What a shard has of a topic; no queues where there are fewer of them than shards."""
        return TopicHint(replace(topic, ranges=()), *stored_range(topic, number, shards))

    def _settle_topics(self, shards: int) -> None:
        """Names that one shard lost and another knows; and the first shard knows all topics."""
        for topic in list(self._topics()):
            for number, shard in self._read.items():
                hint = self._hint(topic, number, shards)
                if topic.id in shard.known.nameless:
                    shard.known.name_as(hint.topic)
                elif number == 0 and (self._lacks_topics or not shard.known.catalog_whole):
                    shard.known.adopt(topic.id, hint)

    def _make_up(self, number: int, shards: int) -> None:
        """In place of a shard that is gone: an empty one."""
        path = shard_directory(self._path, number)
        self._book.damage(path, 0, 0, "missing", "shard", "all messages of its queues")
        self._book.add(Unknown(f"{path.name}: all that it held; its queues begin again at offset 0"))
        if self._out is not None:
            hints = [self._hint(topic, number, shards) for topic in self._topics()]
            segment_bytes = next(shard.segment_bytes for shard in self._read.values())
            write_empty(self._disk, shard_directory(self._out, number), hints, segment_bytes)
