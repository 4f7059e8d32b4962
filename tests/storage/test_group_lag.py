"""How many messages wait for a group, and when that may have changed."""

from __future__ import annotations

import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lsmq_node.storage import ShardStore

from .harness import Put, batch_of, body, profile, tiny

QUEUES = 7
places = st.lists(st.tuples(st.integers(0, QUEUES - 1), st.integers(0, 6)), min_size=1, max_size=5)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), places),
        st.tuples(st.just("commit"), places),
        st.tuples(st.just("reset"), places),
        st.tuples(st.just("trim"), places),
        st.tuples(st.just("forget"), places),
        st.tuples(st.just("another group"), places),
    ),
    max_size=25,
)


def waiting(store: ShardStore, topic_id: int) -> int:
    """Counted queue by queue."""
    found = 0
    committed = store.committed_offsets("g", topic_id).tolist()
    for queue in range(QUEUES):
        earliest, latest = store.bounds(topic_id, queue)
        found += max(0, latest - max(earliest, committed[queue]))
    return found


@profile(60)
@given(steps)
def test_the_lag_is_what_lies_behind_the_offsets_and_the_mark_changes_with_it(
    steps: list[tuple[str, list[tuple[int, int]]]],
) -> None:
    with (
        tempfile.TemporaryDirectory() as path,
        mock.patch("lsmq_node.storage.queries._COUNTED_AT_ONCE", 3),
        ShardStore.open(Path(path), tiny()) as store,
    ):
        topic = store.create_topic("t", QUEUES)
        known: dict[object, int] = {}
        for step, items in steps:
            queues, numbers = (np.array(column) for column in zip(*dict(items).items(), strict=True))
            offsets = np.minimum(numbers, store.latest_offsets(topic.id, queues))
            match step:
                case "put":
                    store.wait(store.append(topic.id, batch_of([Put(queue, body(queue, 9)) for queue, _ in items])))
                case "trim":
                    store.wait(store.trim(topic.id, queues.astype(np.uint32), offsets))
                case "forget":
                    store.wait(store.forget_group("g"))
                case _:
                    group = "h" if step == "another group" else "g"
                    reset = step == "reset"
                    store.wait(store.commit_offsets(group, topic.id, queues.astype(np.uint32), offsets, reset=reset))
            lag = waiting(store, topic.id)
            assert store.group_lag("g", topic.id) == lag
            marks = {group: mark for group, named, mark in store.group_marks() if named.id == topic.id}
            if "g" in marks:
                assert known.setdefault(marks["g"], lag) == lag, "the mark of another lag"


def test_what_leads_is_counted_by_topic_once(tmp_path: Path) -> None:
    with ShardStore.open(tmp_path / "s", tiny()) as store:
        topics = [store.create_topic(name, 2) for name in ("a", "b")]
        for topic in topics:
            store.wait(store.append(topic.id, batch_of([Put(0, body(1, 100)), Put(1, body(2, 50))])))
        taken = store.take_led()
        assert {name: flow.messages for name, flow in taken.items()} == {"a": 2, "b": 2}
        assert all(flow.size_bytes >= 150 for flow in taken.values())
        assert store.take_led() == {}
    with ShardStore.open(tmp_path / "s", tiny()) as store:
        assert store.take_led() == {}, "what is read from the log again did not come now"
