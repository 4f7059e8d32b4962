"""The screen of ``lsmq top`` while it lives: drawn anew at each look and each key."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from lsmq.cli._top_screen import ORDERS, screen
from lsmq.cli._top_watch import ClusterWatch, looks


class LiveScreen:
    """One for each run of the command, in its event loop."""

    def __init__(self, watch: ClusterWatch, interval_s: float, order: str) -> None:
        self._watch = watch
        self._interval_s = interval_s
        self._order = order
        self._changed = asyncio.Event()
        self._ended = False

    async def run(self) -> None:
        """Until ``q``, or a signal that ends it. The terminal is as it was afterwards."""
        self._look = await self._watch.look()
        console = Console()
        loop = asyncio.get_running_loop()
        with Live(console=console, screen=True, auto_refresh=False) as live, _keys(self._pressed):
            loop.add_signal_handler(signal.SIGTERM, self._end)
            loop.add_signal_handler(signal.SIGWINCH, self._changed.set)
            looking = asyncio.create_task(self._look_on())
            looking.add_done_callback(lambda task: self._changed.set())
            try:
                while not self._ended:
                    live.update(self._drawn(console), refresh=True)
                    await self._changed.wait()
                    self._changed.clear()
                    if looking.done():
                        await looking  # It ends with a failure alone, which is raised here.
            finally:
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)
                loop.remove_signal_handler(signal.SIGTERM)
                loop.remove_signal_handler(signal.SIGWINCH)

    def _drawn(self, console: Console) -> Group:
        keys = Text("q quits  s sorts topics", "dim")
        width, height = console.size
        return Group(keys, screen(self._look, width=width, height=height - 1, order=self._order))

    async def _look_on(self) -> None:
        async for look in looks(self._watch, self._interval_s):
            self._look = look
            self._changed.set()

    def _pressed(self, key: str) -> None:
        if key in ("q", "Q", ""):  # Nothing: the terminal is gone.
            self._end()
        elif key in ("s", "S"):
            orders = list(ORDERS)
            self._order = orders[(orders.index(self._order) + 1) % len(orders)]
            self._changed.set()

    def _end(self) -> None:
        self._ended = True
        self._changed.set()


@contextmanager
def _keys(pressed: Callable[[str], None]) -> Iterator[None]:
    """Tell of keys as they are pressed, without an echo; of none where the input is no terminal."""
    if not sys.stdin.isatty():
        yield
        return
    terminal, loop = sys.stdin.fileno(), asyncio.get_running_loop()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)

    def read() -> None:
        try:
            pressed(os.read(terminal, 1).decode(errors="replace"))
        except OSError:  # The terminal is gone.
            pressed("")

    loop.add_reader(terminal, read)
    try:
        yield
    finally:
        loop.remove_reader(terminal)
        with suppress(termios.error):  # It may be gone.
            termios.tcsetattr(terminal, termios.TCSADRAIN, before)
