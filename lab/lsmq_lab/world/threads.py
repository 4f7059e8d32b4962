"""What :mod:`lsmq.runtime` gives, on the schedule of a world: threads, locks, queues, clocks and randomness.

Each behaves as the standard library's object of that name as far as its documentation promises, and no more: whoever
waits for a lock may be overtaken, who is woken first is the seed's choice, and a thread may lose its turn at each of
these.
"""

from __future__ import annotations

import concurrent.futures
import concurrent.futures._base
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from queue import Empty
from typing import Any, Self

from .scheduler import Fiber, Scheduler


def runtime_of(scheduler: Scheduler) -> dict[str, object]:
    """The names of :mod:`lsmq.runtime` as they are in a world."""

    def wake_one(waiters: list[Fiber]) -> None:
        """Not one whose time is over: it takes itself off the list when it has its turn."""
        found = [waiter for waiter in waiters if waiter.parked]
        if found:
            chosen = found[scheduler.choose(len(found))]
            waiters.remove(chosen)
            scheduler.wake(chosen)

    class Lock:
        def __init__(self) -> None:
            self._owner: Fiber | None = None
            self._held = False
            self._waiters: list[Fiber] = []

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            scheduler.preempt()
            if not self._held:
                self._held = True
                return True
            if not blocking:
                return False
            return self._wait(timeout)

        def _wait(self, timeout: float) -> bool:
            end = None if timeout < 0 else scheduler.now + timeout
            while self._held:
                fiber = scheduler.current
                assert fiber is not None, "a lock is held that nobody can release"
                self._waiters.append(fiber)
                if not scheduler.park(None if end is None else end - scheduler.now):
                    if fiber in self._waiters:
                        self._waiters.remove(fiber)
                    if self._held:
                        return False
            self._held = True
            return True

        def release(self) -> None:
            if not self._held:
                raise RuntimeError("release unlocked lock")
            self._held = False
            wake_one(self._waiters)

        def locked(self) -> bool:
            return self._held

        def __enter__(self) -> bool:
            return self.acquire()

        def __exit__(self, *_: object) -> None:
            self.release()

    class RLock:
        def __init__(self) -> None:
            self._lock = Lock()
            self._owner: Fiber | None = None
            self._depth = 0

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            if self._depth and self._owner is scheduler.current:
                self._depth += 1
                return True
            if not self._lock.acquire(blocking, timeout):
                return False
            self._owner, self._depth = scheduler.current, 1
            return True

        def release(self) -> None:
            if not self._depth or self._owner is not scheduler.current:
                raise RuntimeError("cannot release un-acquired lock")
            self._depth -= 1
            if not self._depth:
                self._owner = None
                self._lock.release()

        def __enter__(self) -> bool:
            return self.acquire()

        def __exit__(self, *_: object) -> None:
            self.release()

        def _is_owned(self) -> bool:
            return bool(self._depth) and self._owner is scheduler.current

        def free(self) -> int:
            depth, self._depth, self._owner = self._depth, 0, None
            self._lock.release()
            return depth

        def take(self, depth: int) -> None:
            self._lock.acquire()
            self._depth, self._owner = depth, scheduler.current

    class Condition:
        def __init__(self, lock: Any = None) -> None:
            self._lock = RLock() if lock is None else lock
            self.acquire, self.release = self._lock.acquire, self._lock.release
            self._waiters: list[Fiber] = []

        def __enter__(self) -> bool:
            return bool(self._lock.__enter__())

        def __exit__(self, *_: object) -> None:
            self._lock.__exit__()

        def wait(self, timeout: float | None = None) -> bool:
            fiber = scheduler.current
            assert fiber is not None, "only a thread of the world can wait"
            self._waiters.append(fiber)
            nested = isinstance(self._lock, RLock)
            depth: int = self._lock.free() if nested else 0
            if not nested:
                self._lock.release()
            told = False
            try:
                told = scheduler.park(timeout)
            finally:
                if fiber in self._waiters:
                    self._waiters.remove(fiber)
                if nested:
                    self._lock.take(depth)
                else:
                    self._lock.acquire()
            return told

        def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
            end = None if timeout is None else scheduler.now + timeout
            while not (result := predicate()):
                left = None if end is None else end - scheduler.now
                if left is not None and left <= 0:
                    break
                self.wait(left)
            return result

        def notify(self, n: int = 1) -> None:
            for _ in range(min(n, len(self._waiters))):
                wake_one(self._waiters)

        def notify_all(self) -> None:
            self.notify(len(self._waiters))

    class Event:
        def __init__(self) -> None:
            self._set = False
            self._waiters: list[Fiber] = []

        def is_set(self) -> bool:
            return self._set

        def set(self) -> None:
            self._set = True
            for waiter in self._waiters:
                scheduler.wake(waiter)
            self._waiters.clear()

        def clear(self) -> None:
            self._set = False

        def wait(self, timeout: float | None = None) -> bool:
            scheduler.preempt()
            end = None if timeout is None else scheduler.now + timeout
            while not self._set:
                fiber = scheduler.current
                assert fiber is not None, "only a thread of the world can wait"
                self._waiters.append(fiber)
                if not scheduler.park(None if end is None else end - scheduler.now):
                    if fiber in self._waiters:
                        self._waiters.remove(fiber)
                    break
            return self._set

    class Semaphore:
        def __init__(self, value: int = 1) -> None:
            self._value = value
            self._changed = Condition(Lock())

        def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
            with self._changed:
                if blocking:
                    self._changed.wait_for(lambda: self._value, timeout)
                if not self._value:
                    return False
                self._value -= 1
                return True

        def release(self, n: int = 1) -> None:
            with self._changed:
                self._value += n
                self._changed.notify(n)

        def __enter__(self) -> bool:
            return self.acquire()

        def __exit__(self, *_: object) -> None:
            self.release()

    class SimpleQueue:
        def __init__(self) -> None:
            self._items: deque[Any] = deque()
            self._waiters: list[Fiber] = []

        def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
            self._items.append(item)
            wake_one(self._waiters)
            scheduler.preempt()

        put_nowait = put

        def get(self, block: bool = True, timeout: float | None = None) -> Any:
            scheduler.preempt()
            end = None if timeout is None else scheduler.now + timeout
            while not self._items:
                fiber = scheduler.current
                if not block:
                    raise Empty
                assert fiber is not None, "only a thread of the world can wait"
                self._waiters.append(fiber)
                if not scheduler.park(None if end is None else end - scheduler.now):
                    if fiber in self._waiters:
                        self._waiters.remove(fiber)
                    if not self._items:
                        raise Empty
            return self._items.popleft()

        def get_nowait(self) -> Any:
            return self.get(block=False)

        def empty(self) -> bool:
            return not self._items

        def qsize(self) -> int:
            return len(self._items)

    class Thread:
        def __init__(
            self,
            group: None = None,
            target: Callable[..., object] | None = None,
            name: str | None = None,
            args: Iterable[Any] = (),
            kwargs: Mapping[str, Any] | None = None,
            *,
            daemon: bool | None = None,
        ) -> None:
            self.name, self.daemon = name or "thread", bool(daemon)
            self._target, self._args, self._kwargs = target, tuple(args), dict(kwargs or {})
            self._fiber: Fiber | None = None

        def run(self) -> None:
            if self._target is not None:
                self._target(*self._args, **self._kwargs)

        def start(self) -> None:
            if self._fiber is not None:
                raise RuntimeError("threads can only be started once")
            self._fiber = scheduler.spawn(self.run, self.name)
            scheduler.preempt()

        def is_alive(self) -> bool:
            return self._fiber is not None and not self._fiber.done

        @property
        def ident(self) -> int | None:
            return None if self._fiber is None else id(self._fiber)

        def join(self, timeout: float | None = None) -> None:
            fiber, current = self._fiber, scheduler.current
            if fiber is None:
                raise RuntimeError("cannot join thread before it is started")
            if fiber.done:
                return
            if fiber is current or current is None:
                raise RuntimeError("cannot join current thread")
            fiber.waiters.append(current)
            scheduler.park(timeout)

    class Local:
        def __getattribute__(self, name: str) -> Any:
            own = _own(self)
            if name == "__dict__":
                return own
            if name in own:
                return own[name]
            return object.__getattribute__(self, name)

        def __setattr__(self, name: str, value: Any) -> None:
            _own(self)[name] = value

        def __delattr__(self, name: str) -> None:
            try:
                del _own(self)[name]
            except KeyError:
                raise AttributeError(name) from None

    def _own(local: Local) -> dict[str, Any]:
        fiber = scheduler.current
        if fiber is None:
            return {}
        return fiber.locals.setdefault(id(local), {})

    class ThreadPoolExecutor(concurrent.futures.Executor):
        def __init__(
            self,
            max_workers: int | None = None,
            thread_name_prefix: str = "",
            initializer: Callable[..., object] | None = None,
            initargs: Iterable[Any] = (),
        ) -> None:
            self._most = max_workers or 8
            self._prefix = thread_name_prefix or "pool"
            self._begin, self._begin_with = initializer, tuple(initargs)
            self._work: deque[tuple[concurrent.futures.Future[Any], Callable[[], Any]]] = deque()
            self._idle: list[Fiber] = []
            self._threads: list[Thread] = []
            self._closed = False

        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> concurrent.futures.Future[Any]:
            if self._closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            future: concurrent.futures.Future[Any] = concurrent.futures.Future()
            self._work.append((future, lambda: fn(*args, **kwargs)))
            if self._idle:
                wake_one(self._idle)
            elif len(self._threads) < self._most:
                thread = Thread(target=self._run, name=f"{self._prefix}_{len(self._threads)}")
                self._threads.append(thread)
                thread.start()
            return future

        def _run(self) -> None:
            if self._begin is not None:
                self._begin(*self._begin_with)
            while True:
                while not self._work:
                    if self._closed:
                        return
                    assert scheduler.current is not None
                    self._idle.append(scheduler.current)
                    scheduler.park()
                future, work = self._work.popleft()
                if not future.set_running_or_notify_cancel():
                    continue
                try:
                    result = work()
                    scheduler.linger()
                except BaseException as error:
                    future.set_exception(error)
                    del error
                else:
                    future.set_result(result)
                del future, work

        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            self._closed = True
            while cancel_futures and self._work:
                self._work.popleft()[0].cancel()
            for fiber in self._idle:
                scheduler.wake(fiber)
            self._idle.clear()
            if wait:
                for thread in self._threads:
                    thread.join()

        def __enter__(self) -> Self:
            return self

    class Shared:
        """The randomness of whoever runs."""

        def __getattr__(self, name: str) -> Any:
            return getattr(scheduler.process.random, name)

    def random_bits(k: int) -> int:
        return scheduler.process.random.getrandbits(k)

    def token_bytes(nbytes: int = 32) -> bytes:
        return scheduler.process.random.randbytes(nbytes)

    def seeded(seed: Any = None) -> Any:
        from random import Random

        return Random(scheduler.process.random.getrandbits(64) if seed is None else seed)

    return {
        "Condition": Condition,
        "Event": Event,
        "Lock": Lock,
        "RLock": RLock,
        "Random": seeded,
        "Semaphore": Semaphore,
        "SimpleQueue": SimpleQueue,
        "Thread": Thread,
        "ThreadPoolExecutor": ThreadPoolExecutor,
        "boot_time": lambda: scheduler.process.monotonic(),
        "handles_signals": lambda: scheduler.current is not None and scheduler.current.name == "main",
        "local": Local,
        "monotonic": lambda: scheduler.process.monotonic(),
        "random": Shared(),
        "random_bits": random_bits,
        "sleep": scheduler.sleep,
        "token_bytes": token_bytes,
        "token_hex": lambda nbytes=32: token_bytes(nbytes).hex(),
        "wall_ms": lambda: int(scheduler.process.wall_time() * 1000),
        "wall_time": lambda: scheduler.process.wall_time(),
    }
