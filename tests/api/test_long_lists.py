"""Lists of very many: each page asks what the caller may see of its own entries alone."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import numpy as np

from lsmq import Client
from lsmq_node.api import topics
from lsmq_node.api.asker import Asker
from lsmq_node.broker import Ack, Broker
from lsmq_node.groups.group import CoordinatedGroup
from lsmq_node.groups.plan import GenerationPlan
from lsmq_node.rights import ResourceKind
from lsmq_node.storage import StoredTopic
from support.counted_lines import counted_lines

from .in_process import Session, node_of, with_node

MANY = 300


def test_pages_of_groups_and_topics_ask_of_their_own_entries_alone(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        port, coordinated = broker.topology.port(0), await node_of(client).groups.shard(0)
        for number in range(2, MANY):
            port.store.put_topic(StoredTopic(number, f"t{number:04d}", 1), 0, 1)
        for number in range(MANY):
            appended = port.store.commit_offsets(f"g{number:04d}", 1, np.array([0], np.uint32), np.array([0]))
            name = f"h{number:04d}"
            coordinated.groups[name] = CoordinatedGroup(name, GenerationPlan(), 1, 0.0)
        await port.wait(appended, Ack.QUORUM)
        sees = Asker.sees

        def even(asker: Asker, kind: ResourceKind, name: str) -> bool:
            return sees(asker, kind, name) and (kind is not ResourceKind.GROUP or int(name[1:]) % 2 == 0)

        with mock.patch.object(Asker, "sees", autospec=True, side_effect=even) as asked:
            for path, key, wanted in (
                ("/v1/topics", "topics", ["t", *(f"t{number:04d}" for number in range(2, MANY))]),
                ("/v1/groups", "groups", [f"{kind}{number:04d}" for kind in "gh" for number in range(0, MANY, 2)]),
            ):
                after, listed = "", []
                while after is not None:
                    before = asked.call_count
                    answer = await (await client.get(f"{path}?limit=20&after={after}")).json()
                    listed += [each if isinstance(each, str) else each["name"] for each in answer[key]]
                    after = answer["next"]
                    assert asked.call_count - before <= 2 * 21 + 1
                assert listed == wanted

    with_node(tmp_path, test)


def test_a_page_of_topics_has_so_many_routes_as_are_made_in_a_moment(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        for number in range(7):
            assert (await client.put(f"/v1/topics/t{number}", json={"queues": 2})).status == 201
        with mock.patch.object(topics, "_MOST_ROUTES", 3):
            after, pages = "", []
            while after is not None:
                answer = await (await client.get(f"/v1/topics?after={after}")).json()
                pages.append([topic["name"] for topic in answer["topics"]])
                after = answer["next"]
            assert pages == [["t", "t0", "t1"], ["t2", "t3", "t4"], ["t5", "t6"]]
            async with Client(str(client.make_url("/"))) as other:
                assert len(await other.topics()) == 8

    with_node(tmp_path, test)


def test_a_page_of_groups_costs_what_is_on_it_however_many_there_are(tmp_path: Path) -> None:
    async def test(client: Session, broker: Broker) -> None:
        port, coordinated = broker.topology.port(0), await node_of(client).groups.shard(0)
        costs = []
        for first, end in ((0, 100), (100, 2_000)):
            for number in range(first, end):
                appended = port.store.commit_offsets(f"g{number:04d}", 1, np.array([0], np.uint32), np.array([0]))
                name = f"h{number:04d}"
                coordinated.groups[name] = CoordinatedGroup(name, GenerationPlan(), 1, 0.0)
            await port.wait(appended, Ack.QUORUM)
            with counted_lines() as lines:
                answer = await (await client.get("/v1/groups?limit=20&after=g0042")).json()
            assert answer["groups"] == [f"g{number:04d}" for number in range(43, 63)]
            costs.append(lines.count)
        assert costs[1] < costs[0] + 3_800, "fewer lines than groups that came"

    with_node(tmp_path, test)
