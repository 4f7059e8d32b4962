"""Topics with named queues over HTTP: sending, reading and fetching by name."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgpack
import pytest

from lsmq.queue_names import compile_pattern, queue_slot
from lsmq.record_batch import BatchBuilder, Column, RecordBatch
from lsmq_node.broker import Broker
from lsmq_node.broker.names import BrokerNames
from lsmq_node.broker.reads import Reads
from lsmq_node.storage import TopicNames
from lsmq_node.storage.log_writer import LogWriter
from lsmq_node.storage.name_table import NameTable
from support.node_process import NodeProcess
from support.waiting import PATIENCE_S, eventually

from .calls import Answer, Api
from .in_process import Session, with_node
from .named_queues import Found, bodies, fetch, listed, named_topic, path, send


@pytest.fixture
def topic(api: Api, topic_name: str) -> str:
    return named_topic(api, topic_name)


def test_a_queue_is_there_once_something_was_sent_to_it(api: Api, topic: str) -> None:
    names = ("agents.7.inbox", "ä/b c", "%2F", "{7}", "...", "0", "x" * 255)
    answer = send(api, topic, *((name, name[:5]) for name in names), (names[0], "again"))
    results = answer.json()["results"]
    assert [result["queue"] for result in results] == [*names, names[0]]
    assert [result["offset"] for result in results] == [0] * len(names) + [1]
    for name in names:
        messages = api.get(f"{path(topic, name)}/messages").json()["messages"]
        assert messages[0]["queue"] == name and messages[0]["body"] == name[:5]
    one = api.get(f"/v1/messages/{results[-1]['id']}").json()
    assert (one["queue"], one["offset"], one["body"]) == (names[0], 1, "again")
    again = api.get(f"{path(topic, 'ä/b c')}/messages?offset=latest", headers={"Accept": "application/msgpack"})
    assert again.msgpack() == {"messages": [], "next_offset": 1}


def test_msgpack_names_queues_as_json_does(api: Api, topic: str) -> None:
    body = msgpack.packb({"messages": [{"queue": "m", "body": b"\x00\xff"}]})
    headers = {"Content-Type": "application/msgpack"}
    answer = api.call("POST", f"/v1/topics/{topic}/messages", body=body, headers=headers, status=200).msgpack()
    assert answer["results"][0]["queue"] == "m"
    found = api.get(f"{path(topic, 'm')}/messages", headers={"Accept": "application/msgpack"}).msgpack()
    assert [(each["queue"], each["body"]) for each in found["messages"]] == [("m", b"\x00\xff")]


@pytest.mark.parametrize(
    ("queue", "code", "message"),
    [
        (None, "invalid_request", "messages[1].queue is missing; topic"),
        (3, "invalid_request", "messages[1].queue is 3; topic"),
        ("", "invalid_queue_name", "messages[1].queue: the queue name '' has 0 bytes"),
        ("a\nb", "invalid_queue_name", "control character"),
        ("ä" * 128, "invalid_queue_name", "has 256 bytes; it must have 1 to 255"),
    ],
)
def test_a_message_names_its_queue_or_is_refused(api: Api, topic: str, queue: Any, code: str, message: str) -> None:
    answer = api.send(topic, {"queue": "fine", "body": "1"}, {"queue": queue, "body": "2"}, status=400)
    assert answer.code == code
    assert message in answer.error["message"]
    assert listed(api, topic) == []


@pytest.mark.parametrize("encoded", ["%ff", "a%E4", "%C3%28", "%ED%A0%80"])
def test_a_path_that_is_not_utf8_names_no_queue(api: Api, topic: str, encoded: str) -> None:
    queue = f"/v1/topics/{topic}/queues/{encoded}"
    for method, rest in (("PUT", ""), ("GET", ""), ("DELETE", ""), ("GET", "/messages")):
        answer = api.call(method, queue + rest, status=400)
        assert answer.code == "invalid_queue_name" and "not UTF-8" in answer.error["message"]
    assert listed(api, topic) == []


def test_errors_say_the_name_of_a_queue(api: Api, topic: str) -> None:
    send(api, topic, ("a", "1"))
    answer = api.get(f"{path(topic, 'a')}/messages?offset=7", 416)
    assert "queue 'a' of topic" in answer.error["message"]
    assert {key: answer.error[key] for key in ("queue", "earliest", "latest")} == {
        "queue": "a",
        "earliest": 0,
        "latest": 1,
    }
    offsets = {"topic": topic, "queues": [16_000_000], "offsets": [5]}
    answer = api.call("POST", "/v1/groups/errors/offsets", offsets, status=404)
    assert "has queues with names" in answer.error["message"]


def test_a_topic_with_numbers_takes_no_names(api: Api, topic_name: str) -> None:
    api.create(topic_name, 2)
    answer = api.send(topic_name, {"queue": "x", "body": "1"}, status=400)
    assert "are numbers" in answer.error["message"]
    assert api.get(f"{path(topic_name, 'x')}/messages", 400).code == "invalid_request"
    for method, rest in (("GET", ""), ("PUT", "/x"), ("DELETE", "/1")):
        answer = api.call(method, f"/v1/topics/{topic_name}/queues{rest}", status=400)
        assert "the numbers from 0 to 1" in answer.error["message"]
    assert (
        "selects queues by name"
        in (api.call("POST", f"/v1/topics/{topic_name}/fetch", {"pattern": "**", "start": "latest"}, status=400)).error[
            "message"
        ]
    )


def test_a_named_topic_has_no_number_to_grow_and_no_keys_to_spread(api: Api, topic: str, topic_name: str) -> None:
    answer = api.call("PUT", f"/v1/topics/{topic}/queues", {"queues": 5000}, status=400)
    assert "there is one for each name" in answer.error["message"]
    for options in ({"key_queues": 3}, {"order": "strict"}):
        answer = api.call("PUT", f"/v1/topics/{topic_name}-2", {"queues": "named", **options}, status=400)
        assert answer.code == "invalid_request"
    answer = api.call("PUT", f"/v1/topics/{topic_name}-3", {"queues": 4, "forget_empty_ms": 5}, status=400)
    assert "queues 'named'" in answer.error["message"]
    another = api.call("PUT", f"/v1/topics/{topic}", {"queues": 4096}, status=409)
    assert another.code == "topic_exists" and "queues is named, not 4096" in another.error["message"]
    assert (another.error["queues"], "named" in another.error["options"]) == ("named", False)
    assert api.call("PUT", f"/v1/topics/{topic}", {"queues": "named"}, status=200).json()["queues"] == "named"


def test_a_packed_batch_brings_its_names(api: Api, topic: str) -> None:
    builder = BatchBuilder()
    for queue, body in ((0, b"1"), (1, b"2"), (0, b"3")):
        builder.add(queue, body)
    names = b"first\0second"
    body = len(names).to_bytes(4, "little") + names + builder.build(producer_id=77_321, sequence=0)
    headers = {"Content-Type": "application/vnd.lsmq.named-batch"}
    for duplicate in (None, "1"):
        answer = api.call("POST", f"/v1/topics/{topic}/batches", body=body, headers=headers, status=200)
        batch = RecordBatch(answer.body)
        assert list(batch.column(Column.OFFSET)) == [0, 0, 1]
        assert list(batch.column(Column.QUEUE)) == [0, 1, 0]
        assert answer.headers.get("Lsmq-Duplicate") == duplicate
    assert bodies(api, topic, "first") == ["1", "3"]
    for wrong in (b"", b"\x05", (99).to_bytes(4, "little") + body[4:]):
        assert api.call("POST", f"/v1/topics/{topic}/batches", body=wrong, headers=headers).status == 400
    plain = api.send_batch(topic, builder.build(), status=400)
    assert "application/vnd.lsmq.named-batch" in plain.error["message"]


def test_a_long_poll_waits_for_a_queue_to_come(api: Api, topic: str) -> None:
    missing = api.get(f"{path(topic, 'late')}/messages?wait_ms=50", 404)
    assert missing.code == "unknown_queue" and missing.error["queue"] == "late"
    timer = threading.Timer(0.2, lambda: send(api, topic, ("other", "0"), ("late", "1")))
    timer.start()
    found = api.get(f"{path(topic, 'late')}/messages?wait_ms=20000").json()
    timer.join()
    assert [message["body"] for message in found["messages"]] == ["1"]


@pytest.mark.parametrize("again", [(), ("mine",)])
def test_a_held_read_gives_nothing_of_another_queue_that_got_the_number(
    api: Api, topic: str, again: tuple[str, ...]
) -> None:
    send(api, topic, ("mine", "1"))

    held = api.status()["waiters"]

    def replace() -> None:
        eventually(lambda: api.status()["waiters"] > held, "the read is held")
        api.call("DELETE", path(topic, "mine"), status=204)
        send(api, topic, *((name, "not yours") for name in ("another", *again)))

    replacing = threading.Thread(target=replace)
    replacing.start()
    answer = api.get(f"{path(topic, 'mine')}/messages?offset=latest&wait_ms=20000", 404)
    replacing.join()
    assert answer.code == "unknown_queue" and "was deleted while it was read" in answer.error["message"]
    assert bodies(api, topic, "another") == ["not yours"]


@pytest.mark.parametrize("way", ["find", "id", "read", "pop"])
def test_what_was_read_of_a_deleted_queue_is_not_given_as_that_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    async def test(client: Session, broker: Broker) -> None:
        await client.put("/v1/topics/n", json={"queues": "named"})
        body = {"messages": [{"queue": "mine", "key": "k", "body": "mine"}]}
        (sent,) = (await (await client.post("/v1/topics/n/messages", json=body)).json())["results"]
        names_of = BrokerNames.names_of

        async def replaced_first(*args: Any) -> Any:
            monkeypatch.undo()
            await client.delete("/v1/topics/n/queues/mine")
            other = {"messages": [{"queue": "another", "key": "k2", "body": "another's"}]}
            await client.post("/v1/topics/n/messages", json=other)
            return await names_of(*args)

        monkeypatch.setattr(BrokerNames, "names_of", replaced_first)
        match way:
            case "find":
                answer = await client.get("/v1/topics/n/messages?key=k")
            case "id":
                answer = await client.get(f"/v1/messages/{sent['id']}")
            case "read":
                answer = await client.get("/v1/topics/n/queues/mine/messages")
            case _:
                answer = await client.post("/v1/groups/g/pop", json={"topic": "n"})
        assert (await answer.json()).get("messages", []) == []
        assert answer.status == (404 if way in ("id", "read") else 200)
        (row,) = (await (await client.get("/v1/topics/n/queues")).json())["queues"]
        assert (row["name"], row["earliest"], row["number"]) == ("another", 1, 0), "it has the number"

    with_node(tmp_path, test)


@pytest.mark.parametrize("picks", ["key=k", "tag=t"])
def test_what_is_found_in_a_queue_by_name_is_of_no_other_that_got_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, picks: str
) -> None:
    async def test(client: Session, broker: Broker) -> None:
        async def sent(name: str) -> Any:
            body = {"messages": [{"queue": name, "key": "k", "tag": "t", "body": name}]}
            return await client.post("/v1/topics/n/messages", json=body)

        await client.put("/v1/topics/n", json={"queues": "named"})
        await sent("mine")
        number = BrokerNames.number

        async def replaced_next(*args: Any) -> int:
            monkeypatch.undo()
            found = await number(*args)
            await client.delete("/v1/topics/n/queues/mine")
            await sent("another")
            return found

        monkeypatch.setattr(BrokerNames, "number", replaced_next)
        answer = await client.get(f"/v1/topics/n/messages?queue_name=mine&{picks}")
        assert (answer.status, (await answer.json())["messages"]) == (200, [])
        answer = await client.get(f"/v1/topics/n/messages?queue_name=another&{picks}")
        assert [message["queue"] for message in (await answer.json())["messages"]] == ["another"]

    with_node(tmp_path, test)


def test_of_those_who_declare_a_queue_at_once_one_is_told_that_he_made_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_came, came = threading.Event(), 0
    declare, commit = TopicNames.declare, LogWriter.commit

    def counted(*args: Any) -> Any:
        nonlocal came
        found = declare(*args)
        came += 1
        if came == 5:
            all_came.set()
        return found

    def held_up(writer: LogWriter) -> None:
        assert all_came.wait(PATIENCE_S)
        commit(writer)

    async def test(client: Session, broker: Broker) -> None:
        async def declared() -> int:
            return (await client.put("/v1/topics/n/queues/mine")).status

        await client.put("/v1/topics/n", json={"queues": "named"})
        with monkeypatch.context() as patch:
            patch.setattr(TopicNames, "declare", counted)
            patch.setattr(LogWriter, "commit", held_up)
            assert sorted(await asyncio.gather(*(declared() for _ in range(5)))) == [200, 200, 200, 200, 201]
        assert await declared() == 200

    with_node(tmp_path, test)


@pytest.mark.parametrize("way", ["send", "declare", "delete", "trim", "alter"])
def test_who_was_torn_out_of_making_a_queue_holds_up_no_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """What is in line then, names that others know nothing of, is waited for, and others have their turn."""
    free, commit, check = threading.Event(), LogWriter.commit, TopicNames._check_may_append

    def held_up(writer: LogWriter) -> None:
        assert free.wait(PATIENCE_S)
        commit(writer)

    def torn(*args: Any) -> None:
        raise MemoryError

    async def test(client: Session, broker: Broker) -> None:
        loop = asyncio.get_running_loop()

        def checked(names: TopicNames) -> Any:
            loop.call_soon(free.set)  # which has its turn once the loop goes on
            return check(names)

        def sent(name: str) -> Any:
            return client.post("/v1/topics/n/messages", json={"messages": [{"queue": name, "body": "x"}]})

        await client.put("/v1/topics/n", json={"queues": "named"})
        await sent("a")
        with monkeypatch.context() as patch:
            patch.setattr(LogWriter, "commit", held_up)
            with monkeypatch.context() as tear:
                tear.setattr(NameTable, "hold", torn)
                assert (await sent("b")).status == 500
            await client.get("/v1/topics/n/queues")  # so that all that is committed is known again
            patch.setattr(TopicNames, "_check_may_append", checked)
            match way:
                case "send":
                    answer = await sent("c")
                case "declare":
                    answer = await client.put("/v1/topics/n/queues/c")
                case "delete":
                    answer = await client.delete("/v1/topics/n/queues/a")
                case "trim":
                    answer = await client.post("/v1/topics/n/queues/a/trim", json={"before": 1})
                case _:
                    answer = await client.patch("/v1/topics/n/queues/a", json={"retention_messages": 1})
        assert answer.status in (200, 201, 204)

    with_node(tmp_path, test)


# -- fetching --------------------------------------------------------------------------------------------


def test_queues_that_fit_a_pattern_join_a_session_by_themselves(api: Api, topic: str) -> None:
    send(api, topic, ("agents.1.inbox", "a"), ("agents.1.outbox", "no"), ("agents.x.y.inbox", "no"))
    found = fetch(api, topic, pattern="agents.*.inbox", start="earliest", keep=True)
    assert found.messages == {"agents.1.inbox": ["a"]}
    timer = threading.Timer(0.1, lambda: send(api, topic, ("agents.2.inbox", "b"), ("agents", "no")))
    timer.start()
    found = fetch(api, topic, session=found.session, wait_ms=20_000)
    timer.join()
    assert found.messages == {"agents.2.inbox": ["b"]}
    for first in range(0, 300, 30):
        send(api, topic, *((f"agents.{at}.inbox", str(at)) for at in range(first, first + 30)))
        found = fetch(api, topic, session=found.session)
        assert found.messages == {f"agents.{at}.inbox": [str(at)] for at in range(first, first + 30)}
    assert fetch(api, topic, session=found.session).messages == {}


@pytest.mark.parametrize(
    ("pattern", "fitting"),
    [
        ("**", {"a", "a.b", "a.b.c", "ab", "a.é", "b.b"}),
        ("a.**", {"a.b", "a.b.c", "a.é"}),
        ("a.*", {"a.b", "a.é"}),
        ("*.b", {"a.b", "b.b"}),
        ("*", {"a", "ab"}),
        ("a.*.c", {"a.b.c"}),
        ("a.é", {"a.é"}),
        ("a.(b)", set()),
    ],
)
def test_a_pattern_says_which_queues_are_meant(api: Api, topic: str, pattern: str, fitting: set[str]) -> None:
    names = ("a", "a.b", "a.b.c", "ab", "a.é", "b.b")
    assert {name for name in names if compile_pattern(pattern).fullmatch(name)} == fitting, "as the client means it"
    send(api, topic, *((name, name) for name in names))
    assert fetch(api, topic, pattern=pattern, start="earliest").messages == {name: [name] for name in fitting}


def test_slots_share_out_all_queues(api: Api, topic: str) -> None:
    names = [f"q{at}" for at in range(200)]
    send(api, topic, *((name, name) for name in names))
    low = fetch(api, topic, slots=[[0, 1000], [3000, 4096]], start="earliest").messages
    high = fetch(api, topic, slots=[[1000, 3000]], start="earliest").messages
    assert low.keys() | high.keys() == set(names) and not low.keys() & high.keys()
    assert all(1000 <= queue_slot(name) < 3000 for name in high)


def test_a_pattern_within_slots_shares_out_what_fits(api: Api, topic: str) -> None:
    fitting, others = [f"q.{at}" for at in range(100)], [f"p.{at}" for at in range(100)]
    send(api, topic, *((name, name) for name in fitting + others))
    low = fetch(api, topic, pattern="q.*", slots=[[0, 1000], [3000, 4096]], start="earliest", keep=True)
    high = fetch(api, topic, pattern="q.*", slots=[[1000, 3000]], start="earliest")
    assert low.messages.keys() | high.messages.keys() == set(fitting)
    assert not low.messages.keys() & high.messages.keys()
    later = [f"{part}.{at}" for part in ("p", "q", "q.x") for at in range(100, 200)]
    send(api, topic, *((name, name) for name in later))
    found = fetch(api, topic, session=low.session, wait_ms=20_000).messages
    assert found == {
        name: [name] for name in later if name.startswith("q.1") and not 1000 <= queue_slot(name) < 3000
    }, "queues that come later join where both fit"


def test_named_queues_are_waited_for_and_read_from_where_it_is_said(api: Api, topic: str) -> None:
    send(api, topic, ("a", "1"), ("a", "2"), ("b", "3"))
    found = fetch(api, topic, names=["a", "to-come"], start="earliest", keep=True)
    assert found.messages == {"a": ["1", "2"]}
    send(api, topic, ("to-come", "4"), ("b", "5"), ("a", "6"))
    found = fetch(api, topic, session=found.session, wait_ms=20_000)
    assert found.messages == {"a": ["6"], "to-come": ["4"]}
    assert fetch(api, topic, names=["a", "b"], offsets=[2, 1]).messages == {"a": ["6"], "b": ["5"]}
    number = next(iter(fetch(api, topic, names=["b"], start="earliest").positions))
    assert fetch(api, topic, names=["b"], start="latest", numbers=[number], offsets=[1]).messages == {}
    again = fetch(api, topic, pattern="b", start="earliest", numbers=[number], offsets=[1])
    assert again.messages == {"b": ["5"]}


def test_who_begins_at_the_end_is_told_where_that_is_and_misses_nothing_later(api: Api, topic: str) -> None:
    send(api, topic, ("a", "1"), ("b", "2"))
    found = fetch(api, topic, pattern="**", start="latest", keep=True, wait_ms=20_000)
    assert sorted(found.positions.values()) == [1, 1] and found.messages == {}
    send(api, topic, ("a", "3"), ("c", "4"))
    found = fetch(api, topic, session=found.session, wait_ms=20_000)
    assert found.messages == {"a": ["3"], "c": ["4"]}


def test_a_group_goes_on_where_it_has_committed(api: Api, topic: str) -> None:
    send(api, topic, ("a", "1"), ("a", "2"), ("b", "3"), ("b", "4"))
    positions = fetch(api, topic, names=["a"], start="earliest").positions
    (number,) = positions
    group = f"group-{topic}"[:200]
    commit = {"topic": topic, "queues": [number], "offsets": [1]}
    api.call("POST", f"/v1/groups/{group}/offsets", commit, status=200)
    found = fetch(api, topic, pattern="**", start="committed", group=group)
    assert found.messages == {"a": ["2"], "b": ["3", "4"]}
    latest = fetch(api, topic, pattern="**", start="committed", group=group, reset="latest")
    assert latest.messages == {"a": ["2"]}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"names": ["a"]}, "start is missing"),
        ({"pattern": "a*", "start": "earliest"}, "'*' that is not a whole part"),
        ({"pattern": "**.a", "start": "earliest"}, "'*' that is not a whole part"),
        ({"pattern": "", "start": "earliest"}, "the pattern is ''"),
        ({"slots": [[5, 5]], "start": "latest"}, "slots has [5, 5]"),
        ({"names": ["a"], "pattern": "a", "start": "latest"}, "pattern is given beside names"),
        ({"pattern": "a", "queues": [1], "offsets": [0]}, "queues is given beside pattern"),
        ({"pattern": "a", "slots": [[0, 9]], "queues": [1], "offsets": [0]}, "queues is given beside pattern"),
        ({"names": ["a"], "slots": [[0, 9]], "start": "latest"}, "slots is given beside names"),
        ({"pattern": "a", "slots": [[9, 5]], "start": "latest"}, "slots has [9, 5]"),
        ({"pattern": "a", "start": "committed"}, "group is missing"),
        ({"pattern": "a", "start": "latest", "group": "g"}, "group is given, and start is 'latest'"),
        ({"pattern": "a", "offsets": [1]}, "offsets is for names without start"),
        ({"names": ["a", "b"], "offsets": [1]}, "each queue needs its offset"),
        ({"names": ["a"], "start": "latest", "numbers": [1]}, "offsets is missing"),
        ({"names": ["\n"], "start": "latest"}, "control character"),
        ({"slots": [[0, 1]], "start": "earliest", "with_names": True}, "it must be 'latest'"),
    ],
)
def test_what_a_fetch_cannot_mean_is_refused(api: Api, topic: str, document: Any, message: str) -> None:
    answer = api.call("POST", f"/v1/topics/{topic}/fetch", document, status=400)
    assert message in answer.error["message"]


def test_a_deleted_queue_leaves_a_session_and_one_of_its_name_joins_anew(api: Api, topic: str) -> None:
    send(api, topic, ("a", "1"), ("b", "2"))
    found = fetch(api, topic, pattern="*", start="earliest", keep=True)
    api.call("DELETE", path(topic, "a"), status=204)
    send(api, topic, ("z.z", "other"), ("a", "3"))
    found = fetch(api, topic, session=found.session, wait_ms=20_000)
    assert found.messages == {"a": ["3"]}
    send(api, topic, ("z.z", "other"), ("b", "4"))
    assert fetch(api, topic, session=found.session, wait_ms=20_000).messages == {"b": ["4"]}


@pytest.mark.parametrize(("pattern", "given"), [("mine.*", {}), ("**", {"another": ["not yours"]})])
def test_a_queue_that_got_the_number_of_one_that_a_session_just_read_is_not_given_in_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pattern: str, given: dict[str, list[str]]
) -> None:
    async def test(client: Session, broker: Broker) -> None:
        async def sent(queue: str, body: str) -> str:
            messages = [{"queue": queue, "body": body}]
            answer = await client.post("/v1/topics/n/messages", json={"messages": messages})
            return str((await answer.json())["results"][0]["id"])[8:16]

        async def fetched(**document: Any) -> Found:
            answer = await client.post("/v1/topics/n/fetch", json={"keep": True, **document})
            assert answer.status == 200
            return Found(Answer(answer.status, dict(answer.headers), await answer.read()))

        await client.put("/v1/topics/n", json={"queues": "named"})
        number = await sent("mine.1", "1")
        found = await fetched(pattern=pattern, start="earliest")
        assert found.messages == {"mine.1": ["1"]}
        await sent("mine.1", "2")
        read = Reads._read_held

        async def replaced_first(*args: Any) -> Any:
            monkeypatch.undo()
            await client.delete("/v1/topics/n/queues/mine.1")
            assert await sent("another", "not yours") == number
            return await read(*args)

        monkeypatch.setattr(Reads, "_read_held", replaced_first)
        messages: dict[str, list[str]] = {}
        for _ in range(2):
            found = await fetched(session=found.session)
            messages |= found.messages
        assert messages == given

    with_node(tmp_path, test)


def test_a_session_of_numbers_says_the_names_of_queues_in_each_answer(api: Api, topic: str) -> None:
    send(api, topic, ("a", "1"), ("b", "2"))
    found = fetch(api, topic, queues=[0, 1], offsets=[0, 0], keep=True)
    assert found.messages == {"a": ["1"], "b": ["2"]}
    send(api, topic, ("b", "3"))
    found = fetch(api, topic, session=found.session, wait_ms=20_000)
    assert found.messages == {"b": ["3"]}
    api.call("DELETE", path(topic, "b"), status=204)
    send(api, topic, ("a", "4"), ("c", "5"))
    assert fetch(api, topic, session=found.session, wait_ms=20_000).messages == {"a": ["4"], "c": ["5"]}


def test_one_request_waits_for_any_of_100_000_names_there_or_to_come(node: NodeProcess) -> None:
    api = Api(node.url)
    topic = named_topic(api, "many")
    names = [f"agents.{number}" for number in range(100_000)]
    send(api, topic, *((name, "before") for name in names[:100]))
    found = fetch(api, topic, names=names, start="latest", keep=True)
    assert found.messages == {} and len(found.positions) == 100
    with ThreadPoolExecutor(1) as pool:
        for name in (names[77_777], names[5]):
            waiting = pool.submit(fetch, api, topic, session=found.session, wait_ms=20_000)
            eventually(lambda: api.status()["waiters"] > 0, "it waits")
            send(api, topic, ("nobody's", "x"))
            assert not waiting.done()
            send(api, topic, (name, "new"))
            found = waiting.result()
            assert found.messages == {name: ["new"]}
