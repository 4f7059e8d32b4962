"""Letters: as large as their topic takes, and no larger."""

from __future__ import annotations

import pytest

from lsmq.record_batch import BatchBuilder, RecordBatch, encode_header
from lsmq_node.letters import LetterRecord, add_letter, origin


@pytest.mark.parametrize("limit", [300, 1_000, 70_000])
def test_a_letter_that_is_too_large_is_cut_to_what_its_topic_takes(limit: int) -> None:
    header = encode_header("key", "tag", {"own": "x" * 50})
    for size in (*range(limit - 400, limit + 100), 10 * limit):
        record = LetterRecord(0, 7, header, b"b" * max(0, size), priority=0, stored_ms=1, flags=0, key=0)
        builder = BatchBuilder()
        add_letter(builder, 0, record, origin("t", 1, record, None), limit)
        (letter,) = RecordBatch(builder.build()).messages("dead")
        assert len(letter.body) <= builder.size_bytes <= limit
        assert letter.key == "key"
        cut = letter.properties.get("lsmq-dlq-cut")
        assert cut == (None if len(letter.body) == len(record.body) else f"{len(record.body)}")
