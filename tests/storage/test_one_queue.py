"""Puts of many messages for one queue, which are not looked up one by one: the same outcome as any other put."""

from __future__ import annotations

from pathlib import Path

import pytest

from lsmq.errors import InvalidRequest
from lsmq_node.storage import QueueStore
from lsmq_node.storage.requests import Request

NAME = "orders"


@pytest.fixture
def store(tmp_path: Path) -> QueueStore:
    return QueueStore(tmp_path / "store")


def _messages(count: int, serial: int = 0) -> list[bytes]:
    return [b"message %d" % number for number in range(serial, serial + count)]


def test_a_new_queue_a_known_one_and_one_among_others(store: QueueStore) -> None:
    with store:
        assert store.put_many([(NAME, message) for message in _messages(100)]) == list(range(100))
        assert store.put_many([(NAME, message) for message in _messages(50, 100)]) == list(range(100, 150))
        mixed = [(NAME, b"message 150"), ("another", b"first"), (NAME, b"message 151")]
        assert store.put_many(mixed) == [150, 0, 151]
        assert store.get(NAME, 0, 1_000) == _messages(152)
        assert store.get("another", 0, 10) == [b"first"]
        assert len(store) == 2


def test_only_its_ends_are_alike(store: QueueStore) -> None:
    """What is quick to see, the first, the middle and the last name, does not decide."""
    names = [NAME, "left", NAME, "right", NAME]
    with store:
        assert store.put_many([(name, name.encode()) for name in names]) == [0, 0, 1, 0, 2]
        assert store.get("left", 0, 9) == [b"left"]
        assert store.get("right", 0, 9) == [b"right"]
        assert store.get(NAME, 0, 9) == [NAME.encode()] * 3


def test_a_list_that_changes_before_the_owner_comes_to_it(store: QueueStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """As whoever was interrupted in a put may do with the list it put."""
    pairs = [(NAME, b"given")] * 10
    hand_over = store._owner.hand_over

    def change_first(request: Request) -> None:
        pairs[:] = [(NAME, b"changed")]
        hand_over(request)

    with store:
        monkeypatch.setattr(store._owner, "hand_over", change_first)
        assert store.put_many(pairs) == list(range(10))
        assert store.get(NAME, 0, 20) == [b"given"] * 10


def test_it_is_there_after_opening_again(store: QueueStore, tmp_path: Path) -> None:
    with store:
        store.put_many([(NAME, message) for message in _messages(1_000)])
    with QueueStore(tmp_path / "store") as again:
        assert again.get(NAME, 0, 2_000) == _messages(1_000)


@pytest.mark.parametrize("name", ["", "n" * 1_001, "\ud800", 7])
def test_a_wrong_name_stores_nothing(store: QueueStore, name: str) -> None:
    with store:
        with pytest.raises(InvalidRequest):
            store.put_many([(name, b"x")] * 10)
        assert len(store) == 0
