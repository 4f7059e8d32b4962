"""The broker's parts by themselves: placement, waiters, the byte budget, the configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq.errors import Unavailable
from lsmq.record_batch import Column, encode_batch
from lsmq_coordinator.state import grown_ranges
from lsmq_node.broker import ByteBudget, queue_ranges, shard_of
from lsmq_node.broker.placement import split_by_shard
from lsmq_node.broker.waiters import Waiter, WaiterTable
from lsmq_node.config import InvalidConfig, LogFormat, NodeConfig
from lsmq_node.storage import FlushMode, StoredTopic
from lsmq_node.storage.columns import encode_columns

QUEUES = st.integers(1, 50)
SHARDS = st.integers(1, 9)


@given(QUEUES, SHARDS, st.lists(QUEUES, max_size=3), st.data())
def test_ranges_cover_every_queue_once_and_shard_of_is_their_inverse(
    queues: int, shards: int, growth: list[int], data: st.DataObject
) -> None:
    topic = StoredTopic(1, "t", queues)
    for more in growth:
        before = [shard_of(queue, topic, shards) for queue in range(topic.queues)]
        ranges = grown_ranges(queue_ranges(topic, shards), topic.queues + more, shards)
        topic = StoredTopic(1, "t", topic.queues + more, ranges=ranges)
        assert [shard_of(queue, topic, shards) for queue in range(len(before))] == before, "no queue moves"
    found = queue_ranges(topic, shards)
    owners = [part.shard for part in found for _ in range(part.first, part.end)]
    assert [queue for part in found for queue in range(part.first, part.end)] == list(range(topic.queues))
    assert owners == [shard_of(queue, topic, shards) for queue in range(topic.queues)]
    first = data.draw(st.integers(0, topic.queues - 1))
    end = data.draw(st.integers(first + 1, topic.queues))
    for selected in (range(topic.queues), range(first, end), data.draw(st.permutations(range(first, end)))):
        split = split_by_shard(np.array(selected, np.int64), topic, shards)
        met = [owners[queue] for queue in selected]
        assert {shard: places.tolist() for shard, places in split} == {
            shard: [place for place, owner in enumerate(met) if owner == shard] for shard in set(met)
        }
        assert sorted(shard for shard, _ in split) == [shard for shard, _ in split]


SETS = st.sets(st.integers(0, 60), min_size=1)


@given(SETS, SETS)
def test_a_waiter_wants_exactly_what_it_shares_with_a_commit(own: set[int], touched: set[int]) -> None:
    waiter = Waiter(np.array(sorted(own), np.uint32))
    assert waiter.wants(np.array(sorted(touched), np.uint32)) == bool(own & touched)


@given(st.lists(SETS, min_size=1, max_size=8), st.lists(SETS, min_size=1, max_size=4))
def test_a_commit_wakes_exactly_who_waits_for_it(waiting: list[set[int]], pieces: list[set[int]]) -> None:
    table = WaiterTable(100)
    contexts = [table.waiting(1, np.array(sorted(queues), np.uint32)) for queues in waiting]
    waiters = [context.__enter__() for context in contexts]
    table.wake(2, [np.arange(100, dtype=np.uint32)])
    assert not any(waiter.is_set for waiter in waiters)
    table.wake(1, [np.array(sorted(piece), np.uint32) for piece in pieces])
    touched = set().union(*pieces)
    assert [waiter.is_set for waiter in waiters] == [bool(queues & touched) for queues in waiting]
    for context in contexts:
        context.__exit__(None, None, None)
    assert table.count == 0 and not table._topics


def test_a_closed_table_sets_waiters_that_come_later() -> None:
    table = WaiterTable(1)
    table.close()
    with table.waiting(1, np.array([1])) as waiter:
        assert waiter.is_set
        with pytest.raises(Unavailable, match="max_waiters"), table.waiting(1, np.array([2])):
            pass


def test_a_budget_never_passes_its_limit_and_gets_all_back() -> None:
    budget = ByteBudget(100)
    with budget.hold() as first, budget.hold() as second:
        first.resize(60)
        with pytest.raises(Unavailable):
            second.resize(41)
        second.resize(40)
        first.resize(10)
        second.resize(90)
        assert budget.used_bytes == budget.peak_bytes == 100
    assert budget.used_bytes == 0
    assert budget.refused == 1


@given(
    st.lists(st.tuples(st.integers(0, 2**32 - 1), st.integers(0, 2**63 - 1)), min_size=1, max_size=20),
    st.integers(0, 2**40),
)
def test_packed_columns_are_what_the_codec_makes(pairs: list[tuple[int, int]], stored_ms: int) -> None:
    queues, offsets = [queue for queue, _ in pairs], [offset for _, offset in pairs]
    packed = encode_columns(
        len(pairs),
        {
            Column.QUEUE: np.array(queues, np.uint32),
            Column.OFFSET: np.array(offsets, np.int64),
            Column.STORED_MS: stored_ms,
        },
    )
    columns: dict[int, Any] = {Column.QUEUE: queues, Column.OFFSET: offsets, Column.STORED_MS: stored_ms}
    assert packed == encode_batch(len(pairs), columns, b"")


def test_settings_come_from_file_environment_and_arguments_in_this_order(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text('port = 1\nmax_waiters = 5\nhost = "::1"\nflush_mode = "async"\n')
    environment = {"LSMQ_PORT": "2", "LSMQ_HOST": "0.0.0.0", "LSMQ_URL": "http://x", "OTHER": "x"}
    config = NodeConfig.load(file, environment, data=tmp_path, port=3, shards=None, log_format="json")
    assert (config.port, config.host, config.max_waiters, config.shards) == (3, "0.0.0.0", 5, 1)
    assert config.flush_mode is FlushMode.ASYNC and config.log_format is LogFormat.JSON
    assert config.to_dict()["flush_mode"] == "async"


@pytest.mark.parametrize(
    ("toml", "environment", "overrides", "message"),
    [
        ("prot = 1", {}, {}, "there is no setting 'prot'; did you mean port"),
        ("zzz = 1", {}, {}, "there is no setting 'zzz'; python -m lsmq_node.config_file prints all"),
        ("", {"LSMQ_PROT": "1"}, {}, "environment LSMQ_PROT: there is no setting 'prot'"),
        ("", {}, {"prot": 1}, "argument: there is no setting 'prot'"),
        ("port = true", {}, {}, "port is True; it must be an integer"),
        ('port = "x"', {}, {}, "port is 'x'; it must be an integer"),
        ("port = 70000", {}, {}, "port is 70000; it must be 0 to 65535"),
        ("host = 1", {}, {}, "host is 1; it must be text"),
        ('host = ""', {}, {}, "host is empty"),
        ("", {"LSMQ_FLUSH_MODE": "never"}, {}, "it must be one of 'sync', 'async'"),
        ("max_message_bytes = 9000000", {}, {}, "raise max_request_bytes or lower max_message_bytes"),
        ("memtable_bytes = 1000000", {}, {}, "above half of memtable_bytes"),
        ("segment_bytes = 100000", {}, {}, "must be a multiple of 32768"),
        ('advertised_url = "here"', {}, {}, "must begin with http://"),
        ("port =", {}, {}, "not valid TOML"),
    ],
)
def test_wrong_settings_are_refused_with_their_source(
    tmp_path: Path, toml: str, environment: dict[str, str], overrides: dict[str, Any], message: str
) -> None:
    file = tmp_path / "node.toml"
    file.write_text(toml)
    with pytest.raises(InvalidConfig) as raised:
        NodeConfig.load(file, environment, **{"data": tmp_path, **overrides})
    assert message in raised.value.message


def test_a_data_directory_has_to_be_given() -> None:
    with pytest.raises(InvalidConfig, match="--data"):
        NodeConfig.load()
