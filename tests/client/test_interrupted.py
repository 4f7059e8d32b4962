"""An interrupt, such as Ctrl-C, at the worst moment: as the event loop's thread does what it was asked for."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import gc
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from types import FrameType
from typing import Any, NoReturn

import pytest

from lsmq import ClientClosed, Message, loop_thread, runtime, sync
from lsmq.loop_thread import LoopThread
from lsmq.sync._crossing import blocking_iterator
from support.node_process import NodeProcess
from support.waiting import PATIENCE_S


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has what is waited for next interrupted: while it is under way, or when it is ``done``."""

    def interrupt(*, done: bool) -> None:
        submit = LoopThread.submit

        def interrupted(thread: LoopThread, work: Coroutine[Any, Any, Any]) -> concurrent.futures.Future[Any]:
            monkeypatch.setattr(LoopThread, "submit", submit)
            future = submit(thread, work)

            def result(timeout_s: float | None = None) -> NoReturn:
                concurrent.futures.wait([future], timeout_s if done else 0.1)
                raise KeyboardInterrupt

            monkeypatch.setattr(future, "result", result)
            return future

        monkeypatch.setattr(LoopThread, "submit", interrupted)

    return interrupt


class Numbers:
    """What is read one after another; ``is_closed`` when the last reader is."""

    def __init__(self, wait: Callable[[], Coroutine[Any, Any, object]]) -> None:
        self.is_closed = threading.Event()
        self._wait = wait

    async def read(self) -> AsyncGenerator[int, None]:
        try:
            for number in range(10_000):
                try:
                    await self._wait()
                finally:
                    await asyncio.gather(asyncio.sleep(0))  # as requests wait for those they have cancelled
                yield number
        finally:
            self.is_closed.set()


class BlockingNumbers:
    read = blocking_iterator(Numbers.read)

    def __init__(self, wait: Callable[[], Coroutine[Any, Any, object]]) -> None:
        self._async, self._thread = Numbers(wait), LoopThread()


def test_an_iteration_that_is_interrupted_says_so(interrupt: Callable[..., None]) -> None:
    blocking = BlockingNumbers(lambda: asyncio.Event().wait())
    interrupt(done=False)
    with pytest.raises(KeyboardInterrupt):
        next(blocking.read())
    blocking._thread.stop()


def test_an_iteration_that_is_collected_as_garbage_in_the_thread_of_the_loop_does_not_hold_it_up() -> None:
    """Whatever is part of a cycle, as of an error and the frames it came through, is collected in any thread."""
    blocking = BlockingNumbers(lambda: asyncio.sleep(0))
    left: list[Any] = [blocking.read()]
    next(left[0])
    left.append(left)
    gc.disable()  # in this thread
    try:
        del left
        blocking._thread._loop.call_soon_threadsafe(gc.collect)
        assert blocking._async.is_closed.wait(PATIENCE_S)
    finally:
        gc.enable()
    blocking._thread.stop()


def test_an_iteration_may_be_closed_after_its_client() -> None:
    blocking = BlockingNumbers(lambda: asyncio.sleep(0))
    numbers = blocking.read()
    next(numbers)
    blocking._thread.stop()
    numbers.close()  # type: ignore[attr-defined]


@pytest.fixture
def filled(shared_node: NodeProcess, topic_name: str) -> Iterator[sync.Client]:
    with sync.Client(shared_node.url) as client:
        client.create_topic(topic_name, queues=2)
        with sync.Producer(client, topic_name) as producer:
            producer.send_many((f"{number}", f"{number}") for number in range(40)).wait()
        yield client


def _places(messages: Iterable[Message]) -> set[tuple[int, int]]:
    return {(message.queue, message.offset) for message in messages}


@pytest.mark.parametrize("how", ["poll", "poll_batch", "next"])
def test_messages_that_an_interrupt_kept_from_whoever_asked_are_not_committed(
    filled: sync.Client, topic_name: str, interrupt: Callable[..., None], how: str
) -> None:
    with sync.Consumer(filled, topic_name, group=topic_name) as consumer:
        asks: dict[str, Callable[[], object]] = {
            "poll": consumer.poll,
            "poll_batch": consumer.poll_batch,
            "next": lambda: next(consumer),
        }
        interrupt(done=True)
        with pytest.raises(KeyboardInterrupt):
            asks[how]()
        assert set(consumer.positions.values()) == {0}
        consumer.commit()
        assert set(filled.committed_offsets(topic_name, topic_name).values()) <= {0}
        found: set[tuple[int, int]] = set()
        while len(found) < 40:
            batch = consumer.poll_batch(timeout_ms=20_000)
            assert batch is not None
            found |= set(zip(batch.queues.tolist(), batch.offsets.tolist(), strict=True))


def test_messages_that_were_taken_as_an_interrupt_came_are_handed_out_to_whoever_asks_next(
    filled: sync.Client, topic_name: str
) -> None:
    """Between any two lines."""
    with sync.Consumer(filled, topic_name) as consumer:
        found: set[tuple[int, int]] = set()
        line, interrupted = 0, True
        while interrupted:
            line, lines, interrupted = line + 1, 0, False

            def between_lines(frame: FrameType, event: str, _: Any, line: int = line) -> Any:
                nonlocal lines, interrupted
                if frame.f_code.co_name == "_take" and event == "line":
                    lines += 1
                    if lines == line:
                        interrupted = True
                        sys.settrace(None)
                        raise KeyboardInterrupt
                return between_lines

            trace = sys.gettrace()
            sys.settrace(between_lines)
            try:
                found |= _places(consumer.poll(2, timeout_ms=20_000))
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(trace)
        assert line > 3
        while len(found) < 40:
            messages = consumer.poll(timeout_ms=20_000)
            assert messages, "some are lost"
            found |= _places(messages)


def test_messages_that_an_interrupt_kept_from_whoever_asked_are_not_acknowledged(
    filled: sync.Client, topic_name: str, interrupt: Callable[..., None]
) -> None:
    with sync.PushConsumer(filled, topic_name, group=topic_name) as consumer:
        interrupt(done=True)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(10)
        consumer.ack()
        found: set[tuple[int, int]] = set()
        while len(found) < 40:
            messages = consumer.poll(timeout_ms=20_000)
            assert messages
            found |= _places(messages)


@pytest.mark.parametrize("how", ["poll", "next"])
def test_tasks_that_an_interrupt_kept_from_whoever_asked_are_the_next(
    filled: sync.Client, topic_name: str, interrupt: Callable[..., None], how: str
) -> None:
    with sync.WorkQueue(filled, topic_name, topic_name) as work:
        interrupt(done=True)
        with pytest.raises(KeyboardInterrupt):
            work.poll(10) if how == "poll" else next(work)
        found: dict[tuple[int, int], int] = {}
        while len(found) < 40:
            tasks = work.poll(10, timeout_ms=10_000)
            assert tasks, "no longer hidden from anybody"
            for task in tasks:
                found[task.message.queue, task.message.offset] = task.deliveries
                task.ack()
        assert set(found.values()) == {1}


def _nobody_has_queues(filled: sync.Client, topic: str, kind: Any) -> None:
    """A member of the group that comes now is given all messages."""
    with kind(filled, topic, group=topic) as consumer:
        found: set[tuple[int, int]] = set()
        while len(found) < 40:
            messages = consumer.poll(timeout_ms=20_000)
            assert messages, "they are another one's"
            found |= _places(messages)


@pytest.mark.parametrize("kind", [sync.Consumer, sync.PushConsumer])
def test_a_consumer_that_an_interrupt_kept_from_whoever_made_it_has_no_queues(
    filled: sync.Client, topic_name: str, interrupt: Callable[..., None], kind: Any
) -> None:
    interrupt(done=True)
    with pytest.raises(KeyboardInterrupt):
        kind(filled, topic_name, group=topic_name)
    _nobody_has_queues(filled, topic_name, kind)


@pytest.mark.parametrize("kind", [sync.Consumer, sync.PushConsumer])
def test_a_consumer_that_an_interrupt_ended_just_as_the_loop_was_told_to_make_it_has_no_queues(
    filled: sync.Client, topic_name: str, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        interrupt_behind(patched, filled._thread._loop, "call_soon_threadsafe")
        with pytest.raises(KeyboardInterrupt):
            kind(filled, topic_name, group=topic_name)
    _nobody_has_queues(filled, topic_name, kind)


def interrupt_behind(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """The interpreter looks for signals as a function returns that it did not run itself."""
    function = getattr(owner, name)

    def interrupted(*values: Any) -> NoReturn:
        monkeypatch.setattr(owner, name, function)
        function(*values)
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, name, interrupted)


@pytest.mark.parametrize("kind", [sync.Consumer, sync.PushConsumer])
def test_a_consumer_that_an_interrupt_kept_from_being_closed_has_no_queues_either(
    filled: sync.Client, topic_name: str, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    consumer = kind(filled, topic_name, group=topic_name)
    with monkeypatch.context() as patched:
        interrupt_behind(patched, filled._thread._loop, "call_soon_threadsafe")
        with pytest.raises(KeyboardInterrupt):
            consumer.close()
    _nobody_has_queues(filled, topic_name, kind)


def test_a_client_that_an_interrupt_kept_from_being_closed_leaves_no_thread(
    shared_node: NodeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = sync.Client(shared_node.url)
    client.topics()
    with monkeypatch.context() as patched:
        interrupt_behind(patched, client._thread._loop, "call_soon_threadsafe")
        with pytest.raises(KeyboardInterrupt):
            client.close()
    client._thread._thread.join(PATIENCE_S)
    assert not client._thread._thread.is_alive()


@pytest.mark.parametrize("when", ["thread", "first call"])
def test_a_client_that_an_interrupt_kept_from_whoever_made_it_leaves_no_thread(
    interrupt: Callable[..., None], monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    begun: list[threading.Thread] = []

    class Noted(threading.Thread):
        def start(self) -> None:
            begun.append(self)
            super().start()
            if when == "thread":
                raise KeyboardInterrupt

    monkeypatch.setattr(runtime, "Thread", Noted)
    if when == "first call":
        interrupt(done=True)
    with pytest.raises(KeyboardInterrupt):
        sync.Client("http://127.0.0.1:1")
    [thread] = begun
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


@pytest.mark.parametrize("what", ["client", "consumer", "work queue", "push consumer", "producer"])
def test_what_is_in_use_may_be_closed_by_the_handler_of_a_signal_at_any_moment(
    filled: sync.Client, topic_name: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs in the thread that uses it, between any two lines: whoever waits for that thread waits for ever."""
    monkeypatch.setattr(loop_thread, "_LOOK_S", 0.01)

    def cancelled(
        crossing: loop_thread.Crossing[Any], ask: Callable[[Any], bool] = loop_thread.Crossing.cancelled
    ) -> bool:
        threading.Event().wait(0.002)  # so that whoever is woken too early is ahead of the loop's thread
        return ask(crossing)

    monkeypatch.setattr(loop_thread.Crossing, "cancelled", cancelled)
    makes: dict[str, Callable[[], Any]] = {
        "client": lambda: sync.Client(filled.urls[0]),
        "consumer": lambda: sync.Consumer(filled, topic_name),
        "work queue": lambda: sync.WorkQueue(filled, topic_name, topic_name),
        "push consumer": lambda: sync.PushConsumer(filled, topic_name, group=topic_name),
        "producer": lambda: sync.Producer(filled, topic_name),
    }
    line, closed = 0, True
    while closed:
        used, lines, line, closed = makes[what](), 0, line + 1, False

        def between_lines(frame: FrameType, event: str, _: Any, line: int = line, used: Any = used) -> Any:
            nonlocal lines, closed
            if event == "line":
                lines += 1
                if lines == line:
                    closed = True
                    sys.settrace(None)
                    used.close()
            return between_lines

        def use(used: Any = used, handler: Any = between_lines) -> None:
            sys.settrace(handler)
            with contextlib.suppress(ClientClosed):
                for _ in range(2):
                    if what == "client":
                        used.topics()
                        used.close()
                    elif what == "producer":
                        used.send_and_wait("one")
                    else:
                        used.poll(1, timeout_ms=1 if what == "work queue" else 1_000)
            sys.settrace(None)

        using = threading.Thread(target=use, daemon=True)
        using.start()
        using.join(PATIENCE_S)
        assert not using.is_alive(), f"it hangs at line {line}"
        used.close()
    assert line > 20
