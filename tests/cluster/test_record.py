"""What a replica keeps beside its log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq.errors import UnsupportedFormat
from lsmq_coordinator.lives import LifeId
from lsmq_lab.world.drive import Drive
from lsmq_node.cluster.record import NAME, decode_record, encode_record, load_record, save_record
from lsmq_node.replication import DiskStart, ReplicaRecord
from lsmq_node.storage.disk import OsDisk
from storage.harness import profile

pytestmark = pytest.mark.usefixtures("drives_there")

RECORD = ReplicaRecord(
    incarnation=4503599627370497,
    starts=(DiskStart(2, 9007199254740992), DiskStart(3, 1125899906842624)),
    registered=3,
    epoch=8,
    leader="n2",
    leading=LifeId(4503599627370411, 5),
    floor_lsn=52301,
)
GOLDEN = (
    b"lsmq-replica 2 caacb008\n"
    b'{"epoch": 8, "floor_lsn": 52301, "incarnation": 4503599627370497, "leader": "n2", '
    b'"leading": [4503599627370411, 5], "registered": 3, "starts": [[2, 9007199254740992], '
    b'[3, 1125899906842624]], "went_back": false}\n'
)
numbers = st.integers(0, (1 << 63) - 1)


@profile(100)
@given(
    st.builds(
        ReplicaRecord,
        numbers,
        st.lists(st.builds(DiskStart, numbers, numbers), max_size=40).map(tuple),
        numbers,
        numbers,
        st.none() | st.text(max_size=20),
        st.none() | st.builds(LifeId, numbers, numbers),
        numbers,
        st.booleans(),
    )
)
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
            assert at == GOLDEN.index(b" 2 ") + 1
        assert decode_record(GOLDEN[:at], "x") is None


def test_a_newer_version_is_refused_and_not_overwritten() -> None:
    with pytest.raises(UnsupportedFormat, match="version 3"):
        decode_record(GOLDEN.replace(b"lsmq-replica 2", b"lsmq-replica 3"), "x")


def test_a_directory_without_one_or_with_a_damaged_one_has_none(tmp_path: Path) -> None:
    assert load_record(OsDisk(), tmp_path) is None
    assert load_record(OsDisk(), tmp_path / "missing") is None
    save_record(OsDisk(), tmp_path, RECORD)
    assert load_record(OsDisk(), tmp_path) == RECORD
    (tmp_path / NAME).write_bytes(b"damaged")
    assert load_record(OsDisk(), tmp_path) is None


def test_a_power_cut_at_any_step_leaves_the_old_record_or_the_new(tmp_path: Path) -> None:
    new = replace(RECORD, epoch=9, leader="n3", floor_lsn=60_000)
    outcomes = set()
    for step in range(1, 6):
        for seed in range(6):
            disk = Drive(tmp_path)
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
