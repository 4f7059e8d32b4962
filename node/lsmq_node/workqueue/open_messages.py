"""The open messages of a ledger: in which state each is, whose turn it is, and what of them is to be stored. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable

from . import chunks as chunk_documents
from .pace import TenantPace
from .settings import Order, WorkSettings
from .tasks import DeliveryState, OpenMessage, WorkChanges, WorkCounts
from .turns import TenantTurns, Turn
from .window import Window

#: Receipts of settled messages that are remembered, so that an acknowledgement can be sent again.
REMEMBERED = 65_536
#: Messages that may wait for their key, or for their turn after they were looked at. A queue looks ahead while it has
#: fewer of them than there is room left, so that one does not take all of it.
MAX_BLOCKED = 1 << 21
#: Who has messages counts as so many of them, and as so many more while it may have none: see :mod:`.lanes`.
LANE_COST, PARKED_COST = 1, 16
#: Of documents in one change, and a chunk's on top; the store takes some times as much.
_CHANGE_BYTES = 4 << 20
#: Of a cursor or the key of a document, about.
_ROW_BYTES = 64
_FLYING = (DeliveryState.IN_FLIGHT, DeliveryState.TAKEN)


class OpenMessages(ABC):
    """What :class:`.ledger.Ledger` stands on, which says what happens to them."""

    def __init__(self, settings: WorkSettings, start_of: Callable[[int], int], counts: WorkCounts | None) -> None:
        self.settings = settings
        self.counts = WorkCounts() if counts is None else counts
        self.states: Counter[DeliveryState] = Counter()
        self.blocked = 0  # messages that wait for their key
        self.lined = 0  # messages that were looked at, and whose turn has not come
        self._by_key = settings.order is Order.KEY
        self._looks = self._by_key or settings.looks_ahead
        self._cap = settings.max_in_flight_per
        self._pace = None if settings.max_rate_per is None else TenantPace(settings.max_rate_per)
        self._is_metered = self._cap is not None or self._pace is not None
        self._now = 0  # as it was told last
        self._flying: Counter[int] = Counter()  # by tenant, where these are counted
        self._parked: set[int] = set()  # queues that may not have more now
        self._weights = settings.tenant_weights()
        self._turns = TenantTurns(
            self._weights, self.room_of if self._is_metered else None, settings.priority_ageing_ms
        )
        self._start_of = start_of
        self._windows: dict[int, Window] = {}
        self._dirty: set[int] = set()  # queues
        self._dead: deque[OpenMessage] = deque()
        self._recent: OrderedDict[tuple[int, int], int] = OrderedDict()  # tokens of what was settled
        self.on_ready: Callable[[OpenMessage], None] | None = None  # told of each that is to be delivered again
        self._settled: list[OpenMessage] = []  # since changes were taken last
        self._storing: dict[int, WorkChanges] = {}  # by identity: taken, and not stored yet
        self._freed: list[
            OpenMessage
        ] = []  # settled since changes were taken last, which their windows are to be told of
        self._stalled: OrderedDict[int, None] = OrderedDict()  # queues that may not look further ahead
        self._resumed: list[int] = []

    # What is known

    @property
    def open_count(self) -> int:
        return sum(self.states.values())

    def weight_of(self, queue: int) -> int:
        """How many messages it gets in its turn."""
        return self._weights.get(queue, 1)

    def room_of(self, tenant: int) -> int:
        """How many more messages of it may be delivered now."""
        room = MAX_BLOCKED if self._cap is None else self._cap - self._flying[tenant]
        return room if self._pace is None or room <= 0 else min(room, self._pace.room(tenant, self._now))

    def park(self, queue: int) -> None:
        """There is no room for its messages: it is resumed when there is."""
        self._parked.add(queue)

    @property
    def is_dirty(self) -> bool:
        return bool(self._dirty)

    def next_of(self, queue: int) -> int:
        """The first offset of a queue that was never delivered."""
        window = self._windows.get(queue)
        return self._start_of(queue) if window is None else window.next

    @property
    def looks_ahead(self) -> bool:
        """Whether new messages go by :meth:`look_at`, and are delivered when their turn comes."""
        return self._looks and not self._by_key

    def windows(self) -> list[tuple[int, int]]:
        """Queues that something is known of, and their ``next_of``; so much further as is known beyond that."""
        return [(queue, window.next + window.ahead_count) for queue, window in self._windows.items()]

    @property
    def is_by_key(self) -> bool:
        """Whether new messages go by :meth:`line_up`, not by :meth:`deliver_fresh`."""
        return self._by_key

    def is_stalled(self, queue: int) -> bool:
        """Whether so many messages of it wait for their keys that nobody looks further ahead."""
        return queue in self._stalled

    def take_resumed(self) -> list[int]:
        """Queues that may look ahead again."""
        resumed, self._resumed = self._resumed, []
        return resumed

    def _has_room(self, window: Window) -> bool:
        """Whether one more message of the queue may wait. Else it is stalled."""
        turns = self._turns
        counted = LANE_COST * turns.lane_count + PARKED_COST * turns.parked_count
        if self.blocked + self.lined + counted + window.blocked < MAX_BLOCKED:
            return True
        self._stalled[window.queue] = None
        return False

    def _resume(self, queue: int) -> None:
        """Somebody waits no longer: the queue may look ahead again, or the one that is stalled for longest."""
        if self._stalled:
            resumed = queue if queue in self._stalled else next(iter(self._stalled))
            del self._stalled[resumed]
            self._resumed.append(resumed)

    # States

    def _set(self, task: OpenMessage, state: DeliveryState, *, listed: bool = True) -> None:
        before = task.state
        self.states[before] -= 1
        task.state = state
        self.states[state] += 1
        if state is DeliveryState.READY:
            self._turns.add_again(task)
            if self.on_ready is not None:
                self.on_ready(task)
        elif state is DeliveryState.DEAD and listed:
            self._dead.append(task)
        if self._is_metered and (before in _FLYING) is not (state in _FLYING):
            if before is DeliveryState.TAKEN:
                self._refund(task)
            self._fly(task.tenant, 1 if state in _FLYING else -1)

    def _refund(self, task: OpenMessage) -> None:
        """It was taken, and is not delivered: that counts for no rate."""
        if self._pace is not None:
            self._pace.spend(task.tenant, self._now, -1)

    def _fly(self, tenant: int, change: int) -> None:
        """So many more of its messages are in flight."""
        self._flying[tenant] += change
        if change > 0:
            if self._pace is not None:
                self._pace.spend(tenant, self._now)
            return
        if not self._flying[tenant]:
            del self._flying[tenant]
        self._unpark(tenant)

    def _unpark(self, tenant: int) -> None:
        self._turns.unpark(tenant)
        if tenant in self._parked:
            self._parked.discard(tenant)
            self._resumed.append(tenant)

    def _new_task(
        self, window: Window, offset: int, *, tenant: int | None = None, level: int = 0, key: int = 0
    ) -> OpenMessage:
        tenant = window.queue if tenant is None else tenant
        task = window.open[offset] = OpenMessage(window.queue, offset, tenant, level=level, key=key)
        self.states[task.state] += 1
        if self._is_metered:
            self._fly(tenant, 1)
        return task

    def _open_in_its_turn(self, turn: Turn) -> OpenMessage | None:
        """``TAKEN``; None where it was open before its turn came, or this is not its turn, as it is known by now."""
        if isinstance(turn.item, OpenMessage):
            task = turn.item
            is_its_own = (turn.level, turn.tenant) == (task.level, task.tenant)
            if not is_its_own or task.offset in self._windows[task.queue].left:
                return None
            self._set(task, DeliveryState.TAKEN)
            return task
        queue, offset = turn.item
        window = self._windows[queue]
        if offset in window.left:
            return None
        window.blocked -= 1
        self.lined -= 1
        task = self._new_task(window, offset, tenant=turn.tenant, level=turn.level)
        task.stored_ms = turn.stored_ms
        self._resume(queue)
        return task

    def _pass_by(self, turn: Turn) -> None:
        """Where the turn of one has come that was open before, it is known now whose it is."""
        if isinstance(turn.item, OpenMessage):
            return
        queue, offset = turn.item
        window = self._windows[queue]
        window.left.discard(offset)
        if (task := window.open.get(offset)) is not None:
            self._place(task, turn.tenant, turn.level, turn.stored_ms)
        self._forget_idle(window)

    def _is_lined_up(self, queue: int, offset: int) -> bool:
        """Whether it was looked at, and waits for its turn or its key."""
        window = self._windows.get(queue)
        return window is not None and window.is_lined_up(offset)

    def _leave_line(self, queue: int, offset: int) -> OpenMessage:
        """It is open before its turn has come: then it is passed by."""
        window = self._windows[queue]
        window.leave_line(offset)
        self.lined -= 1
        task = self._new_task(window, offset)
        self._set(task, DeliveryState.READY)
        self._resume(queue)
        return task

    def _place(self, task: OpenMessage, tenant: int, level: int, stored_ms: int) -> None:
        """Whose it is, which was not known before."""
        flies = self._is_metered and task.state in _FLYING and tenant != task.tenant
        if flies:
            self._fly(task.tenant, -1)
        task.tenant, task.level, task.stored_ms = tenant, level, stored_ms
        if flies:
            self._fly(tenant, 1)
        if task.state is DeliveryState.READY:
            self._turns.add_again(task)

    def gone(self, tasks: Iterable[OpenMessage], now: int) -> None:
        """Their messages were deleted, expired or fell to retention: nothing is left to be done.

        The next of their keys come at once: whoever leads next cannot hand these out before them.
        """
        for task in tasks:
            if task.state in (DeliveryState.TAKEN, DeliveryState.WAITING):
                key, task.key = task.key, 0
                self._settle(task)
                if key:
                    self._free(task.queue, key, now)

    def _settle(self, task: OpenMessage, token: int = 0) -> None:
        """``token``: of the delivery that did it, where one did."""
        window = self._windows[task.queue]
        window.unmark(task.offset)
        del window.open[task.offset]
        if self._looks or task.offset in window.settling:
            self._freed.append(task)
        self.states[task.state] -= 1
        if self._is_metered and task.state in _FLYING:
            if task.state is DeliveryState.TAKEN:
                self._refund(task)
            self._fly(task.tenant, -1)
        task.state = DeliveryState.SETTLED
        self._recent[task.queue, task.offset] = token
        if token:
            self._settled.append(task)
        if len(self._recent) > REMEMBERED:
            self._recent.popitem(last=False)
        self._note(window)

    def _window(self, queue: int) -> Window:
        window = self._windows.get(queue)
        if window is None:
            window = self._windows[queue] = Window(queue, self._start_of(queue), looks=self._looks)
        return window

    def _note(self, window: Window) -> None:
        if window.dirty or window.stored or window.cursor > window.logged:
            self._dirty.add(window.queue)

    # Storing

    def take_changes(self) -> WorkChanges:
        """What is to be stored now, or a part of it, as much as one change of documents may be; then :meth:`stored`.

        To be called until nothing is dirty. If it cannot be stored, the ledger is of no use any more.
        """
        changes, room = WorkChanges(), _CHANGE_BYTES
        while self._dirty and room > 0:
            window = self._windows[next(iter(self._dirty))]
            changes.windows.append(window.queue)
            window.unlogged += 1
            number = window.cursor // chunk_documents.CHUNK_OFFSETS
            for above in [each for each in window.dirty if each > number]:
                room -= self._store_chunk(window, above, window.cursor, changes)
                if room <= 0:
                    break
            else:
                room -= self._store_cursor(window, number, changes)
        if not self._dirty:
            changes.settled.extend(self._settled)
            self._settled.clear()
            changes.freed.extend(self._freed)
            self._freed.clear()
        self._storing[id(changes)] = changes
        return changes

    def _store_cursor(self, window: Window, number: int, changes: WorkChanges) -> int:
        """The cursor and its chunk, together; what is known of chunks above is stored, and below there is nothing.
        How many bytes there are."""
        self._dirty.discard(window.queue)
        size_bytes, cursor = _ROW_BYTES, window.cursor
        if cursor > window.logged:
            window.logged = cursor
            changes.queues.append(window.queue)
            changes.cursors.append(cursor)
            if number in window.stored:
                window.dirty.add(number)
        if number in window.dirty:
            size_bytes += self._store_chunk(window, number, cursor, changes)
        for below in [each for each in window.stored if each < number]:
            changes.documents[window.queue, below] = None
            window.stored.discard(below)
            size_bytes += _ROW_BYTES
        window.dirty.clear()
        return size_bytes

    def _store_chunk(self, window: Window, number: int, cursor: int, changes: WorkChanges) -> int:
        """How many bytes it has."""
        window.dirty.discard(number)
        chunk, body = window.chunk(number, cursor), None
        if chunk.settled or chunk.failed:
            body = chunk.encode(number)
            window.stored.add(number)
        elif number not in window.stored:
            return 0
        else:
            window.stored.discard(number)
        changes.documents[window.queue, number] = body
        return _ROW_BYTES + len(body or b"")

    def stored(self, changes: WorkChanges, now: int) -> None:
        """They are committed. What waits for keys comes; queues with nothing left to know are forgotten."""
        self._storing.pop(id(changes), None)
        for task in changes.freed:
            window = self._windows.get(task.queue)
            if window is None:
                continue
            if window.settled(task):
                self._note(window)
            if task.key:
                self._free(task.queue, task.key, now)
        for queue in changes.windows:
            if queue not in self._windows:
                continue
            window = self._windows[queue]
            window.unlogged -= 1
            self._forget_idle(window)

    def _forget_idle(self, window: Window) -> None:
        if window.is_idle and window.queue not in self._dirty:
            del self._windows[window.queue]

    @abstractmethod
    def _free(self, queue: int, key: int, now: int) -> None:
        """What was before the next message of a key is settled for good."""
