"""One address asks for no more than it may: it is delayed, then told when to come again; others notice nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator

import pytest

from lsmq.errors import TooManyRequests
from lsmq_node.broker import pacing
from lsmq_node.broker.pacing import BURST_S, LONGEST_DELAY_S, LimitPace
from support.node_process import NodeProcess

from .calls import Answer, Api

#: A second has a whole number of them also in binary.
RATE = 8


class Clock:
    """An event loop's time, which passes when somebody sleeps."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        self.slept: list[float] = []
        patch.setattr(pacing.asyncio, "get_running_loop", lambda: self)
        patch.setattr(pacing.asyncio, "sleep", self.sleep)

    def time(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_what_is_more_than_a_burst_is_delayed_then_refused_and_paid_by_time(clock: Clock) -> None:
    pace = LimitPace("requests", "address_requests_per_s")

    async def ask(client: str, times: int) -> None:
        for _ in range(times):
            await pace.wait(client, RATE, 1)

    def run(client: str, times: int) -> None:
        ask_all = ask(client, times)
        with pytest.raises(StopIteration):
            ask_all.send(None)

    burst, delayed = int(RATE * BURST_S), int(RATE * LONGEST_DELAY_S)
    run("a", burst + 1)
    assert clock.slept == []
    run("a", delayed)
    assert clock.slept == [number / RATE for number in range(1, delayed + 1)]
    with pytest.raises(TooManyRequests, match="address_requests_per_s") as refused:
        ask("a", 1).send(None)
    assert refused.value.details["retry_after_ms"] == 1000 // RATE + 1
    assert (pace.delayed, pace.refused) == (delayed, 1)
    run("b", burst)
    clock.now += refused.value.details["retry_after_ms"] / 1000
    run("a", 1)
    clock.now += 60
    clock.slept.clear()
    run("a", burst + 1)
    assert clock.slept == [], "what was not used is not saved up beyond a burst, nor is a debt kept"
    with pytest.raises(StopIteration):
        LimitPace("requests", "none").wait("a", 0, 1_000_000).send(None)


def test_a_debt_is_paid_at_the_rate_there_is_now(clock: Clock) -> None:
    pace = LimitPace("bytes", "principal_bytes_per_s")
    pace.took("a", 100, 1_000_000)
    with pytest.raises(TooManyRequests):
        pace.wait("a", 100).send(None)
    with pytest.raises(StopIteration):
        pace.wait("a", 1_000_000_000).send(None)
    pace.took("b", 1_000_000_000, 1_000_000)
    with pytest.raises(TooManyRequests):
        pace.wait("b", 100).send(None)


def test_a_million_addresses_take_bounded_memory_and_who_goes_on_asking_is_not_forgotten(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "_MOST_CLIENTS", 10)
    pace = LimitPace("bytes", "none")
    for number in range(1_000):
        pace.took(f"many {number}", 10, 1_000)
        pace.took("steady", 10, 1)
        assert len(pace) <= 10
    with pytest.raises(TooManyRequests):
        pace.wait("steady", 10).send(None)


def test_so_many_requests_are_delayed_at_a_time_and_others_refused(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pacing, "MOST_DELAYED", 3)
    monkeypatch.setattr(pacing, "MOST_DELAYED_OF_ONE", 2)

    class Held:
        def __await__(self) -> Generator[None]:
            yield

    async def sleep(seconds: float) -> None:
        await Held()

    monkeypatch.setattr(pacing.asyncio, "sleep", sleep)
    pace = LimitPace("requests", "address_requests_per_s")
    for client in ("a", "b"):
        pace.took(client, 100, 101)
    waiting = [pace.wait("a", 100, 1) for _ in range(2)]
    for each in waiting:
        each.send(None)
    with pytest.raises(TooManyRequests) as refused:
        pace.wait("a", 100, 1).send(None)
    assert refused.value.details["retry_after_ms"] > 0
    waiting.append(pace.wait("b", 100, 1))
    waiting[-1].send(None)
    with pytest.raises(TooManyRequests):
        pace.wait("b", 100, 1).send(None)
    for each in waiting:
        with pytest.raises(StopIteration):
            each.send(None)
    again = pace.wait("a", 100, 1)
    again.send(None)
    again.close()
    assert not pace._waiting and not pace._waiting_count


def test_requests_and_bytes_of_an_address_are_limited(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node(address_requests_per_s=2, address_bytes_per_s=1 << 20).start()
    api = Api(node.url)
    assert api.get("/v1/topics").status == 200

    async def at_once() -> list[Answer]:
        return await asyncio.gather(*(asyncio.to_thread(api.get, "/v1/topics", None) for _ in range(30)))

    answers = asyncio.run(at_once())
    assert {answer.status for answer in answers} == {200, 429}
    refused = next(answer for answer in answers if answer.status == 429)
    assert refused.code == "too_many_requests" and refused.error["retriable"]
    assert 1 <= int(refused.headers["Retry-After"]) <= 5 and refused.error["retry_after_ms"] > 0
    assert api.get("/healthz").status == 200
    limit = '{limit="address_requests_per_s"}'
    assert api.metric(f"lsmq_limit_refused_total{limit}") >= 1 and api.metric(f"lsmq_limit_delayed_total{limit}") >= 1


def test_bytes_of_bodies_are_paid_for_by_the_requests_after(make_node: Callable[..., NodeProcess]) -> None:
    node = make_node(address_bytes_per_s=100_000).start()
    api = Api(node.url)
    api.create("t", 1)
    api.send("t", {"body": "x" * 400_000})
    refused = api.get("/v1/topics", None)
    assert (refused.status, refused.code) == (429, "too_many_requests")
    assert "address_bytes_per_s" in refused.error["message"]
