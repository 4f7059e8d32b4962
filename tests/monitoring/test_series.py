"""Numbers by topic and by group, as a node counts them."""

from __future__ import annotations

import asyncio
import json
import platform
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from api.calls import Api
from lsmq import Client as AsyncClient
from lsmq import Group
from lsmq.cli import root
from lsmq.sync import Client, Consumer
from lsmq_node.disks import FORMAT
from support.node_process import NodeProcess
from support.waiting import comes_true, eventually

OTHERS = "(others)"


def samples(api: Api, name: str, **labels: str) -> dict[tuple[str, ...], float]:
    """The values of a metric by its labels, those with these alone."""
    return {
        tuple(sample.labels.values()): sample.value
        for family in text_string_to_metric_families(api.get("/metrics").body.decode())
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    }


def become(api: Api, name: str, wanted: Mapping[tuple[str, ...], float], **labels: str) -> None:
    found: dict[tuple[str, ...], float] = {}

    def is_there() -> bool:
        found.clear()
        found.update(samples(api, name, **labels))
        return found == wanted

    try:
        eventually(is_there, f"{name} is {wanted}")
    except AssertionError:
        assert found == wanted
        raise


def commit(api: Api, group: str, topic: str, offsets: dict[int, int]) -> None:
    document = {"topic": topic, "queues": [*offsets], "offsets": [*offsets.values()], "reset": True}
    api.call("POST", f"/v1/groups/{group}/offsets", document, status=200)


def test_a_node_says_what_it_is(api: Api) -> None:
    labels = {"version": api.status()["version"], "python": platform.python_version(), "format": str(FORMAT)}
    assert list(samples(api, "lsmq_build_info", **labels).values()) == [1]


@pytest.mark.part(2)
def test_what_is_written_and_read_is_counted_by_topic(api: Api, topic_name: str) -> None:
    api.create(topic_name, 2)
    become(api, "lsmq_topic_written_messages_total", {(topic_name,): 0}, topic=topic_name)
    api.send(topic_name, *[{"queue": 0, "body": "x" * 100}] * 30)
    assert len(api.bodies(topic_name, 0, max=20)) == 20
    become(api, "lsmq_topic_written_messages_total", {(topic_name,): 30}, topic=topic_name)
    become(api, "lsmq_topic_read_messages_total", {(topic_name,): 20}, topic=topic_name)
    for name, least in (("written", 3_000), ("read", 2_000)):
        (size,) = samples(api, f"lsmq_topic_{name}_bytes_total", topic=topic_name).values()
        assert least <= size <= 3 * least


def test_work_that_is_handed_out_is_read(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    api.send(topic_name, *[{"body": "x"}] * 5)
    found = api.call("POST", "/v1/groups/workers/pop", {"topic": topic_name, "max": 3}, status=200).json()
    assert len(found["messages"]) == 3
    become(api, "lsmq_topic_read_messages_total", {(topic_name,): 3}, topic=topic_name)


@pytest.mark.part(2)
def test_what_comes_later_counts_once_it_is_there(api: Api, topic_name: str) -> None:
    api.create(topic_name, 1)
    api.send(topic_name, {"body": "now"}, {"body": "never", "delay_ms": 10**9}, {"body": "soon", "delay_ms": 1_000})
    become(api, "lsmq_topic_written_messages_total", {(topic_name,): 2}, topic=topic_name)


@pytest.mark.part(2)
def test_what_a_producer_repeats_is_not_counted_again(shared_node: NodeProcess, api: Api, topic_name: str) -> None:
    api.create(topic_name, 1, dedupe_window_ms=60_000)
    for _ in range(3):
        api.send(topic_name, {"body": "x", "dedupe_id": "1"})
    api.send(topic_name, {"body": "x", "dedupe_id": "2"})
    become(api, "lsmq_topic_written_messages_total", {(topic_name,): 2}, topic=topic_name)


@pytest.mark.slow
def test_the_lag_of_a_group_is_what_it_has_not_committed(api: Api, topic_name: str) -> None:
    api.create(topic_name, 3)
    for queue in range(3):
        api.send(topic_name, *[{"queue": queue, "body": "x"}] * 10)
    commit(api, "readers", topic_name, {0: 4, 1: 10})
    become(api, "lsmq_group_lag_messages", {("readers", topic_name): 16}, topic=topic_name)
    api.send(topic_name, {"queue": 1, "body": "x"})
    become(api, "lsmq_group_lag_messages", {("readers", topic_name): 17}, topic=topic_name)
    lag = api.get(f"/v1/groups/readers/lag?topic={topic_name}").json()["lag"]
    assert samples(api, "lsmq_group_lag_messages", topic=topic_name) == {("readers", topic_name): lag}
    commit(api, "readers", topic_name, {0: 10, 1: 11, 2: 10})
    become(api, "lsmq_group_lag_messages", {("readers", topic_name): 0}, topic=topic_name)
    (age,) = samples(api, "lsmq_group_lag_age_seconds").values()
    assert age >= 0
    api.call("DELETE", f"/v1/topics/{topic_name}", status=204)
    become(api, "lsmq_group_lag_messages", {}, topic=topic_name)


@pytest.mark.slow
def test_the_lag_in_queues_by_name_is_that_of_those_that_are_there(api: Api, topic_name: str) -> None:
    api.call("PUT", f"/v1/topics/{topic_name}", {"queues": "named"})
    for name in ("a", "b", "c"):
        api.send(topic_name, *[{"queue": name, "body": "x"}] * 5)
    with (
        Client(f"http://{api.host}:{api.port}") as client,
        Consumer(client, topic_name, group="readers", max_messages=5) as consumer,
    ):
        eventually(lambda: bool(consumer.poll(max_messages=5)), "something is read")
        consumer.commit()
    become(api, "lsmq_group_lag_messages", {("readers", topic_name): 10}, topic=topic_name)
    listed = api.get(f"/v1/topics/{topic_name}/queues").json()["queues"]
    committed = api.get(f"/v1/groups/readers/offsets?topic={topic_name}&slots=0-4095").json()["queues"]
    assert len(listed) == 3 and len(committed) == 1
    for queue in ("a", "b", "c"):
        api.call("DELETE", f"/v1/topics/{topic_name}/queues/{queue}", status=204)
    become(api, "lsmq_group_lag_messages", {("readers", topic_name): 0}, topic=topic_name)


@pytest.mark.slow
def test_the_lag_of_a_group_that_reads_by_a_pattern_is_in_queues_that_match(api: Api, topic_name: str) -> None:
    api.call("PUT", f"/v1/topics/{topic_name}", {"queues": "named"})
    for name in ("a.in", "b.in", "b.log"):
        api.send(topic_name, *[{"queue": name, "body": "x"}] * 5)
    with (
        Client(f"http://{api.host}:{api.port}") as client,
        Consumer(client, topic_name, group="inboxes", pattern="*.in", max_messages=5) as consumer,
    ):
        eventually(lambda: bool(consumer.poll(max_messages=5)), "something is read")
        consumer.commit()
    become(api, "lsmq_group_lag_messages", {("inboxes", topic_name): 5}, topic=topic_name)
    for name in ("b.log", "c.in"):
        api.send(topic_name, *[{"queue": name, "body": "x"}] * 2)
    become(api, "lsmq_group_lag_messages", {("inboxes", topic_name): 7}, topic=topic_name)


@pytest.mark.slow
def test_the_busiest_topics_and_the_groups_furthest_behind_have_series_of_their_own(
    make_node: Callable[..., NodeProcess],
) -> None:
    api = Api(make_node(metrics_series=2).start().url)
    for number in range(5):
        api.create(f"t{number}", 1)
        api.send(f"t{number}", *[{"queue": 0, "body": "x"}] * 10 * (number + 1))
        commit(api, f"g{number}", f"t{number}", {0: 0})
    lags = {("g3", "t3"): 40, ("g4", "t4"): 50, (OTHERS, OTHERS): 60}
    become(api, "lsmq_group_lag_messages", lags)
    eventually(
        lambda: sum(samples(api, "lsmq_topic_written_messages_total").values()) == 150, "every message is counted once"
    )
    assert len(samples(api, "lsmq_topic_written_messages_total").keys() - {(OTHERS,)}) == 2
    before = samples(api, "lsmq_topic_written_messages_total")
    api.send("t0", *[{"queue": 0, "body": "x"}] * 1_000)
    eventually(
        lambda: ("t0",) in samples(api, "lsmq_topic_written_messages_total"), "a topic that gets busy has a counter"
    )
    after = samples(api, "lsmq_topic_written_messages_total")
    assert after["t0",] == 1_000 and after[OTHERS,] == before[OTHERS,], "what others were written stays theirs"


@pytest.mark.slow
@pytest.mark.parametrize("series", [0, 3])
def test_metrics_do_not_grow_with_queues_topics_and_groups(make_node: Callable[..., NodeProcess], series: int) -> None:
    api = Api(make_node(metrics_series=series).start().url)

    def fill(numbers: range) -> int:
        for number in numbers:
            api.create(f"t{number}", 1_000)
            api.send(f"t{number}", *[{"body": "x", "queue": queue} for queue in range(100)])
            commit(api, f"g{number}", f"t{number}", {0: 0})
        # The lag of all groups is counted at one time: then all there is stands in the answer.
        total = 100.0 * numbers.stop
        eventually(
            lambda: (
                sum(samples(api, "lsmq_group_lag_messages").values()) == total
                and sum(samples(api, "lsmq_topic_written_messages_total").values()) == total
            ),
            "all is counted",
        )
        return len(api.get("/metrics").body.splitlines())

    lines = fill(range(5))
    assert fill(range(5, 15)) == lines
    if series == 0:
        assert b't1"' not in api.get("/metrics").body, "no name of a topic is told"


@pytest.mark.part(2)
def test_counters_begin_anew_with_the_node_and_lags_are_there_again(tmp_path: Path, node: NodeProcess) -> None:
    api = Api(node.url)
    api.create("t", 1)
    api.send("t", *[{"body": "x"}] * 10)
    commit(api, "g", "t", {0: 4})
    become(api, "lsmq_topic_written_messages_total", {("t",): 10})
    node.kill9()
    node.restart()
    become(api, "lsmq_group_lag_messages", {("g", "t"): 6})
    become(api, "lsmq_topic_written_messages_total", {("t",): 0})


async def test_clients_and_commands_are_told_the_last_hour(shared_node: NodeProcess, topic_name: str) -> None:
    api = Api(shared_node.url)
    api.create(topic_name, 1)
    api.send(topic_name, *[{"body": "x"}] * 7)
    commit(api, topic_name, topic_name, {0: 0})
    async with AsyncClient(shared_node.url) as client:
        group = Group(client, topic_name)
        assert (await group.past_lag(topic_name)).lags == ()

        async def is_known() -> bool:
            return (await group.past_lag(topic_name)).lags[-1:] == (7,)

        await comes_true(is_known, "somebody looked, so it is kept", 60)
        assert (await group.past_lag(topic_name)).every_ms == 10_000
    command = ["group", "lag", topic_name, "--topic", topic_name, "--url", shared_node.url]
    shown = await asyncio.to_thread(CliRunner().invoke, root, command)
    assert shown.exit_code == 0 and shown.stdout.split()[-2:] == ["now", "7"], shown.output
    told = json.loads((await asyncio.to_thread(CliRunner().invoke, root, [*command, "--json"])).stdout)
    assert (told["lag"], told["lags"][-1], told["every_ms"]) == (7, 7, 10_000)
