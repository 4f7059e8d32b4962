"""How lags and topics are counted: a little at a time, and not again where nothing changed."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np

from api.in_process import Session, node_of, with_node
from lsmq.record_batch import BatchBuilder, RecordBatch
from lsmq_node.broker import Ack, Broker
from lsmq_node.monitoring.lags import GroupLags
from lsmq_node.monitoring.traffic import TopicTraffic
from lsmq_node.storage import StoredTopic
from support.counted_lines import counted_lines

GROUPS = 5
MANY = 3_000


async def send(client: Session, count: int) -> None:
    answer = await client.post("/v1/topics/t/messages", json={"messages": [{"queue": 0, "body": "x"}] * count})
    assert answer.status == 200


async def commit(client: Session, group: str, offset: int) -> None:
    body = {"topic": "t", "queues": [0], "offsets": [offset], "reset": True}
    answer = await client.post(f"/v1/groups/{group}/offsets", json=body)
    assert answer.status == 200


def test_lags_are_counted_a_little_at_a_time_and_again_only_where_something_changed(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        await node_of(client).monitoring.stop()  # it would count as well
        await send(client, 10)
        for number in range(GROUPS):
            await commit(client, f"g{number}", number)
        lags, store = GroupLags(broker, GROUPS), broker.topology.port(0).store
        assert (lags.age_s, lags.series()) == (None, [])
        counting = mock.patch.object(store, "group_lag", wraps=store.group_lag)
        hops = mock.patch.object(broker, "in_readers", wraps=broker.in_readers)
        looking = mock.patch.object(store, "group_marks", wraps=store.group_marks)
        with (
            counting as counted,
            hops as hopped,
            looking as looked,
            mock.patch("lsmq_node.monitoring.lags._AT_ONCE_S", 0.0),
        ):
            await lags.count()
            wanted = {(f"g{number}", "t"): 10 - number for number in range(GROUPS)}
            assert dict(lags.series()) == wanted
            assert counted.call_count == GROUPS <= hopped.call_count, "others hop as well"
            await lags.count()
            assert counted.call_count == GROUPS and looked.call_count == 1, "nothing changed, nothing was looked at"
            assert dict(lags.series()) == wanted
            await commit(client, "g0", 3)
            await lags.count()
            assert counted.call_count == GROUPS + 1
            assert dict(lags.series()) == {**wanted, ("g0", "t"): 7}
            await send(client, 1)
            await lags.count([("new", "t")])
            assert counted.call_count == 2 * GROUPS + 2 and lags.by_shard()[0].known(("new", "t")) == 11
            assert looked.call_count == 3
            assert sum(lag for _, lag in lags.series()) == sum(wanted.values()) - 3 + GROUPS
        assert lags.age_s is not None and lags.age_s >= 0

    with_node(tmp_path, test)


def test_a_topic_that_is_deleted_takes_its_counter_along(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        await node_of(client).monitoring.stop()  # it would count as well
        traffic = TopicTraffic(broker, 1)
        await client.put("/v1/topics/u", json={"queues": 1})
        await send(client, 10)
        await traffic.gather(1.0)
        assert [(topic, found.written_messages) for topic, found in traffic.series()] == [("t", 10)]
        await client.delete("/v1/topics/t")
        answer = await client.post("/v1/topics/u/messages", json={"messages": [{"queue": 0, "body": "x"}]})
        assert answer.status == 200
        await traffic.gather(1.0)
        assert [(topic, found.written_messages) for topic, found in traffic.series()] == [("u", 1)]

    with_node(tmp_path, test)


def test_many_groups_and_topics_are_counted_beside_the_loop(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        await node_of(client).monitoring.stop()  # it would count as well
        port = broker.topology.port(0)
        builder = BatchBuilder()
        builder.add(0, b"x")
        batch = RecordBatch(builder.build())
        for number in range(2, MANY):
            appended = port.store.put_topic(StoredTopic(number, f"t{number}", 1), 0, 1)
        await port.wait(appended, Ack.QUORUM)
        first, none = np.array([0], np.uint32), np.array([0])
        for number in range(2, MANY):
            port.store.append(number, batch)
            appended = port.store.commit_offsets(f"g{number}", number, first, none)
        await port.wait(appended, Ack.QUORUM)
        lags, traffic = GroupLags(broker, GROUPS), TopicTraffic(broker, GROUPS)
        with counted_lines() as lines, mock.patch("lsmq_node.monitoring.lags._AT_ONCE_S", 600.0):
            await lags.count()
            await traffic.gather(1.0)
            lags.series()
        assert lines.count < 10 * MANY, "what other threads do is not counted"
        assert sum(lag for _, lag in lags.series()) == MANY - 2
        assert [len(lags.series()), len(traffic.series())] == [GROUPS + 1] * 2
        assert sum(found.written_messages for _, found in traffic.series()) == MANY - 2

    with_node(tmp_path, test)
