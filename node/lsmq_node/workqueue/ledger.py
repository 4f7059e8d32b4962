"""What becomes of each message of a work queue: a state machine without I/O, of one group on one topic in one shard.

A queue's *window* is ``[cursor, next)``. Below the cursor all is settled: acknowledged, or dead. From ``next`` on
nothing was delivered. In between, what is not *open* is settled. So memory follows the open messages, and a window
costs the same whether ten or ten million others were settled above a stubborn one.

Times are milliseconds since 1970 on a clock of the caller's that never goes back. A message is open in one of these
states: ``READY`` to be delivered (again), ``TAKEN`` by somebody who reads it from the store, ``IN_FLIGHT`` until its
visibility ends, ``WAITING`` until it is due, ``DEAD`` when it has failed for the last time and is to be put away.

What is stored is in :class:`Changes`; it says nothing of deliveries in flight. So after :meth:`Ledger.load`, under
another leader, these are ready, and a receipt that has not expired by its own date still counts as long as nobody else
has got the message.
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence

from .chunks import CHUNK_OFFSETS, Chunk, Failed, gaps
from .receipts import Receipt
from .settings import MAX_DELAY_MS, Settings
from .tasks import Changes, Counts, Refusal, State, Task, Window

#: Receipts of settled messages that are remembered, so that an acknowledgement can be sent again.
REMEMBERED = 65_536
#: A receipt of an earlier leader may name a message so far beyond what is known here.
ADOPTED_OFFSETS = 10_000
#: As a due time: it is not to be delivered again.
NEVER = -1
_SPARE_TIMERS = 10_000
EXPIRED_REASON = "visibility timeout"
NACKED_REASON = "negative acknowledgement"


class Ledger:
    """See the module. ``start_of`` and ``end_of`` say of any queue where its unsettled messages begin, and its end."""

    def __init__(
        self,
        settings: Settings,
        leader: int,
        start_of: Callable[[int], int],
        end_of: Callable[[int], int],
        counts: Counts | None = None,
    ) -> None:
        """``leader``: 32 bits that no other ledger has; tells this one's receipts from those of earlier leaders."""
        self.settings = settings
        self.counts = Counts() if counts is None else counts
        self.states: Counter[State] = Counter()
        self._leader = leader
        self._serials = itertools.count(1)
        self._start_of = start_of
        self._end_of = end_of
        self._windows: dict[int, Window] = {}
        self._dirty: set[int] = set()  # queues
        self._ready: deque[Task] = deque()
        self._dead: deque[Task] = deque()
        self._timers: list[tuple[int, int, Task]] = []
        self._recent: OrderedDict[tuple[int, int], int] = OrderedDict()  # tokens of what was settled
        self._settled: list[Task] = []  # since changes were taken last
        self._storing: dict[int, Changes] = {}  # by identity: taken, and not stored yet

    # What was stored

    def load(self, queue: int, cursor: int, chunks: Mapping[int, Chunk], now: int) -> None:
        """Take over a queue's documents, by number of the chunk."""
        window = self._windows[queue] = Window(queue, cursor)
        window.stored.update(chunks)
        settled = sorted(pair for chunk in chunks.values() for pair in chunk.settled)
        failed = {offset: fail for chunk in chunks.values() for offset, fail in chunk.failed.items()}
        end = max([cursor, *(pair[1] for pair in settled), *(offset + 1 for offset in failed)])
        first = cursor
        for low, high in [*settled, (end, end)]:
            for offset in range(first, low):
                self._open_again(window, offset, failed.get(offset), now)
            first = max(first, high)
        window.next = end
        self._note(window)  # documents below the cursor are left over from a crash

    def _open_again(self, window: Window, offset: int, fail: Failed | None, now: int) -> None:
        task = window.open[offset] = Task(window.queue, offset)
        self.states[task.state] += 1
        if fail is None:
            self._set(task, State.READY)
            return
        task.count, task.reason = fail.count, fail.reason
        task.at_ms = min(fail.due_ms, now + MAX_DELAY_MS)  # whatever the clock of the earlier leader said
        self._rest(task, now)

    def deliveries(self) -> list[Receipt]:
        """Those in flight, and those that have settled what is not stored yet."""
        tasks = [task for changes in self._storing.values() for task in changes.settled] + self._settled
        for window in self._windows.values():
            tasks += [task for task in window.open.values() if task.state is State.IN_FLIGHT]
        return [Receipt(task.queue, task.offset, task.count, task.at_ms, task.token) for task in tasks]

    def carry_over(self, deliveries: Iterable[Receipt], now: int) -> None:
        """Go on with these, of a ledger that could not store something and delivered last before this one."""
        for receipt in deliveries:
            self._find(receipt, now)

    # Delivering

    @property
    def open_count(self) -> int:
        return sum(self.states.values())

    @property
    def has_ready(self) -> bool:
        return self.states[State.READY] > 0

    @property
    def has_dead(self) -> bool:
        return bool(self._dead)

    @property
    def is_dirty(self) -> bool:
        return bool(self._dirty)

    def next_of(self, queue: int) -> int:
        """The first offset of a queue that was never delivered."""
        window = self._windows.get(queue)
        return self._start_of(queue) if window is None else window.next

    def windows(self) -> list[tuple[int, int]]:
        """Queues that something is known of, and their ``next_of``."""
        return [(queue, window.next) for queue, window in self._windows.items()]

    def take_ready(self, limit: int) -> list[Task]:
        """Messages to be delivered again, ``TAKEN`` until :meth:`deliver`, :meth:`give_back` or :meth:`gone`."""
        taken: list[Task] = []
        while self._ready and len(taken) < limit:
            task = self._ready.popleft()
            if task.state is State.READY:  # else it was adopted since
                self._set(task, State.TAKEN)
                taken.append(task)
        return taken

    def give_back(self, tasks: Iterable[Task]) -> None:
        """They could not be read now."""
        for task in tasks:
            if task.state is State.TAKEN:
                self._set(task, State.READY)

    def postpone(self, tasks: Iterable[Task], at_ms: int) -> None:
        """They cannot be read before then."""
        for task in tasks:
            if task.state is State.TAKEN:
                task.at_ms = at_ms
                self._set(task, State.WAITING)
                self._time(task)

    def gone(self, tasks: Iterable[Task]) -> None:
        """Their messages were deleted or fell to retention: nothing is left to be done."""
        for task in tasks:
            if task.state is State.TAKEN:
                self._settle(task)

    def deliver(self, task: Task, now: int, visibility_ms: int) -> Receipt | None:
        """Hand out what was taken; None when it was settled or adopted meanwhile."""
        if task.state is not State.TAKEN:
            return None
        task.count += 1
        task.token = self._leader << 32 | next(self._serials) & 0xFFFFFFFF
        task.at_ms = now + visibility_ms
        self._set(task, State.IN_FLIGHT)
        self._time(task)
        self.counts.delivered += 1
        self.counts.redelivered += task.count > 1
        return Receipt(task.queue, task.offset, task.count, task.at_ms, task.token)

    def deliver_fresh(
        self, queue: int, offsets: Sequence[int], end: int, now: int, visibility_ms: int
    ) -> list[Receipt | None]:
        """Hand out messages of ``[next_of(queue), end)``; offsets in between that are not named have no message.

        One receipt for each of ``offsets``; None for one that is known by now.
        """
        window = self._window(queue)
        receipts: list[Receipt | None] = []
        for offset in offsets:
            if offset < window.next:
                receipts.append(None)
                continue
            task = window.open[offset] = Task(queue, offset)
            self.states[task.state] += 1
            window.next = offset + 1
            receipts.append(self.deliver(task, now, visibility_ms))
        if end > window.next:
            window.next = end
            if not window.open:
                self._note(window)
        return receipts

    # Settling

    def ack(self, receipt: Receipt, now: int) -> Refusal | None:
        """The message is done."""
        found = self._find(receipt, now)
        if isinstance(found, Task):
            self.counts.acked += 1
            self._settle(found, found.token)
            return None
        if found is None:
            return None
        return self._refuse(found)

    def nack(
        self, receipt: Receipt, now: int, *, delay_ms: int | None = None, reason: str = "", bury: bool = False
    ) -> Refusal | None:
        """The message is to be delivered again: after ``delay_ms``, or by the settings; or never, with ``bury``."""
        found = self._find(receipt, now)
        if not isinstance(found, Task):
            known = self._open(receipt)
            if known is not None and known.nacked and known.token == receipt.token and known.count == receipt.count:
                return None  # sent again
            return self._refuse(found or Refusal.EXPIRED)
        self.counts.nacked += 1
        delay = self.settings.retry_delay_ms(found.count) if delay_ms is None else delay_ms
        due_ms = NEVER if bury else now + delay
        self._end(found, now, due_ms, f"{NACKED_REASON}: {reason}" if reason else NACKED_REASON, nacked=True)
        return None

    def release(self, receipt: Receipt, now: int) -> Refusal | None:
        """The message was not looked at: as if it had not been delivered."""
        found = self._find(receipt, now)
        if not isinstance(found, Task):
            return self._refuse(found or Refusal.EXPIRED)
        found.count -= 1
        self._set(found, State.READY)
        return None

    def extend(self, receipt: Receipt, now: int, visibility_ms: int) -> Refusal | None:
        """Hide the message for so long from now on."""
        found = self._find(receipt, now)
        if not isinstance(found, Task):
            return self._refuse(found or Refusal.EXPIRED)
        found.at_ms = now + visibility_ms
        self._time(found)
        return None

    def _refuse(self, refusal: Refusal) -> Refusal:
        self.counts.refused += 1
        return refusal

    def _open(self, receipt: Receipt) -> Task | None:
        window = self._windows.get(receipt.queue)
        return None if window is None else window.open.get(receipt.offset)

    def _find(self, receipt: Receipt, now: int) -> Task | Refusal | None:
        """The delivery in flight; None when its message is settled, and by no other delivery as far as is known."""
        ours = receipt.token >> 32 == self._leader
        if receipt.offset >= self.next_of(receipt.queue):
            if ours or receipt.offset >= self._end_of(receipt.queue):
                return Refusal.UNKNOWN
            if receipt.expires_ms <= now or not self._open_up_to(receipt):
                return Refusal.EXPIRED
        task = self._open(receipt)
        if task is None:
            settled_by = self._recent.get((receipt.queue, receipt.offset), receipt.token)
            return None if settled_by == receipt.token else Refusal.EXPIRED
        if task.state is State.IN_FLIGHT:
            return task if task.token == receipt.token and now < task.at_ms else Refusal.EXPIRED
        given_up = ours or task.token == receipt.token  # in this ledger's time
        if given_up or now >= receipt.expires_ms or task.count >= receipt.count:
            return Refusal.EXPIRED
        self._adopt(task, receipt)
        return task

    def _open_up_to(self, receipt: Receipt) -> bool:
        """An earlier leader has delivered further than is known here."""
        window = self._window(receipt.queue)
        if receipt.offset - window.next > ADOPTED_OFFSETS:
            return False
        for offset in range(window.next, receipt.offset + 1):
            task = window.open[offset] = Task(receipt.queue, offset)
            self.states[task.state] += 1
            self._set(task, State.READY)
        window.next = receipt.offset + 1
        return True

    def _adopt(self, task: Task, receipt: Receipt) -> None:
        """An earlier leader has delivered it, and nobody else has it since."""
        task.count, task.token, task.at_ms = receipt.count, receipt.token, receipt.expires_ms
        self._set(task, State.IN_FLIGHT)
        self._time(task)

    # Time

    @property
    def next_at_ms(self) -> int | None:
        """When :meth:`advance` will have something to do."""
        timers = self._timers
        while timers and not self._is_timed(timers[0][0], timers[0][2]):
            heapq.heappop(timers)
        return timers[0][0] if timers else None

    @staticmethod
    def _is_timed(at_ms: int, task: Task) -> bool:
        return task.at_ms == at_ms and task.state in (State.IN_FLIGHT, State.WAITING)

    def _time(self, task: Task) -> None:
        timers = self._timers
        heapq.heappush(timers, (task.at_ms, next(self._serials), task))
        if len(timers) > 2 * self.open_count + _SPARE_TIMERS:  # most are of messages settled long before
            self._timers = [timer for timer in timers if self._is_timed(timer[0], timer[2])]
            heapq.heapify(self._timers)

    def advance(self, now: int) -> None:
        """Visibility ends, and what waited is due."""
        while (at_ms := self.next_at_ms) is not None and at_ms <= now:
            _, _, task = heapq.heappop(self._timers)
            if task.state is State.IN_FLIGHT:
                self.counts.expired += 1
                self._end(task, now, now, EXPIRED_REASON, nacked=False)
            else:
                self._rest(task, now)

    def _end(self, task: Task, now: int, due_ms: int, reason: str, *, nacked: bool) -> None:
        """A delivery has failed."""
        task.nacked, task.reason = nacked, reason
        task.at_ms = due_ms
        self._rest(task, now)
        window = self._windows[task.queue]
        window.dirty.add(task.offset // CHUNK_OFFSETS)
        self._note(window)

    def _rest(self, task: Task, now: int) -> None:
        if task.count >= self.settings.max_deliveries or task.at_ms == NEVER:
            self._set(task, State.DEAD)
        elif task.at_ms <= now:
            self._set(task, State.READY)
        else:
            self._set(task, State.WAITING)
            self._time(task)

    # Dead letters

    def take_dead(self, limit: int) -> list[Task]:
        """Those to be put away: :meth:`settle_dead` when that is done, :meth:`give_back_dead` when it cannot be."""
        taken: list[Task] = []
        while self._dead and len(taken) < limit:
            task = self._dead.popleft()
            if task.state is State.DEAD:
                taken.append(task)
        return taken

    def give_back_dead(self, tasks: Iterable[Task]) -> None:
        self._dead.extend(tasks)

    def settle_dead(self, tasks: Iterable[Task]) -> None:
        """They are among the dead letters, durably."""
        for task in tasks:
            if task.state is State.DEAD:
                self.counts.dead += 1
                self._settle(task)

    def dead_at(self, places: Iterable[tuple[int, int]]) -> list[Task]:
        """Those of these queues and offsets that are open, taken as :meth:`take_dead` does, whatever their state."""
        found: list[Task] = []
        for queue, offset in places:
            window = self._windows.get(queue)
            task = None if window is None else window.open.get(offset)
            if task is not None:
                self._set(task, State.DEAD, listed=False)
                found.append(task)
        self._dead = deque(task for task in self._dead if task not in found)
        return found

    # Within

    def _set(self, task: Task, state: State, *, listed: bool = True) -> None:
        self.states[task.state] -= 1
        task.state = state
        self.states[state] += 1
        if state is State.READY:
            self._ready.append(task)
        elif state is State.DEAD and listed:
            self._dead.append(task)

    def _settle(self, task: Task, token: int = 0) -> None:
        """``token``: of the delivery that did it, where one did."""
        window = self._windows[task.queue]
        del window.open[task.offset]
        self.states[task.state] -= 1
        task.state = State.SETTLED
        self._recent[task.queue, task.offset] = token
        if token:
            self._settled.append(task)
        if len(self._recent) > REMEMBERED:
            self._recent.popitem(last=False)
        window.dirty.add(task.offset // CHUNK_OFFSETS)
        self._note(window)

    def _window(self, queue: int) -> Window:
        window = self._windows.get(queue)
        if window is None:
            window = self._windows[queue] = Window(queue, self._start_of(queue))
        return window

    def _note(self, window: Window) -> None:
        if window.dirty or window.stored or window.cursor > window.logged:
            self._dirty.add(window.queue)

    # Storing

    def take_changes(self) -> Changes:
        """What is to be stored now; then :meth:`stored`. If it cannot be, the ledger is of no use any more."""
        changes = Changes()
        for queue in self._dirty:
            window = self._windows[queue]
            cursor = window.cursor
            changes.windows.append(queue)
            window.unlogged += 1
            if cursor > window.logged:
                window.logged = cursor
                changes.queues.append(queue)
                changes.cursors.append(cursor)
                if cursor // CHUNK_OFFSETS in window.stored:
                    window.dirty.add(cursor // CHUNK_OFFSETS)
            for number in window.dirty:
                if (number + 1) * CHUNK_OFFSETS > cursor:
                    self._store_chunk(window, number, cursor, changes)
            for number in [number for number in window.stored if (number + 1) * CHUNK_OFFSETS <= cursor]:
                changes.documents[queue, number] = None
                window.stored.discard(number)
            window.dirty.clear()
        self._dirty.clear()
        changes.settled.extend(self._settled)
        self._settled.clear()
        self._storing[id(changes)] = changes
        return changes

    def _store_chunk(self, window: Window, number: int, cursor: int, changes: Changes) -> None:
        first = max(number * CHUNK_OFFSETS, cursor)
        end = min((number + 1) * CHUNK_OFFSETS, window.next)
        tasks = [task for offset in range(first, end) if (task := window.open.get(offset)) is not None]
        failed = {task.offset: Failed(task.ended, self._due(task), task.reason) for task in tasks if task.ended}
        chunk = Chunk(gaps(first, end, (task.offset for task in tasks)), failed)
        if chunk.settled or chunk.failed:
            changes.documents[window.queue, number] = chunk.encode(number)
            window.stored.add(number)
        elif number in window.stored:
            changes.documents[window.queue, number] = None
            window.stored.discard(number)

    @staticmethod
    def _due(task: Task) -> int:
        return task.at_ms if task.state in (State.WAITING, State.DEAD) else 0

    def stored(self, changes: Changes) -> None:
        """They are committed. Queues of which there is nothing left to know are forgotten."""
        self._storing.pop(id(changes), None)
        for queue in changes.windows:
            window = self._windows.get(queue)
            if window is None:
                continue
            window.unlogged -= 1
            idle = not (window.open or window.dirty or window.stored or window.unlogged)
            if idle and window.logged == window.next and queue not in self._dirty:
                del self._windows[queue]
