"""Waiting for what a cluster does by itself, with a display of how far it is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from lsmq.admin import ClusterAdmin, ClusterInfo
from lsmq.errors import TimedOut

_POLL_S = 0.2
#: What keeps a cluster from going on is told when it has done so for as long: it looks a few times a second itself.
_HELD_S = 3.0
#: What does not come by itself is waited for so long.
_GIVEN_UP_S = 60.0
PAUSED = "moves are paused; `lsmq shard resume` has them go on"


async def watch(
    admin: ClusterAdmin,
    title: str,
    left: Callable[[ClusterInfo], int],
    timeout_ms: int,
    held_by: Callable[[ClusterInfo], str | None] = lambda info: None,
) -> ClusterInfo:
    """Poll the cluster until ``left`` (steps still to be made) is 0. Raises ``TimedOut``; nothing is undone then.

    ``held_by`` says what it waits for that does not come by itself, if anything; that is told once, in words, and
    waited for no longer than a minute.
    """
    deadline = time.monotonic() + timeout_ms / 1000
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        info = await admin.overview()
        total, told, held, held_since = max(1, left(info)), "", None, time.monotonic()
        task = progress.add_task(title, total=total)
        while (steps := left(info)) > 0:
            if time.monotonic() > deadline:
                raise TimedOut(
                    f"{title}: {steps} of {total} steps are left after {timeout_ms / 1000:g} s; "
                    + (held or "the cluster goes on by itself, look again with `lsmq shard list`")
                )
            if (now_by := held_by(info)) != held:
                held, held_since = now_by, time.monotonic()
            if held is not None and held != told and time.monotonic() - held_since >= _HELD_S:
                told = held
                progress.console.print(f"{title}: {held}", highlight=False, markup=False, soft_wrap=True)
            if held is not None and time.monotonic() - held_since >= _GIVEN_UP_S:
                raise TimedOut(f"{title}: {steps} of {total} steps are left, and nothing moved for a minute: {held}")
            total = max(total, steps)
            progress.update(task, completed=total - steps, total=total)
            await asyncio.sleep(_POLL_S)
            info = await admin.overview()
        progress.update(task, completed=total)
    return info


def wait_options(command: Callable[..., None]) -> Callable[..., None]:
    """``--wait/--no-wait`` and ``--wait-timeout``."""
    from lsmq.cli.options import DURATION

    command = click.option(
        "--wait-timeout",
        "wait_ms",
        type=DURATION,
        default="1h",
        show_default=True,
        help="How long to wait; the cluster goes on either way.",
    )(command)
    return click.option("--wait/--no-wait", default=True, show_default=True, help="Wait until it is done.")(command)
