"""Groups in a bad world: requests late, twice or lost, coordinators that die between two steps, members that stop.

Whatever happens, no queue has two owners at a time, generations never go back, nobody loses a queue that stays his by
plan; no two read different patterns of a topic; and once the world is good again every queue has the owner that the
plan says.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from lsmq.errors import GroupPatternMismatch, StaleGeneration, UnknownMember
from lsmq_node.groups.group import Beat, BeatAnswer, CoordinatedGroup
from lsmq_node.groups.plan import GenerationPlan
from lsmq_node.groups.ranges import RangePairs, count, each, intersect, overlap, subtract, union

SESSION_S = 10.0
Owned = dict[str, RangePairs]


@dataclass
class Client:
    """A consumer: owns what it was told of until it has given it up, or its session is over by its own clock."""

    id: str
    topics: tuple[str, ...]
    static_id: str | None = None
    pattern: str | None = None
    epoch: int = 0
    version: int = 0
    owned: Owned = field(default_factory=dict)
    assigned: Owned = field(default_factory=dict)
    ids: dict[str, int] = field(default_factory=dict)
    request: int = 0  # the one it waits for
    sent_at: float = 0.0
    heard_at: float = 0.0
    dead: bool = False

    def drop(self) -> None:
        self.epoch = self.version = 0
        self.owned, self.assigned, self.ids = {}, {}, {}


class World:
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.topics = {"a": (1, self.chance.choice((1, 7, 40))), "b": (2, 5)}
        self.clients: list[Client] = []
        self.network: list[tuple[Client, int, Beat]] = []
        self.durable = GenerationPlan()
        self.group = self.coordinator()
        self.requests = 0
        self.highest_epoch = 0
        self.serial = 0

    def coordinator(self) -> CoordinatedGroup:
        return CoordinatedGroup("g", self.durable, self.chance.randrange(1 << 40), self.now)

    # -- what happens --------------------------------------------------------------------------------------

    def join(self, static: bool = False) -> None:
        self.serial += 1
        topics = self.chance.choice((("a",), ("a",), ("a", "b"), ("b",)))
        static_id = f"s{self.chance.randrange(3)}" if static else None
        pattern = self.chance.choice((None, None, "a.*"))
        self.clients.append(Client(f"m{self.serial}", topics, static_id, pattern, heard_at=self.now))
        self.send(self.clients[-1])

    def send(self, client: Client) -> None:
        self.requests += 1
        client.request, client.sent_at = self.requests, self.now
        beat = Beat(
            client.id,
            client.topics,
            client.epoch,
            client.version,
            dict(client.owned),
            client.static_id,
            pattern=client.pattern,
        )
        self.network.append((client, client.request, beat))

    def deliver(self, at: int, *, keep: bool, lose_answer: bool) -> None:
        client, request, beat = self.network[at]
        if not keep:
            del self.network[at]
        try:
            self.group.hear(beat, self.now)
            self.store_some()
            if not self.group.is_settled(beat.member):
                return  # it would be held until the plan is durable
            answer = self.group.answer(beat.member, beat.owned)
        except UnknownMember:
            if request == client.request and not lose_answer:
                client.drop()
                self.send(client)
            return
        except GroupPatternMismatch:
            if client in self.clients:
                client.dead = True
                client.drop()
                self.clients.remove(client)
            return
        except StaleGeneration:
            self.store_some()
            if request == client.request:
                client.dead = True
                client.drop()
            return
        if request == client.request and not lose_answer and not client.dead:
            self.read(client, answer)

    def read(self, client: Client, answer: BeatAnswer) -> None:
        assert answer.epoch >= client.epoch, "a generation went back"
        self.highest_epoch = max(self.highest_epoch, answer.epoch)
        client.epoch, client.version = answer.epoch, answer.version
        client.heard_at = client.sent_at
        for name, (id, _) in answer.topics.items():
            if client.ids.get(name) != id:
                client.owned.pop(name, None)
                client.ids[name] = id
        for name in list(client.owned):
            if name not in answer.topics:
                del client.owned[name]
        for name, owned in client.owned.items():
            stays = intersect(owned, self.group.plan.topics[name].shares.get(client.id, ()))
            assert not subtract(stays, answer.assigned.get(name, ())), "a queue that stays was taken away"
        client.assigned = dict(answer.assigned)
        for name, ranges in answer.assigned.items():
            client.owned[name] = union(client.owned.get(name, ()), ranges)
        self.check_owners()
        self.send(client)

    def give_up(self, client: Client, *, all_of_it: bool) -> None:
        for name, owned in list(client.owned.items()):
            wrong = subtract(owned, client.assigned.get(name, ()))
            if wrong:
                client.owned[name] = subtract(owned, wrong if all_of_it else (wrong[0],))
                if not client.owned[name]:
                    del client.owned[name]

    def store_some(self) -> None:
        """Stage what is new; publish it now, or when the disk gets round to it."""
        if self.group.dirty and self.group.staged is None:
            self.group.stage(self.topics.get)
        if self.group.staged is not None and self.chance.random() < 0.6:
            self.publish()

    def publish(self) -> None:
        assert self.group.staged is not None
        assert self.group.staged.generation >= self.durable.generation
        self.durable = GenerationPlan.decode(self.group.staged.encode(), "group/g")
        self.group.publish()

    def die(self) -> None:
        """The coordinator dies; what it was writing may be durable or not."""
        if self.group.staged is not None and self.chance.random() < 0.5:
            self.durable = GenerationPlan.decode(self.group.staged.encode(), "group/g")
        self.group = self.coordinator()

    def time_passes(self) -> None:
        self.now += self.chance.choice((0.1, 1.0, 6.0, 11.0))
        for client in self.clients:
            if self.now - client.heard_at >= SESSION_S and client.owned:
                client.drop()  # by its own clock
                self.send(client)
        self.group.expire(self.now)
        self.store_some()

    def step(self) -> None:
        match self.chance.randrange(14):
            case 0 if len(self.clients) < 8:
                self.join(static=self.chance.random() < 0.3)
            case 1 if self.clients:
                self.time_passes()
            case 2 if self.clients and self.chance.random() < 0.5:
                client = self.chance.choice(self.clients)
                client.dead = True
                client.drop()
                if self.chance.random() < 0.5:
                    self.group.leave(client.id)
                    self.store_some()
                self.clients.remove(client)
            case 3 if self.chance.random() < 0.4:
                self.die()
            case 4:
                self.store_some()
            case 5 if self.chance.random() < 0.3:
                id, queues = self.topics["a"]
                self.topics["a"] = self.chance.choice(((id + 10, self.chance.choice((1, 9))), (id, queues + 3)))
                self.group.look(self.topics.get)
                self.store_some()
            case 6 | 7 if self.clients:
                self.give_up(self.chance.choice(self.clients), all_of_it=self.chance.random() < 0.7)
            case 8 if self.clients:
                client = self.chance.choice(self.clients)
                if not client.dead:
                    self.send(client)  # it has waited long enough
            case _ if self.network:
                self.deliver(
                    self.chance.randrange(len(self.network)),
                    keep=self.chance.random() < 0.15,
                    lose_answer=self.chance.random() < 0.2,
                )
        self.check_owners()

    # -- what must be ------------------------------------------------------------------------------------

    def check_owners(self) -> None:
        live = [client for client in self.clients if not client.dead]
        for at, one in enumerate(live):
            for other in live[at + 1 :]:
                for name in one.owned.keys() & other.owned.keys():
                    if one.ids[name] == other.ids[name] and one.static_id is None and other.static_id is None:
                        assert not overlap(one.owned[name], other.owned[name]), f"{one} and {other}"
                        assert one.pattern == other.pattern, f"{one} and {other}"

    def settle(self) -> None:
        """The world is good again: nothing is lost, nobody dies, everybody does what he should."""
        self.network.clear()
        self.now += 2 * SESSION_S
        self.clients = [client for client in self.clients if not client.dead]
        statics: dict[str, Client] = {client.static_id: client for client in self.clients if client.static_id}
        self.clients = [
            client for client in self.clients if not client.static_id or statics[client.static_id] is client
        ]
        for client in self.clients:
            if self.now - client.heard_at >= SESSION_S:
                client.drop()
        self.group.expire(self.now)
        self.chance.random = lambda: 0.0  # type: ignore[method-assign]
        for _ in range(3):
            self.store_some()
        for _ in range(6):
            for client in list(self.clients):
                self.network.clear()
                self.send(client)
                while self.network:
                    self.deliver(0, keep=False, lose_answer=False)
                    self.give_up(client, all_of_it=True)
                    if self.network and len(self.network) == 1 and client.version == self.network[0][2].version:
                        break
                self.network.clear()
        assert set(self.group.plan.members) == {client.id for client in self.clients}
        assert self.group.state in ("stable", "empty")
        wanted = {name: client.pattern for client in self.clients if client.pattern for name in client.topics}
        subscribed = {name for client in self.clients for name in client.topics}
        assert {name: found for name, found in self.group.plan.patterns.items() if name in subscribed} == wanted
        for name, (id, queues) in self.topics.items():
            owners = [client.owned.get(name, ()) for client in self.clients if name in client.topics]
            if owners:
                assert sorted(queue for ranges in owners for queue in each(ranges)) == list(range(queues))
                assert max(map(count, owners)) - min(map(count, owners)) <= 1 or len(self.topics) > 1
            assert all(client.ids.get(name, id) == id for client in self.clients)


@pytest.mark.parametrize("block", range(20))
def test_a_group_survives_a_bad_world(block: int) -> None:
    for seed in range(block * 40, block * 40 + 40):
        world = World(seed)
        try:
            for _ in range(250):
                world.step()
            world.settle()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
