"""Which life of a replica may act: the one that the control plane has registered, and whose disk remembers that.

A disk knows its own past: the starts of its incarnation, each with a random number. The control plane knows the latest
one that was registered. At each start::

    disk                                 control plane
    a new start, persisted      ---->    registered, if the disk knows the start that was registered last
    registered, persisted       ---->    confirmed
    acts: promises, follows, leads, answers

Nothing is done before the confirmation has come back as a view. So whatever a replica did, it did in a life that its
disk knows to be registered and that the control plane knows to be confirmed: a disk that does not know the confirmed
start is an older copy, and a start that the disk knows and that was not confirmed is one that was cut short. A crash at
any point of this leaves the disk recognisable. Of two processes with copies of one disk only one can have the latest
start.

A disk that went back is refused, and begins anew as another incarnation. Should the control plane itself go
back, it shows a start that the disk had long before; such a disk registers again, and is another incarnation if that
is refused.

What this cannot see is a copy made in the very life that came to its end last: the disk knows all its starts then. What
the control plane and the other replicas know of the log's durable end bounds what is believed of such a one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lsmq_coordinator.lives import RegisteredStart

from .actions import RegisterStart
from .control import ControlView, DiskStart, ReplicaRecord
from .state import ReplicaState

#: Registered starts that a disk remembers: more than one, should the control plane go back.
MAX_REGISTERED = 4
#: Starts in a row of which the disk remembers that they may have been registered. Should one before those turn out to
#: have been, the disk is taken for an older copy: that costs filling it again.
MAX_UNKNOWN = 32


def with_new_start(record: ReplicaRecord, token: int) -> ReplicaRecord:
    """The record of a replica that starts."""
    registered = [start for start in record.starts if start.number <= record.registered]
    unknown = [start for start in record.starts if start.number > record.registered]
    unknown.append(DiskStart(record.start + 1, token))
    return replace(record, starts=(*registered[-MAX_REGISTERED:], *unknown[-MAX_UNKNOWN:]))


def recognises(starts: Sequence[DiskStart], registered: int, known: RegisteredStart) -> bool:
    """Whether a disk with these starts is the one whose start ``known`` was registered, and has forgotten nothing.

    One that is older than all that the disk remembers can only come from a control plane that went back. The start at
    hand is always known: what it said before the disk remembered more may arrive late.
    """
    start = DiskStart(known.number, known.token)
    if start.number < starts[0].number:
        return start.number < registered
    return start == starts[-1] or (start in starts and (not known.confirmed or start.number <= registered))


class Registration:
    """Of the start at hand. ``complete`` once this life may act; not any more when another start was registered.
    ``forgotten`` while the control plane shows an older one, and is asked to register this one again."""

    __slots__ = ("complete", "forgotten")

    def __init__(self) -> None:
        self.complete = False
        self.forgotten = False

    def settle(self, state: ReplicaState, view: ControlView | None) -> None:
        """Do the next step, or repeat it. ``view`` may be older than the newest: one that the control plane has just
        confirmed, after it went back."""
        record = state.record
        if view is None:
            return
        known = view.start_of(state.node)
        self.forgotten = known is None or (known.life, known.token) != (record.life, record.starts[-1].token)
        if known is not None and not self.forgotten:
            if known.confirmed:
                self.complete = True
                return
            if record.registered < record.start:
                state.persist(replace(record, registered=record.start))
                return
        elif known is None or not self._is_former(known, record):
            self.complete = False
        if state.node in view.replicas:  # Else it was moved elsewhere, and goes when there is time for that.
            self._register(state)

    def _is_former(self, known: RegisteredStart, record: ReplicaRecord) -> bool:
        return known.incarnation == record.incarnation and recognises(record.starts, record.registered, known)

    def _register(self, state: ReplicaState) -> None:
        persisted = state.persisted
        assert persisted is not None, "a start is persisted before it is registered"
        if state.due(("register", persisted.registered)):
            state.emit(
                RegisterStart(
                    persisted.incarnation,
                    persisted.starts,
                    persisted.registered,
                    persisted.went_back,
                    state.log.durable_lsn,
                    state.log.high_watermark,
                    persisted.epoch,
                )
            )
