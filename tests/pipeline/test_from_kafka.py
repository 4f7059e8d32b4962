"""The page for who comes from Spark's Kafka source: every row of its tables is tried."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lsmq_pipeline.errors import InvalidOption
from lsmq_pipeline.from_kafka import READ_ALIASES
from lsmq_pipeline.options import read_options, write_options
from lsmq_pipeline.schema import check_read_schema, message_schema, whole_schema

PAGE = (Path(__file__).parents[2] / "docs" / "pipeline-from-kafka.md").read_text()
#: Options of Spark's Kafka source, as Spark 4's guide lists them.
READING = [
    *("assign", "subscribe", "subscribePattern", "kafka.bootstrap.servers", "includeHeaders", "failOnDataLoss"),
    *("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsets", "startingOffsetsByTimestampStrategy"),
    *("endingTimestamp", "endingOffsetsByTimestamp", "endingOffsets", "minPartitions", "maxRecordsPerPartition"),
    *("kafkaConsumer.pollTimeoutMs", "fetchOffset.numRetries", "fetchOffset.retryIntervalMs"),
    *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "groupIdPrefix", "kafka.group.id"),
]
WRITING = ["kafka.bootstrap.servers", "topic", "includeHeaders"]
COLUMNS = ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
#: A value of each option that is taken, and what must stand beside it.
OFFSETS, TIMES = '{"a": {"0": 23, "1": -1}}', '{"a": {"0": 1000, "1": 2000}}'
GIVEN: dict[str, tuple[str, dict[str, str], bool]] = {
    "assign": ('{"a": [0, 1], "b": [2]}', {}, True),
    "subscribe": ("a,b", {}, True),
    "subscribePattern": ("a.*", {}, True),
    "startingOffsets": (OFFSETS, {}, True),
    "startingOffsetsByTimestamp": (TIMES, {}, True),
    "startingTimestamp": ("1000", {}, True),
    "startingOffsetsByTimestampStrategy": ("error", {"startingTimestamp": "1000"}, True),
    "endingOffsets": (OFFSETS, {}, False),
    "endingOffsetsByTimestamp": (TIMES, {}, False),
    "endingTimestamp": ("1000", {}, False),
    "failOnDataLoss": ("false", {}, True),
    "maxOffsetsPerTrigger": ("7", {}, True),
    "minOffsetsPerTrigger": ("7", {}, True),
    "maxTriggerDelay": ("10m", {"minMessagesPerTrigger": "7"}, True),
    "minPartitions": ("7", {}, True),
    "maxRecordsPerPartition": ("7", {}, True),
    "includeHeaders": ("true", {}, True),
}


def rows(section: str) -> list[tuple[str, str | None, str]]:
    """What is there, what is here, and how they compare, of a section's table."""
    (text,) = re.findall(rf"^## {section}\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    found = []
    for line in text.splitlines():
        if line.startswith("| ") and not line.startswith(("| there", "| Kafka's")):
            there, here, verdict, _ = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:5])
            found.append((there.strip("`"), here.strip("`") or None, verdict))
    assert found
    return found


@pytest.mark.parametrize(("there", "here", "verdict"), rows("Options of a read"))
def test_an_option_of_a_read_is_taken_or_refused_as_the_page_says(there: str, here: str | None, verdict: str) -> None:
    if verdict in ("the same", "differs"):
        value, beside, streaming = GIVEN[there]
        topic = {} if there in ("assign", "subscribe", "subscribePattern") else {"topic": "a"}
        read = read_options({there: value, **beside, **topic}, streaming=streaming)
        assert here is not None and read == read_options({here: value, **beside, **topic}, streaming=streaming)
        assert topic == {} or read != read_options({**beside, **topic}, streaming=streaming), "it makes a difference"
        return
    assert verdict in ("another", "not there")
    with pytest.raises(InvalidOption) as refused:
        read_options({"topic": "a", there: "x"})
    assert f"there is no option {there.lower()} for reading: " in refused.value.message
    assert here is None or f"{here} " in refused.value.message
    if here is not None:
        assert f" {here}" in listed("reading"), "which is an option"


@pytest.mark.parametrize(("there", "here", "verdict"), rows("Options of a write"))
def test_an_option_of_a_write_is_taken_or_refused_as_the_page_says(there: str, here: str | None, verdict: str) -> None:
    if verdict == "the same":
        assert here == there and write_options({there: "a"}).topic == "a"
        return
    with pytest.raises(InvalidOption, match=re.escape(f"there is no option {there.lower()} for writing: ")):
        write_options({"topic": "a", there: "x"})
    if here is not None:
        assert f" {here}" in listed("writing")


def listed(what: str) -> str:
    """Our own options, as the refusal of one that nobody knows lists them."""
    with pytest.raises(InvalidOption) as refused:
        (read_options if what == "reading" else write_options)({"topic": "a", "unheardOf": "x"})
    return refused.value.message


@pytest.mark.parametrize(("there", "here", "verdict"), rows("Columns"))
def test_a_column_is_there_as_the_page_says(there: str, here: str | None, verdict: str) -> None:
    if here is None:
        assert verdict == "not there" and there not in whole_schema().fieldNames()
        return
    check_read_schema(message_schema(include_headers=True, binary_keys=True))
    assert here in message_schema(include_headers=True).fieldNames()
    assert verdict == "differs" or here == there


def test_the_page_leaves_nothing_out() -> None:
    reading = [there for there, _, _ in rows("Options of a read")]
    assert set(READING) <= set(reading) and len(set(reading)) == len(reading)
    assert READ_ALIASES.keys() <= {name.lower() for name in reading}
    assert GIVEN.keys() <= set(reading)
    assert set(WRITING) <= {there for there, _, _ in rows("Options of a write")}
    assert [there for there, _, _ in rows("Columns")] == COLUMNS
    verdicts = {verdict for _, _, verdict in rows("What else there is")}
    assert verdicts == {"the same", "differs", "not there"}
