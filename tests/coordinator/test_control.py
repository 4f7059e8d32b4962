"""The control client's lease, retries and long poll against a voter that does as it is told."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import msgpack
import pytest
from aiohttp import web

from lsmq.errors import InvalidRequest, TimedOut
from lsmq_coordinator.auth import ClusterSecret, Verifier, auth_middleware
from lsmq_coordinator.commands import apply
from lsmq_coordinator.control import ControlClient, ControlTiming
from lsmq_coordinator.election import ReplicaProgress
from lsmq_coordinator.errors import ControlStopped, NoControlLeader, NodeRuns, NotControlLeader
from lsmq_coordinator.founding import register_command
from lsmq_coordinator.heartbeats import HeartbeatAnswer
from lsmq_coordinator.http_status import status_of
from lsmq_coordinator.joining import displaced, join
from lsmq_coordinator.state import ClusterState
from support.raft_group import until

from .test_routes import elected
from .test_state import founded

SECRET = ClusterSecret(b"a secret of sufficient length")


class FakeVoter:
    """Answers as a leader would, from what the test sets."""

    def __init__(self) -> None:
        self.state = founded()
        self.known_version: int | None = None
        self.lease_age_ms = 0.0
        self.alive = True
        self.living = ["n1", "n4"]
        self.asked: list[dict[str, Any]] = []
        self.versions_asked = 0
        self.beats: list[dict[str, Any]] = []
        self.commands: list[dict[str, Any]] = []
        self.answers: list[Any] = []

    async def get_state(self, request: web.Request) -> Any:
        after = int(request.query["after"])
        shown = self.state if self.known_version is None else None
        if shown is None or shown.version <= after:
            await asyncio.sleep(0.05)
            shown = None if shown is None or shown.version <= after else shown
        packed = None if shown is None else shown.without_results().encode()
        return {"version": self.state.version, "leader": "v", "lease_age_ms": 0.0, "state": packed}

    async def heartbeat(self, request: web.Request) -> Any:
        self.beats.append(msgpack.unpackb(await request.read(), strict_map_key=False))
        answer = HeartbeatAnswer(
            version=self.state.version,
            lease_age_s=self.lease_age_ms / 1000,
            alive=self.alive,
            living=frozenset(self.living),
            clocks_ms={"n1": 5.0},
            now_ms=time.time() * 1000 - 41_000,
        )
        return answer.to_dict()

    async def ask_election(self, request: web.Request) -> Any:
        self.asked.append(msgpack.unpackb(await request.read()))
        return {}

    async def version(self, request: web.Request) -> Any:
        self.versions_asked += 1
        version = self.state.version
        await asyncio.sleep(0.05)
        return {"version": version}

    async def command(self, request: web.Request) -> Any:
        body = msgpack.unpackb(await request.read())
        self.commands.append(body["command"])
        answer = self.answers.pop(0) if self.answers else {"ok": True, "version": self.state.version}
        if isinstance(answer, Exception):
            raise answer
        return {"result": answer}


def running(test: Callable[[FakeVoter, ControlClient], Awaitable[None]]) -> None:
    async def main() -> None:
        voter = FakeVoter()

        def packing(
            handle: Callable[[web.Request], Awaitable[Any]],
        ) -> Callable[[web.Request], Awaitable[web.Response]]:
            async def answer(request: web.Request) -> web.Response:
                try:
                    return web.Response(body=msgpack.packb(await handle(request)))
                except (NotControlLeader, NoControlLeader, NodeRuns, TimedOut) as error:
                    return web.Response(status=status_of(error), body=msgpack.packb({"error": error.to_dict()}))

            return answer

        application = web.Application(middlewares=[auth_middleware(Verifier(SECRET))])
        application.add_routes(
            [
                web.get("/internal/control/state", packing(voter.get_state)),
                web.post("/internal/control/heartbeat", packing(voter.heartbeat)),
                web.post("/internal/control/command", packing(voter.command)),
                web.post("/internal/control/ask_election", packing(voter.ask_election)),
                web.get("/internal/control/version", packing(voter.version)),
            ]
        )
        runner = web.AppRunner(application, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        timing = ControlTiming(heartbeat_s=0.02)
        client = ControlClient(
            "n4",
            {"v": f"http://{host}:{port}"},
            SECRET,
            timing=timing,
            progress=lambda: {0: ReplicaProgress(1, 99, 7, 1)},
        )
        async with client:
            await test(voter, client)
        await runner.cleanup()

    asyncio.run(main())


def test_a_node_that_is_heard_and_up_to_date_holds_the_lease() -> None:
    async def run(voter: FakeVoter, client: ControlClient) -> None:
        assert not client.holds_lease()
        await until(client.holds_lease)
        assert client.lease <= time.monotonic()
        assert client.state.version == voter.state.version
        beat = voter.beats[-1]
        assert (beat["node"], beat["life"], beat["progress"]) == ("n4", client.life, {0: [1, 99, 7, 1, 0, 0]})

    running(run)


def test_the_lease_counts_from_when_the_leader_last_had_a_majority() -> None:
    async def run(voter: FakeVoter, client: ControlClient) -> None:
        voter.lease_age_ms = 500.0
        await until(lambda: len(voter.beats) > 5 and client.state.version)
        assert not client.holds_lease()
        assert client.lease <= time.monotonic() - 0.5
        voter.lease_age_ms = 0.0
        await until(client.holds_lease)

    running(run)


def test_a_node_held_dead_gets_no_lease() -> None:
    async def run(voter: FakeVoter, client: ControlClient) -> None:
        voter.alive = False
        await until(lambda: len(voter.beats) > 5)
        assert client.lease == float("-inf")

    running(run)


def test_there_is_no_lease_before_the_node_knows_what_the_leader_knew() -> None:
    """Deposed and heard again: the answer to the heartbeat must not outrun the news."""

    async def run(voter: FakeVoter, client: ControlClient) -> None:
        await until(client.holds_lease)
        voter.known_version = client.state.version
        voter.state = elected(voter.state)
        await until(lambda: not client.holds_lease())
        beats = len(voter.beats)
        await until(lambda: len(voter.beats) > beats + 5)
        assert not client.holds_lease()
        voter.known_version = None
        await until(client.holds_lease)
        assert client.state.version == voter.state.version

    running(run)


def test_the_lease_ends_by_itself_when_nobody_answers() -> None:
    async def run(voter: FakeVoter, client: ControlClient) -> None:
        await until(client.holds_lease)
        client._configured["v"] = "http://127.0.0.1:1"
        await until(lambda: not client.holds_lease())

    running(run)


def test_a_node_says_how_it_is_and_measures_its_clock() -> None:
    async def run(voter: FakeVoter, client: ControlClient) -> None:
        assert client.unleased_s > 0
        await until(lambda: voter.beats and voter.beats[-1]["clock_ms"] is not None and voter.beats[-1]["leased"])
        assert voter.beats[0]["clock_ms"] is None and not voter.beats[0]["leased"]
        assert 40_900 < voter.beats[-1]["clock_ms"] < 41_100
        assert voter.beats[-1]["well"] and client.unleased_s == 0
        assert client.told is not None and client.told.clocks_ms == {"n1": 5.0}

    running(run)


def test_a_node_notices_that_another_process_registered_under_its_name() -> None:
    async def run(voter: FakeVoter, client: ControlClient) -> None:
        def register(life: str) -> None:
            command = register_command("n4", "http://u", "http://i", life)
            former = voter.state.nodes["n4"].life
            voter.state = apply(voter.state, {**command, "former": former, "request_id": life})[0]

        register(client.life)
        await join(client, "http://u", "http://i")
        noticing = asyncio.create_task(displaced(client))
        voter.state = elected(voter.state)
        await until(lambda: client.state.version == voter.state.version)
        assert not noticing.done()
        forgotten = {id: node for id, node in voter.state.nodes.items() if id != "n4"}
        known, version = voter.state, voter.state.version + 1
        voter.state = replace(known, version=version, nodes=MappingProxyType(forgotten))
        await until(lambda: client.state.version == version)
        assert not noticing.done(), "a node that was removed, and is forgotten"
        voter.state = replace(known, version=version + 1)
        register("another")
        await asyncio.wait_for(noticing, 10)

    running(run)


def test_a_node_waits_until_the_other_process_of_its_name_has_ended_and_says_so() -> None:
    async def run(voter: FakeVoter, client: ControlClient) -> None:
        told: list[str] = []
        stale = {"ok": False, "code": "stale", "message": "another start was registered"}
        voter.answers = [NodeRuns("node 'n4' runs already, at http://i"), NodeRuns("it still does"), stale]
        joining = asyncio.create_task(join(client, "http://u", "http://i", waits=told.append))
        await until(lambda: len(voter.commands) >= 4)
        assert told == ["node 'n4' runs already, at http://i", "it still does"]
        assert not joining.done() and not client.registered
        former = voter.state.nodes["n4"].life
        taken = {**voter.commands[-1], "former": former}
        voter.state = apply(voter.state, taken)[0]
        await asyncio.wait_for(joining, 10)
        assert client.registered

    running(run)


def test_a_command_is_repeated_with_its_request_id_until_it_is_answered() -> None:
    async def run(voter: FakeVoter, client: ControlClient) -> None:
        voter.answers = [
            NoControlLeader("electing"),
            NotControlLeader("not me", leader="v"),
            TimedOut("perhaps"),
            {"ok": True, "version": 1, "topic_id": 5},
        ]
        result = await client.submit({"op": "create_topic"})
        assert result["topic_id"] == 5
        assert len(voter.commands) == 4
        assert len({command["request_id"] for command in voter.commands}) == 1

    running(run)


def test_a_command_ends_as_unknown_when_it_may_have_applied_and_as_undone_when_not() -> None:
    async def run(voter: FakeVoter, client: ControlClient) -> None:
        voter.answers = [TimedOut("perhaps"), *[NoControlLeader("electing")] * 99]
        with pytest.raises(TimedOut) as unknown:
            await client.submit({"op": "x", "request_id": "mine"}, 0.3)
        assert unknown.value.details["request_id"] == "mine"
        voter.answers = [NoControlLeader("electing")] * 99
        with pytest.raises(NoControlLeader, match="electing"):
            await client.submit({"op": "x"}, 0.3)
        with pytest.raises(InvalidRequest):
            await client.submit({"op": object()})

    running(run)


def test_a_command_returns_when_its_effect_is_known_here() -> None:
    async def run(voter: FakeVoter, client: ControlClient) -> None:
        await until(lambda: client.state.version)
        seen: list[ClusterState] = []
        end = client.on_change(seen.append)
        voter.state = elected(voter.state)
        voter.answers = [{"ok": True, "version": voter.state.version}]
        await client.submit({"op": "elect"})
        assert client.state.version == voter.state.version == seen[-1].version
        end()
        voter.state = elected(voter.state)
        await client.wait_for(lambda state: state.version == voter.state.version, 5)
        assert len(seen) == 1
        with pytest.raises(TimedOut):
            await client.wait_for(lambda state: False, 0.05)

    running(run)


def test_the_version_known_never_goes_back() -> None:
    async def run(voter: FakeVoter, client: ControlClient) -> None:
        voter.state = elected(voter.state)
        newest = voter.state.version
        await until(lambda: client.state.version == newest)
        client._take(founded())
        assert client.state.version == newest

    running(run)


def test_whoever_uses_the_lease_is_told_when_it_moves() -> None:
    async def run(voter: FakeVoter, client: ControlClient) -> None:
        told: list[tuple[float, ClusterState]] = []
        versions: list[int] = []
        client.on_change(lambda state: versions.append(state.version))
        end = client.on_lease(lambda valid_until, state: told.append((valid_until, state)))
        await until(lambda: len(told) > 2)
        assert told[-1] == (client.lease + 0.4, client.state)
        assert [valid for valid, _ in told] == sorted({valid for valid, _ in told})
        voter.state = elected(voter.state)
        await until(lambda: told[-1][1].version == voter.state.version)
        assert versions[-1] == voter.state.version
        end()
        count, beats = len(told), len(voter.beats)
        await until(lambda: len(voter.beats) > beats + 3)
        assert len(told) == count

    running(run)


def test_catching_up_ends_when_all_that_was_committed_before_is_known() -> None:
    async def run(voter: FakeVoter, client: ControlClient) -> None:
        await until(lambda: client.state.version)
        voter.known_version = client.state.version
        voter.state = elected(voter.state)
        waiting = asyncio.create_task(client.catch_up(5))
        await until(lambda: voter.versions_asked)
        assert not waiting.done()
        voter.known_version = None
        assert (await waiting).version == voter.state.version

    running(run)


def test_those_who_ask_together_share_a_question_put_after_they_asked() -> None:
    async def run(voter: FakeVoter, client: ControlClient) -> None:
        await until(lambda: client.state.version)
        first = [asyncio.create_task(client.catch_up(5)) for _ in range(20)]
        await until(lambda: voter.versions_asked == 1)
        # The answer under way is from before this commit: who asks now must not be content with it.
        voter.state = elected(voter.state)
        later = [asyncio.create_task(client.catch_up(5)) for _ in range(20)]
        for task in later:
            assert (await task).version == voter.state.version
        await asyncio.gather(*first)
        assert voter.versions_asked == 2

    running(run)


def test_catching_up_fails_in_time_when_nobody_answers() -> None:
    async def run(voter: FakeVoter, client: ControlClient) -> None:
        await until(lambda: client.state.version)
        client._configured["v"] = "http://127.0.0.1:1"
        with pytest.raises(TimedOut):
            await client.catch_up(0.1)
        left_over = asyncio.create_task(client.catch_up(30))
        await asyncio.sleep(0)
        await client._question.close()
        with pytest.raises(ControlStopped):
            await left_over

    running(run)


def test_an_election_is_asked_for_at_the_leader() -> None:
    async def run(voter: FakeVoter, client: ControlClient) -> None:
        await until(lambda: client.leader)
        await client.ask_election(2, 17)
        assert voter.asked == [{"shard": 2, "above_epoch": 17}]
        await client.ask_election(2, 17, elsewhere=True)
        assert voter.asked[1:] == [{"shard": 2, "above_epoch": 17, "besides": "n4"}]
        client._configured["v"] = "http://127.0.0.1:1"
        await client.ask_election(2, 17)

    running(run)


def test_every_node_can_tell_who_is_alive_while_the_leader_says_so() -> None:
    async def run(voter: FakeVoter, client: ControlClient) -> None:
        assert client.alive is None
        await until(lambda: client.alive and client.state.version)
        assert client.alive == {"n1", "n4"}
        seen = client.overview()
        assert {node["id"]: node["alive"] for node in seen["nodes"]} == {
            node: node in ("n1", "n4") for node in voter.state.nodes
        }
        assert seen["control_leader"] == "v"

    running(run)
