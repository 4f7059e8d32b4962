"""The consumer: reads the messages of many queues, from any offset, alone or as a member of a group."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Literal, get_args

from lsmq._arguments import check_counts, check_offsets, check_queues, check_times, sorted_queues
from lsmq._commits import Commits, HeldQueues
from lsmq._fetch_loop import FetchLoop
from lsmq._fetcher import FetchOptions, OutOfRange
from lsmq._follower_reads import ReadFrom
from lsmq._handler_lanes import HandlerRun
from lsmq._member_state import ByTopic
from lsmq._membership import AssignmentCallback, MemberOptions, Membership, Mode
from lsmq._message_consumer import MessageConsumer
from lsmq._queue_ranges import subtract, to_ranges
from lsmq._reader import Reader
from lsmq._retries import NEVER_MS
from lsmq._start_offsets import EDGES, Start, check_start, chosen_queues, start_alone
from lsmq._work_in_progress import ReadInProgress, WorkInProgress
from lsmq.background_tasks import BackgroundTasks
from lsmq.client import Client
from lsmq.errors import ClientClosed, InvalidRequest, LsmqError
from lsmq.filters import MessageFilter
from lsmq.group_values import DEFAULT_MAX_HANDLER_MS, DEFAULT_SESSION_MS, Ranges
from lsmq.record_batch import Message

if TYPE_CHECKING:
    from lsmq.message_columns import MessageBatch

DEFAULT_MAX_MESSAGES = 5_000
DEFAULT_MAX_BYTES = 1 << 20
DEFAULT_PREFETCH_BYTES = 8 << 20
DEFAULT_WAIT_MS = 5_000

#: Of ``poll_batch``, unless told otherwise: as many as come.
MAX_POLL_BATCH = 1_000_000

_COMMIT_EVERY_S = 0.05
_log = logging.getLogger("lsmq")


class Consumer(MessageConsumer):
    """Reads queues of a topic, or of several. Messages of a queue come in offset order.

    **With a group and no** ``queues`` it is a *member*: the group's members share the queues, or those of a
    ``pattern``, which is the same for all, each queue being one member's at a time, and what a member leaves behind
    goes to the others. It begins where the group has committed. ``static_id`` lets it come back within ``session_ms``
    as the member it was. ``on_assigned`` and ``on_revoked`` are called with the queues by topic, before they are read
    and before they are given up: the place to commit what was handled of them. A member keeps its place for as long as
    its process lives, whatever its handlers do; one that has not come back within ``max_handler_ms`` makes it
    *stalled*, which ``lsmq group describe`` shows, and is waited for no longer than that when its queue is to be given
    up. With ``mode="broadcast"`` each member gets everything, and commits for itself if it has a ``static_id``.

    **Else** it reads all queues of the topic, or those of a ``pattern``, or ``queues``, and shares nothing. ``start``
    says where to begin: ``"earliest"``, ``"latest"`` (only what comes from now on), ``"committed"`` (where ``group``
    left off), a datetime or milliseconds since 1970 (the first message stored at or after it), or a mapping of queue to
    offset (the queues it leaves out begin at the earliest). The default is ``"committed"`` with a group and
    ``"earliest"`` without.

    **In a named topic** ``queues`` are names, which need not be there yet; or ``pattern`` says which: ``*`` stands for
    one part of a name between dots, ``**`` at the end for any rest (``agents.*.inbox``, ``agents.**``). Queues that
    come later and match join by themselves. Messages say their ``queue_name``; ``queue`` is the number that this has,
    which :meth:`commit`, :meth:`seek` and :attr:`positions` go by. Members share such a topic by *slots*, 4,096 of
    them, and a name's hash says in which it lies: ``on_assigned``, ``on_revoked`` and :attr:`assignment` have these.

    ``uncommitted`` says where to begin in queues that the group has committed nothing for. ``on_out_of_range`` says
    what to do where retention has removed the offset to read next, or a queue ends before it: go to the
    ``"earliest"`` or ``"latest"``, or raise ``OffsetOutOfRange`` (``"error"``).

    One request per node and topic is under way at any time, for all queues it leads; it brings at most
    ``max_messages`` and about ``max_bytes``, and waits up to ``wait_ms`` at the node for the first message.
    Fetching pauses while ``prefetch_bytes`` wait to be handed out: the memory used is at most that and one
    answer a node. A failure that may pass, such as nodes that are gone, is tried again for ever, and warned of (see
    :class:`lsmq.Client`); with ``deadline_ms`` for so long: then the application gets the error, and may go on.

    ``tag`` and ``type``, a word or several, and ``filter``, a condition such as ``"region = 'eu' AND priority > 3"``
    (see :mod:`lsmq.filter_expressions`), say which messages it gets; the broker passes over the others, which count as
    handed out. All members of a group should pick the same: a queue's messages that its member does not pick are not
    kept for another one.

    ``read_from`` says whom to read from in a cluster: ``"auto"`` the leaders, and a follower in sync where a leader
    says that there is much to catch up, or is gone; ``"leader"`` never a follower; ``"follower"`` one wherever it is.

    A topic that is deleted and made anew under its name is another topic: reading and committing raise
    ``TopicReplaced`` from then on.

    Delivery is at least once: :meth:`commit` stores how far the application was handed messages, and a
    consumer that starts from there is handed every later one. Use it as ``async with Consumer(client,
    topic) as consumer: async for message in consumer: ...``; it belongs to one event loop and one task.
    """

    def __init__(
        self,
        client: Client,
        topic: str | Sequence[str],
        *,
        queues: Iterable[int] | Iterable[str] | None = None,
        pattern: str | None = None,
        group: str | None = None,
        start: Start | None = None,
        uncommitted: Literal["earliest", "latest"] = "earliest",
        on_out_of_range: OutOfRange = "earliest",
        mode: Mode = "clustered",
        member_id: str | None = None,
        static_id: str | None = None,
        session_ms: int = DEFAULT_SESSION_MS,
        max_handler_ms: int | None = DEFAULT_MAX_HANDLER_MS,
        on_assigned: AssignmentCallback | None = None,
        on_revoked: AssignmentCallback | None = None,
        max_messages: int = DEFAULT_MAX_MESSAGES,
        max_bytes: int = DEFAULT_MAX_BYTES,
        wait_ms: int = DEFAULT_WAIT_MS,
        prefetch_bytes: int = DEFAULT_PREFETCH_BYTES,
        deadline_ms: int | None = None,
        request_timeout_ms: int | None = None,
        read_from: ReadFrom = "auto",
        tag: str | Iterable[str] | None = None,
        type: str | Iterable[str] | None = None,
        filter: str | None = None,
    ) -> None:
        names = (topic,) if isinstance(topic, str) else tuple(topic)
        self._chosen_queues = chosen_queues(queues, pattern)
        is_member = group is not None and not self._chosen_queues.are_named_singly
        self._start = check_start(start, group, names, self._chosen_queues)
        if on_out_of_range not in (*EDGES, "error") or uncommitted not in EDGES:
            raise InvalidRequest(
                "on_out_of_range must be 'earliest', 'latest' or 'error'; uncommitted 'earliest' or 'latest'"
            )
        if uncommitted == "latest" and group is None:
            raise InvalidRequest("uncommitted='latest' is for groups; without one start='latest' says where to begin")
        check_counts(max_messages=max_messages, max_bytes=max_bytes, prefetch_bytes=prefetch_bytes)
        check_times(least=0, wait_ms=wait_ms)
        check_times(deadline_ms=deadline_ms, or_inf=True)
        if read_from not in get_args(ReadFrom):
            raise InvalidRequest(f"read_from is {read_from!r}; it must be one of {', '.join(get_args(ReadFrom))}")
        self._client = client
        self._topics = names
        self._group = group
        self._uncommitted = uncommitted
        in_progress = WorkInProgress()
        self._read_in_progress = ReadInProgress(in_progress)
        options = FetchOptions(
            max_messages,
            max_bytes,
            wait_ms,
            prefetch_bytes,
            request_timeout_ms or client.request_timeout_ms,
            NEVER_MS if deadline_ms is None else deadline_ms,
            read_from,
            MessageFilter.of(tag, type, filter),
        )
        self._reader = Reader(client, options, on_out_of_range, track_changes=group is not None)
        members = MemberOptions(mode, member_id, static_id, session_ms, max_handler_ms, on_assigned, on_revoked)
        members.check(is_member=is_member)
        self._patience_s = None if max_handler_ms is None else max_handler_ms / 1000
        self._membership: Membership | None = None
        if group is not None and is_member:
            self._membership = Membership(
                client, group, names, pattern, members, uncommitted, self._reader, in_progress, self
            )
        look = (lambda: None) if self._membership is None else self._membership.drain
        super().__init__(self._reader, in_progress, look)
        self._runs = False  # whether it was run that handed out what was handed out last
        self._withdraw: Callable[[str, Ranges], None] | None = None
        self._kept_back: Callable[[], HeldQueues] = dict
        self._commits = Commits(self._reader, group, self._membership, self._held)
        self._leave: bool | None = None
        self._ending = BackgroundTasks(lambda error: _log.warning("a consumer ended with an error: %s", error))

    # Life

    async def start(self) -> None:
        """Find out where to begin, and begin to fetch. Entering ``async with`` or the first read does it.

        A member returns when it has been told its queues; there may be none yet. Raises ``UnknownTopic``,
        ``UnknownQueue``, and ``OffsetOutOfRange`` if that is the policy; for members also ``GroupModeMismatch``,
        ``GroupPatternMismatch``, ``TooManyMembers`` and ``TooManyGroups``.
        """
        self._check_open()
        if self._started:
            return
        if self._membership is not None:
            await self._unless_closed(self._membership.join())
        else:
            await self._unless_closed(
                self._reader.persist(
                    lambda: start_alone(
                        self._reader,
                        self._topics,
                        self._chosen_queues,
                        self._start,
                        group=self._group,
                        uncommitted=self._uncommitted,
                    )
                )
            )
        self._started = True

    def _name(self) -> str:
        of = "" if self._group is None else f" in group {self._group!r}"
        return f"a consumer of {', '.join(self._topics)}{of}"

    async def close(self, *, leave: bool | None = None) -> None:
        """Stop reading. What :meth:`run` has in its hands is finished and committed; else nothing is committed.

        A member gives up its queues and leaves its group; one with a ``static_id`` keeps its place until the session
        ends, unless told to ``leave``.
        """
        self._closed = True
        self._shut.set()
        self._leave = self._leave if leave is None else leave
        self._read_in_progress.put_down()
        self._reader.buffer.wake()
        if self._handling is not None:
            self._handling.stop()
            if self._handling.is_inside():
                await self._close_from_inside()
                return
        if self._membership is not None and self._membership.is_calling:
            if not self._finishing.locked():  # Once the callback that closes it has returned.
                self._ending.begin(self._finish(), "lsmq consumer ends")
            return
        await self._finish()

    async def _finish(self) -> None:
        membership = self._membership
        async with self._finishing:
            try:
                if membership is not None:
                    await membership.leave(for_good=membership.is_dynamic if self._leave is None else self._leave)
                if self._handling is not None:
                    try:
                        async with asyncio.timeout(self._patience_s):
                            await self._run_ended.wait()
                    except TimeoutError:
                        self._handling.abandon()
                        await self._run_ended.wait()
            finally:
                await self._reader.stop()

    # Reading

    def _read_on(self) -> None:
        self._runs = False
        self._read_in_progress.put_down()

    def _take(self, max_messages: int) -> list[Message]:
        messages = self._reader.take(max_messages)
        if messages:
            self._read_in_progress.take()
        return messages

    async def poll_batch(
        self, max_messages: int = MAX_POLL_BATCH, timeout_ms: float | None = None
    ) -> MessageBatch | None:
        """What is there of one answer of a node, as columns, up to ``max_messages``; waits for the first message.

        For those to whom a message each is too dear: see :class:`lsmq.message_columns.MessageBatch`. Order, positions,
        commits and filters are those of :meth:`poll`, and the two may take turns. A batch is of one topic. Returns None
        after ``timeout_ms`` (0: at once; ``None``: never). Raises ``InvalidRequest`` where numpy is not installed.
        """
        from lsmq.message_columns import check_columns  # With numpy, which nobody else needs.

        check_columns("poll_batch")
        return await self._first(self._take_batch, max_messages, timeout_ms)

    def _take_batch(self, max_messages: int) -> MessageBatch | None:
        batch = self._reader.take_batch(max_messages)
        if batch is not None:
            self._read_in_progress.take()
        return batch

    async def _run_through(self, handling: HandlerRun) -> None:
        self._runs = True
        failure: BaseException | None = None
        try:
            await handling.run(self._commit_while(handling) if self._commits.are_kept else None)
        except BaseException as error:
            failure = error
            raise
        finally:
            try:
                if self._commits.are_kept and (failure is None or isinstance(failure, Exception)):
                    await self._commits.put_changed()
            except LsmqError as error:
                if failure is None:
                    raise
                _log.warning("what was handled could not be committed: %s", error)

    async def _commit_while(self, handling: HandlerRun) -> None:
        while not handling.stopping:
            await handling.handled.wait()
            handling.handled.clear()
            try:
                await self._commits.put_changed()
            except LsmqError as error:
                if not self._reader.is_patient_with(error):
                    raise
                handling.handled.set()  # Again, with what was handled meanwhile.
            await asyncio.sleep(_COMMIT_EVERY_S)

    # Where it stands

    @property
    def member_id(self) -> str | None:
        """How the group calls this consumer; ``None`` when it is no member."""
        return None if self._membership is None else self._membership.member.id

    @property
    def assignment(self) -> Mapping[str, Ranges]:
        """The queues that are read now, as ranges by topic."""
        if self._membership is None:
            return {name: loop.positions.ranges for name, loop in self._reader.loops.items()}
        return self._membership.reads()

    @property
    def waiting_for(self) -> int:
        """How many of a member's queues others still have to give up."""
        return 0 if self._membership is None else self._membership.member.waiting_for

    @property
    def positions(self) -> Mapping[int, int]:
        """The next offset to hand out of each queue that is read: a live view. Of the consumer's only topic."""
        return self.positions_of(self._only_topic(None))

    def positions_of(self, topic: str) -> Mapping[int, int]:
        """:attr:`positions` of one of several topics."""
        if not self._started:
            raise ClientClosed("this consumer is not started; use 'async with', or await start() first")
        return self._reader.loops[topic].positions if topic in self._reader.loops else {}

    def _only_topic(self, topic: str | None) -> str:
        if topic is None and len(self._topics) > 1:
            raise InvalidRequest(f"this consumer reads {', '.join(self._topics)}; say which topic is meant")
        if topic is not None and topic not in self._topics:
            raise InvalidRequest(f"this consumer does not read {topic!r}; it reads {', '.join(self._topics)}")
        return topic or self._topics[0]

    def _loop(self, topic: str | None) -> FetchLoop:
        name = self._only_topic(topic)
        if name not in self._reader.loops:
            raise InvalidRequest(f"this consumer has no queue of {name!r} now")
        return self._reader.loops[name]

    def seek(self, queue: int, offset: int, *, topic: str | None = None) -> None:
        """Go on from ``offset`` in ``queue``; what is buffered of it is dropped."""
        check_queues((queue,))
        check_offsets((offset,))
        loop = self._loop(topic)
        if self._handling is not None:
            self._handling.forget_queue(loop.topic.name, queue)
        loop.seek(queue, offset)

    async def seek_to_time(
        self, moment: datetime | int, queues: Iterable[int] | None = None, *, topic: str | None = None
    ) -> None:
        """Go on from the first message stored at or after ``moment``, in ``queues`` or in all."""
        loop = self._loop(topic)
        if loop.topic.named and queues is None:
            raise InvalidRequest(f"topic {loop.topic.name!r} has queues with names: say which, by their numbers")
        chosen = loop.positions.queues if queues is None else queues
        found = await self._client._offsets(loop.topic, sorted(chosen), moment)
        for queue, offset in zip(found.queues, found.at_time, strict=True):
            self.seek(queue, offset, topic=topic)

    # Pausing

    def pause(self, queues: Iterable[int] | None = None, *, topic: str | None = None) -> None:
        """Hand out nothing more of ``queues``, or of all that are read now, until :meth:`resume`.

        They stay this consumer's, and a member keeps its place; what handlers have begun goes on. Queues that come from
        another member later, or again, are not paused: ``on_assigned`` is the place to pause them.
        """
        self._pause(self._chosen(queues, topic))

    def _pause(self, chosen: ByTopic) -> None:
        for name, ranges in chosen.items():
            self._reader.loops[name].pause(ranges, "application")
            if self._handling is not None:
                self._handling.put_back(name, ranges)

    def resume(self, queues: Iterable[int] | None = None, *, topic: str | None = None) -> None:
        """Go on with ``queues``, or with all that are paused. It is no error if they are not."""
        for name, ranges in self._chosen(queues, topic).items():
            self._reader.loops[name].resume(ranges, "application")

    @property
    def paused(self) -> ByTopic:
        """The queues that :meth:`pause` keeps from being read, as ranges by topic."""
        return {
            name: paused
            for name, loop in self._reader.loops.items()
            if (paused := loop.positions.paused.get("application"))
        }

    def _chosen(self, queues: Iterable[int] | None, topic: str | None) -> ByTopic:
        """These queues, by topic. Raises ``UnknownQueue`` for one that is not read here."""
        if not self._started and not self._reader.loops:
            raise ClientClosed("this consumer is not started; use 'async with', or await start() first")
        if queues is None:
            names = list(self._reader.loops) if topic is None else [self._only_topic(topic)]
            return {name: self._reader.loops[name].positions.ranges for name in names if name in self._reader.loops}
        loop = self._loop(topic)
        if loop.topic.named:
            raise InvalidRequest(f"of topic {loop.topic.name!r}, which has queues with names, all are paused or none")
        chosen = to_ranges(sorted_queues(queues))
        for part in subtract(chosen, loop.positions.ranges):
            loop.positions.owned_slot(part.start)
        return {loop.topic.name: chosen}

    # Committing

    async def commit(
        self, offsets: Mapping[int, int] | None = None, *, topic: str | None = None, reset: bool = False
    ) -> None:
        """Commit for the group what was handed out, or ``offsets`` (the next to read of each queue).

        While :meth:`run` runs, that is what was handled. Durable on return. Queues that have not moved since the last
        commit cost nothing; queues that are another member's by now are left out, and those by name that were deleted
        or forgotten, of which nothing is left to read. ``offsets`` that lie before what the group has committed change
        nothing unless ``reset``; what was handed out after a :meth:`seek` back is committed as it is.
        """
        if offsets is None:
            await self._commits.put_changed()
            if self._handling is None:
                self._read_in_progress.put_down()
        else:
            await self._commits.put(self._loop(topic).topic, offsets, reset=reset)

    def _held(self) -> HeldQueues:
        """What was handed out and is not to be committed: in a run, what is not handled yet."""
        if self._handling is None:
            return self._kept_back()
        return {name: self._handling.unfinished(name) for name in self._reader.loops}

    # What a membership asks of its application

    async def _let_go(self, topic: str, ranges: Ranges) -> None:
        """Begin nothing more of these queues; return when nothing of them is in hand. For memberships."""
        if self._withdraw is not None:
            self._withdraw(topic, ranges)
        if self._handling is not None:
            await self._handling.let_go(topic, ranges)
        else:
            await self._read_in_progress.empty()
        if self._runs and self._commits.are_kept and topic in self._reader.loops:
            await self._commits.put_changed_of(self._reader.loops[topic])

    def _forget(self, topic: str, ranges: Ranges) -> None:
        """These queues are gone: what is still done with them counts no more. For memberships."""
        if self._withdraw is not None:
            self._withdraw(topic, ranges)
        if self._handling is not None:
            self._handling.forget(topic, ranges)
