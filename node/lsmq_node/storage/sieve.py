"""What a read lets through: messages that have not expired, and those that a reader picks.

Columns decide first, many records at a time: when a message expires, the hashes of its tag and type, its priority and
time. Only what they let through is looked into, and only where the reader's condition asks for what stands in a
message's header: so a backlog of which little is wanted costs its columns.

For the tree of an expression the columns give two masks: which records may make it true, and which may make it false.
``NOT`` exchanges the two, ``AND`` and ``OR`` combine them, and what columns know nothing of may be either. So what the
masks leave out is left out rightly, whatever the rest says.

Blocks of one queue say in the index which tags and types they may have (:mod:`.word_filters`): one that has none of
those that are picked is not read.

A sieve belongs to one read and counts what it looks at: a read that finds little ends when it has looked at
``SIEVED_RECORDS`` or ``SIEVED_BYTES``, with its positions moved, and the reader comes again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from lsmq.errors import InvalidBatch
from lsmq.filter_expressions import (
    All,
    Compare,
    Field,
    FieldOf,
    FilterNode,
    In,
    IsNull,
    Like,
    Literal,
    Not,
    Operand,
    is_number,
)
from lsmq.filter_expressions import Any as AnyOf
from lsmq.filters import MessageFilter
from lsmq.record_batch import Column, decode_header, key_hash, split_priority, tag_hash, type_hash

from .columns import I64, U64
from .index import IndexPage
from .sorted_records import SortedPart, SortedRecords, select
from .word_filters import may_have, of_tags, of_types

Mask = NDArray[np.bool_]
#: A column of the records that are looked at.
ReadColumn = Callable[[int], NDArray[Any]]
#: Which messages have expired, of their ``STORED_MS`` and ``EXPIRES_MS``; 0 is never.
Expired = Callable[[I64, I64], Mask]

#: A read looks at no more than about so many records, or so many bytes of them, whatever it finds.
SIEVED_RECORDS = 131_072
SIEVED_BYTES = 32 << 20
#: A message that is looked into counts once more, its header as well, and once more for so many characters of the
#: condition.
_CHARACTERS_A_COUNT = 256
#: So many counts are looked into at once, before it is asked again whether the read is over.
_COUNTS_AT_ONCE = 16_384
_FEWEST_AT_ONCE = 64
#: As so many counts a block that the index lets it pass over.
_PASSED_BLOCK_RECORDS = 16

_HASHES = {Field.TAG: (Column.TAG_HASH, tag_hash), Field.TYPE: (Column.TYPE_HASH, type_hash)}


def none_expired(stored_ms: I64, expires_ms: I64) -> Mask:
    """For who reads whatever is there: no message has expired."""
    return np.zeros(len(stored_ms), np.bool_)


class Picked:
    """What a reader picks, prepared: :class:`MessageFilter` with its hashes. Good for any number of reads.

    With ``exact`` the words of tag and type are compared too, for who cannot do it again.
    """

    __slots__ = ("_hashes", "_looks_inside", "_may_hold", "_page", "filter")

    def __init__(self, wanted: MessageFilter, *, exact: bool = False) -> None:
        self.filter = wanted
        self._hashes = [
            (column, np.array(sorted(map(tag_hash, words)), np.uint32))
            for column, words in ((Column.TAG_HASH, wanted.tags), (Column.TYPE_HASH, wanted.types))
            if words
        ]
        self._page: IndexPage | None = None
        self._may_hold: list[bool] = []  # of the blocks of that page
        expression = wanted.expression
        self._looks_inside = (expression is not None and expression.needs_header) or (exact and bool(self._hashes))

    @property
    def weight(self) -> int:
        """As how many records looked at a message counts that is looked into; 0 where none is."""
        if not self._looks_inside:
            return 0
        return 1 + (0 if self.filter.expression is None else len(self.filter.expression.text) // _CHARACTERS_A_COUNT)

    def may_pass(self, columns: ReadColumn, count: int) -> Mask:
        """Which of ``count`` records their columns let through."""
        keep = np.ones(count, np.bool_)
        for column, hashes in self._hashes:
            values = columns(column)
            keep &= values == hashes[0] if len(hashes) == 1 else np.isin(values, hashes)
        if self.filter.expression is not None and keep.any():
            keep &= may_be(self.filter.expression.node, columns, count)[0]
        return keep

    def may_hold(self, page: IndexPage, row: int) -> bool:
        """Whether a block of one queue may have a message that is picked, as far as the index knows."""
        if self._page is not page:
            self._page, self._may_hold = page, self._blocks_of(page)
        return not self._may_hold or self._may_hold[row]

    def _blocks_of(self, page: IndexPage) -> list[bool]:
        filters = page.word_filters()
        if len(filters) == 0:
            return []
        keep = np.ones(page.count, np.bool_)
        for column, hashes in self._hashes:
            keep &= may_have(filters, of_tags(hashes) if column is Column.TAG_HASH else of_types(hashes))
        if self.filter.expression is not None:
            keep &= _blocks_may_be(self.filter.expression.node, filters)
        return keep.tolist()

    def passing(self, records: SortedRecords) -> I64 | None:
        """Which of records that came through :meth:`may_pass` are picked indeed; None for all of them."""
        if not self._looks_inside or len(records) == 0:
            return None
        payload = records.payload.data
        ends = np.cumsum(records.lengths, dtype=np.int64)
        starts = ends - records.lengths
        header_lengths = records.columns.get(Column.HEADER_LENGTH)
        headers = starts if header_lengths is None else starts + header_lengths
        priorities = records.columns.get(Column.PRIORITY, np.zeros(len(records), np.uint16))
        takes = self.filter.takes
        keep: list[int] = []
        rows = zip(
            starts.tolist(),
            headers.tolist(),
            priorities.tolist(),
            records.columns[Column.STORED_MS].tolist(),
            strict=True,
        )
        for row, (start, body, priority, stored_ms) in enumerate(rows):
            try:
                header = decode_header(payload[start:body])
            except InvalidBatch:
                continue  # What nobody can read is nothing that anybody picks.
            if takes(header, priority, stored_ms):
                keep.append(row)
        return None if len(keep) == len(records) else np.array(keep, np.int64)


class Sieve:
    """Of one read. ``expired`` is given where messages may have expired, ``picked`` where not all are wanted."""

    __slots__ = ("_bytes_left", "_expired", "_picked", "_records_left")

    def __init__(self, expired: Expired | None, picked: Picked | None) -> None:
        self._expired = expired
        self._picked = picked
        self._records_left = SIEVED_RECORDS
        self._bytes_left = SIEVED_BYTES

    @property
    def spent(self) -> bool:
        """Whether the read has looked at as much as one may."""
        return self._records_left <= 0 or self._bytes_left <= 0

    @property
    def most_at_once(self) -> int:
        """How many records that may pass are to be given to :meth:`passing` at once."""
        weight = 0 if self._picked is None else self._picked.weight
        return max(_FEWEST_AT_ONCE, _COUNTS_AT_ONCE // weight) if weight else SIEVED_RECORDS

    @property
    def records_left(self) -> int:
        """How many records may still be looked at."""
        return max(0, self._records_left)

    def passes_over(self, page: IndexPage, row: int) -> bool:
        """Whether a block of one queue has nothing that is picked; then it counts as a few records looked at."""
        if self._picked is None or self._picked.may_hold(page, row):
            return False
        self._records_left -= _PASSED_BLOCK_RECORDS
        return True

    def look(self, columns: ReadColumn, count: int) -> Mask:
        """Which of ``count`` records may pass, by their columns; they count as looked at."""
        self._records_left -= count
        self._bytes_left -= int(columns(Column.LENGTH).sum(dtype=np.int64))
        keep = np.ones(count, np.bool_)
        if self._expired is not None:
            expires = columns(Column.EXPIRES_MS)
            if expires.any():
                keep &= ~self._expired(columns(Column.STORED_MS), expires)
        if self._picked is not None:
            keep &= self._picked.may_pass(columns, count)
        return keep

    def look_at(self, part: SortedPart, first: int, stop: int) -> Mask:
        """:meth:`look` at neighbours."""
        return self.look(lambda column: part.column(column, first, stop), stop - first)

    def passing(self, records: SortedRecords) -> SortedRecords:
        """Those of records that may pass that do."""
        rows = self._passing(records)
        return records if rows is None else select(records, rows)

    def passing_of(self, records: SortedRecords, ranks: I64) -> tuple[SortedRecords, I64]:
        """:meth:`passing`, and what goes with each of the records."""
        rows = self._passing(records)
        return (records, ranks) if rows is None else (select(records, rows), ranks[rows])

    def _passing(self, records: SortedRecords) -> I64 | None:
        if self._picked is None:
            return None
        if weight := self._picked.weight:
            self._records_left -= weight * len(records)
            if (headers := records.columns.get(Column.HEADER_LENGTH)) is not None:
                self._bytes_left -= weight * int(headers.sum(dtype=np.int64))
        return self._picked.passing(records)


def _blocks_may_be(node: FilterNode, filters: U64) -> Mask:
    """Which blocks may have a message that makes the node true, as far as their filters say."""
    match node:
        case All(nodes):
            return reduce(np.logical_and, (_blocks_may_be(each, filters) for each in nodes))
        case AnyOf(nodes):
            return reduce(np.logical_or, (_blocks_may_be(each, filters) for each in nodes))
        case Compare("=", FieldOf(Field.TAG | Field.TYPE as field), Literal(str() as value)):
            return _blocks_have(field, (value,), filters)
        case In(FieldOf(Field.TAG | Field.TYPE as field), values) if all(isinstance(value, str) for value in values):
            return _blocks_have(field, values, filters)
        case _:
            return np.ones(filters.shape[1], np.bool_)


def _blocks_have(field: Field, values: tuple[Any, ...], filters: U64) -> Mask:
    hashes = np.array([tag_hash(value) for value in values], np.uint32)
    return may_have(filters, of_tags(hashes) if field is Field.TAG else of_types(hashes))


def may_be(node: FilterNode, columns: ReadColumn, count: int) -> tuple[Mask, Mask]:
    """Which records may make the node true, and which false, as far as columns say."""
    match node:
        case All(nodes):
            true, false = np.ones(count, np.bool_), np.zeros(count, np.bool_)
            for each in nodes:
                each_true, each_false = may_be(each, columns, count)
                true, false = true & each_true, false | each_false
            return true, false
        case AnyOf(nodes):
            true, false = np.zeros(count, np.bool_), np.ones(count, np.bool_)
            for each in nodes:
                each_true, each_false = may_be(each, columns, count)
                true, false = true | each_true, false & each_false
            return true, false
        case Not(inner):
            true, false = may_be(inner, columns, count)
            return false, true
        case Compare("=" | "<>" as operator, FieldOf(field), Literal(str() as value)):
            true, false = _is_word(field, (value,), columns, count)
            return (true, false) if operator == "=" else (false, true)
        case Compare(operator, left, right) if is_number(left) and is_number(right):
            true = _COMPARISONS[operator](_numbers(left, columns), _numbers(right, columns))
            return _exactly(np.broadcast_to(np.asarray(true, np.bool_), count))
        case In(FieldOf(field), values) if field in _NUMBERS:
            return _exactly(np.isin(_NUMBERS[field](columns), np.array(values)))
        case In(Literal(int() | float() as value), values):
            return _exactly(np.full(count, value in values))
        case In(FieldOf(field), values) if all(isinstance(value, str) for value in values):
            return _is_word(field, values, columns, count)
        case IsNull(FieldOf(Field.TAG | Field.TYPE as field)):
            return _exactly(columns(_HASHES[field][0]) == 0)
        case IsNull(operand) if is_number(operand):
            return _exactly(np.zeros(count, np.bool_))
        case Compare() | In() | IsNull() | Like():
            return np.ones(count, np.bool_), np.ones(count, np.bool_)


def _numbers(operand: Operand, columns: ReadColumn) -> Any:
    """A number, or a column of them."""
    return _NUMBERS[operand.field](columns) if isinstance(operand, FieldOf) else cast(Literal, operand).value


def _priority(columns: ReadColumn) -> I64:
    return split_priority(columns(Column.PRIORITY).astype(np.int64))[0]


def _subpriority(columns: ReadColumn) -> I64:
    return split_priority(columns(Column.PRIORITY).astype(np.int64))[1]


def _stored_ms(columns: ReadColumn) -> I64:
    return columns(Column.STORED_MS).astype(np.int64, copy=False)


_NUMBERS = {Field.PRIORITY: _priority, Field.SUBPRIORITY: _subpriority, Field.STORED_MS: _stored_ms}


def _exactly(true: Mask) -> tuple[Mask, Mask]:
    return true, ~true


def _is_word(field: Field, values: tuple[Any, ...], columns: ReadColumn, count: int) -> tuple[Mask, Mask]:
    """Two words may have one hash, so that it is the same says little; that it is another says all."""
    if field is Field.KEY:
        hashes = columns(Column.KEY_HASH)
        return np.isin(hashes, np.array([key_hash(value) for value in values], np.uint64)), np.ones(count, np.bool_)
    if field not in _HASHES:
        return np.ones(count, np.bool_), np.ones(count, np.bool_)
    column, hash_of = _HASHES[field]
    hashes = columns(column)
    return np.isin(hashes, np.array([hash_of(value) for value in values], np.uint32)), hashes != 0


_COMPARISONS: dict[str, Callable[[Any, Any], Mask]] = {
    "=": np.equal,
    "<>": np.not_equal,
    "<": np.less,
    "<=": np.less_equal,
    ">": np.greater,
    ">=": np.greater_equal,
}
