"""A node as a member of a cluster: the broker's topology where shards are replicated.

What runs here, from below: the control plane (a Raft voter or a client of the voters), the internal HTTP server with
control, replication and snapshot routes, links to the other nodes, the replicas, and the registration in ZooKeeper.
:meth:`ClusterMember.run` holds them all in one scope; the broker is given the member while that scope lasts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any

import structlog

from lsmq import runtime
from lsmq.errors import InvalidRequest, LsmqError, NotLeader, Unavailable
from lsmq_coordinator.clocks import ahead_of_most
from lsmq_coordinator.control import ControlClient
from lsmq_coordinator.election import Flaw, ReplicaProgress
from lsmq_coordinator.growth import GROW_SHARDS
from lsmq_coordinator.parts import Parts
from lsmq_coordinator.placement import objection
from lsmq_coordinator.state import ClusterState, NodeState, Shard
from lsmq_node.broker.peers import Peers
from lsmq_node.broker.topology import Leadership
from lsmq_node.broker.waiters import WaiterTable
from lsmq_node.config import NodeConfig
from lsmq_node.disks import NodeDisks
from lsmq_node.replication.actions import ProposeInSync, ProposeLeave, RegisterStart

from .clock import ClusterClock
from .handing_over import DamagedLeaders
from .hosted import HostedReplicas
from .lagging_followers import LaggingFollowers
from .replica import Replica
from .rights import ClusterRights
from .topics import ClusterTopics

_log = structlog.get_logger("lsmq.cluster")

_TIDY_S = 5.0
_WATCH_S = 0.25
#: A lease lasts a fraction of this.
_UNLEASED_S = 2.0
_HANDOVER_S = 2.0
_COMMAND_TIMEOUT_S = 2.0
_STALE_TRIES = 5
_UNKNOWN = "the control plane is not known yet: fewer than a majority of the voters can be reached"


class ClusterMember:
    """Loop thread only."""

    def __init__(
        self, config: NodeConfig, control: ControlClient, disks: NodeDisks, waiters: WaiterTable, parts: Parts
    ) -> None:
        assert config.cluster is not None
        self.config = config
        self.settings = config.cluster
        self.control = control
        self.disks = disks
        self._noted_shards = config.cluster.shards
        self._waiters = waiters
        self._parts = parts
        self._lease = parts.part("lease")
        self._clock = parts.part("clock", essential=False)
        self._followers = LaggingFollowers(parts.part("followers", essential=False))
        #: What is stored here is stamped by it.
        self.clock = ClusterClock()
        self.topics = ClusterTopics(control)
        self.rights = ClusterRights(control)
        self._commands: dict[tuple[str, int, int], asyncio.Task[None]] = {}
        self._tidy = asyncio.Event()
        self._retiring = False
        self._damaged = DamagedLeaders(3 * config.cluster.heartbeat_ms / 1000)
        self.peers: Peers  # set by whoever has the secret, before anything is asked
        self.replicas: HostedReplicas  # set by whoever can make replicas, before anything is asked

    # Shards, as the broker asks for them

    @property
    def home_shards(self) -> int:
        return self.control.state.settings.shards or self.settings.shards

    @property
    def shard_count(self) -> int:
        return max(self.home_shards, len(self.control.state.shards))

    def ports(self) -> Sequence[Replica]:
        return [replica for _, replica in sorted(self.replicas.all().items()) if replica.is_open]

    def port(self, shard: int) -> Replica:
        replica = self.replicas.get(shard)
        if replica is None:
            raise self.not_leader(shard)
        return replica

    def lost_shards(self) -> Sequence[int]:
        return sorted(self.replicas.lost)

    def leadership(self, shard: int) -> Leadership:
        agreed = self.control.state.shards.get(shard)
        if agreed is None:
            return Leadership(None, 0)
        replica = self.replicas.get(shard)
        return Leadership(self.client_url(agreed.leader), agreed.epoch, replica is not None and replica.serving)

    def followers(self, shard: int) -> Sequence[str]:
        agreed = self.control.state.shards.get(shard)
        nodes = () if agreed is None else agreed.in_sync_nodes
        urls = [self.client_url(node) for node in nodes if agreed is not None and node != agreed.leader]
        return [url for url in urls if url is not None]

    def client_url(self, node: str | None) -> str | None:
        """How clients reach a node."""
        known = self.control.state.nodes.get(node) if node is not None else None
        return None if known is None else known.url

    def not_leader(self, shard: int) -> NotLeader:
        led = self.leadership(shard)
        return NotLeader(
            f"shard {shard} is led by {led.url or 'nobody at the moment'} (epoch {led.epoch}); send this there",
            shard=shard,
            leader=led.url,
            epoch=led.epoch,
            sent=False,
        )

    # What people ask of it

    def overview(self, own_url: str) -> dict[str, Any]:
        if not self.control.state.bootstrapped:  # Without shards it would look like a cluster that has none.
            raise Unavailable(_UNKNOWN)
        found = self.control.overview()
        for node in found["nodes"]:  # The agreed state knows it as one that drains.
            named = self.settings.voters.get(node["id"])
            node["only_votes"] = named is not None and named.only_votes and node["state"] == NodeState.DRAINING
        return found

    async def plan(self) -> dict[str, Any]:
        return await self.control.plan()

    async def plan_growth(self, shards: int) -> dict[str, Any]:
        return await self.control.growth(shards)

    async def grow_shards(self, shards: int) -> dict[str, Any]:
        for _ in range(_STALE_TRIES):
            planned = await self.control.growth(shards)
            if not planned["shards"]:
                return {"version": planned["version"]}
            replicas = [shard["replicas"] for shard in planned["shards"]]
            command = {"op": GROW_SHARDS, "expected_shards": planned["expected_shards"], "replicas": replicas}
            result = await self.control.submit(command)
            if result["ok"]:
                _log.info("shards_grown", shards=shards, replicas=replicas)
                return {"version": result["version"]}
            if result["code"] != "stale":
                break
        raise InvalidRequest(result["message"], reason=result["code"])

    async def _note_growth(self) -> None:
        """Releases that know nothing of shards that came later are not to start with this directory."""
        count = self.shard_count
        if count > self._noted_shards:
            await asyncio.to_thread(self.disks.note_growth, count)
            self._noted_shards = count

    async def administer(self, command: Mapping[str, Any]) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for _ in range(_STALE_TRIES):  # What was known here may be old: then once more, with what is.
            shard = self.control.state.shards.get(command.get("shard", -1))
            expected = {"expected_version": shard.version, "expected_epoch": shard.epoch} if shard is not None else {}
            if command["op"] == "set_target":
                self._check_places(command)
            if shard is not None and command["op"] == "revive":
                if shard.is_revived_from(command["node"]):
                    return {"version": self.control.state.version, "epoch": shard.epoch, "shard_version": shard.version}
                self._check_leaderless(shard)
                _log.error("shard_revived", shard=shard.id, node=command["node"], former_leader=shard.leader)
            result = await self.control.submit({**expected, **command})
            if result["ok"] or result["code"] != "stale":
                break
            await self.control.catch_up()
        if not result["ok"]:
            raise InvalidRequest(result["message"], reason=result["code"])
        return {name: value for name, value in result.items() if name != "ok"}

    def _check_places(self, command: Mapping[str, Any]) -> None:
        """Refused here and not as the command is applied: releases that know of no labels apply the same log."""
        state = self.control.state
        wrong = objection(state, command["replicas"], self.control.alive or state.active_nodes())
        if wrong is not None:
            raise InvalidRequest(f"shard {command['shard']}: {wrong}", reason="misplaced")

    def _check_leaderless(self, shard: Shard) -> None:
        if self.control.alive is None:
            raise Unavailable("the control plane has not said lately who is alive; try again when it does")
        if not self.control.is_leaderless(shard.id):
            raise InvalidRequest(
                f"shard {shard.id} has a leader ({shard.leader}), or an election is under way: nothing is revived that "
                "lives. GET /v1/cluster names a shard's problem once nobody could lead it for two seconds",
                reason="is_led",
            )

    def not_ready(self) -> Sequence[str]:
        state = self.control.state
        if not state.bootstrapped:
            return [_UNKNOWN]
        if self.settings.node not in state.nodes:
            return [f"node {self.settings.node!r} is not registered in the cluster yet"]
        return [
            self.replicas.problems.get(shard) or f"shard {shard} is being opened"
            for shard in self.replicas.missing()
            if shard not in self.replicas.lost  # Others lead it.
        ]

    def problems(self) -> Sequence[str]:
        """What all nodes are told to be wrong with this one, in words."""
        stopped = [
            f"shard {shard} stopped: {replica.stopped.message}"
            for shard, replica in self.replicas.all().items()
            if replica.stopped is not None
        ]
        return [*self._parts.problems(essential=True), *stopped, *self._parts.problems(essential=False)]

    def gauges(self) -> Mapping[str, float]:
        ahead_ms, alive, membership = self._clock_ahead_ms(), self.control.alive, self.control.state.membership
        return {
            "unleased_seconds": self.control.unleased_s,
            "accepted_secrets": len(self.rights.voucher_keys),  # a key of each
            "moving_shards": sum(bool(shard.target or shard.adding) for shard in self.control.state.shards.values()),
            "moves_paused": float(self.control.state.moves_paused),
            "voter_changes": 0 if membership is None else membership.number,
            **({} if alive is None else {"voters_away": len(self.control.voters.keys() - alive)}),
            **({} if ahead_ms is None else {"clock_ahead_seconds": ahead_ms / 1000}),
        }

    def _clock_ahead_ms(self) -> float | None:
        told = self.control.told
        return None if told is None else told.clocks_ms.get(self.settings.node)

    def _ahead_of_most_ms(self) -> float | None:
        told, nodes = self.control.told, self.control.state.nodes.values()
        if told is None:
            return None
        count = sum(node.state is not NodeState.REMOVED for node in nodes)
        return ahead_of_most(self.settings.node, told.clocks_ms, count)

    def _why_unleased(self) -> str:
        known = self.control.state.nodes.get(self.settings.node)
        if known is not None and known.state is NodeState.REMOVED:
            return "this node was removed from the cluster: stop its process; another start needs another id"
        return (
            f"the control plane has given this node none for over {_UNLEASED_S:.0f} s; what it leads it does not "
            "serve, and others will lead"
        )

    async def watch(self) -> None:
        """See whether this node holds a lease and has the right time. Until cancelled."""
        while True:
            if self.control.unleased_s > _UNLEASED_S:
                self._lease.retrying(self._why_unleased())
            else:
                self._lease.running()
            self.clock.correct(self._ahead_of_most_ms())
            ahead_ms, limit_ms = self._clock_ahead_ms(), self.settings.clock_limit_ms
            if ahead_ms is not None and abs(ahead_ms) > limit_ms:
                side = "ahead of" if ahead_ms > 0 else "behind"
                self._clock.retrying(
                    f"the wall clock is {side} the cluster's middle one by more than "
                    f"cluster.clock_limit_ms ({limit_ms}); see that the time of all nodes is kept by NTP"
                )
            elif ahead_ms is not None and abs(ahead_ms) < limit_ms / 2:
                self._clock.running()
            await asyncio.sleep(_WATCH_S)

    # What the control plane says

    def viewed(self, state: ClusterState) -> None:
        """A new control state."""
        self.replicas.viewed(state)
        for topic_id in self.topics.take_deleted():
            self._waiters.wake_topic(topic_id)
        self._tidy.set()

    def role_changed(self, shard: int) -> None:
        """A replica here began or ceased to lead: held long polls look again, and are told."""
        self._waiters.wake_all()
        self._tidy.set()

    def progress(self) -> Mapping[int, ReplicaProgress]:
        """How far the log of each replica here that works is durable, to choose leaders by; nothing while stopping."""
        found: dict[int, ReplicaProgress] = {}
        if self._retiring:
            return found
        for shard, replica in self.replicas.all().items():
            position, life = replica.position, replica.life
            if position is not None and life is not None:
                full = replica.is_open and replica.store.disk_full
                flawed = bool(replica.damage) * Flaw.DAMAGED | full * Flaw.FULL
                found[shard] = ReplicaProgress(*position, *life, replica.high_watermark, flawed)
        return found

    def sizes(self) -> Mapping[int, int]:
        """Bytes that each replica here takes, without its log."""
        stats = {port.number: port.store.stats() for port in self.ports()}
        return {shard: found.table_bytes + found.memtable_bytes for shard, found in stats.items()}

    # What replicas ask of the control plane; at most one command a kind and shard is under way

    def propose_in_sync(self, shard: int, action: ProposeInSync) -> None:
        members = [list(member) for member in sorted(action.members)]
        fields = {"epoch": action.epoch, "expected_version": action.expected_version, "in_sync": members}
        self._submit("set_in_sync", shard, fields)

    def propose_leave(self, shard: int, action: ProposeLeave) -> None:
        node, incarnation = action.member
        fields = {"node": node, "incarnation": incarnation, "expected_version": action.expected_version}
        self._submit("leave_in_sync", shard, fields)

    def register_start(self, shard: int, action: RegisterStart, refused: Callable[[str], None]) -> None:
        """Not before this process is the one that is agreed on; the replica asks again."""
        if not self.control.registered:
            return
        fields = {
            "node": self.settings.node,
            "life": self.control.life,
            "incarnation": action.incarnation,
            "starts": [list(start) for start in action.starts],
            "registered": action.registered,
            "went_back": action.went_back,
            "durable_lsn": action.durable_lsn,
            "high_watermark": action.high_watermark,
            "epoch": action.epoch,
        }
        # The second, with which the disk says that it remembers the first, need not wait for the end of that.
        self._submit("register_start", shard, fields, {"went_back": refused}, step=action.registered)

    def ask_election(self, shard: int, above_epoch: int, elsewhere: bool = False) -> None:
        self._start("ask_election", shard, self.control.ask_election(shard, above_epoch, elsewhere=elsewhere))

    def _submit(
        self,
        operation: str,
        shard: int,
        fields: dict[str, Any],
        refusals: Mapping[str, Callable[[str], None]] = MappingProxyType({}),
        step: int = 0,
    ) -> None:
        """``refusals``: by code, whom to tell the message. ``step``: of several commands that belong together."""

        async def submit() -> None:
            result = await self.control.submit({"op": operation, "shard": shard, **fields}, _COMMAND_TIMEOUT_S)
            if not result["ok"] and result["code"] in refusals:
                refusals[result["code"]](result["message"])
            elif not result["ok"]:
                _log.info("command_refused", op=operation, shard=shard, code=result["code"], message=result["message"])

        self._start(operation, shard, submit(), step)

    def _start(self, kind: str, shard: int, work: Any, step: int = 0) -> None:
        if (kind, shard, step) in self._commands:
            work.close()
            return

        async def run() -> None:
            try:
                await work
            except LsmqError as error:
                _log.info("command_failed", kind=kind, shard=shard, code=error.code, message=error.message)
            finally:
                self._commands.pop((kind, shard, step), None)

        self._commands[kind, shard, step] = asyncio.create_task(run(), name=f"{kind}-{shard}")

    # Housekeeping

    def _give_up_leadership(self, state: ClusterState) -> None:
        """A replica that stopped must not keep the leadership because its node is well; nor one whose files are
        damaged while another may have them whole."""
        now = runtime.monotonic()
        for shard, replica in self.replicas.all().items():
            agreed = state.shards.get(shard)
            if agreed is None or agreed.leader != self.settings.node:
                continue
            if replica.failure is not None:
                self.ask_election(shard, agreed.epoch)  # Of another one: this replica is not reported any more.
                continue
            command = _handing_over(agreed, self.settings.node, self.control.alive) if replica.damage else None
            if command is not None:
                wait_s = self._damaged.wait_s(shard, set(replica.damage), now)
                if 0 < wait_s < _TIDY_S:
                    asyncio.get_running_loop().call_later(wait_s, self._tidy.set)
                elif not wait_s:
                    _log.error("leader_damaged", shard=shard, damage=replica.damage[0], successor=command["candidate"])
                    self._submit(command.pop("op"), command.pop("shard"), command)

    async def tidy(self) -> None:
        """Bring deletions and changes of topics into the logs that this node leads, see to replicas that stopped, and
        say who does not follow.

        Until cancelled.
        """
        while True:
            state = self.control.state
            await self._note_growth()
            self._give_up_leadership(state)
            led = (state.shards[each.shard] for each in self.ports() if each.serving and each.shard in state.shards)
            self._followers.look(led, asyncio.get_running_loop().time())
            for replica in self.ports() if state.bootstrapped else ():
                if replica.serving:
                    try:
                        if await replica.topics.follow(state, self.topics.find):
                            await asyncio.sleep(0)  # With many topics it takes a while, and there may be many shards.
                    except LsmqError as error:
                        _log.info("topics_not_forgotten", shard=replica.shard, code=error.code)
            try:
                async with asyncio.timeout(_TIDY_S):
                    await self._tidy.wait()
            except TimeoutError:
                pass
            self._tidy.clear()

    async def retire(self) -> None:
        """Before a stop: have other replicas in sync elected for the shards led here, for a short while at most."""
        self._retiring = True
        node, state = self.settings.node, self.control.state
        alive = self.control.alive
        found = (_handing_over(shard, node, alive) for shard in state.shards.values())
        commands = [command for command in found if command is not None]
        if not commands:
            return
        try:
            await self.control.submit({"op": "batch", "commands": commands}, _HANDOVER_S)
            led = {command["shard"] for command in commands}
            await self.control.wait_for(
                lambda state: all(state.shards[shard].leader != node for shard in led), _HANDOVER_S
            )
        except LsmqError as error:
            _log.warning("leaders_not_handed_over", code=error.code, message=error.message)

    async def close(self) -> None:
        """Stop serving and close the stores. The control plane and the links must still run."""
        await self.replicas.close()
        for task in list(self._commands.values()):
            task.cancel()
        await asyncio.gather(*self._commands.values(), return_exceptions=True)


def _handing_over(shard: Shard, node: str, alive: Set[str] | None) -> dict[str, Any] | None:
    """An ``elect`` of another replica in sync, if ``node`` leads and there is one. ``alive`` is None if not known."""
    others = [
        member.node for member in shard.in_sync if member.node != node and (alive is None or member.node in alive)
    ]
    if shard.leader != node or not others:
        return None
    return {"op": "elect", "shard": shard.id, "candidate": others[0], "expected_epoch": shard.epoch}
