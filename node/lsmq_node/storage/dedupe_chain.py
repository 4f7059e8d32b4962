"""The files of a store's deduplication ids: added by flushes, joined and thinned out in the background.

Where the newest files come to ``FULL_ROWS`` together they become one that is not joined any more, and before that where
they are as many as 32 of about one size: so many since what is new is looked for in all of them at once
(:mod:`.dedupe_recent`). What has expired, or belongs to a topic that is gone, is left out then. So joining takes a
bounded amount of memory and space. A file of which most has expired is written anew by itself, or just dropped:
with a window of a day a little more than a day's ids are kept. Kept for ever, an id costs 36 bytes on the disk and two
and a quarter in memory, and is written twice.

What the files of an earlier run hold is read once in the background, as far as it may be among the newest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from lsmq.errors import CorruptFile

from .dedupe import DedupeIds
from .dedupe_file import IdFile, IdFileMeta, IdWriter, ids_name, newest_of, topics_of
from .dedupe_layer import ROW, IdLayer, IdRows, chosen_rows, joined_rows
from .dedupe_recent import KNOWN_IDS
from .disk import Disk
from .failures import damaged
from .manifest import Manifest
from .snapshot_pins import PinnedFiles
from .state import ShardState
from .tiers import joined_tier
from .topic_options import FOREVER

_log = logging.getLogger("lsmq.storage")

#: A file of so many ids is not joined with others any more.
FULL_ROWS = KNOWN_IDS
#: So many files of about one size are joined.
_FAN = 32
#: A file of fewer ids counts as one of so many.
_SMALL_ROWS = 2_000
#: So many rows are sorted at a time while joining.
_PIECE_ROWS = 1 << 16

ChangeManifest = Callable[[Callable[[Manifest], Manifest], Callable[[], None]], None]
ExpiredBefore = Callable[[int], int]
"""What is stamped before the result is older than so many milliseconds."""


def expiries(state: ShardState, expired_before: ExpiredBefore) -> Callable[[int], int | None]:
    """Of a topic's id the time before which its ids are forgotten; None where all are."""

    def since_ms(topic_id: int) -> int | None:
        topic = state.topics.get(topic_id)
        window = None if topic is None else topic.topic.options.dedupe_window_ms
        if window is None:
            return None
        if isinstance(window, str):
            assert window == FOREVER
            return 0
        # By the stamps of the log as well: a clock that is ahead forgets nothing early.
        return min(expired_before(window), state.time_ms - window)

    return since_ms


def open_ids(disk: Disk, directory: Path, metas: Sequence[IdFileMeta]) -> list[IdFile]:
    """The files that a manifest names. Raises ``CorruptFile``, ``UnsupportedFormat``."""
    files = []
    for meta in metas:
        try:
            files.append(IdFile(disk, directory / meta.name, meta))
        except FileNotFoundError:
            raise damaged(directory / meta.name, "the file of ids that the manifest names is missing") from None
    return files


class DedupeChain:
    """One thread adds, one merges; any may look. The manifest says which files count; this holds them."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        pinned: PinnedFiles,
        ids: DedupeIds,
        files: Sequence[IdFile],
        *,
        take_number: Callable[[], int],
        change_manifest: ChangeManifest,
        discard: Callable[[str, OSError], None],
        check: Callable[[], None],
    ) -> None:
        """Args as of :class:`.CheckpointChain`."""
        self._disk = disk
        self._directory = directory
        self._pinned = pinned
        self._ids = ids
        self._take_number = take_number
        self._change_manifest = change_manifest
        self._discard = discard
        self._check = check
        self._files = tuple(files)  # oldest first; replaced as a whole, by who has just changed the manifest
        #: Of a topic's id the time before which its ids are forgotten, None for all of them.
        self.since_ms: Callable[[int], int | None] = lambda topic_id: 0
        ids.open(self._files[::-1])

    @property
    def files(self) -> tuple[IdFile, ...]:
        """The oldest first."""
        return self._files

    def damaged(self) -> list[IdFile]:
        """Files in which damage was found since the store was opened. They are kept as they are."""
        return [file for file in self._files if file.damage is not None]

    def write(self, layer: IdLayer, end_lsn: int) -> tuple[IdFileMeta, IdFile] | None:
        """A new file, durable and not part of the chain yet; None where the layer is empty. Leaves nothing behind when
        it raises ``OSError``."""
        return self._write(layer.kept(), layer.applied, end_lsn) if layer.applied else None

    def added(self, layer: IdLayer, file: IdFile | None) -> None:
        """The manifest names the file, and cannot change meanwhile."""
        if file is not None:
            self._files = (*self._files, file)
        self._ids.replace((layer,), file)

    def _write(self, pieces: Iterator[IdRows], expected: int, end_lsn: int) -> tuple[IdFileMeta, IdFile]:
        meta = write_ids(self._disk, self._directory, self._take_number(), pieces, expected, end_lsn)
        path = self._directory / meta.name
        try:
            return meta, IdFile(self._disk, path, meta)
        except OSError:
            self._disk.remove(path)
            raise

    # Merging

    def is_due(self) -> bool:
        """Whether :meth:`work` has something to do."""
        return (
            bool(self._choose())
            or bool(self._ids.unjoined(self._files, FULL_ROWS))
            or self._ids.is_index_worn()
            or self._ids.unknown(self._files) is not None
        )

    def work(self) -> None:
        """Do the next merge, or else read what is not known of a file. Raises ``OSError``, what ``check`` raises."""
        if merged := self._choose():
            self._merge(merged)
        elif (files := self._ids.unjoined(self._files, FULL_ROWS)) or self._ids.is_index_worn():
            try:
                self._ids.join(files, self._check)
            except CorruptFile as damage:
                _log.error("%s It is kept as it is, out of merges", damage.message)
        elif (file := self._ids.unknown(self._files)) is not None:
            try:
                self._ids.learn(file, self._check)
            except CorruptFile as damage:
                _log.error("%s It is kept as it is, out of merges", damage.message)

    def _choose(self) -> tuple[IdFile, ...]:
        """Files that follow one another, to be joined next; none where none are. A damaged one stays as it is."""
        for file in self._files:
            if file.damage is None and 2 * self._live_rows(file) < file.count:
                return (file,)
        begin = 0
        for at, file in enumerate(self._files, 1):
            if file.damage is not None or file.count >= FULL_ROWS:
                begin = at
        rows = [file.count for file in self._files[begin:]]
        # A large one waits until the others have come to as much: what expires may keep them below a full one for ever.
        is_full = sum(rows) >= FULL_ROWS and 2 * max(rows) <= sum(rows)
        count = len(rows) if is_full else joined_tier(rows, _FAN, _SMALL_ROWS)
        return self._files[len(self._files) - count :] if count else ()

    def _live_rows(self, file: IdFile) -> int:
        """At most."""
        live = 0
        for topic_id, (rows, last_ms) in file.topics.items():
            since_ms = self.since_ms(topic_id)
            if since_ms is not None and last_ms >= since_ms:
                live += rows
        return live

    def _merge(self, merged: tuple[IdFile, ...]) -> None:
        begin = self._files.index(merged[0])
        end = begin + len(merged)  # flushes may have added more behind
        written: tuple[IdFileMeta, IdFile] | None = None
        if any(map(self._live_rows, merged)):
            try:
                expected = sum(map(self._live_rows, merged))
                written = self._write(self._joined(merged), expected, merged[-1].end_lsn)
            except CorruptFile as damage:
                if not any(file.damage for file in merged):
                    raise
                _log.error("%s It is kept as it is, out of merges", damage.message)
                return

        def change(manifest: Manifest) -> Manifest:
            metas = manifest.ids
            fresh = () if written is None else (written[0],)
            return manifest.with_changes(ids=(*metas[:begin], *fresh, *metas[end:]))

        def changed() -> None:
            fresh = () if written is None else (written[1],)
            self._files = (*self._files[:begin], *fresh, *self._files[end:])
            self._ids.replace(merged, None if written is None else written[1])

        try:
            self._change_manifest(change, changed)
        except OSError as error:
            if written is not None:
                self._discard(written[0].name, error)
            raise
        for old in merged:
            self._pinned.remove(old.path.name)

    def _joined(self, files: Sequence[IdFile]) -> Iterator[IdRows]:
        for rows in joined([file.scan() for file in files[::-1]], sum(file.count for file in files)):
            self._check()
            yield self._without_expired(rows)

    def _without_expired(self, rows: IdRows) -> IdRows:
        topics, stored_ms = rows["topic"], rows["stored_ms"]
        keep = np.ones(len(rows), np.bool_)
        for topic_id in topics_of(rows):
            since_ms = self.since_ms(topic_id)
            if since_ms != 0:
                keep[(topics == topic_id) & (since_ms is None or stored_ms < since_ms)] = False
        return rows if keep.all() else chosen_rows(rows, np.flatnonzero(keep))


def write_ids(
    disk: Disk, directory: Path, number: int, pieces: Iterator[IdRows], expected: int, end_lsn: int
) -> IdFileMeta:
    """Write sorted rows that come in ``pieces``; durable on return. Leaves nothing behind when it raises."""
    path = directory / ids_name(number)
    writer = IdWriter(disk, path, expected)
    try:
        for rows in pieces:
            writer.add(rows)
        size = writer.finish()
        disk.sync_directory(directory)
    except BaseException:
        writer.abandon()
        disk.remove(path)
        raise
    return IdFileMeta(number, size, end_lsn)


def joined(scans: Sequence[Iterator[IdRows]], count: int) -> Iterator[IdRows]:
    """The rows of several sources of ``count`` rows together, the newest first, in order; of each id the newest."""
    streams = [_Stream(scan) for scan in scans]
    parts = max(1, count // _PIECE_ROWS)
    for part in range(1, parts + 1):
        limit = (part << 64) // parts if part < parts else None
        rows = newest_of(joined_rows([stream.below(limit) for stream in streams]))
        if len(rows):
            yield rows


class _Stream:
    """Rows of one source, in stretches of ids."""

    def __init__(self, scan: Iterator[IdRows]) -> None:
        self._scan = scan
        self._held: IdRows = np.empty(0, ROW)

    def below(self, limit: int | None) -> IdRows:
        """The next rows, up to those whose ``high`` is ``limit`` or more."""
        pieces = []
        while True:
            held = self._held
            if len(held):
                end = len(held) if limit is None else int(held["high"].searchsorted(np.uint64(limit)))
                pieces.append(held[:end])
                self._held = held[end:]
                if len(self._held):
                    break
            following = next(self._scan, None)
            if following is None:
                break
            self._held = following
        return joined_rows(pieces)
