"""``lsmq consume``: print messages."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import click
from click.core import ParameterSource

from lsmq import Client, Consumer, Message
from lsmq._queue_ranges import to_ranges
from lsmq._start_offsets import Start
from lsmq.cli._formats import TEMPLATE_HELP, Formatter, formatter
from lsmq.cli._named_ends import NamedEnds
from lsmq.cli._queues import queues_of
from lsmq.cli.options import OFFSET, TIME, TOPIC, url_option, with_client
from lsmq.cli.render import ProgressBar, progress
from lsmq.consumer import DEFAULT_WAIT_MS
from lsmq.groups import Ranges

_POLL_MESSAGES = 1000
_POLL_MS = 500
_COMMIT_EVERY_S = 1.0


@click.command(
    epilog=f"A template has {TEMPLATE_HELP}.",
)
@click.argument("topic", type=TOPIC)
@click.option("--offset", type=OFFSET, help="Where to start: a number, earliest or latest.  [default: earliest]")
@click.option("--from-time", type=TIME, metavar="TIME", help="Start at a time: ISO 8601, or -15m.")
@click.option(
    "--queue",
    "queues",
    multiple=True,
    metavar="QUEUES",
    help="Only these, such as 0-99,200; in a named topic the queue of that name. May be given more than once.",
)
@click.option("--pattern", help="Only queues whose names match, such as 'agents.*.inbox' or 'agents.**'.")
@click.option("--group", help="Join this group: print its share, from where it left off, and commit what was printed.")
@click.option("--static-id", help="With --group: come back as the member of that name, whose queues are kept for it.")
@click.option("--follow", "-f", is_flag=True, help="Go on with what comes, until Ctrl-C.")
@click.option("--max", "max_messages", type=click.IntRange(min=1), help="Stop after this many messages.")
@click.option("--key", help="Only messages with this key.")
@click.option("--tag", "tags", multiple=True, help="Only messages with this tag; again for others.")
@click.option("--type", "types", multiple=True, help="Only messages of this type; again for others.")
@click.option("--filter", "condition", metavar="CONDITION", help="Only messages that meet it; see above.")
@click.option("--format", "format_text", default="text", show_default=True, help="text, json, raw or a template.")
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@url_option
def consume(
    topic: str,
    offset: int | str | None,
    from_time: datetime | None,
    queues: Sequence[str],
    pattern: str | None,
    group: str | None,
    static_id: str | None,
    follow: bool,
    max_messages: int | None,
    key: str | None,
    tags: tuple[str, ...],
    types: tuple[str, ...],
    condition: str | None,
    format_text: str,
    as_json: bool,
    url: str,
    deadline_ms: int,
) -> None:
    """Print the messages of TOPIC.

    Without --follow it ends with the last message that is there when it starts. Messages of a queue come in
    order. An offset that the queue does not have is an error that says which ones it has.

    With --group the queues are shared with whoever else is a member, and handed on when one goes. With --queue as
    well it reads and commits just these, as no member, which works while the group has none. With --pattern it reads
    queues whose names match, where * stands for one part of a name between dots, and ** at the end for any rest; with
    --group as well members share these, and all give the same.

    --key, --tag, --type and --filter pass over other messages; with --group those count as handled, too. The condition
    of --filter is that of a WHERE of SQL over key, tag, type, priority, stored_ms and properties. What --json prints
    can be sent with 'lsmq produce --json-lines'.

    \b
      lsmq consume orders --follow
      lsmq consume agents --pattern 'agents.*.inbox' --follow
      lsmq consume orders --queue 0-9,42 --from-time -15m --format json
      lsmq consume orders --queue 3 --offset 1200 --max 1 --format raw > body
      lsmq consume orders --group kitchen --format '%q %o %k %b\\n'
      lsmq consume orders --group kitchen --static-id $HOSTNAME --follow
      lsmq consume orders --type refund --filter "region IN ('eu', 'uk') AND amount > 100"
      lsmq consume orders --json --key 'table 7' | lsmq produce copies --json-lines
    """
    if offset is not None and from_time is not None:
        raise click.UsageError("--offset and --from-time both say where to start: give one")
    if queues and pattern is not None:
        raise click.UsageError("--queue and --pattern both say what to read: give one")
    is_member = group is not None and not queues
    if is_member and (offset is not None or from_time is not None):
        raise click.UsageError("a group begins where it left off: see 'lsmq group reset', or give --queue as well")
    if static_id is not None and not is_member:
        raise click.UsageError("--static-id is of a member: give --group, and no --queue")
    try:
        form = formatter("json" if as_json else format_text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--format") from error

    limited = click.get_current_context().get_parameter_source("deadline_ms") is ParameterSource.COMMANDLINE

    async def work(client: Client) -> None:
        chosen = await queues_of(client, topic, queues)
        start: Start | None = from_time
        if isinstance(offset, int):
            start = await _start_at(client, topic, chosen, offset)
        elif offset is not None:
            start = "earliest" if offset == "earliest" else "latest"
        picks = bool(tags or types or condition)
        job = _Job(client, topic, form, key=key, picks=picks, committing=group is not None, limit=max_messages)
        job.selects(chosen, pattern, group)
        consumer = Consumer(
            client,
            topic,
            queues=chosen,
            pattern=pattern,
            group=group,
            start=start,
            on_out_of_range="error" if isinstance(offset, int) else "earliest",
            static_id=static_id,
            on_assigned=job.gain if is_member else None,
            on_revoked=job.give_up if is_member else None,
            deadline_ms=None if follow and not limited else deadline_ms,
            tag=tags or None,
            type=types or None,
            filter=condition,
            wait_ms=DEFAULT_WAIT_MS if follow else _POLL_MS,
        )
        async with consumer:
            await (job.follow(consumer) if follow else job.to_the_end(consumer))

    try:
        with_client(url, deadline_ms, work)
    except KeyboardInterrupt:
        if not follow:
            raise


async def _start_at(
    client: Client, topic: str, chosen: Sequence[int] | Sequence[str] | None, offset: int
) -> dict[int, int] | dict[str, int]:
    """The same offset of each queue."""
    if chosen is not None:
        return dict.fromkeys(chosen, offset)  # type: ignore[return-value]  # They are all numbers, or all names.
    found = await client.topic(topic)
    if found.named:
        raise click.UsageError("an offset is of one queue: say which of them with --queue NAME")
    return dict.fromkeys(range(found.queues), offset)


class _Job:
    """Prints what a consumer is handed."""

    def __init__(
        self,
        client: Client,
        topic: str,
        form: Formatter,
        *,
        key: str | None,
        picks: bool,
        committing: bool,
        limit: int | None,
    ) -> None:
        self._client = client
        self._topic = topic
        self._consumer: Consumer
        self._form = form
        self._key = None if key is None else key.encode(errors="surrogateescape")
        self._commits_passed = picks and limit is None  # what the broker has passed over counts as printed
        self._follows = False
        self._committing = committing
        self._left = limit
        self._printed: dict[int, int] = {}
        self._committed_s = time.monotonic()
        self._turn = asyncio.Lock()
        self._gained: set[int] = set()
        self._named = NamedEnds(client, topic)

    def selects(self, queues: Sequence[int] | Sequence[str] | None, pattern: str | None, group: str | None) -> None:
        """What the consumer reads."""
        given = () if queues is None or isinstance(queues, range) else queues
        self._named.selects([queue for queue in given if isinstance(queue, str)], pattern, group)

    async def gain(self, queues: Mapping[str, Ranges]) -> None:
        """Called when the group gives queues to this member."""
        self._gained.update(queue for part in queues[self._topic] for queue in part)

    async def give_up(self, queues: Mapping[str, Ranges]) -> None:
        """Called before queues go to another member."""
        await self._commit(now=True)
        self._named.lose(queues[self._topic])

    async def follow(self, consumer: Consumer) -> None:
        """Print until the limit, or until cancelled: what was printed is committed then as well."""
        self._consumer = consumer
        self._follows = True
        try:
            while self._left is None or self._left > 0:
                await self._print_some(None)
        finally:
            await self._commit(now=True)

    async def to_the_end(self, consumer: Consumer) -> None:
        """Print what is there now; and of queues that the group gives to this member meanwhile."""
        self._consumer = consumer
        if (await self._client.topic(self._topic)).named:
            await self._to_the_ends(consumer)
            return
        ends: dict[int, int] = {}
        left = await self._find_ends(ends, consumer.positions)
        self._gained.clear()
        total = left if self._left is None else min(left, self._left)
        with progress("reading", total, beside=sys.stdout.isatty()) as bar:
            while (ends or consumer.waiting_for) and (self._left is None or self._left > 0):
                await self._print_some(ends, bar)
                gained, self._gained = self._gained, set()
                await self._find_ends(ends, gained)
        await self._commit(now=True)

    async def _to_the_ends(self, consumer: Consumer) -> None:
        """The same where queues have names."""
        ends, member = self._named, consumer.member_id is not None
        await ends.find(consumer.assignment.get(self._topic, ()) if member else None)
        self._gained.clear()
        while (not ends.are_reached or consumer.waiting_for) and (self._left is None or self._left > 0):
            if not await self._print_some(None):
                ends.pass_over(consumer.positions)
            gained, self._gained = self._gained, set()
            if gained or ends.has_lost:
                await ends.find(to_ranges(gained))
        await self._commit(now=True)

    async def _find_ends(self, ends: dict[int, int], queues: Iterable[int]) -> int:
        """Add the ends of queues that have messages to read; how many messages."""
        left = 0
        owned = [queue for queue in queues if queue in self._consumer.positions]
        for queue, earliest, latest in (await self._client.offsets(self._topic, owned)).rows() if owned else ():
            position = max(self._consumer.positions.get(queue, latest), earliest)
            if position < latest:
                ends[queue] = latest
                left += latest - position
        return left

    async def _print_some(self, ends: dict[int, int] | None, bar: ProgressBar | None = None) -> bool:
        """Whether anything came."""
        picky = self._key is not None
        count = _POLL_MESSAGES if self._left is None or picky else min(self._left, _POLL_MESSAGES)
        messages = await self._consumer.poll(count, _POLL_MS)
        some_came = bool(messages)
        passed: dict[int, int] = {}
        if ends is not None:
            messages, passed = self._before(ends, messages)
        messages = self._named.before(messages)
        wanted = [message for message in messages if self._wants(message)] if picky else messages
        if self._left is not None:
            if len(wanted) > self._left:
                messages = messages[: messages.index(wanted[self._left])]
                del wanted[self._left :]
            self._left -= len(wanted)
        if wanted:
            sys.stdout.buffer.write(b"".join([self._form(message) for message in wanted]))
            sys.stdout.buffer.flush()
        self._printed.update((message.queue, message.offset + 1) for message in messages)
        if self._commits_passed:
            self._printed.update(passed)
        if bar is not None:
            bar.advance(len(messages))
        await self._commit()
        return some_came

    def _wants(self, message: Message) -> bool:
        key = message.key.encode() if isinstance(message.key, str) else message.key
        return self._key == key

    def _before(self, ends: dict[int, int], messages: list[Message]) -> tuple[list[Message], dict[int, int]]:
        """The messages that lie before their queue's end. Removes the queues that have reached it, and returns them."""
        reached: dict[int, int] = {}
        wanted = [message for message in messages if message.offset < ends.get(message.queue, 0)]
        positions = self._consumer.positions
        for queue in {message.queue for message in messages} if messages else list(ends):
            if queue in ends and positions.get(queue, ends[queue]) >= ends[queue]:
                end = ends.pop(queue)
                if queue in positions:
                    reached[queue] = end
        return wanted, reached

    async def _commit(self, *, now: bool = False) -> None:
        """Commit what was printed, once in a while or ``now``."""
        if self._committing and (now or time.monotonic() - self._committed_s >= _COMMIT_EVERY_S):
            async with self._turn:  # Who gives up queues waits for what is under way.
                printed = dict(self._printed)
                if self._follows and self._commits_passed:
                    await self._consumer.commit()
                elif printed:
                    await self._consumer.commit(printed)
                # What is cut off here is committed in the end.
                self._printed = dict(self._printed.items() - printed.items())
                self._committed_s = time.monotonic()
