"""How far groups were behind in the last hour: what is kept of whom, for how long, and how much."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

from api.in_process import Session, node_of, with_node
from lsmq_node.broker import Broker
from lsmq_node.monitoring import lag_history
from lsmq_node.monitoring.lag_history import EVERY_S, MOST_LOOKED_AT, SAMPLES, LagHistory
from lsmq_node.monitoring.lags import GroupLags

from .test_counting import commit, send


class Watched:
    """The lags of a node and their history, on a clock that only the test moves."""

    def __init__(self, client: Session, broker: Broker) -> None:
        self.broker = broker
        self.now_s = 1_000 * EVERY_S
        self.lags = GroupLags(broker, 100)
        self.history = LagHistory(broker, self.lags, lambda: self.now_s)
        self.client = client

    async def sample(self, times: int = 1) -> None:
        for _ in range(times):
            self.now_s += EVERY_S
            await self.lags.count(self.history.wanted())
            await self.history.sample()

    async def past(self, group: str, topic: str = "t") -> list[int | None]:
        return await self.history.of(group, await self.broker.topic(topic))


async def watched(client: Session, broker: Broker) -> Watched:
    await node_of(client).monitoring.stop()  # it would count as well
    return Watched(client, broker)


def test_the_last_hour_is_kept_and_no_more(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        watch = await watched(client, broker)
        await send(client, 10)
        await commit(client, "g", 4)
        assert await watch.past("g") == [], "nothing was counted yet"
        await watch.sample(2)
        assert await watch.past("g") == [6, 6]
        await commit(client, "g", 9)
        await watch.sample()
        assert await watch.past("g") == [6, 6, 1]
        watch.now_s += 2 * EVERY_S  # the process stood still
        await watch.sample()
        assert await watch.past("g") == [6, 6, 1, None, None, 1]
        await watch.sample(SAMPLES - 1)
        assert await watch.past("g") == [1] * SAMPLES
        watch.now_s += 10 * EVERY_S * SAMPLES
        await watch.sample()
        assert await watch.past("g") == [1], "nothing of that is known"

    with_node(tmp_path, test)


def test_nothing_of_a_topic_is_told_of_the_one_that_was_made_anew_under_its_name(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        watch = await watched(client, broker)
        await watch.past("elsewhere")  # From here on it is counted as well.
        await send(client, 10)
        await commit(client, "g", 4)
        await watch.sample(2)
        assert await watch.past("g") == [6, 6] and (await watch.past("elsewhere"))[-1] == 10
        await broker.delete_topic("t")
        await client.put("/v1/topics/t", json={"queues": 2})
        await send(client, 3)
        await commit(client, "g", 1)
        assert await watch.past("g") == []
        await watch.sample()
        assert await watch.past("g") == [2]
        assert (await watch.past("elsewhere"))[-1] == 3

    with_node(tmp_path, test)


def test_a_group_that_was_nowhere_is_counted_once_somebody_looks_and_is_in_no_metric(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        watch = await watched(client, broker)
        await watch.sample()
        assert await watch.past("new") == [0] * SAMPLES, "nothing was there that could wait"
        await watch.sample()
        await send(client, 3)
        await watch.sample()
        assert await watch.past("new") == [*[0] * (SAMPLES - 1), 3]
        assert watch.lags.series() == []
        assert await watch.past("other") == [], "before somebody looked nobody knew"
        await watch.sample()
        assert await watch.past("other") == [3]
        await commit(client, "new", 1)
        await watch.sample()
        assert (await watch.past("new"))[-3:] == [3, 3, 2]
        assert watch.lags.series() == [(("new", "t"), 2)]

    with_node(tmp_path, test)


def test_memory_is_bounded_and_who_is_looked_at_comes_before_those_that_are_furthest_behind(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        watch = await watched(client, broker)
        await send(client, 100)
        for number in range(10):
            await commit(client, f"g{number}", number)
        with mock.patch.object(lag_history, "MOST_ROWS", 4):
            await watch.sample()
            assert watch.history.row_count == 4
            assert await watch.past("g0") == [100]
            assert await watch.past("g9") == []
            await watch.sample()
            assert watch.history.row_count == 4
            assert await watch.past("g9") == [91], "from then on"
            for number in range(2 * MOST_LOOKED_AT):
                await watch.past(f"x{number}")
            assert len(watch.history.looked_at()) == MOST_LOOKED_AT
            await watch.sample()
            assert watch.history.row_count == 4
            watch.now_s += EVERY_S * SAMPLES
            assert not watch.history.looked_at(), "what nobody looks at for an hour goes"
            await watch.sample()
            assert watch.history.row_count == 4
        await client.delete("/v1/topics/t")
        await watch.sample()
        assert watch.history.row_count == 0, "with its topic"

    with_node(tmp_path, test)
