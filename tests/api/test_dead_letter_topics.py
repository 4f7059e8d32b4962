"""Where dead letters go, and which queue they say they are from, in a node of the test's own process."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from lsmq.errors import Unavailable
from lsmq.queue_names import MAX_TOPIC_NAME
from lsmq_node.broker import Broker
from lsmq_node.machines import Step, documents
from lsmq_node.workqueue import burial
from lsmq_node.workqueue.burial import DeadLetterMover
from support.waiting import comes_true

from .in_process import Session, node_of, with_node


async def refuse(session: Session, *bodies: str) -> None:
    """Send them, and have them be dead letters."""
    document: dict[str, Any] = {"messages": [{"queue": 0, "body": body} for body in bodies]}
    assert (await session.post("/v1/topics/t/messages", json=document)).status == 200
    popped = await session.post("/v1/groups/g/pop", json={"topic": "t"})
    receipts = [message["receipt"] for message in (await popped.json())["messages"]]
    document = {"topic": "t", "receipts": receipts, "dead_letter": True}
    assert (await session.post("/v1/groups/g/nack", json=document)).status == 200


async def are_letters(session: Session, *bodies: str) -> bool:
    answer = await session.get("/v1/topics/t.dlq/queues/0/messages")
    found = (await answer.json())["messages"] if answer.status == 200 else []
    return [message["body"] for message in found] == [*bodies]


def test_a_queue_is_not_said_to_be_that_of_a_dead_letter_whose_number_it_was_given(tmp_path: Path) -> None:
    async def test(session: Session, broker: Broker) -> None:
        names_of, begun = broker.names.names_of, list[bool]()

        async def send(name: str) -> None:
            document = {"messages": [{"queue": name, "body": name}]}
            assert (await session.post("/v1/topics/n/messages", json=document)).status == 200

        async def moved_on(*given: Any) -> Any:
            (work,) = node_of(session).work.shards()
            if work.figures()["dead"] and not begun:
                begun.append(True)
                assert (await session.delete("/v1/topics/n/queues/theirs")).status == 204
                await send("other")
            return await names_of(*given)

        async def letters() -> list[dict[str, Any]]:
            answer = await session.get("/v1/topics/n.dlq/queues/0/messages")
            found: list[dict[str, Any]] = (await answer.json())["messages"] if answer.status == 200 else []
            return found

        async def is_there() -> bool:
            return bool(await letters())

        async def refuse_it() -> None:
            popped = await session.post("/v1/groups/g/pop", json={"topic": "n"})
            receipts = [message["receipt"] for message in (await popped.json())["messages"]]
            document = {"topic": "n", "receipts": receipts, "dead_letter": True}
            assert (await session.post("/v1/groups/g/nack", json=document)).status == 200

        await session.put("/v1/topics/n", json={"queues": "named"})
        await send("theirs")
        with patch.object(broker.names, "names_of", moved_on):
            await refuse_it()
            (work,) = node_of(session).work.shards()
            await comes_true(lambda: not work.figures()["dead"], "it is put away, or gone")
        await refuse_it()
        await comes_true(is_there, "the other's is a dead letter")
        (letter,) = await letters()
        assert (letter["body"], letter["properties"]["lsmq-dlq-queue-name"]) == ("other", "other")

    with_node(tmp_path, test)


def test_dead_letters_come_to_a_topic_that_holds_fewer_than_are_moved_at_once(tmp_path: Path) -> None:
    async def test(session: Session, broker: Broker) -> None:
        came: list[str] = []

        async def all_came() -> bool:
            answer = await (await session.get("/v1/topics/t.dlq/queues/0/messages?offset=earliest")).json()
            came.extend(message["body"] for message in answer["messages"])
            if answer["messages"]:  # somebody looks after them, and makes room
                document = {"queues": "0", "offset": answer["next_offset"]}
                assert (await session.post("/v1/topics/t.dlq/trim", json=document)).status == 200
            return len(came) >= 4

        await session.put("/v1/topics/t.dlq", json={"queues": 1, "max_messages": 2, "overflow": "refuse"})
        await refuse(session, "0", "1", "2", "3")
        await comes_true(all_came, "as it can hold them they come")
        assert sorted(came) == ["0", "1", "2", "3"], "each once"
        (work,) = node_of(session).work.shards()
        await comes_true(lambda: not work.figures()["dead"], "they are put away")

    with patch.object(burial, "_RETRY_S", 0.05):
        with_node(tmp_path, test)


def test_the_dead_letters_of_a_work_queue_are_of_one_producer_whoever_moves_them(tmp_path: Path) -> None:
    async def test(session: Session, broker: Broker) -> None:
        store, bodies = broker.topology.port(0).store, list[str]()
        for number in range(6):
            bodies.append(f"{number}")
            await refuse(session, bodies[-1])
            await comes_true(partial(are_letters, session, *bodies), "it is a dead letter")
            (work,) = node_of(session).work.shards()
            await comes_true(lambda work=work: not work.figures()["dead"], "it is put away")
            if number == 2:
                work.break_off(Unavailable("it is read again"))
            if number == 4:
                assert (await session.delete("/v1/groups/g/offsets?shard=0")).status == 204
                again = await session.post("/v1/groups/g/pop", json={"topic": "t"})
                assert len((await again.json())["messages"]) == 5, "it begins anew"
        assert store.stats().producers == 1

    with_node(tmp_path, test)


def test_dead_letters_that_an_earlier_release_was_moving_come_once(tmp_path: Path) -> None:
    async def test(session: Session, broker: Broker) -> None:
        port = broker.topology.port(0)

        async def is_cut_off(self: DeadLetterMover) -> None:
            raise Unavailable("it stops")

        with patch.object(DeadLetterMover, "_bury_all", is_cut_off):
            await refuse(session, "0", "1")
            (work,) = node_of(session).work.shards()
        rows = [(0, offset, 1, "because") for offset in range(2)]
        key = work.key_of("burial")
        await work.done(Step({key: documents.pack([1, 17, rows])}))
        work.break_off(Unavailable("it is read again"))
        assert (await session.post("/v1/groups/g/pop", json={"topic": "t"})).status == 200
        await comes_true(partial(are_letters, session, "0", "1"), "they are dead letters")
        await comes_true(lambda: port.store.document(key) is None, "they are put away")
        assert port.store.producer_epoch(17) == 0

    with_node(tmp_path, test)


def test_the_topic_with_the_longest_name_is_not_that_of_its_own_dead_letters(tmp_path: Path) -> None:
    name = "x" * (MAX_TOPIC_NAME - 4) + ".dlq"

    async def test(session: Session, broker: Broker) -> None:
        assert (await session.put(f"/v1/topics/{name}", json={"queues": 1})).status == 201
        document: dict[str, Any] = {"messages": [{"queue": 0, "body": "0"}]}
        assert (await session.post(f"/v1/topics/{name}/messages", json=document)).status == 200
        popped = await session.post("/v1/groups/g/pop", json={"topic": name})
        receipts = [message["receipt"] for message in (await popped.json())["messages"]]
        document = {"topic": name, "receipts": receipts, "dead_letter": True}
        assert (await session.post("/v1/groups/g/nack", json=document)).status == 200
        (work,) = node_of(session).work.shards()
        await comes_true(lambda: not work.figures()["dead"], "it is put away")
        described = await (await session.get(f"/v1/groups/g/work-queue?topic={name}")).json()
        letters = await session.get(f"/v1/topics/{described['dead_letter_topic']}/queues/0/messages")
        assert described["dead_letter_topic"] == "x" * (MAX_TOPIC_NAME - 5) + ".dlq"
        assert [message["body"] for message in (await letters.json())["messages"]] == ["0"]
        assert described["shards"][0]["undelivered"] == 0
        settings = {"topic": name, "max_deliveries": 1}
        assert (await session.put("/v1/groups/g/work-queue", json=settings)).status == 200

    with_node(tmp_path, test)


def test_dead_letters_that_would_come_back_over_the_work_of_groups_are_refused(tmp_path: Path) -> None:
    async def test(session: Session, broker: Broker) -> None:
        async def configure(topic: str, dead_letter: str | None, group: str = "g") -> tuple[int, str]:
            document = {"topic": topic, "dead_letter": dead_letter}
            answer = await session.put(f"/v1/groups/{group}/work-queue", json=document)
            found = await answer.json()
            return answer.status, found["error"]["message"] if answer.status >= 400 else ""

        for topic in ("a", "b", "c"):
            await session.put(f"/v1/topics/{topic}", json={"queues": 1})
        assert (await configure("a", "b"))[0] == (await configure("b", "c"))[0] == 200
        status, message = await configure("c", "a")
        assert status == 400 and "c to a to b to c" in message
        assert (await configure("a", "a"))[0] == 400
        status, message = await configure("c", "a", "another")
        assert status == 400 and "c to a to b to c" in message
        assert (await configure("b", None))[0] == (await configure("c", "a"))[0] == 200
        assert (await configure("b", "c", "another"))[0] == 400, "over g's work on c and a"
        assert (await session.put("/v1/topics/a.dlq", json={"queues": 1})).status == 201
        assert (await session.post("/v1/groups/pops/pop", json={"topic": "a"})).status == 200
        status, message = await configure("a.dlq", "a", "another")
        assert status == 400 and "a.dlq to a to a.dlq" in message, "where nothing was set letters go there"
        assert (await session.patch("/v1/topics/a", json={"expired_to": "b"})).status == 200
        status, message = await configure("b", "c")
        assert status == 400 and "b to c to a to b" in message

    with_node(tmp_path, test)


def test_messages_that_would_come_back_over_the_work_of_a_group_are_refused_whatever_is_said_last(
    tmp_path: Path,
) -> None:
    async def test(session: Session, broker: Broker) -> None:
        async def ask(method: str, path: str, **document: Any) -> tuple[int, str]:
            answer = await session.request(method, path, json=document)
            found = await answer.json() if answer.status != 204 else {}
            return answer.status, found["error"]["message"] if answer.status >= 400 else ""

        for topic in ("a", "b"):
            await session.put(f"/v1/topics/{topic}", json={"queues": 2})
        work = "/v1/groups/g/work-queue"
        assert (await ask("PUT", work, topic="b", dead_letter="c"))[0] == 200
        for option, more in (("expired_to", {}), ("dropped_to", {"overflow": "drop_oldest", "max_messages": 9})):
            status, message = await ask("PUT", "/v1/topics/c", queues=2, **{option: "b"}, **more)
            assert status == 400 and "c to b to c" in message, "before there is such a topic"
        assert (await ask("PUT", "/v1/topics/c", queues=2))[0] == 201
        for option, more in (("expired_to", {}), ("dropped_to", {"overflow": "drop_oldest", "max_messages": 9})):
            status, message = await ask("PATCH", "/v1/topics/c", **{option: "b"}, **more)
            assert status == 400 and "c to b to c" in message
        assert (await ask("PATCH", "/v1/topics/c", expired_to="a"))[0] == 200
        assert (await ask("PATCH", "/v1/topics/c", ttl_ms=1000))[0] == 200
        status, message = await ask("PATCH", "/v1/topics/a", expired_to="b")
        assert status == 400 and "a to b to c to a" in message

        # Where nobody has configured the work queue.
        assert (await ask("PUT", "/v1/topics/a.dlq", queues=2, expired_to="a"))[0] == 201
        status, message = await ask("POST", "/v1/groups/pops/pop", topic="a")
        assert status == 400 and "a to a.dlq to a" in message
        assert (await ask("PUT", "/v1/groups/pops/work-queue", topic="a", dead_letter="elsewhere"))[0] == 200
        assert (await ask("POST", "/v1/groups/pops/pop", topic="a"))[0] == 200
        assert (await ask("PATCH", "/v1/topics/a.dlq", expired_to=None))[0] == 200
        assert (await ask("POST", "/v1/groups/other/pop", topic="a"))[0] == 200
        status, message = await ask("PATCH", "/v1/topics/a.dlq", expired_to="a")
        assert status == 400 and "a.dlq to a to a.dlq" in message

    with_node(tmp_path, test, shards=2)
