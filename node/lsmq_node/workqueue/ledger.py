"""What becomes of each message of a work queue: a state machine without I/O, of one group on one topic in one shard.

A queue's *window* is ``[cursor, next)``. Below the cursor all is settled: acknowledged, or dead. From ``next`` on
nothing was delivered. In between, what is not *open* is settled. So memory follows the open messages, and a window
costs next to the same whether ten or ten million others were settled above a stubborn one.

Who picks gets messages from ``next`` on as well, *early*: those between stay for others, and cost nothing.

With order by key, a message is open only while none before it in its queue has its key: until the one before is settled
and that is stored, it waits in a line (:mod:`.window`). So whoever leads next finds an earlier one of a key open before
any later one was handed out. What was stored is not opened by :meth:`WorkLedger.load` then, whose keys nobody knows: it
is looked at once more, in order.

Times are milliseconds since 1970 on a clock of the caller's that never goes back. A message is open in one of these
states: ``READY`` to be delivered (again), ``TAKEN`` by somebody who reads it from the store, ``IN_FLIGHT`` until its
visibility ends, ``WAITING`` until it is due, ``DEAD`` when it has failed for the last time and is to be put away.

What is stored is in :class:`WorkChanges`; it says nothing of deliveries in flight. So after :meth:`WorkLedger.load`,
under another leader, these are ready, and a receipt that has not expired by its own date still counts as long as nobody
else has got the message.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

from . import chunks as chunk_documents
from .chunks import FailedMessage, SettledChunk
from .open_messages import OpenMessages
from .receipts import DeliveryReceipt
from .settings import MAX_DELAY_MS, WorkSettings
from .tasks import DeliveryState, LeftDelivery, OpenMessage, Refusal, WorkCounts
from .window import Window

#: As a due time: it is not to be delivered again.
NEVER = -1
#: Open messages of a group on a topic in a shard. At the limit nothing new is delivered until some are settled.
MAX_OPEN = 100_000
_SPARE_TIMERS = 10_000
EXPIRED_REASON = "visibility timeout"
NACKED_REASON = "negative acknowledgement"


class WorkLedger(OpenMessages):
    """See the module. ``start_of`` and ``end_of`` say of any queue where its unsettled messages begin, and its end."""

    def __init__(
        self,
        settings: WorkSettings,
        leader: int,
        start_of: Callable[[int], int],
        end_of: Callable[[int], int],
        counts: WorkCounts | None = None,
        begun: int = 0,
    ) -> None:
        """``leader``: 32 bits that no other ledger has; tells this one's receipts from those of earlier leaders.

        ``begun``: 16 bits that take the place of the upper ones, the same in all ledgers of a work queue, and others
        than in those of one that its group had before it was deleted. 0: an earlier release made it, and gave it none.
        """
        super().__init__(settings, start_of, counts)
        self._begun = begun
        self._leader = begun << 16 | leader & 0xFFFF if begun else leader
        self._serials = itertools.count(1)
        self._end_of = end_of
        self._timers: list[tuple[int, int, OpenMessage]] = []

    # What was stored

    def load(self, queue: int, cursor: int, chunks: Mapping[int, SettledChunk], now: int) -> None:
        """Take over a queue's documents, by number of the chunk."""
        window = self._windows[queue] = Window(queue, cursor, looks=self._looks)
        window.stored.update(chunks)
        window.take_over(chunks.values())
        if not self._looks:
            for offset, fail in sorted(window.failed.items()):
                window.early.add(offset)
                self._open_again(self._new_task(window, offset), fail, now)
            window.failed.clear()
        number = cursor // chunk_documents.CHUNK_OFFSETS
        if number in chunks and window.chunk(number, cursor) == SettledChunk():
            window.touch(cursor)
        self._note(window)  # documents below the cursor are left over from a crash, or their messages were purged

    def _open_again(self, task: OpenMessage, fail: FailedMessage | None, now: int) -> None:
        if fail is None:
            self._set(task, DeliveryState.READY)
            return
        task.count, task.reason = fail.count, fail.reason
        task.at_ms = min(fail.due_ms, now + MAX_DELAY_MS)  # whatever the clock of the earlier leader said
        self._rest(task, now)

    def deliveries(self) -> list[LeftDelivery]:
        """Those in flight, and those that have settled what is not stored yet."""
        tasks = [task for changes in self._storing.values() for task in changes.settled] + self._settled
        for window in self._windows.values():
            tasks += [task for task in window.open.values() if task.state is DeliveryState.IN_FLIGHT]
        return [LeftDelivery(task.receipt, task.tenant, task.level, task.stored_ms, task.key) for task in tasks]

    def in_flight(self, after: tuple[int, int], limit: int) -> list[DeliveryReceipt]:
        """Up to so many deliveries that nobody has settled and whose visibility has not ended, of messages behind this
        queue and offset, in that order. Looks at all that are open of the queues that these are of."""
        tasks: list[OpenMessage] = []
        for queue in sorted(queue for queue in self._windows if queue >= after[0]):
            begin = after[1] + 1 if queue == after[0] else 0
            held = (task for task in self._windows[queue].open.values() if task.state is DeliveryState.IN_FLIGHT)
            behind = (task for task in held if task.offset >= begin)
            tasks += heapq.nsmallest(limit - len(tasks), behind, key=attrgetter("offset"))
            if len(tasks) >= limit:
                break
        return [task.receipt for task in tasks]

    def carry_over(self, deliveries: Iterable[LeftDelivery], now: int) -> None:
        """Go on with these, of a ledger that could not store something and delivered last before this one.

        Whose they were counts until they are looked at: what is in flight of a tenant may lie behind a long backlog.
        Keys are held at once: a message that was deleted meanwhile is not looked at any more.
        """
        for receipt, tenant, level, stored_ms, key in deliveries:
            task = self._find(receipt, now)
            if not isinstance(task, OpenMessage):
                continue
            if self.looks_ahead:
                self._place(task, tenant, level, stored_ms)
            elif self._by_key and key:
                task.key = key
                self._windows[task.queue].held[key] = None

    # Delivering

    @property
    def has_dead(self) -> bool:
        return bool(self._dead)

    @property
    def has_ready(self) -> bool:
        """Whether :meth:`take_ready` would find something, as far as is known."""
        return any(True for _ in self._retries()) if self._is_full else bool(self._turns)

    @property
    def _is_full(self) -> bool:
        """Whether what waits for its turn comes only where it is open already."""
        return self.looks_ahead and self.open_count >= MAX_OPEN

    def _retries(self) -> Iterator[OpenMessage]:
        """What is to be delivered again, of tenants that may have more as it is asked for."""
        if self.states[DeliveryState.READY]:
            yield from (task for task in self.ready() if not self._is_metered or self.room_of(task.tenant) > 0)

    def take_ready(self, limit: int) -> list[OpenMessage]:
        """Messages whose turn it is, ``TAKEN`` until :meth:`deliver`, :meth:`give_back` or :meth:`gone`."""
        taken: list[OpenMessage] = []
        if self._is_full:
            for task in itertools.islice(self._retries(), limit):
                self._set(task, DeliveryState.TAKEN)
                taken.append(task)
            return taken
        if self.looks_ahead:
            limit = min(limit, MAX_OPEN - self.open_count)
        room = limit
        while room > 0:
            passed = []
            for turn in self._turns.take(room):
                opened = self._open_in_its_turn(turn)
                if opened is None:
                    passed.append(turn)
                else:
                    taken.append(opened)
            for turn in passed:
                self._pass_by(turn)
            room = limit - len(taken) if passed else 0
        return taken

    def take(self, task: OpenMessage) -> bool:
        """One that is to be delivered again, out of its turn; whether it still is."""
        if task.state is not DeliveryState.READY:
            return False
        self._set(task, DeliveryState.TAKEN)
        return True

    def ready(self) -> Iterator[OpenMessage]:
        """All that are to be delivered again."""
        tasks = (task for window in self._windows.values() for task in window.open.values())
        return (task for task in tasks if task.state is DeliveryState.READY)

    def give_back(self, tasks: Iterable[OpenMessage]) -> None:
        """They could not be read now."""
        for task in tasks:
            if task.state is DeliveryState.TAKEN:
                self._set(task, DeliveryState.READY)

    def postpone(self, tasks: Iterable[OpenMessage], at_ms: int) -> None:
        """They cannot be read before then."""
        for task in tasks:
            if task.state is DeliveryState.TAKEN:
                task.at_ms = at_ms
                self._set(task, DeliveryState.WAITING)
                self._time(task)

    def deliver(self, task: OpenMessage, now: int, visibility_ms: int) -> DeliveryReceipt | None:
        """Hand out what was taken; None when it was settled or adopted meanwhile."""
        if task.state is not DeliveryState.TAKEN:
            return None
        task.count += 1
        task.token = self._leader << 32 | next(self._serials) & 0xFFFFFFFF
        task.at_ms = now + visibility_ms
        self._set(task, DeliveryState.IN_FLIGHT)
        self._time(task)
        self.counts.delivered += 1
        self.counts.redelivered += task.count > 1
        return task.receipt

    def deliver_fresh(
        self, queue: int, offsets: Sequence[int], end: int, now: int, visibility_ms: int
    ) -> list[DeliveryReceipt | None]:
        """Hand out messages of ``[next_of(queue), end)``; offsets in between that are not named have no message.

        One receipt for each of ``offsets``; None for one that is known by now.
        """
        window = self._window(queue)
        if window.knows_ahead:
            return self._deliver_between(window, offsets, end, now, visibility_ms)
        receipts: list[DeliveryReceipt | None] = []
        for offset in offsets:
            if offset < window.next:
                receipts.append(None)
                continue
            window.mark(offset)
            window.next = offset + 1
            receipts.append(self.deliver(self._new_task(window, offset), now, visibility_ms))
        if end > window.next:
            window.next = end
            if not window.open:
                self._note(window)
        return receipts

    def _deliver_between(
        self, window: Window, offsets: Sequence[int], end: int, now: int, visibility_ms: int
    ) -> list[DeliveryReceipt | None]:
        """Hand out those of which nothing is known yet."""
        receipts: list[DeliveryReceipt | None] = [None] * len(offsets)
        for offset, _, place in self._unknown(window, offsets, offsets, end):
            if not window.take_place(offset, 0):
                window.mark(offset)
                receipts[place] = self.deliver(self._new_task(window, offset), now, visibility_ms)
            window.pass_by(offset)
        window.advance(end)
        self._note(window)
        return receipts

    def deliver_picked(
        self, queue: int, offsets: Sequence[int], now: int, visibility_ms: int
    ) -> list[DeliveryReceipt | None]:
        """Hand out messages from ``next_of(queue)`` on whose turn has not come: those between stay for others.

        One receipt for each of ``offsets``, ascending; None for one that is known by now.
        """
        if not offsets:
            return []  # a window that knows nothing would stay
        window = self._window(queue)
        window.know_ahead()
        receipts: list[DeliveryReceipt | None] = []
        for offset in offsets:
            if offset < window.next or window.is_known_ahead(offset):
                receipts.append(None)
                continue
            if offset == window.next:
                window.mark(offset)
                window.pass_by(offset)
            else:
                window.early.add(offset)
            receipts.append(self.deliver(self._new_task(window, offset), now, visibility_ms))
        return receipts

    def line_up(
        self, queue: int, offsets: Sequence[int], keys: Sequence[int], end: int, limit: int, now: int
    ) -> list[OpenMessage | None]:
        """Look at messages of ``[next_of(queue), end)`` and their keys; offsets that are not named have no message.

        Those before which none of their key is open are ``TAKEN``, up to ``limit``, and returned in the places of their
        offsets. The others wait for their keys. Where one more would be taken, or there is no room to wait, it ends.
        """
        window = self._window(queue)
        found: list[OpenMessage | None] = [None] * len(offsets)
        for offset, key, place in self._unknown(window, offsets, keys, end):
            if window.take_place(offset, key):
                pass
            elif key and key in window.held:
                if not self._has_room(window):
                    return found
                window.line_up(offset, key)
                self.blocked += 1
            elif limit <= 0:
                return found
            else:
                window.hold(offset, key)
                task = self._open_in_turn(window, offset, key, now)
                if task.state is DeliveryState.TAKEN:
                    found[place] = task
                    limit -= 1
            window.pass_by(offset)
        window.advance(end)
        self._note(window)
        return found

    def look_at(
        self,
        queue: int,
        offsets: Sequence[int],
        tenants: Sequence[int],
        levels: Sequence[int],
        end: int,
        now: int,
        times: Sequence[int] | None = None,
    ) -> None:
        """Look at messages of ``[next_of(queue), end)``, whose they are and at which level: their turn comes.

        Offsets that are not named have no message. Where there is no room for more it ends. ``times``: when they were
        stored, where messages age.
        """
        window = self._window(queue)
        for offset, tenant, place in self._unknown(window, offsets, tenants, end):
            level = levels[place] if place >= 0 else 0
            stored_ms = times[place] if times is not None and place >= 0 else None
            if window.take_place(offset, 0):
                if (task := window.open.get(offset)) is not None:
                    self._place(task, tenant, level, stored_ms or 0)
            elif not self._has_room(window):
                return
            else:
                window.mark(offset)
                if (fail := window.failed.pop(offset, None)) is not None:
                    task = self._new_task(window, offset, tenant=tenant, level=level)
                    task.stored_ms = stored_ms or 0
                    self._open_again(task, fail, now)
                else:
                    self._turns.add(level, tenant, queue, offset, stored_ms)
                    window.blocked += 1
                    self.lined += 1
            window.pass_by(offset)
        window.advance(end)
        self._note(window)

    @staticmethod
    def _unknown(
        window: Window, offsets: Sequence[int], columns: Sequence[int], end: int
    ) -> Iterator[tuple[int, int, int]]:
        """Messages that are to be looked at, with their column, and their place among ``offsets``."""
        rows: Iterable[tuple[int, int, int]] = zip(offsets, columns, range(len(offsets)), strict=True)
        if window.early:  # their messages may be deleted meanwhile
            held = [offset for offset in window.early.difference(offsets) if window.next <= offset < end]
            rows = sorted([*rows, *((offset, 0, -1) for offset in held)])
        for offset, column, place in rows:
            if offset < window.next:
                continue
            if window.is_settled_ahead(offset):
                window.pass_by(offset)
                continue
            yield offset, column, place

    def _open_in_turn(self, window: Window, offset: int, key: int, now: int) -> OpenMessage:
        task = self._new_task(window, offset, key=key)
        fail = window.failed.pop(offset, None)
        if fail is not None:
            self._open_again(task, fail, now)
            if task.state is DeliveryState.READY:
                self._set(task, DeliveryState.TAKEN)
        return task

    def _free(self, queue: int, key: int, now: int) -> None:
        """What was before the next one of a key is settled for good."""
        window = self._windows[queue]
        before = window.blocked
        offset = window.let_go(key, self._start_of(queue) if window.held[key] else 0)
        self.blocked -= before - window.blocked
        self._note(window)
        if offset is not None:
            self._open_again(self._new_task(window, offset, key=key), window.failed.pop(offset, None), now)
        self._resume(queue)

    # Settling

    def ack(self, receipt: DeliveryReceipt, now: int) -> Refusal | None:
        """The message is done."""
        found = self._find(receipt, now)
        if isinstance(found, OpenMessage):
            self.counts.acked += 1
            self._settle(found, found.token)
            return None
        if found is None:
            return None
        return self._refuse(found)

    def nack(
        self, receipt: DeliveryReceipt, now: int, *, delay_ms: int | None = None, reason: str = "", bury: bool = False
    ) -> Refusal | None:
        """The message is to be delivered again: after ``delay_ms``, or by the settings; or never, with ``bury``."""
        found = self._find(receipt, now)
        if not isinstance(found, OpenMessage):
            known = self._open(receipt)
            if known is not None and known.nacked and known.token == receipt.token and known.count == receipt.count:
                return None  # sent again
            return self._refuse(found or Refusal.EXPIRED)
        self.counts.nacked += 1
        delay = self.settings.retry_delay_ms(found.count) if delay_ms is None else delay_ms
        due_ms = NEVER if bury else now + delay
        self._end(found, now, due_ms, f"{NACKED_REASON}: {reason}" if reason else NACKED_REASON, nacked=True)
        return None

    def release(self, receipt: DeliveryReceipt, now: int) -> Refusal | None:
        """The message was not looked at: as if it had not been delivered."""
        found = self._find(receipt, now)
        if not isinstance(found, OpenMessage):
            return self._refuse(found or Refusal.EXPIRED)
        found.count -= 1
        self._set(found, DeliveryState.READY)
        return None

    def extend(self, receipt: DeliveryReceipt, now: int, visibility_ms: int) -> Refusal | None:
        """Hide the message for so long from now on."""
        found = self._find(receipt, now)
        if not isinstance(found, OpenMessage):
            return self._refuse(found or Refusal.EXPIRED)
        found.at_ms = now + visibility_ms
        self._time(found)
        return None

    def _refuse(self, refusal: Refusal) -> Refusal:
        self.counts.refused += 1
        return refusal

    def _open(self, receipt: DeliveryReceipt) -> OpenMessage | None:
        window = self._windows.get(receipt.queue)
        return None if window is None else window.open.get(receipt.offset)

    def _find(self, receipt: DeliveryReceipt, now: int) -> OpenMessage | Refusal | None:
        """The delivery in flight; None when its message is settled, and by no other delivery as far as is known."""
        if self._begun and receipt.token >> 48 != self._begun:
            return Refusal.EXPIRED
        ours = receipt.token >> 32 == self._leader
        if receipt.offset >= self.next_of(receipt.queue) and not self._is_known_ahead(receipt):
            if ours or receipt.offset >= self._end_of(receipt.queue):
                return Refusal.UNKNOWN
            if receipt.expires_ms <= now or not self._open_for(receipt):
                return Refusal.EXPIRED
        task = self._open(receipt)
        if task is None and self._is_lined_up(receipt.queue, receipt.offset):
            if ours or self._by_key or receipt.expires_ms <= now:
                return Refusal.EXPIRED
            task = self._leave_line(receipt.queue, receipt.offset)
        if task is None:
            settled_by = self._recent.get((receipt.queue, receipt.offset), receipt.token)
            return None if settled_by == receipt.token else Refusal.EXPIRED
        if task.state is DeliveryState.IN_FLIGHT:
            return task if task.token == receipt.token and now < task.at_ms else Refusal.EXPIRED
        given_up = ours or task.token == receipt.token  # in this ledger's time
        if given_up or now >= receipt.expires_ms or task.count >= receipt.count:
            return Refusal.EXPIRED
        self._adopt(task, receipt)
        return task

    def _is_known_ahead(self, receipt: DeliveryReceipt) -> bool:
        window = self._windows.get(receipt.queue)
        return window is not None and window.is_known_ahead(receipt.offset)

    def _open_for(self, receipt: DeliveryReceipt) -> bool:
        """An earlier leader has delivered further than is known here."""
        window = self._window(receipt.queue)
        fail = window.failed.get(receipt.offset)
        if fail is not None and fail.count >= receipt.count:
            return False
        self._open_early(window, receipt.offset)
        return True

    def _open_early(self, window: Window, offset: int) -> OpenMessage:
        """Before anybody looked at it in its turn, and so without its key."""
        window.know_ahead()
        window.early.add(offset)
        task = self._new_task(window, offset)
        fail = window.failed.pop(offset, None)
        if fail is not None:
            task.count, task.reason = fail.count, fail.reason
        self._set(task, DeliveryState.READY)
        return task

    def _adopt(self, task: OpenMessage, receipt: DeliveryReceipt) -> None:
        """An earlier leader has delivered it, and nobody else has it since."""
        task.count, task.token, task.at_ms = receipt.count, receipt.token, receipt.expires_ms
        self._set(task, DeliveryState.IN_FLIGHT)
        self._time(task)

    # Time

    @property
    def next_at_ms(self) -> int | None:
        """When :meth:`advance` will have something to do."""
        known = (self._next_timer(), None if self._pace is None else self._pace.next_at_ms)
        return min((at_ms for at_ms in known if at_ms is not None), default=None)

    def _next_timer(self) -> int | None:
        timers = self._timers
        while timers and not self._is_timed(timers[0][0], timers[0][2]):
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    @staticmethod
    def _is_timed(at_ms: int, task: OpenMessage) -> bool:
        return task.at_ms == at_ms and task.state in (DeliveryState.IN_FLIGHT, DeliveryState.WAITING)

    def _time(self, task: OpenMessage) -> None:
        timers = self._timers
        heapq.heappush(timers, (task.at_ms, next(self._serials), task))
        if len(timers) > 2 * self.open_count + _SPARE_TIMERS:  # most are of messages settled long before
            self._timers = [timer for timer in timers if self._is_timed(timer[0], timer[2])]
            heapq.heapify(self._timers)

    def resting(self, first: int, count: int) -> list[OpenMessage]:
        """Of so many timers from the first on: messages that wait for their time, and others of their key for them."""
        tasks = [task for _, _, task in self._timers[first : first + count] if task.state is DeliveryState.WAITING]
        return [task for task in tasks if (window := self._windows.get(task.queue)) and window.held.get(task.key)]

    @property
    def timer_count(self) -> int:
        return len(self._timers)

    def advance(self, now: int) -> None:
        """Visibility ends, and what waited is due."""
        self._now = now
        for tenant in self._pace.take_due(now) if self._pace is not None else ():
            self._unpark(tenant)
        while (at_ms := self._next_timer()) is not None and at_ms <= now:
            _, _, task = heapq.heappop(self._timers)
            if task.state is DeliveryState.IN_FLIGHT:
                self.counts.expired += 1
                self._end(task, now, now, EXPIRED_REASON, nacked=False)
            else:
                self._rest(task, now)

    def _end(self, task: OpenMessage, now: int, due_ms: int, reason: str, *, nacked: bool) -> None:
        """A delivery has failed."""
        task.nacked, task.reason = nacked, reason
        task.at_ms = due_ms
        self._rest(task, now)
        window = self._windows[task.queue]
        window.touch(task.offset)
        self._note(window)

    def _rest(self, task: OpenMessage, now: int) -> None:
        if task.count >= self.settings.max_deliveries or task.at_ms == NEVER:
            self._set(task, DeliveryState.DEAD)
        elif task.at_ms <= now:
            self._set(task, DeliveryState.READY)
        else:
            self._set(task, DeliveryState.WAITING)
            self._time(task)

    # Dead letters

    def take_dead(self, limit: int) -> list[OpenMessage]:
        """Those to be put away: :meth:`settle_dead` when that is done, :meth:`give_back_dead` when it cannot be."""
        taken: list[OpenMessage] = []
        while self._dead and len(taken) < limit:
            task = self._dead.popleft()
            if task.state is DeliveryState.DEAD:
                taken.append(task)
        return taken

    def give_back_dead(self, tasks: Iterable[OpenMessage]) -> None:
        self._dead.extend(tasks)

    def settle_dead(self, tasks: Iterable[OpenMessage]) -> None:
        """They are among the dead letters, durably."""
        for task in tasks:
            if task.state is DeliveryState.DEAD:
                self.counts.dead += 1
                self._settle(task)

    def dead_at(self, places: Iterable[tuple[int, int]]) -> list[OpenMessage]:
        """Those of these queues and offsets that are open, taken as :meth:`take_dead` does, whatever their state."""
        found: list[OpenMessage] = []
        for queue, offset in places:
            window = self._windows.get(queue)
            task = None if window is None else window.open.get(offset)
            if task is None and window is not None and offset in window.failed:
                task = self._open_early(window, offset)
            if task is not None:
                self._set(task, DeliveryState.DEAD, listed=False)
                found.append(task)
        taken = set(found)
        self._dead = deque(task for task in self._dead if task not in taken)
        return found
