"""Deliberate bugs of the product: each breaks one rule, and says in which scene it is found, and by what."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lsmq_coordinator import journal
from lsmq_coordinator.journal import Journal
from lsmq_node.disks import held
from lsmq_node.storage import producers
from lsmq_node.storage.disk import OsDisk
from lsmq_node.storage.segments import SegmentFiles
from lsmq_node.storage.sequences import Sequences, SequenceVerdict
from replication import bugs as rules

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Bug:
    """Found in ``scene`` by what ``breaks`` is in. ``seeds``: so many are tried."""

    name: str
    apply: Callable[[Patch], None]
    scene: str
    breaks: str
    seeds: int = 16


def log_is_not_synced(patch: Patch) -> None:
    patch.setattr(SegmentFiles, "_sync", lambda self, starts: None)


def names_are_not_synced(patch: Patch) -> None:
    """Of files, nor of the directories that they are in."""
    patch.setattr(OsDisk, "sync_directory", lambda self, path: None)
    patch.setattr(held, "sync_name", lambda path: None)
    synced = Journal._sync_directory

    def sync(self: Journal, path: Path) -> None:
        if path == self._directory:
            synced(self, path)

    patch.setattr(Journal, "_sync_directory", sync)


def journal_is_not_synced(patch: Patch) -> None:
    patch.setattr(journal._OsDisk, "sync", lambda self, fd: None)


def repeats_are_stored_again(patch: Patch) -> None:
    """As if producers had no sequence numbers."""

    def check(self: Sequences, keys: Any, now_ms: int) -> list[SequenceVerdict]:
        return [SequenceVerdict.NEXT] * len(keys)

    patch.setattr(Sequences, "check", check)
    patch.setattr(Sequences, "repeat", lambda self, key, now_ms: None)
    patch.setattr(producers.Layer, "note", lambda self, producer_id, stored: None)


BUGS = [
    Bug("the log is not synced", log_is_not_synced, scene="an_outage", breaks="acknowledged-survives"),
    Bug("names are not synced", names_are_not_synced, scene="an_outage", breaks="one-leader-per-epoch"),
    # Mostly the journal is damaged, and the voter refuses it.
    Bug(
        "the journal is not synced",
        journal_is_not_synced,
        scene="an_outage",
        breaks="in-sync-holds-everything",
        seeds=20,
    ),
    Bug("lease is ignored", rules.lease_is_ignored, scene="a_leader_cut_off", breaks="at once"),
    Bug("shrink counts at once", rules.shrink_counts_at_once, scene="a_silent_link", breaks="in-sync-holds-everything"),
    Bug(
        "newcomer counts when committed",
        rules.newcomer_counts_when_committed,
        scene="a_newcomer",
        breaks="in-sync-holds-everything",
    ),
    Bug("too few in sync are enough", rules.too_few_in_sync_are_enough, scene="a_member_less", breaks="enough-in-sync"),
    Bug(
        "serves before its epoch is committed",
        rules.serves_before_its_epoch_is_committed,
        scene="a_lower_high_watermark",
        breaks="high-watermark-rises",
    ),
    Bug(
        "epoch is resumed after a restart",
        rules.epoch_is_resumed_after_a_restart,
        scene="a_leader_restarts",
        breaks="one-leader-per-epoch",
    ),
    Bug(
        "acts before it is registered",
        rules.acts_before_it_is_registered,
        scene="a_copy_of_a_former_life",
        breaks="came back as",
    ),
    Bug("repeats are stored again", repeats_are_stored_again, scene="an_answer_lost", breaks="stored twice"),
    Bug(
        "joins at the high watermark",
        rules.joins_at_the_high_watermark,
        scene="a_lower_high_watermark",
        breaks="in-sync-holds-everything",
    ),
    Bug(
        "promises before they are persisted",
        rules.promises_before_they_are_persisted,
        scene="an_epoch_that_control_forgot",
        breaks="one-leader-per-epoch",
    ),
    Bug(
        "one promise is enough",
        rules.one_promise_is_enough,
        scene="control_that_forgot_who_left",
        breaks="acknowledged-is-kept",
    ),
    Bug(
        "promiser's tail is not pulled",
        rules.promisers_tail_is_not_pulled,
        scene="control_that_forgot_who_left",
        breaks="acknowledged-is-kept",
    ),
    Bug("follower cuts nothing", rules.follower_cuts_nothing, scene="an_unheard_tail", breaks="log-matching"),
    Bug(
        "only the leader's stretch is looked at",
        rules.only_the_leaders_stretch_is_looked_at,
        scene="two_quick_failovers",
        breaks="log-matching",
    ),
    Bug(
        "starts are compared without the life",
        rules.starts_are_compared_without_the_life,
        scene="an_epoch_begun_twice",
        breaks="log-matching",
    ),
    Bug(
        "reports what is only written",
        rules.reports_what_is_only_written,
        scene="a_slow_follower",
        breaks="in-sync-holds-everything",
    ),
    Bug(
        "sessions are not told apart",
        rules.sessions_are_not_told_apart,
        scene="answers_of_before",
        breaks="acknowledged-is-kept",
    ),
    Bug("a reset connection is death", rules.a_reset_connection_is_death, scene="a_leader_cut_off", breaks="at once"),
    Bug(
        "lower epochs are followed",
        rules.lower_epochs_are_followed,
        scene="an_epoch_that_control_forgot",
        breaks="one-leader-per-epoch",
    ),
    Bug("emptied disk keeps its name", rules.emptied_disk_keeps_its_name, scene="a_lost_disk", breaks="not within"),
    Bug("short log is not noticed", rules.short_log_is_not_noticed, scene="a_short_log", breaks="came back as"),
    Bug(
        "lender forgets that it lends", rules.lender_forgets_that_it_lends, scene="a_tail_to_lend", breaks="not within"
    ),
    Bug(
        "older copy is taken for the disk",
        rules.older_copy_is_taken_for_the_disk,
        scene="a_copy_of_a_former_life",
        breaks="came back as",
    ),
    Bug("starts are not confirmed", rules.starts_are_not_confirmed, scene="a_copy_of_a_start", breaks="came back as"),
    Bug("floors are not known", rules.floors_are_not_known, scene="a_copy_of_the_same_life", breaks="came back as"),
]
