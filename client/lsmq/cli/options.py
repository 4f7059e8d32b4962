"""Options and argument types that several commands share."""

# mypy: disable-error-code="type-arg"
# click.ParamType takes a type argument in recent releases only.

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import wraps
from typing import Any, Literal, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from lsmq import Client, InvalidRequest, LsmqError
from lsmq.cli._process import cancel_when_told_to_end
from lsmq.cli._profiles import PROFILE_VARIABLE, Profiles
from lsmq.client import DEFAULT_CLUSTER, DEFAULT_URL
from lsmq.queue_names import NAMED
from lsmq.topics import parse_ranges
from lsmq.units import duration_ms, is_whole_number, size_bytes

T = TypeVar("T")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])

MAX_LISTED_QUEUES = 1_000_000

_TLS_OPTIONS = {
    "ca": "PEM file with the authorities by which nodes at https:// are believed.  [default: the system's]",
    "cert": "PEM file with the certificate to show to a node that asks for one.",
    "cert-key": "PEM file with its private key.",
}
#: After so long without an answer a command says what it waits for.
_PATIENCE_S = 1.5


class ProfileType(click.ParamType):
    """A profile's name; the shell completes it."""

    name = "profile"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(name) for name in Profiles().names() if name.startswith(incomplete)]


PROFILE = ProfileType()
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, for scripts.")


def _some_prefix(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and (not value or "*" in value):
        raise click.BadParameter(f"{value!r} begins no name: give what names begin with, or leave it out for all names")
    return value


prefix_option = click.option(
    "--prefix", callback=_some_prefix, help="With --role: only for names that begin with it.  [default: all names]"
)


class _ProfileOption(click.Option):
    """What the profile has stands in place of the environment until the command ends; options win over both.

    A URL or ZooKeeper among the options says where as well. With it ``--profile`` is refused, and ``LSMQ_PROFILE`` does
    not count: the token of one cluster is not shown to another.
    """

    def handle_parse_result(
        self, ctx: click.Context, opts: Mapping[str, Any], args: list[str]
    ) -> tuple[Any, list[str]]:
        where = [name for name in ("url", "zookeeper") if isinstance(opts.get(name), str)]
        given = opts.get("profile")
        if isinstance(given, str) and where and not ctx.resilient_parsing:
            raise click.UsageError(f"--profile and --{where[0]} both say where: give one", ctx)
        name = given if isinstance(given, str) else None if where else os.environ.get(PROFILE_VARIABLE)
        if name:
            _use(ctx, name)
        return super().handle_parse_result(ctx, opts, args)


def _use(ctx: click.Context, profile: str) -> None:
    before = dict(os.environ)
    try:
        after = Profiles().load(profile).environment(before)
    except click.UsageError:
        if ctx.resilient_parsing:
            return
        raise
    _replace_environment(after)
    ctx.call_on_close(lambda: _replace_environment(before))


def _replace_environment(wanted: Mapping[str, str]) -> None:
    for name in os.environ.keys() - wanted.keys():
        del os.environ[name]
    os.environ.update(wanted)


def url_option(command: Decorated) -> Decorated:
    """``--profile``, ``--url``, ``--zookeeper``, ``--cluster``, ``--token-file``, ``--timeout``, and the files of TLS:
    for commands that talk to a node.

    A command gets ``url``, which is empty when only a ZooKeeper is given, and ``deadline_ms``; :func:`with_client`
    knows the rest.
    """
    command = click.option(
        "--timeout",
        "deadline_ms",
        type=DurationType(),
        default="30s",
        show_default=True,
        help="How long to go on trying while a node cannot be reached or refuses for the moment.",
    )(command)
    for name, what in reversed(_TLS_OPTIONS.items()):
        command = click.option(
            f"--{name}",
            type=click.Path(exists=True, dir_okay=False),
            envvar=f"LSMQ_{name.upper().replace('-', '_')}",
            show_envvar=True,
            is_eager=True,
            expose_value=False,
            callback=_keep,
            help=what,
        )(command)
    command = click.option(
        "--cluster",
        envvar="LSMQ_CLUSTER",
        default=DEFAULT_CLUSTER,
        show_default=True,
        show_envvar=True,
        is_eager=True,
        expose_value=False,
        callback=_keep,
        help="Name of the cluster to find in ZooKeeper.",
    )(command)
    command = click.option(
        "--zookeeper",
        envvar="LSMQ_ZOOKEEPER",
        metavar="HOSTS",
        show_envvar=True,
        is_eager=True,
        expose_value=False,
        callback=_keep,
        help="Find the nodes in ZooKeeper: host:port, several separated by commas; by TLS with tls:// before them.",
    )(command)
    command = click.option(
        "--token-file",
        metavar="FILE",
        is_eager=True,
        expose_value=False,
        callback=_keep,
        help="Token for nodes that ask who you are, in a file of yours alone.  [env var: LSMQ_TOKEN_FILE]",
    )(command)
    # Before all others that the environment counts for.
    command = click.option(
        "--profile",
        cls=_ProfileOption,
        type=PROFILE,
        metavar="NAME",
        is_eager=True,
        expose_value=False,
        help=f"How to reach the cluster, as `lsmq profile add` kept it.  [env var: {PROFILE_VARIABLE}]",
    )(command)
    return click.option(
        "--url",
        envvar="LSMQ_URL",
        show_envvar=True,
        callback=_url_or_default,
        help=f"A node, or several separated by commas.  [default: {DEFAULT_URL}]",
    )(command)


def _keep(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    ctx.meta[f"lsmq.{param.name}"] = value
    ctx.meta[f"lsmq.{param.name}.given"] = ctx.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE


def _url_or_default(ctx: click.Context, param: click.Parameter, value: str | None) -> str:
    """What is given wins over the environment: a URL over a ZooKeeper from there, and the other way round."""
    given = ctx.get_parameter_source("url") is ParameterSource.COMMANDLINE
    if given and not ctx.meta.get("lsmq.zookeeper.given"):
        ctx.meta["lsmq.zookeeper"] = None
    if not given and ctx.meta.get("lsmq.zookeeper.given"):
        return ""
    return value or ("" if ctx.meta.get("lsmq.zookeeper") else DEFAULT_URL)


def asks_a_node(command: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Makes a command of a coroutine function: adds :func:`url_option`, and calls it with a client."""

    @wraps(command)
    def run(url: str, deadline_ms: int, **parameters: Any) -> None:
        with_client(url, deadline_ms, lambda client: command(client, **parameters))

    return url_option(run)


async def one_by_one(
    ids: Iterable[str], work: Callable[[str], Awaitable[None]], passed_over: tuple[type[LsmqError], ...]
) -> None:
    """Each in turn. One that fails so is named and the others go on; the exit status is 1 then."""
    failed = False
    for id in ids:
        try:
            await work(id)
        except passed_over as error:
            failed = True
            click.echo(f"error: {id}: {error.code}: {error.message}", err=True)
    if failed:
        click.get_current_context().exit(1)


def pairs_of(texts: Iterable[str], option: str) -> dict[str, str]:
    """What stands before and behind ``=`` in each that ``option`` was given. Raises ``UsageError``."""
    for text in texts:
        if "=" not in text:
            raise click.UsageError(f"{option} {text}: write NAME=VALUE")
    return dict(text.split("=", 1) for text in texts)


def asks_first(question: str | Callable[..., str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Adds ``--yes``. Without it the person is asked the ``question``, which names the command's parameters."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @wraps(command)
        def run(yes: bool, **parameters: Any) -> None:
            if not yes:
                text = question.format(**parameters) if isinstance(question, str) else question(**parameters)
                click.confirm(text, abort=True, err=True)
            command(**parameters)

        return click.option("--yes", is_flag=True, help="Do not ask.")(run)

    return decorate


def with_client(url: str, deadline_ms: int, work: Callable[[Client], Awaitable[T]]) -> T:
    """Run ``work`` with a client of its own in an event loop of its own."""
    context = click.get_current_context(silent=True)
    meta = {} if context is None else context.meta

    async def run() -> T:
        task = asyncio.current_task()
        assert task is not None
        cancel_when_told_to_end(task)
        try:
            client = Client(
                url,
                zookeeper=meta.get("lsmq.zookeeper") or "",
                cluster=meta.get("lsmq.cluster"),
                deadline_ms=deadline_ms,
                token_file=meta.get("lsmq.token_file"),
                on_outage=lambda outage: waiting.cancel(),  # It was warned of.
                ca=meta.get("lsmq.ca"),
                cert=meta.get("lsmq.cert"),
                cert_key=meta.get("lsmq.cert_key"),
            )
        except InvalidRequest as error:
            raise click.UsageError(error.message) from error
        waiting = asyncio.get_running_loop().call_later(_PATIENCE_S, _say_what_it_waits_for, client)
        try:
            async with client:
                return await work(client)
        finally:
            waiting.cancel()

    try:
        return asyncio.run(run())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def _say_what_it_waits_for(client: Client) -> None:
    if not client._transport.has_been_answered and not client._outages.is_failing:  # An outage is warned of.
        nodes = ", ".join(client.urls) or "ZooKeeper, which is to name the nodes"
        text = f"no answer yet from {nodes}; waiting up to {client.deadline_ms / 1000:g} s (--timeout)"
        click.echo(text, err=True)


class DurationType(click.ParamType):
    """A length of time such as ``250ms``, ``30s``, ``15m``, ``12h``, ``7d``, in milliseconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return duration_ms(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class SizeType(click.ParamType):
    """A number of bytes such as ``4096``, ``64KiB`` or ``64K`` (powers of 1024), ``10GB`` (powers of 1000)."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return size_bytes(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class ProcessesType(click.ParamType):
    """A number of processes, or ``auto``, which settings have as 0."""

    name = "processes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if value == "auto":
            return 0
        if isinstance(value, int) or is_whole_number(str(value)):
            return int(value)
        self.fail(f"{value!r} is no number of processes; write one, or auto for one a core", param, ctx)


class DurationOrForever(click.ParamType):
    """A duration, or ``forever``."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        return "forever" if value == "forever" else DURATION.convert(value, param, ctx)


class OrUnlimited(click.ParamType):
    """A value of another type, or ``unlimited``."""

    def __init__(self, limited: click.ParamType) -> None:
        self._limited = limited
        self.name = limited.name

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return "unlimited" if value == "unlimited" else self._limited.convert(value, param, ctx)


class TimeType(click.ParamType):
    """A moment: ISO 8601 (local time unless it names a zone), or ``-15m`` for that long ago."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        text = str(value).strip()
        try:
            if text.startswith("-"):
                ago_ms = DurationType().convert(text[1:], param, ctx)
                return datetime.now().astimezone() - timedelta(milliseconds=ago_ms)
            return datetime.fromisoformat(text).astimezone()
        except (ValueError, OverflowError):  # Of the first day and the last, elsewhere it is another year.
            self.fail(
                f"{value!r} is not a time; write 2026-03-01T12:00, 2026-03-01T12:00+01:00, or -15m for 15 minutes ago",
                param,
                ctx,
            )


class QueuesType(click.ParamType):
    """Queues as numbers and inclusive ranges: ``0-99,200``."""

    name = "queues"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Sequence[int]:
        if not isinstance(value, str):
            return value  # type: ignore[no-any-return]
        try:
            ranges = parse_ranges(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if len(ranges) == 1:
            return ranges[0]
        if sum(map(len, ranges)) > MAX_LISTED_QUEUES:
            self.fail(f"these are more than {MAX_LISTED_QUEUES} queues; give one range, or fewer", param, ctx)
        return [queue for part in ranges for queue in part]


class QueueCountType(click.ParamType):
    """A number of queues, or ``named``."""

    name = "queues"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | Literal["named"]:
        if value == NAMED:
            return "named"
        if not is_whole_number(str(value)) or int(value) < 1:
            self.fail(f"{value!r:.80} is not a number of queues, 1 or more, nor {NAMED!r}", param, ctx)
        return int(value)


class OffsetType(click.ParamType):
    """An offset, ``earliest`` or ``latest``."""

    name = "offset"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        if value in ("earliest", "latest") or isinstance(value, int):
            return value  # type: ignore[no-any-return]
        if not is_whole_number(str(value)):
            self.fail(f"{value!r:.80} is not an offset; write a number, earliest or latest", param, ctx)
        return int(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return [CompletionItem(word) for word in ("earliest", "latest") if word.startswith(incomplete)]


class TopicType(click.ParamType):
    """A topic's name; the shell completes it by asking the node."""

    name = "topic"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        url = ctx.params.get("url") or DEFAULT_URL

        async def names(client: Client) -> list[str]:
            return [topic.name for topic in await client.topics()]

        try:
            found = with_client(url, 500, names)
        except (LsmqError, click.UsageError):
            return []
        return [CompletionItem(name) for name in found if name.startswith(incomplete)]


TOPIC = TopicType()
OFFSET = OffsetType()
QUEUE_COUNT = QueueCountType()
QUEUES = QueuesType()
TIME = TimeType()
SIZE = SizeType()
DURATION = DurationType()
