"""The increments that make up a store's checkpoint: added by flushes, merged in the background, read for producers."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from lsmq.errors import CorruptFile

from .cache import BlockCache
from .checkpoint import LATEST_MS, IncrementMeta, merge_count, merge_increments, write_increment
from .disk import Disk
from .keyed_file import KeyedFile
from .manifest import Manifest
from .options import StoreOptions
from .snapshot_pins import PinnedFiles
from .state import ShardState, StateChange
from .stats import Counters

_log = logging.getLogger("lsmq.storage")

ChangeManifest = Callable[[Callable[[Manifest], Manifest], Callable[[], None]], None]
"""Makes a changed manifest durable, and then has something done before it changes again."""


class CheckpointChain:
    """One thread adds, one merges; any may look. The manifest says which files count; this holds them."""

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        options: StoreOptions,
        cache: BlockCache,
        counters: Counters,
        pinned: PinnedFiles,
        state: ShardState,
        files: list[KeyedFile],
        *,
        take_number: Callable[[], int],
        change_manifest: ChangeManifest,
        discard: Callable[[str, OSError], None],
        check: Callable[[], None],
    ) -> None:
        """Args:
        files: the chain as it is, the oldest first.
        discard: removes a file that the manifest does not name, where the error says that it never will.
        check: called while merging; may raise to end it.
        """
        self._disk = disk
        self._directory = directory
        self._discard = discard
        self._options = options
        self._cache = cache
        self._counters = counters
        self._pinned = pinned
        self._producers = state.producers
        self._take_number = take_number
        self._change_manifest = change_manifest
        self._check = check
        #: What is stamped before the result is older than so many milliseconds.
        self.expired_before: Callable[[int], int] = lambda age_ms: LATEST_MS
        self._files = tuple(files)  # replaced as a whole, by who has just changed the manifest
        for file in files:
            file.use(cache)
        self._producers.open(files[::-1])

    @property
    def files(self) -> tuple[KeyedFile, ...]:
        """The oldest first."""
        return self._files

    def write(self, change: StateChange) -> tuple[IncrementMeta, KeyedFile]:
        """A new increment, durable and not part of the chain yet. Leaves nothing behind when it raises ``OSError``."""
        meta = write_increment(self._disk, self._directory, self._take_number(), change)
        self._counters.checkpoint_bytes += meta.size_bytes
        return meta, self._open(meta)

    def added(self, change: StateChange, file: KeyedFile) -> None:
        """The manifest names the increment, and cannot change meanwhile."""
        self._files = (*self._files, file)
        self._producers.replace((change.producers,), file)

    def _open(self, meta: IncrementMeta) -> KeyedFile:
        path = self._directory / meta.name
        try:
            file = KeyedFile(self._disk, path, meta.number)
        except OSError:
            self._disk.remove(path)
            raise
        file.use(self._cache)
        return file

    def damaged(self) -> list[KeyedFile]:
        """Files in which damage was found since the store was opened. They are kept as they are, out of merges."""
        return [file for file in self._files if file.damage is not None]

    def merge_due(self) -> bool:
        return bool(_choose(self._files))

    def merge(self) -> None:
        """Do the next merge, if there is one. Raises ``OSError``, what ``check`` raises."""
        chain = self._files
        merged = _choose(chain)
        if not merged:
            return
        try:
            meta = self._merge(merged, oldest=len(merged) == len(chain))
        except CorruptFile as damage:
            if not any(file.damage for file in merged):
                raise
            _log.error("%s It is kept as it is, out of merges", damage.message)
            return
        file = self._open(meta)
        begin, end = len(chain) - len(merged), len(chain)  # flushes may have added more behind

        def change(manifest: Manifest) -> Manifest:
            increments = manifest.checkpoint
            return manifest.with_changes(checkpoint=(*increments[:begin], meta, *increments[end:]))

        def changed() -> None:
            self._files = (*self._files[:begin], file, *self._files[end:])
            self._producers.replace(merged, file)

        try:
            self._change_manifest(change, changed)
        except OSError as error:
            self._discard(meta.name, error)
            raise
        for old in merged:
            self._cache.drop(old.number)
            self._pinned.remove(old.path.name)

    def _merge(self, files: tuple[KeyedFile, ...], *, oldest: bool) -> IncrementMeta:
        meta = merge_increments(
            self._disk,
            self._directory,
            self._take_number(),
            files,
            oldest=oldest,
            expiry_ms=self._options.producer_expiry_ms,
            expired_before_ms=self.expired_before(self._options.producer_expiry_ms),
            check=self._check,
        )
        self._counters.checkpoint_bytes += meta.size_bytes
        return meta


def _choose(chain: tuple[KeyedFile, ...]) -> tuple[KeyedFile, ...]:
    """The newest files to merge next: none where none are, and none before one that is damaged."""
    begin = max((at for at, file in enumerate(chain, 1) if file.damage is not None), default=0)
    count = merge_count([file.size_bytes for file in chain[begin:]])
    return chain[len(chain) - count :]
