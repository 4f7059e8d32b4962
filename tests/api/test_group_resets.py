"""Resetting a group over HTTP: what is shown before is what is done, queue by queue and in sum."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlencode

import pytest

from .calls import Api
from .test_groups import commit, committed


def reset(api: Api, group: str, topic: str, status: int = 200, **rest: Any) -> Any:
    answer = api.call("POST", f"/v1/groups/{group}/reset", {"topic": topic, **rest}, status=status)
    return answer.json() if status == 200 else answer


def preview(api: Api, group: str, topic: str, status: int = 200, **rest: Any) -> Any:
    answer = api.get(f"/v1/groups/{group}/reset?{urlencode({'topic': topic, **rest})}", status)
    return answer.json() if status == 200 else answer


def steps(ask: Callable[..., Any], api: Api, group: str, topic: str, **rest: Any) -> list[dict[str, Any]]:
    """All answers, until there is nothing more."""
    found, after = [], None
    while not found or after is not None:
        found.append(ask(api, group, topic, **rest, **({} if after is None else {"after": after})))
        after = found[-1]["next"]
    return found


def rows(found: dict[str, Any]) -> dict[Any, tuple[int | None, int]]:
    return {move["queue"]: (move["committed"], move["to"]) for move in found["moves"]}


@pytest.fixture
def topic(api: Api, topic_name: str) -> str:
    """Queue 0 has ten messages, of which three are gone; queue 1 has four; queue 2 has two; queue 3 has none."""
    api.create(topic_name, 4)
    for queue, count in ((0, 10), (1, 4), (2, 2)):
        api.send(topic_name, *({"queue": queue, "body": str(number)} for number in range(count)))
    api.call("POST", f"/v1/topics/{topic_name}/delete", {"queues": [0], "offsets": [3], "before": True}, status=200)
    commit(api, topic_name, topic_name, {0: 6, 1: 1})
    return topic_name


@pytest.mark.parametrize(
    ("where", "moves", "read_again", "skipped"),
    [
        ({"to": "earliest"}, {0: (6, 3), 1: (1, 0), 2: (None, 0)}, 3 + 1, 0),
        ({"to": "latest"}, {0: (6, 10), 1: (1, 4), 2: (None, 2)}, 0, 4 + 3 + 2),
        ({"offset": 0}, {0: (6, 3), 1: (1, 0), 2: (None, 0)}, 3 + 1, 0),
        ({"offset": 4}, {0: (6, 4), 1: (1, 4), 2: (None, 2)}, 2, 3 + 2),
        ({"offset": 1}, {0: (6, 3), 2: (None, 1)}, 3, 1),
        ({"time_ms": 0}, {0: (6, 3), 1: (1, 0), 2: (None, 0)}, 3 + 1, 0),
        ({"time_ms": 2**52}, {0: (6, 10), 1: (1, 4), 2: (None, 2)}, 0, 4 + 3 + 2),
        ({"to": "latest", "queues": "1,3"}, {1: (1, 4)}, 0, 3),
    ],
)
def test_what_would_change_is_shown_and_then_done(
    api: Api, topic: str, where: dict[str, Any], moves: Any, read_again: int, skipped: int
) -> None:
    before = committed(api, topic, topic)
    (shown,) = steps(preview, api, topic, topic, **where)
    assert rows(shown) == moves
    assert (shown["queues"], shown["read_again"], shown["skipped"]) == (len(moves), read_again, skipped)
    assert committed(api, topic, topic) == before, "nothing was done"
    assert steps(reset, api, topic, topic, **where) == [shown]
    assert committed(api, topic, topic) == {**before, **{queue: to for queue, (_, to) in moves.items()}}
    assert reset(api, topic, topic, **where)["queues"] == 0, "there is nothing left to do"


def test_a_time_is_the_first_message_stored_then(api: Api, topic: str) -> None:
    stored_ms = api.all_messages(topic, 1)[0]["stored_ms"]
    assert rows(preview(api, topic, topic, time_ms=stored_ms, queues="1")) == {1: (1, 0)}
    assert rows(preview(api, topic, topic, time_ms=stored_ms + 10_000, queues="1")) == {1: (1, 4)}


def test_a_group_that_is_not_there_begins_there(api: Api, topic: str) -> None:
    assert rows(reset(api, f"{topic}-new", topic, to="latest")) == {0: (None, 10), 1: (None, 4), 2: (None, 2)}
    assert committed(api, f"{topic}-new", topic) == {0: 10, 1: 4, 2: 2}


def test_queues_by_name_are_shown_by_name(api: Api, topic_name: str) -> None:
    api.create(topic_name, queues="named")
    for name in ("a/1", "b"):
        api.send(topic_name, {"queue": name, "body": "x"}, {"queue": name, "body": "y"})
    assert rows(reset(api, topic_name, topic_name, to="latest")) == {"a/1": (None, 2), "b": (None, 2)}
    assert rows(preview(api, topic_name, topic_name, offset=1)) == {"a/1": (2, 1), "b": (2, 1)}
    refused = reset(api, topic_name, topic_name, 400, to="latest", queues="0")
    assert refused.error["field"] == "queues" and "lsmq group reset --queue" in refused.error["message"]


def test_many_queues_take_several_steps_and_a_hundred_are_shown_of_each(api: Api, topic_name: str) -> None:
    api.create(topic_name, 20_005)
    queues = [*range(0, 19_999, 100), 20_001, 20_004]
    api.send(topic_name, *({"queue": queue, "body": "x"} for queue in queues))
    first, second = steps(preview, api, topic_name, topic_name, to="latest")
    assert first["next"] == "0:20000" and (first["queues"], first["skipped"]) == (200, 200)
    assert list(rows(first)) == queues[:100]
    assert rows(second) == {20_001: (None, 1), 20_004: (None, 1)}
    steps(reset, api, topic_name, topic_name, to="latest")
    assert committed(api, topic_name, topic_name) == dict.fromkeys(queues, 1)
    (only,) = steps(preview, api, topic_name, topic_name, to="earliest", queues="0-99,20004")
    assert rows(only) == {0: (1, 0), 20_004: (1, 0)}


def test_members_that_live_are_stopped_first(api: Api, topic: str) -> None:
    beat = {"member": "m", "topics": [topic], "session_ms": 60_000}
    api.call("POST", f"/v1/groups/{topic}/heartbeat", beat, status=200)
    before = committed(api, topic, topic)
    assert preview(api, topic, topic, to="latest")["queues"] == 3
    refused = reset(api, topic, topic, 409, to="latest")
    assert refused.code == "group_has_members" and refused.error["members"] == 1
    assert committed(api, topic, topic) == before
    reset(api, topic, topic, to="latest", force=True)
    assert committed(api, topic, topic) == {0: 10, 1: 4, 2: 2}


def test_a_work_queue_has_no_offsets_to_reset(api: Api, topic: str) -> None:
    api.call("POST", f"/v1/groups/{topic}-work/pop", {"topic": topic, "max": 1, "wait_ms": 0}, status=200)
    assert preview(api, f"{topic}-work", topic, 409, to="latest").code == "group_mode_mismatch"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "say where to"),
        ({"to": "latest", "offset": 1}, "say where to"),
        ({"to": "middle"}, "to is 'middle'"),
        ({"offset": -1}, "offset is -1"),
        ({"to": "latest", "queues": "4"}, "queue 4"),
        ({"to": "latest", "queues": "3-1"}, "whose end is before its start"),
        ({"to": "latest", "queues": ""}, "queues has ''"),
        ({"to": "latest", "after": "x"}, "after"),
    ],
)
def test_a_wrong_reset_is_refused(api: Api, topic: str, document: dict[str, Any], message: str) -> None:
    refused = api.call("POST", f"/v1/groups/{topic}/reset", {"topic": topic, **document})
    assert 400 <= refused.status < 500 and message in refused.error["message"], refused.body
    shown = preview(api, topic, topic, None, **document)
    assert (shown.status, shown.error["message"]) == (refused.status, refused.error["message"])
