"""Changes of the set of tables, as values: which tables go, and which come in their place."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from .compaction import KeyPlace
from .manifest import Manifest
from .sstable import TableMeta


@dataclass(frozen=True, slots=True)
class Edit:
    """One change.

    Attributes:
        gone: numbers of the tables that leave.
        added: tables in key order that come, if any.
        clips: of tables that stay though records have left them, by number, the first record that they still have.
        sources: the tables that ``added`` was made of, when it is a generation of its own: it stands where the oldest
            of them did, or is the newest generation when all are of level 0. None puts it where those stood that
            are gone, in their run.
        behind: with ``sources``, the table of an earlier part of the same generation that ``added`` follows.
    """

    gone: frozenset[int]
    added: tuple[TableMeta, ...] = ()
    clips: dict[int, KeyPlace] = field(default_factory=dict)
    sources: frozenset[int] | None = None
    behind: int | None = None


def apply_edit(manifest: Manifest, edit: Edit) -> Manifest:
    """The manifest after a change."""
    if edit.sources is None:
        level0, *generations = [_replaced(run, edit, edit.added) for run in (manifest.level0, *manifest.generations)]
    else:
        level0 = _replaced(manifest.level0, edit)
        generations = [_replaced(run, edit) for run in manifest.generations]
        at, extends = _place(manifest, edit)
        if extends:
            generations[at] += edit.added
        else:
            generations.insert(at, edit.added)
    changed = manifest.with_changes(level0=level0, generations=tuple(run for run in generations if run))
    _check(manifest, changed, edit)
    return changed


def _place(manifest: Manifest, edit: Edit) -> tuple[int, bool]:
    """The number of the generation that ``added`` comes before, or that it extends."""
    assert edit.sources is not None
    for at, run in enumerate(manifest.generations):
        if edit.behind is not None and run[-1].number == edit.behind:
            return at, True
    for at, run in enumerate(manifest.generations):
        if any(meta.number in edit.sources for meta in run):
            return at, False
    return len(manifest.generations), False


def _replaced(run: tuple[TableMeta, ...], edit: Edit, added: tuple[TableMeta, ...] = ()) -> tuple[TableMeta, ...]:
    """A run without what is gone, ``added`` in its place; the same tuple when nothing of it changes."""
    if not any(meta.number in edit.gone or meta.number in edit.clips for meta in run):
        return run
    metas: list[TableMeta] = []
    for meta in run:
        if meta.number in edit.gone:
            metas += added
            added = ()
        elif meta.number in edit.clips:
            key, offset = edit.clips[meta.number]
            metas.append(replace(meta, first_key=key, first_offset=offset))
        else:
            metas.append(meta)
    return tuple(metas)


def _check(before: Manifest, after: Manifest, edit: Edit) -> None:
    numbers = [meta.number for meta in after.tables()]
    assert len(set(numbers)) == len(numbers), "a table is in the set once"
    expected = {meta.number for meta in before.tables()} - edit.gone | {meta.number for meta in edit.added}
    assert set(numbers) == expected, "an edit adds and removes what it says"
