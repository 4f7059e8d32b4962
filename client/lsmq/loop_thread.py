"""An event loop in a thread of its own, and the crossing into it."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from lsmq import runtime
from lsmq.errors import ClientClosed, LsmqError, TimedOut

T = TypeVar("T")

#: The interpreter does not wake a thread that is about to wait as a signal comes.
_LOOK_S = 0.5


class Crossing(concurrent.futures.Future[T]):
    """What comes of work in the event loop of another thread.

    Who waits for it holds no lock meanwhile that the loop's thread takes: the handler of a signal, which runs in the
    thread that waits, may itself wait for the loop.
    """

    def __init__(self, thread: runtime.Thread, work: Coroutine[Any, Any, T]) -> None:
        super().__init__()
        self._thread = thread
        self.work = work
        self._over = runtime.Lock()
        self._over.acquire()
        self._to_release = [self._over]  # once
        self.begun = False

    def result(self, timeout: float | None = None) -> T:
        """As of any future. A signal that came just before the wait began is handled within moments.

        Where the loop is over, and has not even begun the work, it is cancelled.
        """
        end = float("inf") if timeout is None else runtime.monotonic() + timeout
        while not self._over.acquire(timeout=max(0.0, min(_LOOK_S, end - runtime.monotonic()))):
            if runtime.monotonic() >= end:
                raise concurrent.futures.TimeoutError
            if not self._thread.is_alive():
                self.work.close()
                self.cancel()
        self._over.release()
        return super().result(0)

    def cancel(self) -> bool:
        """As of any future."""
        is_cancelled = super().cancel()
        if is_cancelled:
            self._wake()
        return is_cancelled

    def _wake(self) -> None:
        """Who waits goes on: only once nobody else will look at the future, which takes its lock."""
        with suppress(IndexError):
            self._to_release.pop().release()

    def begin(self) -> None:
        """In the loop, once. Who cancels this cancels the work."""
        if self.begun:
            return
        self.begun = True
        if self.cancelled():
            self.work.close()
            return
        loop = asyncio.get_running_loop()
        task = loop.create_task(self.work)

        def ended(task: asyncio.Task[T]) -> None:
            if task.cancelled():
                super(Crossing, self).cancel()
            if self.set_running_or_notify_cancel():
                if (error := task.exception()) is not None:
                    self.set_exception(error)
                else:
                    self.set_result(task.result())
            self._wake()

        def cancelled(_: object) -> None:
            if self.cancelled() and not loop.is_closed():
                loop.call_soon_threadsafe(task.cancel)

        task.add_done_callback(ended)
        self.add_done_callback(cancelled)


class LoopThread:
    """An event loop in a daemon thread, for as long as a client lives."""

    def __init__(self, name: str = "lsmq") -> None:
        self._pid = os.getpid()
        self._lock = runtime.RLock()  # guards _stopped: what the loop is given before it stops comes to an end
        self._stopped = False
        self._loop = asyncio.new_event_loop()
        self._thread = runtime.Thread(target=self._run, name=name, daemon=True)
        try:
            self._thread.start()
        except BaseException:  # An interrupt, as this waits for the thread to have begun: nobody else knows it.
            self.begin_stop()
            raise

    def _run(self) -> None:
        """Run the loop until it is stopped, and then what is left in it to its end."""
        try:
            self._loop.run_forever()
            self._loop.run_until_complete(self._finish())
        finally:
            self._loop.close()

    async def _finish(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._loop.shutdown_default_executor()

    @property
    def runs_here(self) -> bool:
        """Whether it is this process's, and nobody has stopped it."""
        return not self._stopped and self._pid == os.getpid()

    def call(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run ``work`` in the loop and wait for it. An interrupt, or whatever else the handler of a signal raises, or a
        timeout cancels it."""
        future = self.submit(work)
        try:
            return self._result(future, timeout_s)
        except BaseException:
            future.cancel()  # Unless it is its own.
            raise

    def call_through(self, work: Coroutine[Any, Any, T]) -> T:
        """The same of what is to come to its end: an interrupt ends the waiting for it, and nothing else."""
        crossing = self._crossing(work)
        try:
            self._give(crossing)
            return self._result(crossing, None)
        except LsmqError:
            raise
        except BaseException:
            if not crossing.begun:  # Perhaps the loop was not even told.
                self._give(crossing)
            raise

    def _result(self, future: concurrent.futures.Future[T], timeout_s: float | None) -> T:
        try:
            return future.result(timeout_s)
        except concurrent.futures.CancelledError:
            if self._stopped:
                raise _closed() from None
            raise

    def call_to_its_end(self, work: Coroutine[Any, Any, T]) -> T:
        """The same; where an interrupt cancels it, its end is waited for. Another interrupt waits for nothing."""
        begun: list[asyncio.Task[Any]] = []

        async def whole() -> T:
            task = asyncio.current_task()
            assert task is not None
            begun.append(task)
            return await work

        async def its_end() -> None:
            if begun:
                await asyncio.wait(begun)

        try:
            future = self.submit(whole())
        except ClientClosed:
            work.close()
            raise
        try:
            return future.result()
        except BaseException:
            if future.cancel():
                self.call(its_end())
                work.close()  # Where it has not even begun.
            raise

    def take(self, take: Callable[[], Coroutine[Any, Any, T]], put_back: Callable[[T], object]) -> T:
        """The result of ``take``. What it has taken as an interrupt came, and nobody gets, is put back in the loop.

        What ``put_back`` returns is awaited where it can be.
        """
        taken: list[T] = []

        async def whole() -> None:
            taken.append(await take())

        async def back() -> None:
            for each in taken:
                pending = put_back(each)
                if inspect.isawaitable(pending):
                    await pending

        try:
            self.call(whole())
        except BaseException:
            with suppress(LsmqError):
                self.call_through(back())
            raise
        return taken[0]

    def do(self, work: Callable[[], T]) -> T:
        """Call ``work``, which waits for nothing, in the loop; its result."""

        async def call() -> T:
            return work()

        return self.call(call())

    def submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        """Run ``work`` in the loop."""
        crossing = self._crossing(work)
        try:
            self._give(crossing)
        except BaseException:  # An interrupt, as the loop was told: nobody would know of it.
            crossing.cancel()
            raise
        return crossing

    def _crossing(self, work: Coroutine[Any, Any, T]) -> Crossing[T]:
        try:
            self.check_process()
        except ClientClosed:
            work.close()
            raise
        return Crossing(self._thread, work)

    def _give(self, crossing: Crossing[Any]) -> None:
        with self._lock:
            if not self._stopped:
                with suppress(RuntimeError):  # The handler of a signal has just stopped it.
                    self._loop.call_soon_threadsafe(crossing.begin)
                    return
        crossing.work.close()
        raise _closed()

    def check_process(self) -> None:
        """Raises ``ClientClosed`` in a process that was forked since: the thread is its parent's."""
        if self._pid != os.getpid():
            raise ClientClosed("this client is another process's, from before a fork; make a new one")

    def stop(self) -> None:
        self.begin_stop()
        self._thread.join()

    def begin_stop(self) -> None:
        """Stop, and do not wait for it. Also from within."""
        with self._lock:
            if not self._stopped:
                self._stopped = True
                with suppress(RuntimeError):  # The handler of a signal has stopped it meanwhile.
                    self._loop.call_soon_threadsafe(self._loop.stop)


def _closed() -> ClientClosed:
    return ClientClosed("this client is closed; make a new one")


def wait_for(thread: LoopThread, work: Coroutine[Any, Any, None], timeout_ms: float | None) -> None:
    try:
        thread.call(work, None if timeout_ms is None else timeout_ms / 1000)
    except concurrent.futures.TimeoutError as error:
        raise TimedOut(f"not stored within {timeout_ms} ms; it may be still") from error
