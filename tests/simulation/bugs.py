"""Deliberate bugs of the product: each breaks one rule, and says what weather it is found in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from lsmq_coordinator import journal
from lsmq_lab.world.faults import Fault
from lsmq_node.storage.disk import OsDisk
from lsmq_node.storage.segments import SegmentFiles
from lsmq_node.storage.sequences import Sequences, Verdict
from replication import bugs as rules

Patch = pytest.MonkeyPatch


def _at(moments: tuple[float, ...], kind: str, lasting_s: float, apart_s: float = 0.0) -> tuple[Fault, ...]:
    """It befalls all three, one after another, at each moment."""
    return tuple(
        Fault(round(at + number * apart_s, 4), kind, number + 1, (number + 1) % 3 + 1, lasting_s)
        for at in moments
        for number in range(3)
    )


#: Everything loses its power at once, twice.
OUTAGES = _at((1.6, 2.8), "power", 0.2)
#: One after another is alone for a while.
ISOLATIONS = _at((1.2,), "isolate", 0.8, 0.9)
#: One after another is killed, often.
KILLS = _at((1.2, 2.1, 3.0), "kill", 0.1, 0.3)
#: One after another loses its power, often.
CUTS_OF_POWER = _at((1.2, 2.1, 3.0), "power", 0.1, 0.3)
#: Answers to clients are lost, again and again.
HANG_UPS = _at(tuple(0.9 + number / 20 for number in range(60)), "hang up", 0.0, 0.003)


@dataclass(frozen=True)
class Bug:
    """``seeds``: how many are tried."""

    name: str
    apply: Callable[[Patch], None]
    plan: tuple[Fault, ...]
    seeds: int = 6


def log_is_not_synced(patch: Patch) -> None:
    patch.setattr(SegmentFiles, "_sync", lambda self, starts: None)


def names_are_not_synced(patch: Patch) -> None:
    patch.setattr(OsDisk, "sync_directory", lambda self, path: None)


def journal_is_not_synced(patch: Patch) -> None:
    patch.setattr(journal._OsDisk, "sync", lambda self, fd: None)


def repeats_are_stored_again(patch: Patch) -> None:
    """As if producers had no sequence numbers."""

    def check(self: Sequences, keys: Any, now_ms: int) -> list[Verdict]:
        return [Verdict.NEXT] * len(keys)

    patch.setattr(Sequences, "check", check)
    patch.setattr(Sequences, "repeat", lambda self, key, now_ms: None)


BUGS = [
    Bug("the log is not synced", log_is_not_synced, OUTAGES),
    Bug("names are not synced", names_are_not_synced, OUTAGES),
    Bug("the journal is not synced", journal_is_not_synced, OUTAGES),
    Bug("lease is ignored", rules.lease_is_ignored, ISOLATIONS),
    Bug("shrink counts at once", rules.shrink_counts_at_once, ISOLATIONS),
    Bug("serves before its epoch is committed", rules.serves_before_its_epoch_is_committed, KILLS),
    Bug("epoch is resumed after a restart", rules.epoch_is_resumed_after_a_restart, CUTS_OF_POWER),
    Bug("acts before it is registered", rules.acts_before_it_is_registered, KILLS),
    Bug("repeats are stored again", repeats_are_stored_again, HANG_UPS),
]
