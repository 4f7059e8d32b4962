"""Objects that clients make: how many there may be, in what pages they are listed, and that idle ones cost nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lsmq.errors import DocumentsFull, TooManyTransactions
from lsmq_node.broker import Broker
from lsmq_node.broker.address_limits import AddressLimits
from lsmq_node.config import NodeConfig
from lsmq_node.groups.group import CoordinatedGroup
from lsmq_node.machines import HOUR_S
from lsmq_node.transactions.records import BookChange, TransactionRecord, TransactionState
from lsmq_node.transactions.shares import SHARED, AddressShares
from support.waiting import comes_true

from .in_process import Session, node_of, with_node


def limit(broker: Broker, **settings: Any) -> None:
    for name, value in settings.items():
        object.__setattr__(broker.config, name, value)


async def code(client: Session, method: str, path: str, **rest: Any) -> tuple[int, str]:
    async with client.request(method, path, **rest) as answer:
        found = await answer.json() if answer.content_length else {}
        return answer.status, found.get("error", {}).get("code", "")


def test_one_topic_more_than_there_may_be_is_refused(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        limit(broker, max_topics=3)
        for name, status in (("a", 201), ("b", 201), ("a", 200)):
            assert (await code(client, "PUT", f"/v1/topics/{name}", json={"queues": 1}))[0] == status
        assert await code(client, "PUT", "/v1/topics/c", json={"queues": 1}) == (429, "too_many_topics")
        await client.delete("/v1/topics/a")
        assert (await code(client, "PUT", "/v1/topics/c", json={"queues": 1}))[0] == 201

    with_node(tmp_path, test)


def test_one_group_more_than_there_may_be_is_refused(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        groups = await node_of(client).groups.shard(0)
        groups._max_groups = 2

        def commit(group: str) -> Any:
            document = {"topic": "t", "queues": [0], "offsets": [0]}
            return code(client, "POST", f"/v1/groups/{group}/offsets", json=document)

        for group in ("x", "y", "z"):  # what is refused makes no group
            beyond = {"topic": "t", "queues": [0], "offsets": [999]}
            assert (await code(client, "POST", f"/v1/groups/{group}/offsets", json=beyond))[0] == 416
        for group in ("a", "b", "a"):
            assert (await commit(group))[0] == 200
        assert await commit("c") == (429, "too_many_groups")
        await client.delete("/v1/groups/a/offsets?shard=0")
        assert (await commit("c"))[0] == 200
        beat = {"member": "m", "topics": ["t"]}
        for group in ("d", "e"):
            assert (await code(client, "POST", f"/v1/groups/{group}/heartbeat", json=beat))[0] == 200
        assert await code(client, "POST", "/v1/groups/f/heartbeat", json=beat) == (429, "too_many_groups")
        assert (await code(client, "PUT", "/v1/groups/g", json={"mode": "work_queue"}))[1] == "too_many_groups"
        assert (await code(client, "POST", "/v1/groups/h/pop", json={"topic": "t"}))[1] == "too_many_groups"

    with_node(tmp_path, test)


def test_lists_come_in_pages(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        names = [f"g{number:02}" for number in range(7)]
        for name in names:
            await client.put(f"/v1/topics/{name}", json={"queues": 1})
            await client.put(f"/v1/groups/{name}", json={"mode": "work_queue"})
            await client.post(f"/v1/producer-groups/{name}/heartbeat", json={"member": "m", "join": True})
        lists = (("/v1/groups", "groups"), ("/v1/producer-groups", "groups"), ("/v1/topics", "topics"))
        for path, field in lists:
            found, after, sizes = [], "", []
            while after is not None:
                async with client.get(path, params={"limit": "3", "after": after}) as answer:
                    page = await answer.json()
                sizes.append(len(page[field]))
                found += [
                    item if isinstance(item, str) else item.get("group", item.get("name")) for item in page[field]
                ]
                after = page["next"]
            assert sizes == ([3, 3, 2] if field == "topics" else [3, 3, 1])
            assert found == sorted([*names, "t"] if field == "topics" else names)
        async with client.get("/v1/groups?limit=2") as answer:
            assert [each["group"] for each in (await answer.json())["details"]] == names[:2]
        assert (await code(client, "GET", "/v1/groups?limit=10001"))[0] == 400

    with_node(tmp_path, test)


def test_groups_without_members_are_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(client: Session, broker: Broker) -> None:
        for number in range(30):
            await client.put(f"/v1/groups/idle{number}", json={"mode": "work_queue"})
        groups = await node_of(client).groups.shard(0)
        groups.tick()
        await client.post("/v1/groups/busy/heartbeat", json={"member": "m", "topics": ["t"], "session_ms": 60_000})
        looked: list[str] = []
        expire = CoordinatedGroup.expire
        monkeypatch.setattr(CoordinatedGroup, "expire", lambda self, now: looked.append(self.name) or expire(self, now))
        groups.tick()
        assert looked == ["busy"]
        await client.post("/v1/groups/busy/heartbeat", json={"member": "m", "topics": ["t"], "leave": True})
        groups.tick()
        looked.clear()
        groups.tick()
        assert looked == [] and len(groups.groups) == 31

    with_node(tmp_path, test)


def test_a_group_that_nobody_uses_is_forgotten_and_others_are_kept(tmp_path: Path) -> None:
    """Hours are counted by the loop's time while the shard is served; here they are told to have passed."""

    async def test(client: Session, broker: Broker) -> None:
        groups = await node_of(client).groups.shard(0)
        groups._idle._retention = 10

        async def commit(group: str) -> None:
            document = {"topic": "t", "queues": [0], "offsets": [0]}
            assert (await code(client, "POST", f"/v1/groups/{group}/offsets", json=document))[0] == 200

        async def hours(count: int) -> None:
            for _ in range(count):
                groups._hour_began = groups.now - HOUR_S
                groups.tick()
            await comes_true(lambda: not groups._forgetting, "it has looked")

        beat = {"member": "m", "topics": ["t"], "session_ms": 300_000}
        for group in ("living", "gone"):
            assert (await code(client, "POST", f"/v1/groups/{group}/heartbeat", json=beat))[0] == 200
        await client.post("/v1/groups/gone/heartbeat", json={**beat, "leave": True})
        for group in ("committing", "idle"):
            await commit(group)
        await client.post("/v1/groups/pops/pop", json={"topic": "t"})
        await hours(9)
        await commit("committing")
        async with client.get("/v1/groups") as answer:
            assert (await answer.json())["groups"] == ["committing", "gone", "idle", "living", "pops"]
        await hours(1)
        await comes_true(lambda: not groups._idle.idle(), "all that were idle are looked into")

        async def are_left() -> bool:
            async with client.get("/v1/groups") as answer:
                return bool((await answer.json())["groups"] == ["committing", "living", "pops"])

        await comes_true(are_left, "those that were idle are gone, and no others")
        kept = ["group-used/committing", "group-used/living"]
        await comes_true(lambda: [key for key, _ in groups.store.documents("group-used/")] == kept, "it is stored")
        assert groups.store.document("group-hours") == b"10"

    with_node(tmp_path, test)


def test_a_sequence_that_nobody_uses_is_forgotten_and_others_are_kept(tmp_path: Path) -> None:
    """Hours are counted by the loop's time while the shard is served; here they are told to have passed."""

    async def test(client: Session, broker: Broker) -> None:
        shard = await node_of(client).transactions.coordinator("g")
        base = "/v1/producer-groups/g"

        async def member(name: str, **more: Any) -> None:
            assert (await code(client, "POST", f"{base}/heartbeat", json={"member": name, **more}))[0] == 200

        async def take(name: str, by: str) -> int:
            async with client.post(f"{base}/sequences/{name}", json={"member": by}) as answer:
                epoch: int = (await answer.json())["epoch"]
                return epoch

        async def commit(name: str, number: int) -> None:
            messages = [{"topic": "t", "body": "x"}]
            options = {"sequence": name, "sequence_epoch": 1, "position": str(number)}
            begun = {"member": "gone", "number": number, "messages": messages, **options}
            assert (await code(client, "POST", f"{base}/transactions", json=begun))[0] == 200
            assert (await code(client, "POST", f"{base}/transactions/gone-{number}/commit", json={}))[0] == 200

        def hours(count: int) -> None:
            for _ in range(count):
                shard._hour_began = shard.now - HOUR_S
                shard.tick()

        for name in ("gone", "living"):
            await member(name, join=True, session_ms=300_000)
        assert [await take("held", "living"), await take("idle", "gone"), await take("used", "gone")] == [1, 1, 1]
        hours(8_000)
        await commit("used", 1)
        await member("gone", leave=True)
        assert {name for _, name in shard.book.sequences} == {"held", "idle", "used"}
        hours(759)
        assert {name for _, name in shard.book.sequences} == {"held", "idle", "used"}
        hours(1)
        assert {name for _, name in shard.book.sequences} == {"held", "used"}
        await shard.barrier()
        kept = ["sequence-used/g/held", "sequence-used/g/used"]
        assert sorted(key for key, _ in shard.store.documents("sequence-used/")) == kept
        assert sorted(key for key, _ in shard.store.documents("sequence/")) == ["sequence/g/held", "sequence/g/used"]
        assert shard.store.document("sequence-hours") == b"8760"
        assert shard.book._sequences_of == {"g": 2}
        assert await take("idle", "living") == 1

    with_node(tmp_path, test)


def transaction(id: str, size_bytes: int, state: TransactionState = TransactionState.OPEN) -> TransactionRecord:
    return TransactionRecord("g", id, "m", "", "", "", 0, 1, 1, 1, state=state.value, size_bytes=size_bytes)


def test_one_address_holds_its_share_of_open_transactions() -> None:
    limits = AddressLimits(NodeConfig(data=Path("unused"), address_share_percent=50))
    held = AddressShares(limits.share(4, SHARED), 100)

    def begin(id: str, size_bytes: int, client: str = "a") -> None:
        held.check(("g", id), client, size_bytes)
        held.begun(("g", id), client)
        held.follow(BookChange(transactions={("g", id): transaction(id, size_bytes)}))

    begin("1", 60)
    with pytest.raises(DocumentsFull):
        held.check(("g", "2"), "a", 41)
    begin("2", 40)
    with pytest.raises(TooManyTransactions, match=r"your address has 2 .* its share is 2 \(address_share_percent of"):
        held.check(("g", "3"), "a", 0)
    begin("3", 100, "b")
    held.follow(
        BookChange(transactions={("g", "1"): transaction("1", 60, TransactionState.ROLLED_BACK), ("g", "2"): None})
    )
    begin("4", 100)
    held.follow(BookChange(transactions={("g", "3"): None, ("g", "4"): None}))
    assert not held._owner and not held._bytes and not held._share._counts


def test_a_client_with_open_transactions_leaves_room_for_others(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        shard = await node_of(client).transactions.coordinator("g")
        shard.shares.share_bytes = 3_000
        base = "/v1/producer-groups/g"
        await client.post(f"{base}/heartbeat", json={"member": "m", "join": True})

        async def begin(number: int) -> tuple[int, str]:
            messages = [{"topic": "t", "body": "x" * 1_000}]
            document = {"member": "m", "number": number, "messages": messages}
            return await code(client, "POST", f"{base}/transactions", json=document)

        assert [(await begin(number))[0] for number in (1, 2)] == [200, 200]
        assert await begin(3) == (507, "documents_full")
        await client.post(f"{base}/transactions/m-1/rollback", json={})
        assert (await begin(3))[0] == 200

    with_node(tmp_path, test)
