"""Work queues with order by key over HTTP, on a real node."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.node_process import NodeProcess
from support.waiting import eventually

from .calls import Api
from .test_work_queues import LONG_MS, SHORT_MS, Work, bodies


def ordered(api: Api, topic: str, queues: int = 4, **settings: object) -> Work:
    work = Work(api, topic, queues)
    work.configure(order="key", **settings)
    return work


def send(work: Work, *messages: tuple[str | None, str], queue: int = 0) -> None:
    fields = ({"key": key, "body": body, "queue": queue} for key, body in messages)
    work.api.send(work.topic, *({name: value for name, value in each.items() if value is not None} for each in fields))


def test_of_each_key_one_message_at_a_time_and_the_next_when_that_is_done(api: Api) -> None:
    work = ordered(api, "by-key")
    send(work, ("a", "a1"), ("a", "a2"), ("b", "b1"), (None, "n1"), ("a", "a3"), (None, "n2"), ("b", "b2"))
    first = work.pop()
    assert bodies(first) == ["a1", "b1", "n1", "n2"]
    assert work.pop() == []
    assert (work.shard()["blocked"], work.undelivered()) == (3, (3, 0))
    (a1,) = (message for message in first if message["body"] == "a1")
    assert work.settle("ack", a1) == []
    (a2,) = work.pop(wait_ms=5_000)
    assert a2["body"] == "a2"
    assert work.settle("nack", a2, delay_ms=0) == []
    (again,) = work.pop(wait_ms=5_000)
    assert (again["body"], again["deliveries"]) == ("a2", 2)
    assert work.settle("ack", again) == []
    assert bodies(work.pop(wait_ms=5_000)) == ["a3"]


def test_a_message_that_rests_or_whose_consumer_died_holds_its_key_and_no_other(api: Api) -> None:
    work = ordered(api, "resting-keys")
    send(work, ("a", "a1"), ("b", "b1"), ("a", "a2"), ("b", "b2"), ("c", "c1"))
    taken = {message["body"]: message for message in work.pop(visibility_ms=LONG_MS)}
    assert sorted(taken) == ["a1", "b1", "c1"]
    work.settle("nack", taken["a1"], delay_ms=LONG_MS)
    work.settle("extend", taken["b1"], visibility_ms=SHORT_MS)
    (again,) = work.pop(wait_ms=5_000)
    assert (again["body"], again["deliveries"]) == ("b1", 2), "it comes again before the next of its key"
    work.settle("ack", again, taken["c1"])
    assert bodies(work.pop(wait_ms=5_000)) == ["b2"]
    assert work.pop() == [], "the other key rests"


def test_a_dead_letter_lets_the_next_of_its_key_go(api: Api) -> None:
    work = ordered(api, "poisoned-key", max_deliveries=2)
    send(work, ("a", "poison"), ("a", "a2"), ("a", "a3"))
    for _ in range(2):
        (poison,) = work.pop(wait_ms=5_000)
        assert poison["body"] == "poison"
        work.settle("nack", poison, delay_ms=0)
    (second,) = work.pop(wait_ms=20_000)
    assert second["body"] == "a2"
    assert bodies(work.dead_letters()) == ["poison"], "it is there before the next one comes"


def test_a_key_with_a_long_line_delays_no_other(api: Api) -> None:
    work = ordered(api, "long-line", 1)
    for first in range(0, 20_000, 5_000):
        send(work, *(("slow", f"{number}") for number in range(first, first + 5_000)))
    send(work, *((f"k{number}", f"quick {number}") for number in range(50)))
    found = [message["body"] for _ in range(51) for message in work.pop(1)]
    assert found == ["0", *(f"quick {number}" for number in range(50))]
    assert (work.shard()["blocked"], work.undelivered()) == (19_999, (19_999, 0))


def test_order_is_kept_where_it_is_switched_on_and_refused_where_it_is_not(api: Api) -> None:
    work = Work(api, "switched")
    send(work, ("a", "a1"), ("a", "a2"), ("a", "a3"))
    first, second = work.pop(2)
    document = {"topic": work.topic, "order": "key"}
    refused = work.post("pop", document, status=400)["error"]
    assert refused["field"] == "order" and "configure it" in refused["message"]
    work.configure(order="key")
    assert work.post("pop", document)["messages"] == [], "what is in flight stays so"
    assert work.settle("ack", first, second) == []
    (third,) = work.pop(wait_ms=5_000)
    assert third["body"] == "a3"
    send(work, ("a", "a4"))
    assert work.pop() == []
    work.configure(order="none")
    assert bodies(work.pop(wait_ms=5_000)) == ["a4"]
    assert work.settle("ack", third) == []
    message = api.call(
        "PUT", f"/v1/groups/{work.topic}/work-queue", {"topic": work.topic, "order": "lifo"}, status=400
    ).json()["error"]["message"]
    assert "order" in message and "'none', 'key'" in message


@pytest.mark.parametrize("settled", [0, 1])
def test_a_killed_node_keeps_the_order_of_a_key(tmp_path: Path, settled: int) -> None:
    """What was in flight comes again before what stands behind it, and a receipt of before still counts."""
    node = NodeProcess(tmp_path).start()
    try:
        work = ordered(Api(node.url), "killed")
        send(work, ("a", "a1"), ("a", "a2"), (None, "n1"), ("b", "b1"), ("a", "a3"), ("b", "b2"))
        taken = {message["body"]: message for message in work.pop()}
        assert work.settle("ack", taken["n1"], *[taken["a1"]][:settled]) == []
        expected = {"a2" if settled else "a1", "b1"}
        node.kill9()
        node.start()
        assert work.settle("ack", taken["b1"]) == [], "nobody has got it since"
        assert {message["body"] for message in work.pop(wait_ms=5_000)} == {*expected, "b2"} - {"b1"}
        assert work.pop() == []
        assert work.undelivered()[0] == 2 - settled
    finally:
        node.kill9()


def test_deleted_messages_of_a_line_are_passed_over_at_once(api: Api) -> None:
    work = ordered(api, "deleted-line", 1)
    send(work, *(("a", f"{number}") for number in range(200)))
    (head,) = work.pop(1)
    assert work.pop() == []
    offsets = list(range(1, 199))
    api.call("POST", f"/v1/topics/{work.topic}/delete", {"queues": [0] * 198, "offsets": offsets}, status=200)
    assert work.settle("ack", head) == []
    eventually(lambda: work.shard()["ready"] == 1, "the next one is ready")
    assert bodies(work.pop()) == ["199"]


def test_what_retention_takes_out_of_a_line_holds_up_nobody(api: Api) -> None:
    work = ordered(api, "trimmed-line", 1)
    send(work, *(("a", f"{number}") for number in range(500)))
    (head,) = work.pop(1)
    assert work.pop() == []
    api.call("POST", f"/v1/topics/{work.topic}/delete", {"queues": [0], "offsets": [400], "before": True}, status=200)
    assert work.settle("ack", head) == []
    found = work.pop(wait_ms=5_000)
    assert bodies(found) == ["400"]
    eventually(lambda: work.shard()["blocked"] == 99, "what is gone is not counted")
