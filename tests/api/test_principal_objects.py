"""How many objects one principal may make; what he takes away makes room, and others have theirs."""

from __future__ import annotations

from typing import Any

from support.waiting import eventually

from .calls import Answer, pack
from .test_principal_limits import limited, realm
from .test_rights import Asking, Realm

__all__ = ["realm"]


def create(api: Asking, topic: str, queues: int | str = 1) -> Answer:
    return api.call("PUT", f"/v1/topics/{topic}", {"queues": queues})


def refused(answer: Answer, code: str, setting: str, limit: int) -> None:
    assert (answer.status, answer.code) == (429, code), answer.body
    assert (answer.error["setting"], answer.error["limit"]) == (setting, limit)
    assert "lsmq limit set" in answer.error["message"]


def test_a_principal_makes_so_many_topics_also_after_a_restart(realm: Realm) -> None:
    name, maker = limited(realm, topics=2)
    _, neighbour = limited(realm, topics=2)
    for topic in ("made-a", "made-b"):
        assert create(maker, topic).json()["made_by"] == name
    refused(create(maker, "made-c"), "too_many_topics", "principal_topics", 2)
    assert create(maker, "made-a").status == 200, "the same again is the same topic"
    assert create(neighbour, "made-a").status == 200 and create(neighbour, "other-a").status == 201
    assert "made_by" not in create(realm.admin, "free").json()
    realm.node.stop()
    realm.node.start()
    for each in (realm.admin, maker):
        each.moved(realm.node.url)
    refused(create(maker, "made-c"), "too_many_topics", "principal_topics", 2)
    maker.call("PATCH", "/v1/topics/made-b", {"retention_ms": 60_000}, status=200)
    maker.call("PATCH", "/v1/topics/made-b", {"made_by": "somebody"}, status=400)
    refused(create(maker, "made-c"), "too_many_topics", "principal_topics", 2)
    maker.call("DELETE", "/v1/topics/made-b", status=204)
    assert create(maker, "made-c").status == 201
    limit = '{limit="principal_topics"}'
    assert realm.admin.metric(f"lsmq_limit_refused_total{limit}") >= 2


def test_topics_of_a_principal_have_so_many_queues_whoever_gives_them_more(realm: Realm) -> None:
    _, maker = limited(realm, queues=10)
    assert create(maker, "queues-a", 6).status == 201
    refused(create(maker, "queues-b", 5), "too_many_queues", "principal_queues", 10)
    assert create(maker, "queues-b", 4).status == 201
    for who in (maker, realm.admin):
        refused(who.call("PUT", "/v1/topics/queues-b/queues", {"queues": 5}), "too_many_queues", "principal_queues", 10)
    assert create(maker, "queues-named", "named").status == 201
    maker.call("DELETE", "/v1/topics/queues-a", status=204)
    maker.call("PUT", "/v1/topics/queues-b/queues", {"queues": 10}, status=200)


def test_a_principal_makes_so_many_queues_with_names_of_whichever_topics(realm: Realm) -> None:
    _, maker = limited(realm, queues=3)
    _, neighbour = limited(realm)

    def put(who: Asking, topic: str, *names: str) -> Answer:
        messages = [{"body": "x", "queue": name} for name in names]
        return who.call("POST", f"/v1/topics/{topic}/messages", {"messages": messages})

    for topic in ("names-a", "names-b"):
        assert create(neighbour, topic, "named").status == 201
    assert put(maker, "names-a", "x", "y").status == 200
    refused(put(maker, "names-b", "x", "y"), "too_many_queues", "principal_queues", 3)
    assert put(maker, "names-b", "x").status == 200
    refused(maker.call("PUT", "/v1/topics/names-b/queues/y"), "too_many_queues", "principal_queues", 3)
    assert put(neighbour, "names-b", "y", "z").status == 200
    assert put(maker, "names-b", "y", "z").status == 200, "of others' queues he may use all"
    assert create(maker, "names-c", 3).status == 201, "queues with numbers are counted apart"
    maker.call("DELETE", "/v1/topics/names-b/queues/x", status=204)
    assert put(maker, "names-a", "z").status == 200


def test_queues_with_names_that_a_transaction_makes_are_those_of_who_began_it(realm: Realm) -> None:
    _, maker = limited(realm, queues=3)
    _, neighbour = limited(realm)
    assert create(neighbour, "names-t", "named").status == 201
    beat = {"member": "m", "session_ms": 60_000, "join": True}
    group = "/v1/producer-groups/names-t"
    assert maker.call("POST", f"{group}/heartbeat", beat).status == 200

    def messages(*names: str) -> list[dict[str, str]]:
        return [{"topic": "names-t", "queue": name, "body": "x"} for name in names]

    def begin(number: int, *names: str) -> Answer:
        document = {"member": "m", "number": number, "messages": messages(*names)}
        return maker.call("POST", f"{group}/transactions", document)

    def put(who: Asking, *names: str) -> Answer:
        content = [{"queue": name, "body": "x"} for name in names]
        return who.call("POST", "/v1/topics/names-t/messages", {"messages": content})

    refused(begin(1, "a", "b", "c", "d"), "too_many_queues", "principal_queues", 3)
    assert begin(1, "a", "b").status == 200, "nothing was begun before"
    more = {"part": 1, "messages": messages("c", "d", "e", "f")}
    refused(maker.call("POST", f"{group}/transactions/m-1/messages", more), "too_many_queues", "principal_queues", 3)
    assert put(maker, "c").status == 200
    maker.call("POST", f"{group}/transactions/m-1/commit", {"wait_ms": 10_000}, status=200)
    refused(put(maker, "d"), "too_many_queues", "principal_queues", 3)
    refused(begin(2, "d"), "too_many_queues", "principal_queues", 3)
    assert put(neighbour, "d").status == 200
    assert begin(2, "d").status == 200, "it is there by now, though it is another's"
    assert begin(2, "d").status == 200, "what was begun is not refused when it comes again"


def test_a_principal_makes_so_many_groups_however_they_begin(realm: Realm) -> None:
    _, maker = limited(realm, groups=2)
    _, neighbour = limited(realm)
    beat = {"member": "m", "topics": ["t"], "session_ms": 60_000}

    def commit(who: Asking, group: str) -> Answer:
        return who.call("POST", f"/v1/groups/{group}/offsets", {"topic": "t", "queues": [0], "offsets": [0]})

    assert maker.call("POST", "/v1/groups/made-1/heartbeat", beat).status == 200
    assert commit(maker, "made-2").status == 200
    assert commit(maker, "made-1").status == 200, "a group that is there is no other one"
    refused(commit(maker, "made-3"), "too_many_groups", "principal_groups", 2)
    refused(maker.call("POST", "/v1/groups/made-3/heartbeat", beat), "too_many_groups", "principal_groups", 2)
    refused(maker.call("PUT", "/v1/groups/made-3", {"mode": "work_queue"}), "too_many_groups", "principal_groups", 2)
    refused(maker.call("POST", "/v1/groups/made-3/pop", {"topic": "t"}), "too_many_groups", "principal_groups", 2)
    assert neighbour.call("POST", "/v1/groups/made-3/heartbeat", beat).status == 200
    assert commit(maker, "made-3").status == 200, "of others' groups he may be a member"
    maker.call("DELETE", "/v1/groups/made-2/offsets?shard=0")
    assert commit(maker, "made-4").status == 200
    refused(commit(maker, "made-5"), "too_many_groups", "principal_groups", 2)


def test_a_principal_has_so_many_transactions_that_are_not_finished(realm: Realm) -> None:
    _, maker = limited(realm, transactions=2)
    _, neighbour = limited(realm)

    def begin(who: Asking, group: str, number: int) -> Answer:
        messages = [{"topic": "t", "body": "x"}]
        document = {"member": "m", "number": number, "messages": messages}
        return who.call("POST", f"/v1/producer-groups/{group}/transactions", document)

    for who, group in ((maker, "g1"), (neighbour, "g2")):
        who.call("POST", f"/v1/producer-groups/{group}/heartbeat", {"member": "m", "join": True}, status=200)
    assert [begin(maker, "g1", number).status for number in (1, 2)] == [200, 200]
    refused(begin(maker, "g1", 3), "too_many_transactions", "principal_transactions", 2)
    assert begin(maker, "g1", 2).status == 200, "the same again is the same transaction"
    assert [begin(neighbour, "g2", number).status for number in (1, 2, 3)] == [200] * 3
    maker.call("POST", "/v1/producer-groups/g1/transactions/m-1/rollback", {}, status=200)
    assert begin(maker, "g1", 3).status == 200
    maker.call("POST", "/v1/producer-groups/g1/transactions/m-2/commit", {}, status=200)
    eventually(lambda: begin(maker, "g1", 4).status == 200, "what is delivered is finished")


def test_a_principal_begins_so_many_idempotent_producers_and_goes_on_with_them(realm: Realm) -> None:
    _, maker = limited(realm, producers=2)
    _, neighbour = limited(realm)

    def send(who: Asking, producer: int, sequence: int = 0, queue: int = 0) -> Answer:
        return who.send_batch("t", pack((queue, b"x"), producer_id=producer, sequence=sequence), None)

    for producer in (61, 62, 63):
        assert send(maker, producer, queue=1_000_000).status >= 400, "what is refused begins nothing"
    assert [send(maker, producer).status for producer in (71, 72)] == [200, 200]
    refused(send(maker, 73), "too_many_producers", "principal_producers", 2)
    take: dict[str, Any] = {"shard": 0}
    refused(maker.call("POST", "/v1/topics/t/producers/73/take", take), "too_many_producers", "principal_producers", 2)
    assert send(maker, 71).headers["Lsmq-Duplicate"] == "1", "a repeat begins nothing"
    assert send(maker, 71, 1).status == 200
    assert maker.call("POST", "/v1/topics/t/producers/72/take", take).status == 200
    maker.send("t", {"body": "without a producer's id", "queue": 0})
    assert send(neighbour, 73).status == 200


def test_a_principal_has_so_many_schedules_in_a_shard(realm: Realm) -> None:
    _, maker = limited(realm, schedules=2)
    _, neighbour = limited(realm, schedules=2)

    def put(who: Asking, name: str) -> Answer:
        document = {"cron": "0 9 * * *", "tz": "UTC", "message": {"body": "x", "queue": 0}}
        return who.call("PUT", f"/v1/topics/t/schedules/{name}", document)

    assert [put(maker, name).status for name in ("a", "b")] == [201, 201]
    refused(put(maker, "c"), "too_many_schedules", "principal_schedules", 2)
    assert put(maker, "b").status == 200, "one of its name in its place is no other one"
    assert put(neighbour, "c").status == 201
    assert put(maker, "c").status == 200, "it counts for who made it"
    maker.call("DELETE", "/v1/topics/t/schedules/a", status=204)
    assert put(maker, "d").status == 201
    refused(put(maker, "a"), "too_many_schedules", "principal_schedules", 2)
