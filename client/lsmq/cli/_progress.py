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


async def watch(admin: ClusterAdmin, title: str, left: Callable[[ClusterInfo], int], timeout_ms: int) -> ClusterInfo:
    """Poll the cluster until ``left`` (steps still to be made) is 0. Raises ``TimedOut``; nothing is undone then."""
    deadline = time.monotonic() + timeout_ms / 1000
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        info = await admin.overview()
        total = max(1, left(info))
        task = progress.add_task(title, total=total)
        while (steps := left(info)) > 0:
            if time.monotonic() > deadline:
                raise TimedOut(
                    f"{title}: {steps} of {total} steps are left after {timeout_ms / 1000:g} s; the cluster goes on by "
                    "itself, look again with `lsmq shard list`"
                )
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
