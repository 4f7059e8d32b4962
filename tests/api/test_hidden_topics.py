"""Whoever may describe a group, and not all of its topics, is not told what those are called."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp

from support.waiting import PATIENCE_S

from .test_rights import Asking, Realm, realm

__all__ = ["realm"]


def two_topics(realm: Realm, prefix: str) -> tuple[str, str, Asking]:
    """Their names, and somebody who may describe groups, and of the topics the first."""
    open, hidden = f"{prefix}-open", f"{prefix}-hidden"
    for topic in (open, hidden):
        realm.admin.create(topic, 2)
    rights = (("group", "*", "read"), ("producer-group", "*", "write"), ("topic", open, "describe"))
    return open, hidden, realm.somebody(rights=rights)[1]


def test_members_of_a_group_are_described_without_topics_that_one_may_not_describe(realm: Realm) -> None:
    open, hidden, partly = two_topics(realm, "of-members")
    beat = {"member": "m", "topics": [open, hidden], "session_ms": 60_000}
    realm.admin.call("POST", "/v1/groups/both/heartbeat", beat, status=200)

    def told(who: Asking) -> Any:
        described = who.get("/v1/groups/both").json()
        (member,) = described["members"]
        assert member["queues"] + member["pending"] == 4
        return [each["topic"] for each in described["topics"]], member["topics"], sorted(member["assigned"])

    assert told(realm.admin) == ([hidden, open],) * 3
    assert told(partly) == ([open],) * 3
    declared = partly.call("PUT", "/v1/groups/both", {"mode": "clustered"}, status=200)
    assert hidden not in declared.body.decode()


def test_transactions_are_described_without_topics_that_one_may_not_describe(realm: Realm) -> None:
    open, hidden, partly = two_topics(realm, "of-transactions")
    own = "/v1/producer-groups/both"
    beat = {"member": "m", "join": True, "checks": True, "session_ms": 60_000}
    realm.admin.call("POST", f"{own}/heartbeat", beat, status=200)
    messages = [{"topic": topic, "body": "x"} for topic in (open, hidden, hidden)]
    begun = {"member": "m", "number": 1, "messages": messages}
    id = realm.admin.call("POST", f"{own}/transactions", begun, status=200).json()["transaction"]
    assert realm.admin.get(f"{own}/transactions/{id}").json()["messages"] == {open: 1, hidden: 2}
    (listed,) = partly.get(f"{own}/transactions").json()["transactions"]
    assert listed["messages"] == partly.get(f"{own}/transactions/{id}").json()["messages"] == {open: 1}
    decided = partly.call("POST", f"{own}/transactions/{id}/rollback", {}, status=200)
    assert decided.json()["messages"] == {open: 1}


def test_push_streams_are_listed_of_topics_that_one_may_describe(realm: Realm) -> None:
    open, hidden, partly = two_topics(realm, "of-streams")

    async def run() -> None:
        async with aiohttp.ClientSession(headers=realm.admin.own) as session:
            url = f"{realm.node.url}/v1/groups/streams/push?topic="
            async with session.ws_connect(url + open) as first, session.ws_connect(url + hidden) as second:
                for stream in (first, second):
                    await stream.receive(timeout=PATIENCE_S)
                for who, topics in ((realm.admin, {open, hidden}), (partly, {open})):
                    listed = await asyncio.to_thread(who.get, "/v1/groups/streams/streams")
                    assert {each["topic"] for each in listed.json()["streams"]} == topics

    asyncio.run(run())
