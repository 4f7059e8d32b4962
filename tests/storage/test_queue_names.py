"""Names of queues against a dict: any names, short and long, in batches with repeats, and when hashes collide."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lsmq_node.storage.queue_names import HASH_BITS, QueueNames

from .harness import profile

#: Around the 15 and the 23 bytes beyond which a name has a tail, with the separator of a batch and zeros at the end.
names_drawn = st.one_of(
    st.text("abé水", max_size=3),
    st.builds(lambda head, tail: head * 7 + tail, st.sampled_from(("ab", "水")), st.text("a\0水", max_size=20)),
    st.text("a\0\x0f\xff", min_size=13, max_size=26),
)
batches_drawn = st.lists(st.lists(names_drawn, min_size=1, max_size=20), max_size=12)


def find(names: QueueNames, wanted: list[str]) -> list[int]:
    found: list[int] = names.find(names.batch(wanted)).tolist()
    return found


def check_batch(names: QueueNames, model: dict[str, int], listed: list[str]) -> None:
    batch = names.batch(listed)
    assert [batch.name(at) for at in range(len(batch))] == listed
    found = names.find(batch)
    assert found.tolist() == [model.get(name, -1) for name in listed]
    assert [names.find_one(name) for name in listed] == found.tolist()
    unknown = batch.take(np.flatnonzero(found < 0))
    if len(unknown):
        first, which = unknown.distinct()
        fresh = [unknown.name(at) for at in first.tolist()]
        assert fresh == list(dict.fromkeys(name for name in listed if name not in model))
        assert [fresh[at] for at in which.tolist()] == [name for name in listed if name not in model]
        assert unknown.take(first).joined().tobytes().decode() == "".join(fresh)
        names.add(unknown.take(first))
        model.update((name, len(model)) for name in fresh)
    assert find(names, listed) == [model[name] for name in listed]
    assert [names.find_one(name) for name in listed] == [model[name] for name in listed]
    assert [names.name(model[name]) for name in listed] == listed


def check_names(batches: list[list[str]], forget: int, hash_bits: int = HASH_BITS) -> None:
    names, model = QueueNames(hash_bits), dict[str, int]()
    for listed in batches:
        check_batch(names, model, listed)
    kept = max(0, len(model) - forget)
    names.truncate(kept)
    assert len(names) == kept
    for name, number in model.items():
        expected = number if number < kept else -1
        assert names.find_one(name) == expected
        assert find(names, [name, "other"])[0] == expected
    for listed in batches:  # what was forgotten is added again
        check_batch(names, model := {name: number for name, number in model.items() if number < len(names)}, listed)


@profile(80)
@given(batches=batches_drawn, forget=st.integers(0, 30))
@example(batches=[["a\0\0\0\0\0\0\0\0\0\0\0\0\0\0", "a"], ["a" * 15, "a" * 16, "a" * 15 + "\0"]], forget=1)
def test_names_are_a_dict(batches: list[list[str]], forget: int) -> None:
    check_names(batches, forget)


@pytest.mark.part(2)
@profile(80)
@given(batches=batches_drawn, forget=st.integers(0, 30), hash_bits=st.sampled_from((0, 1, 3)))
def test_names_are_a_dict_when_hashes_collide(batches: list[list[str]], forget: int, hash_bits: int) -> None:
    check_names(batches, forget, hash_bits)


@profile(30)
@given(st.lists(names_drawn, min_size=1, max_size=40, unique=True))
def test_names_that_lie_one_after_another_are_loaded(listed: list[str]) -> None:
    names, encoded = QueueNames(), [name.encode() for name in listed]
    names.load(np.frombuffer(b"".join(encoded), np.uint8), np.array([len(name) for name in encoded]))
    assert find(names, listed) == list(range(len(listed)))


@pytest.mark.parametrize("form", ["queue {}", "a queue with rather a long name, number {}"])
def test_many_names_keep_their_numbers_while_the_table_grows(form: str) -> None:
    names = QueueNames()
    for first in range(0, 30_000, 5_000):
        names.add(names.batch([form.format(number) for number in range(first, first + 5_000)]))
    every = [form.format(number) for number in range(30_000)]
    assert find(names, every) == list(range(30_000))
    assert names.find_one(form.format(30_000)) == -1
    names.truncate(17)
    assert find(names, every) == [*range(17), *[-1] * 29_983]


def test_what_cannot_be_encoded_is_no_name() -> None:
    names = QueueNames()
    assert names.find_one("\ud800") == -1
    with pytest.raises(UnicodeEncodeError):
        names.batch(["good", "\ud800"])


def test_more_names_than_numbers_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lsmq_node.storage.queue_names.NUMBER_MASK", 3)
    names = QueueNames()
    names.add(names.batch(["a", "b", "c"]))
    with pytest.raises(ValueError, match="no room"):
        names.add(names.batch(["d"]))
