"""Raft as a state machine without sockets, files, threads or clocks: events go in, messages and writes come out.

The algorithm of the Raft paper with what its author's thesis adds (sections in brackets): pre-vote and leader
stickiness (9.6, 4.2.3), a leader that hears no majority steps down (6.2), compaction (5), writes beside everything else
(10.2.1). Who runs it (:class:`~.voter.Voter`, or a simulation) does again and again: hand in what happened, ``tick``,
apply ``kept.take_committed``, send ``take_messages``, write ``take_writes`` in order; ``written`` says what is durable.

Invariants, asserted where they could break or by the simulation at every step:

- at most one voter leads in a term; a voter votes for one candidate a term, and that is durable before it is told;
- what a voter acknowledges is durable and equal to the leader's log; what it applied never changes;
- a leader's log holds all that was committed before; it commits entries of its own term only (figure 8);
- who votes differs by at most one voter from what was committed before, and is changed by leaders only that have
  committed an entry of their own term (4.1, and the author's correction of it).

What leaves waits for the disk only where it must: grants of votes and acknowledgements of entries. A sign of life,
its answer and a pre-vote do not, so neither a living leader nor its lease depends on any disk's speed.

Who votes is what the latest entry of its log says (:mod:`~.raft_membership`). A voter that is none by that, and by what
is committed, calls no election; it grants its vote like any other: whoever asks may have entries that this one has not.

Not supported: leadership transfer to a chosen voter, reads by lease.
"""

from __future__ import annotations

import math

from lsmq import runtime

from .raft_following import Assembly, judge_append
from .raft_kept import RaftKept
from .raft_leading import Leading, majority
from .raft_membership import Electorate, membership_in
from .raft_messages import (
    AppendAnswer,
    AppendEntries,
    PreVote,
    PreVoteAnswer,
    RaftMessage,
    Resigned,
    SnapshotAnswer,
    SnapshotPart,
    Vote,
    VoteAnswer,
)
from .raft_outbox import Write
from .raft_pace import RaftPace
from .raft_terms import MAX_COMMAND_BYTES, Loaded, RaftEntry, RaftRole, RaftTiming


class RaftCore:
    """One voter. All calls come from one thread; ``now`` never falls. Times are seconds."""

    def __init__(
        self,
        name: str,
        configured: Electorate,
        loaded: Loaded,
        timing: RaftTiming,
        random: runtime.Random,
        now: float,
    ) -> None:
        """``name`` is an address. ``configured``: who votes, where ``loaded`` does not say it. ``loaded.snapshot`` is
        for the caller: its state machine begins with what is in it."""
        self.name = name
        self.pace = RaftPace(timing, random)
        self._timing = timing
        self.kept = RaftKept(loaded, random, configured)
        self.log = self.kept.log
        self.role: RaftRole = RaftRole.FOLLOWER
        self.leader: str | None = None
        self.leader_heard = -math.inf
        self.leading: Leading | None = None
        self._proven, self._echo = 0, -math.inf
        self._assembly = Assembly()
        #: As a candidate: who granted, and, before it stands, the term it would stand in.
        self._granted: set[str] = set()
        self._asked_term: int | None = None
        self._failed_rounds, self._round_began = 0, -math.inf
        #: The last term whose leader said that it resigns.
        self.resigned_term = 0
        self._deadline = now + (self.pace.election_s() if self.peers or not self.stands else 0.0)
        self._ticked = self._judged_from = now

    # What comes out

    def take_messages(self) -> list[tuple[str, RaftMessage]]:
        return self.kept.outbox.take_messages()

    def take_writes(self) -> tuple[list[Write], int]:
        """What is to be written, in order, and the number to report when it is durable."""
        return self.kept.outbox.take_writes()

    def wake_at(self) -> float:
        """When :meth:`tick` is due, if nothing happens before."""
        due = self._deadline if self.leading is None else self.leading.next_beat
        return min(due, self._ticked + self._timing.tick_s)

    @property
    def term(self) -> int:
        return self.kept.state.term

    @property
    def membership(self) -> Electorate:
        """Who votes, by this voter's log."""
        return self.kept.memberships.latest

    @property
    def settled(self) -> bool:
        """Whether that is known to be committed."""
        return self.kept.memberships.latest_index <= self.kept.commit

    @property
    def votes(self) -> bool:
        return self.name in self.membership.voting

    @property
    def stands(self) -> bool:
        """Whether it calls elections. One that is removed does until that is committed: nobody else may have what
        removes it, and then nobody else can be elected (4.2.2)."""
        return any(self.name in known.voting for known in self.kept.memberships.since(self.kept.commit))

    @property
    def peers(self) -> list[str]:
        """The others that it has to do with, by what is committed and by what may yet be."""
        known = self.kept.memberships.since(self.kept.commit)
        return sorted(frozenset().union(*(each.addresses for each in known)) - {self.name})

    @property
    def ready(self) -> bool:
        """Leads, and has applied all that was committed before."""
        return self.leading is not None and self.kept.applied >= self.leading.first

    def lease(self, now: float) -> float:
        """On the leader: the latest moment at which a majority is known to have followed. Else: the leader heard."""
        return self.leader_heard if self.leading is None else self.leading.followed_since(now)

    # What happens

    def tick(self, now: float) -> None:
        """Time passed, or something was handed in."""
        late = max(0.0, now - self._ticked - self._timing.tick_s)
        self._ticked = now
        if late > self.pace.shortest_s / 2:
            # This process was paused: it hears what the others said meanwhile before it judges them.
            grace = now + 2 * self._timing.heartbeat_s
            self._deadline, self._judged_from = max(self._deadline, grace), grace
            if self.leading is not None:
                self.leading.forgive(now)
        if late < self._timing.election_max_s:
            self.pace.ticked(late)
        if self.leading is not None:
            self._lead_on(self.leading, now)
        elif now >= self._deadline and self.stands:
            self._campaign(now)
        elif now >= self._deadline:
            self._deadline = now + self.pace.election_s()

    def written(self, number: int, took_s: float, now: float) -> None:
        """The writes up to ``number`` are durable; the last of them took so long."""
        self.pace.synced(took_s)
        durable = self.kept.durable
        self.kept.written(number)
        if self.leading is not None:
            self._commit_on(self.leading)
        elif self.role is RaftRole.CANDIDATE:
            self._count(now)
        elif self.leader is not None and self.kept.durable > durable:
            self._acknowledge(self.leader)

    def propose(self, command: bytes) -> tuple[int, int] | None:
        """Append a command: index and term of its entry. None when it does not lead, or too much is under way; and of
        one that says who votes also when that does not follow what is committed."""
        assert 0 < len(command) <= MAX_COMMAND_BYTES, f"a command of {len(command)} bytes"
        if self.leading is None or self.kept.overloaded or self.kept.undecided:
            return None
        changed = membership_in(command)
        if changed is not None and not self._may_become(self.leading, changed):
            return None
        entry = RaftEntry(self.log.last_index + 1, self.term, command)
        self.kept.add(entry)
        if changed is not None:
            self.leading.set_membership(changed, self._ticked)
        return entry.index, entry.term

    def _may_become(self, leading: Leading, changed: Electorate) -> bool:
        """Whether majorities of ``changed`` meet those of whatever may be committed or become it, and one is at hand:
        a change that cannot be committed could not be taken back."""
        at_hand = changed.voting & (leading.caught_up(self._ticked - self.patience_s) | {self.name})
        safe = self.settled and self.kept.commit >= leading.first and changed.follows(self.membership)
        return safe and len(at_hand) >= majority(len(changed.voting))

    def resign(self, now: float) -> None:
        """From a leader become a follower that calls no election for a while."""
        if self.leading is not None:
            for peer in self.peers:
                self.kept.outbox.send(peer, Resigned(self.term))
            self._step_down()
            self._deadline = now + self._timing.aside_s

    def receive(self, sender: str, message: RaftMessage, now: float) -> None:
        """A message from another voter, known here as one or not. Raises ``Diverged``."""
        match message:
            case PreVote():
                self._pre_vote(sender, message, now)
            case Vote():
                self._vote(sender, message, now)
            case _ if message.term < self.term and not isinstance(message, PreVoteAnswer):
                if isinstance(message, AppendEntries | SnapshotPart):
                    # A leader that was replaced while it was away learns of it.
                    self.kept.outbox.send(sender, AppendAnswer(self.term, False, 0, 0, message.stamp))
            case _:
                if message.term > self.term:
                    self._enter(message.term, None)
                self._receive_of_term(sender, message, now)

    def _receive_of_term(self, sender: str, message: RaftMessage, now: float) -> None:
        match message:
            case PreVoteAnswer():
                self.pace.peer_synced(sender, message.sync_s)
                if message.granted and message.candidate_term == self._asked_term == self.term + 1:
                    self._granted.add(sender)
                    self._count(now)
            case VoteAnswer():
                if message.granted and self.role is RaftRole.CANDIDATE and self._asked_term is None:
                    self._granted.add(sender)
                    self._count(now)
            case AppendEntries():
                self._follow(sender, now)
                self._append(sender, message)
            case SnapshotPart():
                self._follow(sender, now)
                self._take_part(sender, message)
            case AppendAnswer() if self.leading is not None and self.leading.sends_to(sender):
                self.leading.appended(sender, message, now)
                self._commit_on(self.leading)
            case SnapshotAnswer() if self.leading is not None and self.leading.sends_to(sender):
                self.leading.part_taken(sender, message, now)
            case Resigned(term) if sender == self.leader:
                self.resigned_term = term
                self._leader_gone(now)
            case _:
                pass

    # Elections

    def _campaign(self, now: float) -> None:
        """Ask whether an election could be won: only then is one called."""
        if self.role is RaftRole.CANDIDATE:
            if self._asked_term is None and not self.kept.state_written:
                # Another round would only give the disk more to do.
                self._deadline = now + self.pace.shortest_s
                return
            self._failed_rounds += 1
        self.role, self.leader = RaftRole.CANDIDATE, None
        self._asked_term, self._granted = self.term + 1, {self.name}
        self.pace.peers_asked()
        self._round_began, self._deadline = now, now + self.pace.question_s(self._failed_rounds)
        for peer in self._electors:
            self._ask(peer)
        self._count(now)

    @property
    def _electors(self) -> list[str]:
        """The others who vote."""
        return sorted(self.membership.voting - {self.name})

    def _ask(self, peer: str) -> None:
        """What a candidate has to ask of a voter at present."""
        what = self.log.last_index, self.log.last_term, self.kept.state.whole
        if self._asked_term is not None:
            self.kept.outbox.send(peer, PreVote(self.term, self._asked_term, *what))
        else:
            self.kept.outbox.send(peer, Vote(self.term, *what))

    def _count(self, now: float) -> None:
        if self._asked_term is None and self.kept.state_written:
            self._granted.add(self.name)
        voting = self.membership.voting
        if len(self._granted & voting) < majority(len(voting)):
            return
        if self._asked_term is not None:
            self._stand(now)
        else:
            self._lead(now)

    def _stand(self, now: float) -> None:
        """Call the election. The candidate's own vote counts once it is durable, like those of the others."""
        self._asked_term, self._granted = None, set()
        self.kept.save(term=self.term + 1, vote=self.name)
        self._deadline = now + self.pace.round_s(self._failed_rounds)
        for peer in self._electors:
            self._ask(peer)

    def _pre_vote(self, sender: str, message: PreVote, now: float) -> None:
        grant = (
            message.candidate_term > self.term
            and not self._follows(now)
            and self._may_lead(message)
            and not self._goes_first(sender, message, now)
        )
        if grant:
            # The one who asked first is let go first.
            self._deadline = max(self._deadline, now + self.pace.shortest_s / 2)
        self.kept.outbox.send(sender, PreVoteAnswer(self.term, message.candidate_term, grant, self.pace.sync_s))

    def _follows(self, now: float) -> bool:
        """Whether a leader is there: then nobody is helped to replace it."""
        if self.leading is not None:
            return True
        return self.leader is not None and now - self.leader_heard < self.pace.shortest_s

    def _may_lead(self, message: PreVote | Vote) -> bool:
        """Whether its log holds all that this voter may have helped to commit, and this voter knows what it did."""
        newer = (message.last_term, message.last_index) >= (self.log.last_term, self.log.last_index)
        return newer and (self.kept.state.whole or not message.whole)

    def _goes_first(self, sender: str, message: PreVote, now: float) -> bool:
        """Of two that ask each other at the same moment one should win."""
        if self._asked_term is None or now - self._round_began > 2 * self._timing.heartbeat_s:
            return False
        own = (self.log.last_term, self.log.last_index, self.name)
        return self.kept.state.whole == message.whole and own > (message.last_term, message.last_index, sender)

    def _vote(self, sender: str, message: Vote, now: float) -> None:
        if message.term < self.term:
            self.kept.outbox.send(sender, VoteAnswer(self.term, False))
            return
        if message.term > self.term and self._follows(now):
            return
        given = self.kept.state.vote if message.term == self.term else None
        grant = given in (None, sender) and self._may_lead(message)
        if message.term > self.term:
            self._enter(message.term, sender if grant else None)
        elif grant and given is None:
            self.kept.save(vote=sender)
        if grant:
            self._deadline = now + self.pace.election_s()
            self.kept.outbox.send(sender, VoteAnswer(self.term, True), after=self.kept.state_write)

    def _enter(self, term: int, vote: str | None) -> None:
        """A higher term begins for this voter; one write holds it and the vote."""
        assert term > self.term, f"term {term} does not follow {self.term}"
        self._step_down()
        self.kept.save(term=term, vote=vote)

    def _step_down(self) -> None:
        self.role, self.leader, self.leading = RaftRole.FOLLOWER, None, None
        self._asked_term, self._granted = None, set()
        self._proven, self._echo = 0, -math.inf
        self._assembly.drop()

    def _leader_gone(self, now: float) -> None:
        """An election may begin soon: the voters left take turns, so that they do not split the vote."""
        left = sorted({self.name, *self._electors} - {self.leader})
        self.leader, self.leader_heard = None, -math.inf
        self._deadline = min(self._deadline, now + self.pace.turn_s(left.index(self.name), len(left)))

    # Leading

    def _lead(self, now: float) -> None:
        assert self.kept.state.vote == self.name and self.role is RaftRole.CANDIDATE
        self.role, self.leader, self._failed_rounds = RaftRole.LEADER, self.name, 0
        self.leading = Leading(self.name, self.term, self.log, self.membership, self._timing, now)
        self._judged_from = now
        self.kept.add(RaftEntry(self.log.last_index + 1, self.term, b""))
        self._lead_on(self.leading, now)

    def _lead_on(self, leading: Leading, now: float) -> None:
        if not self.votes and self.settled:
            self.resign(now)  # What it had to see to is agreed on.
            return
        if now >= self._judged_from and not leading.has_majority(now - self.patience_s):
            self._step_down()
            self._deadline = now + self.pace.election_s()
            return
        for peer, message in leading.messages(now, self.kept.commit, self.kept.state.whole):
            self.kept.outbox.send(peer, message)

    @property
    def patience_s(self) -> float:
        """Who is not heard for so long is not counted on."""
        return max(self._timing.fallback_s, self.pace.shortest_s)

    def _commit_on(self, leading: Leading) -> None:
        reached = leading.committed(self.kept.durable)
        if reached > self.kept.commit and self.log.term_at(reached) == self.term:
            self.kept.commit_to(reached)
        if leading.all_caught_up():
            self.kept.become_whole()

    # Following

    def _follow(self, leader: str, now: float) -> None:
        assert self.role is not RaftRole.LEADER, f"{leader} leads term {self.term}, which {self.name} leads"
        if self.role is RaftRole.CANDIDATE:
            self._step_down()
        self.leader, self.leader_heard, self._failed_rounds = leader, now, 0
        self._deadline = now + self.pace.election_s()

    def _append(self, leader: str, message: AppendEntries) -> None:
        self._echo = message.stamp
        verdict = judge_append(message, self.log, self.kept.commit)
        refused = bool(verdict.entries) and self.kept.overloaded
        if verdict.proven is None or refused:
            hint = verdict.entries[0].index - 1 if refused else verdict.hint
            answer = AppendAnswer(self.term, False, 0, hint, message.stamp)
            self.kept.outbox.send(leader, answer, after=self.kept.state_write)
            return
        if verdict.cut is not None:
            assert verdict.cut > self._proven, f"entry {verdict.cut} of {self._proven} acknowledged ones is to be cut"
            self.kept.cut(verdict.cut)
        for entry in verdict.entries:
            self.kept.add(entry)
        self._proven = max(self._proven, verdict.proven)
        self.kept.commit_to(min(message.commit, verdict.proven))
        if message.whole:
            self.kept.become_whole()
        if not verdict.entries:
            self._acknowledge(leader)

    def _acknowledge(self, leader: str) -> None:
        """What is durable and proven equal. What is under way is acknowledged by :meth:`written`."""
        matched = min(self._proven, self.kept.durable)
        self.kept.outbox.send(
            leader, AppendAnswer(self.term, True, matched, 0, self._echo), after=self.kept.state_write
        )

    def _take_part(self, leader: str, message: SnapshotPart) -> None:
        self._echo = message.stamp
        wanted = 0
        if message.index > self.kept.commit:
            wanted, content = self._assembly.add(message)
            if content is not None:
                self.kept.install(message.index, message.index_term, content)
        if 0 < message.index <= self.kept.commit:
            self._proven = max(self._proven, message.index)
            self._acknowledge(leader)
        else:
            answer = SnapshotAnswer(self.term, message.index, wanted, message.stamp)
            self.kept.outbox.send(leader, answer, after=self.kept.state_write)

    # Peers

    def connected(self, peer: str, life: tuple[int, str], told: tuple[int, str] | None) -> bool:
        """A connection to a peer, which introduced its present life, and told the latest of this voter that it knows.

        False: the disk of one of them went back to an earlier life. It learns that by what is told to it, and comes
        again as one that does not know what it promised.
        """
        if self.kept.went_back(told):
            self._step_down()
            return False
        new = self.kept.know(peer, life)
        if new is None:
            return False
        if new and self.leading is not None and self.leading.sends_to(peer):
            self.leading.reborn(peer)
        if self.role is RaftRole.CANDIDATE and peer in self._electors:
            self._ask(peer)
        self._failed_rounds = 0
        return True

    def lost(self, peer: str, now: float) -> None:
        """The connection to a peer broke, as it does when its process ends."""
        if self.leading is not None:
            if self.leading.sends_to(peer):
                self.leading.lost(peer)
        elif peer == self.leader:
            self._leader_gone(now)
