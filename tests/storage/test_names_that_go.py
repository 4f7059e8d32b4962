"""Names of queues that are to go, or are lost: each goes once, and its number is nobody's while it has messages."""

from __future__ import annotations

import errno
from pathlib import Path

import numpy as np
import pytest

from lsmq.errors import DiskFull, LsmqError
from lsmq_lab.world.drive import Drive
from lsmq_node.storage import ShardStore
from support.clock import SimClock

from .harness import keep_house, open_stepped, tiny
from .test_topic_names import bodies, current, named, pack, put
from .test_topic_names import store as store


def test_a_queue_that_is_to_go_goes_once(store: ShardStore) -> None:
    topic = named(store)
    put(store, topic, ("q", b"1"))
    store.commit()
    names = current(store.names(topic))
    assert names.delete(("q",))[1] == ["q"]
    assert names.delete(("q",)) == (None, [])
    put(store, topic, ("q", b"2"))
    store.commit()
    assert bodies(store, topic, "q") == [b"2"]


def test_a_queue_for_which_a_message_is_in_line_is_not_forgotten(store: ShardStore) -> None:
    topic = named(store)
    _, (number,) = put(store, topic, ("q", b"1"))
    store.commit()
    names = current(store.names(topic))
    numbers = np.array((number,), np.uint32)
    assert names.forget(numbers) is None, "it has a message"
    store.wait(store.trim(topic, number, 1))
    put(store, topic, ("q", b"2"))
    assert names.forget(numbers) is None
    store.commit()
    assert bodies(store, topic, "q") == [b"2"]
    store.wait(store.trim(topic, number, 2))
    forgotten = names.forget(numbers)
    assert forgotten is not None
    store.wait(forgotten)
    assert current(names).find(("q",)).tolist() == [-1]


def test_a_number_that_has_messages_and_no_name_is_given_to_nobody(store: ShardStore) -> None:
    topic = named(store)
    store.wait(store.append(topic, pack([("lost", b"1")])[1]))
    assert put(store, topic, ("q", b"2"))[1] == [1]


def test_names_are_written_anew_when_what_is_to_go_has_gone(tmp_path: Path) -> None:
    disk = Drive(tmp_path)
    store = open_stepped(tmp_path / "shard", tiny(), disk, SimClock())
    topic = named(store)
    put(store, topic, ("stays", b"1"))
    store.commit()
    names = current(store.names(topic))
    names.delete(("stays",))
    appended, _ = names.rewrite(0, 5)
    assert appended is not None, "that is to be waited for"
    disk.at(1, errno.ENOSPC, ("write",))
    with pytest.raises(DiskFull):
        store.commit()
    disk.heal()
    keep_house(store)
    with pytest.raises(LsmqError):
        store.wait(appended)
    assert bodies(store, topic, "stays") == [b"1"]
    store.close()
