"""What a replica keeps beside its log."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq.errors import UnsupportedFormat
from lsmq_node.cluster.record import NAME, decode_record, encode_record, load_record, save_record
from lsmq_node.replication import ReplicaRecord
from lsmq_node.storage.disk import OsDisk
from storage.harness import profile
from support.sim_disk import SimDisk

RECORD = ReplicaRecord(4503599627370497, 3, 8, "n2", 52301)
GOLDEN = (
    b"lsmq-replica 1 89b4b024\n"
    b'{"epoch": 8, "floor_lsn": 52301, "incarnation": 4503599627370497, "leader": "n2", "starts": 3}\n'
)
numbers = st.integers(0, (1 << 63) - 1)


@profile(100)
@given(st.builds(ReplicaRecord, numbers, numbers, numbers, st.none() | st.text(max_size=20), numbers))
def test_a_record_comes_back_as_it_was(record: ReplicaRecord) -> None:
    assert decode_record(encode_record(record), "x") == record


def test_its_bytes_stay_what_they_are() -> None:
    assert encode_record(RECORD) == GOLDEN
    page = (Path(__file__).parents[2] / "docs/formats/replica.md").read_text()
    assert GOLDEN.decode() in page


def test_every_flipped_bit_and_every_missing_byte_is_noticed() -> None:
    for at in range(len(GOLDEN)):
        flipped = bytearray(GOLDEN)
        flipped[at] ^= 1
        try:
            assert decode_record(bytes(flipped), "x") is None
        except UnsupportedFormat:
            assert at == GOLDEN.index(b" 1 ") + 1
        assert decode_record(GOLDEN[:at], "x") is None


def test_a_newer_version_is_refused_and_not_overwritten() -> None:
    with pytest.raises(UnsupportedFormat, match="version 2"):
        decode_record(GOLDEN.replace(b"lsmq-replica 1", b"lsmq-replica 2"), "x")


def test_a_directory_without_one_or_with_a_damaged_one_has_none(tmp_path: Path) -> None:
    assert load_record(OsDisk(), tmp_path) is None
    assert load_record(OsDisk(), tmp_path / "missing") is None
    save_record(OsDisk(), tmp_path, RECORD)
    assert load_record(OsDisk(), tmp_path) == RECORD
    (tmp_path / NAME).write_bytes(b"damaged")
    assert load_record(OsDisk(), tmp_path) is None


def test_a_power_cut_at_any_step_leaves_the_old_record_or_the_new(tmp_path: Path) -> None:
    new = ReplicaRecord(RECORD.incarnation, 4, 9, "n3", 60_000)
    outcomes = set()
    for step in range(1, 6):
        for seed in range(6):
            disk = SimDisk(tmp_path)
            save_record(disk, tmp_path, RECORD)
            disk.at(step)
            try:
                save_record(disk, tmp_path, new)
            except OSError:
                found = load_record(disk.power_cut(seed), tmp_path)
                assert found in (RECORD, new)
                outcomes.add(found == new)
            else:
                assert load_record(disk.power_cut(seed), tmp_path) == new
    assert False in outcomes
