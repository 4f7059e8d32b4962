"""A backup of a cluster becomes another cluster: other nodes, another number of them, as it was at that moment."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from api.calls import Api
from lsmq._route_table import RouteTable
from lsmq_lab.local_cluster import LocalCluster, NodeEnded
from lsmq_node.backups.repository import Repository
from lsmq_node.backups.restore_cluster import restore_member
from lsmq_node.config import NodeConfig
from support.clusters import running_cluster
from support.mounts import tmpfs
from support.node_process import NodeProcess
from support.waiting import eventually
from transactions.test_http import Member, message

from .commands import QUEUES, command, held, load, lsmq, send

pytestmark = pytest.mark.slow

MIB = 1 << 20
SMALL: dict[str, Any] = {"segment_bytes": MIB, "memtable_bytes": 4 * MIB}
PRODUCER = {"id": 77, "sequence": 0}


#: Of the group g, by queue.
COMMITTED = dict(zip(range(QUEUES), (7, 8, 9, 10, 11, 200), strict=True))


@pytest.fixture
def clusters(tmp_path: Path) -> Iterator[Callable[..., LocalCluster]]:
    """Makes clusters that are not started yet."""
    with ExitStack() as scope:

        def make(name: str, nodes: int = 3, **options: Any) -> LocalCluster:
            plan = {"name": name, "nodes": nodes, "replicas": min(nodes, 3), "settings": SMALL, **options}
            return scope.enter_context(running_cluster(__name__, tmp_path / name, up=False, **plan))

        yield make


def restoring(cluster: LocalCluster, node: str, backups: Path, *more: str) -> tuple[str | Path, ...]:
    return ("backup", "restore", backups, "--cluster", "--config", cluster.configuration(node), *more)


def restore(cluster: LocalCluster, backups: Path, *more: str) -> str:
    """To all nodes; what the last command said."""
    said = [lsmq("", *restoring(cluster, node.id, backups, *more)) for node in cluster.plan.nodes]
    marks = {line.partition("mark ")[2].partition(")")[0] for line in said}
    assert len(marks) == 1, said
    return str(said[-1])


def data_of(cluster: LocalCluster, node: str) -> Path:
    return cluster.directory / node / "data"


def api_of(cluster: LocalCluster, place: int = 0) -> Api:
    return Api(cluster.plan.nodes[place].url)


def urls_of(cluster: LocalCluster) -> str:
    return ",".join(node.url for node in cluster.plan.nodes)


def at_leader(api: Api, method: str, path: str, document: Any = None) -> Any:
    """What the leader of a queue is asked, whoever it is."""
    answer = api.call(method, path, document)
    if answer.status >= 400 and answer.code == "not_leader":
        answer = Api(answer.error["leader"]).call(method, path, document)
    assert answer.status == 200, answer.body
    return answer.json()


def committed_by(api: Api, group: str, topic: str, queues: int = QUEUES) -> dict[int, int]:
    found: dict[int, int] = {}
    for queue in range(queues):
        some = at_leader(api, "GET", f"/v1/groups/{group}/offsets?topic={topic}&queues={queue}")
        found |= dict(zip(some["queues"], some["offsets"], strict=True))
    return found


@dataclass
class Filled:
    """What there is of every kind, as it was before the backup began."""

    orders: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)
    first: Any = None
    open: str = ""
    done: str = ""


def fill(api: Api) -> Filled:
    """Something of every kind."""
    filled = Filled()
    for topic in ("brief", "gone"):
        api.create(topic, QUEUES)
        send(api, topic, range(5))
        api.call("DELETE", f"/v1/topics/{topic}", status=204)
    api.create("orders", QUEUES, retention_ms=1 << 40)
    api.create("empty", QUEUES)
    api.create("grown", 2)
    api.create("names", "named")
    api.create("ids", 3, dedupe_window_ms="forever")
    send(api, "orders", range(200))
    api.call("PUT", "/v1/topics/grown/queues", {"queues": 7}, status=200)
    api.send("grown", *({"queue": queue, "body": f"g{queue}"} for queue in range(7)))
    api.send("names", *({"queue": f"user/{number % 20}", "body": str(number)} for number in range(60)))
    api.send("ids", *({"queue": queue, "body": "once", "dedupe_id": "one"} for queue in range(3)))
    for queue, offset in COMMITTED.items():
        at_leader(api, "POST", "/v1/groups/g/offsets", {"topic": "orders", "queues": [queue], "offsets": [offset]})
    filled.first = api.send("orders", {"body": "p", "queue": 0}, producer=PRODUCER).json()
    member = Member(api, "buyers")
    done = member.begin(message("orders", "decided", queue=1))
    member.commit(done["transaction"])
    filled.done = done["transaction"]
    filled.open = member.begin(message("orders", "open", queue=2))["transaction"]
    filled.orders = held(api, "orders")
    return filled


def names_of(api: Api) -> dict[str, list[str]]:
    listed = [queue["name"] for queue in api.get("/v1/topics/names/queues?limit=1000").json()["queues"]]
    return {
        name: [
            one["body"]
            for one in api.get(f"/v1/topics/names/queues/{name.replace('/', '%2F')}/messages").json()["messages"]
        ]
        for name in listed
    }


def options_of(api: Api) -> dict[str, Any]:
    return {
        topic["name"]: (topic["id"], topic["queues"], topic["options"])
        for topic in api.get("/v1/topics").json()["topics"]
    }


def check(api: Api, filled: Filled, after: dict[int, list[tuple[Any, ...]]], expected: dict[str, Any]) -> None:
    """All that there was before is there, at its offset, once; and it goes on from there."""
    found = held(api, "orders")
    for queue in range(QUEUES):
        kept = filled.orders[queue]
        assert found[queue][: len(kept)] == kept
        assert found[queue] == after[queue][: len(found[queue])]
    assert options_of(api) == expected["options"]
    assert names_of(api) == expected["names"]
    assert [api.all_bodies("grown", queue) for queue in range(7)] == [[f"g{queue}"] for queue in range(7)]
    assert committed_by(api, "g", "orders") == COMMITTED
    # Producers, messages with ids of their own, transactions.
    assert api.send("orders", {"body": "p", "queue": 0}, producer=PRODUCER).json() == filled.first
    ahead = api.send("orders", {"body": "q", "queue": 0}, producer={"id": 77, "sequence": 5}, status=409)
    assert ahead.code == "out_of_order_sequence"
    api.send("ids", *({"queue": queue, "body": "again", "dedupe_id": "one"} for queue in range(3)))
    assert [api.all_bodies("ids", queue) for queue in range(3)] == [["once"]] * 3
    path = "/v1/producer-groups/buyers/transactions"
    assert api.get(f"{path}/{filled.done}").json()["state"] == "committed"
    assert api.get(f"{path}/{filled.open}").json()["state"] == "open"
    Member(api, "buyers").commit(filled.open)
    eventually(lambda: "open" in api.all_bodies("orders", 2), "what was committed now is delivered")
    # Delayed messages come, once.
    listed = api.get("/v1/topics/orders/delayed").json()["messages"]
    assert sorted(one["body"] for one in listed) == sorted(f"later {queue}" for queue in range(QUEUES))
    for one in listed:
        api.call("PUT", f"/v1/topics/orders/delayed/{one['id']}", {"delay_ms": 1}, status=200)
    for queue in range(QUEUES):
        eventually(lambda queue=queue: f"later {queue}" in api.all_bodies("orders", queue), "it is delivered")
        assert api.all_bodies("orders", queue).count(f"later {queue}") == 1
    # An id of a topic is given once, also that of one that is gone.
    new = api.create("new", QUEUES)
    assert new["id"] > max(id for id, _, _ in expected["options"].values()) and new["id"] > expected["highest_id"]
    send(api, "new", range(3))
    assert [len(messages) for messages in held(api, "new").values()] == [3] * QUEUES
    send(api, "empty", range(3))


def test_a_cluster_s_backup_becomes_a_cluster_of_other_nodes_and_one_of_one(
    clusters: Callable[..., LocalCluster], make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    cluster, backups = clusters("old"), tmp_path / "backups"
    cluster.up()
    api = api_of(cluster)
    filled = fill(api)
    api.send("orders", *({"queue": queue, "body": f"later {queue}", "delay_ms": 9 << 30} for queue in range(QUEUES)))
    highest = api.create("last", 1)["id"]
    api.send("last", {"body": "x"})
    api.call("DELETE", "/v1/topics/last", status=204)
    expected = {"options": options_of(api), "names": names_of(api), "highest_id": highest}
    with load(api) as rounds:
        eventually(lambda: rounds() > 2, "messages are sent")
        made = lsmq(urls_of(cluster), "backup", "create", "--to", backups, "--json")
        seen = rounds()
        eventually(lambda: rounds() > seen, "messages are sent on")
    after = held(api, "orders")
    cluster.down()
    assert "nothing is damaged" in lsmq("", "verify", backups)

    three = clusters("new")
    said = restore(three, backups, "--id", made["id"])
    assert "not restored: tokens, roles" in said and "do the same at n1, n2" in said
    status = three.up()
    assert all(len(shard.in_sync) == 3 for shard in status.shards)
    check(api_of(three, 1), filled, after, expected)
    # It is a cluster like any other: it starts again, and a leader may die.
    three.down()
    victim = next(shard.leader for shard in three.up().shards if shard.leader is not None)
    three.kill(victim)
    left = Api(next(node.url for node in three.plan.nodes if node.id != victim))

    def goes_on() -> bool:
        return left.send("orders", *({"queue": q, "body": "on"} for q in range(QUEUES)), status=None).status == 200

    eventually(goes_on, "others lead")
    again = held(left, "orders")
    assert all(again[queue][: len(filled.orders[queue])] == filled.orders[queue] for queue in range(QUEUES))
    three.down()

    one = clusters("one", nodes=1)
    restore(one, backups)
    one.up()
    check(api_of(one), filled, after, expected)
    one.down()

    lsmq("", "backup", "restore", backups, "--data", tmp_path / "node")
    node = Api(make_node(tmp_path / "node", shards=len(made["shards"]), **SMALL).start().url)
    check(node, filled, after, expected)


@pytest.fixture
def small(make_node: Callable[..., NodeProcess], tmp_path: Path) -> Filled:
    """A backup, in ``backups``, of a node of its own with two shards."""
    node = make_node(shards=2, **SMALL).start()
    api, filled = Api(node.url), Filled()
    api.create("orders", QUEUES)
    api.create("grown", 2)
    api.call("PUT", "/v1/topics/grown/queues", {"queues": 7}, status=200)
    send(api, "orders", range(300), 2_000)
    api.send("grown", *({"queue": queue, "body": f"g{queue}"} for queue in range(7)))
    filled.orders = held(api, "orders")
    lsmq(node.url, "backup", "create", "--to", tmp_path / "backups")
    node.kill9()
    return filled


def test_a_node_s_backup_becomes_a_cluster_where_one_directory_may_be_lacking_or_old(
    small: Filled, clusters: Callable[..., LocalCluster], make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    backups = tmp_path / "backups"
    cluster = clusters("new", shards=2)
    for node in ("n1", "n2"):
        lsmq("", *restoring(cluster, node, backups))
    assert all(len(shard.in_sync) >= 2 for shard in cluster.up().shards)
    api = api_of(cluster, 2)
    assert held(api, "orders") == small.orders
    assert [api.all_bodies("grown", queue) for queue in range(7)] == [[f"g{queue}"] for queue in range(7)]

    def all_in_sync() -> bool:
        return all(len(shard.in_sync) == 3 for shard in cluster.status().shards)

    eventually(all_in_sync, "the one that began with nothing is filled by the others")
    send(api, "orders", range(1_000, 1_010))
    expected = held(api, "orders")
    # One that is restored once more is an older copy of itself, and takes nothing from the others.
    cluster.kill("n1")
    shutil.rmtree(data_of(cluster, "n1"))
    lsmq("", *restoring(cluster, "n1", backups))
    cluster.start("n1")
    eventually(all_in_sync, "it is filled again")

    def shows_all(place: int) -> bool:
        with suppress(AssertionError):  # It gets its leaderships back, and meanwhile a shard may have none.
            return held(api_of(cluster, place), "orders") == expected
        return False

    for place in range(3):
        eventually(lambda place=place: shows_all(place), f"node {place} shows what there is")  # type: ignore[misc]
    # And a backup of it is one like any other.
    lsmq(urls_of(cluster), "backup", "create", "--to", tmp_path / "again")
    lsmq("", "backup", "restore", tmp_path / "again", "--data", tmp_path / "node")
    node = Api(make_node(tmp_path / "node", shards=2, **SMALL).start().url)
    assert held(node, "orders") == expected


def test_shards_that_came_later_are_restored_too_and_groups_are_found_where_they_were(
    clusters: Callable[..., LocalCluster], make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    made = make_node(shards=2, **SMALL).start()
    api, groups = Api(made.url), [f"g{number}" for number in range(8)]
    api.create("old", 4)
    api.call("PUT", "/v1/cluster/shards", {"shards": 3}, status=200)
    api.create("names", "named")
    api.create("orders", QUEUES)
    api.create("spread", 2)
    assert api.call("POST", "/v1/topics/spread/spread", {}, status=200).json()["queues"] == 3
    send(api, "orders", range(20))
    for topic, queues in (("old", 4), ("spread", 3)):
        api.send(topic, *({"queue": queue, "body": f"{queue}"} for queue in range(queues)))
    api.send("names", *({"queue": f"q{number}", "body": f"{number}"} for number in range(32)))
    members = {group: Member(api, group) for group in groups}
    left = {group: member.begin(message("old", group, queue=1))["transaction"] for group, member in members.items()}
    orders, names, options = held(api, "orders"), names_of(api), options_of(api)

    def check_there(api: Api) -> None:
        assert (held(api, "orders"), names_of(api), options_of(api)) == (orders, names, options)
        assert [api.all_bodies("old", queue) for queue in range(4)] == [["0"], ["1"], ["2"], ["3"]]
        assert [api.all_bodies("spread", queue) for queue in range(3)] == [["0"], ["1"], ["2"]]
        overview = api.get("/v1/cluster").json()
        assert (overview["home_shards"], len(overview["shards"])) == (2, 3)
        for group, transaction in left.items():
            path = f"/v1/producer-groups/{group}/transactions/{transaction}"
            assert api.get(path).json()["state"] == "open"

    check_there(api)
    lsmq(made.url, "backup", "create", "--to", tmp_path / "first")
    lsmq("", "backup", "restore", tmp_path / "first", "--data", tmp_path / "node")
    check_there(Api(make_node(tmp_path / "node", shards=2, **SMALL).start().url))
    cluster = clusters("new", shards=2)
    restore(cluster, tmp_path / "first")
    cluster.up()
    check_there(api_of(cluster))
    lsmq(urls_of(cluster), "backup", "create", "--to", tmp_path / "second")
    lsmq("", "backup", "restore", tmp_path / "second", "--data", tmp_path / "again")
    again = make_node(tmp_path / "again", shards=2, **SMALL).start()
    check_there(Api(again.url))
    Api(again.url).call("PUT", "/v1/cluster/shards", {"shards": 4}, status=200)
    assert "nothing is damaged" in lsmq("", "verify", tmp_path / "second")


def stopped_voters(cluster: LocalCluster) -> list[str]:
    """Nodes whose voter says that it has agreed on another cluster."""
    return [
        node.id
        for node in cluster.plan.nodes
        if "agreed on different clusters" in Api(node.url).get("/readyz", None).body.decode()
    ]


def test_voters_that_were_not_restored_alike_are_found_out(
    small: Filled, clusters: Callable[..., LocalCluster], tmp_path: Path
) -> None:
    backups = tmp_path / "backups"
    first = clusters("first", shards=2)
    lsmq("", *restoring(first, "n1", backups))
    for node in ("n2", "n3"):
        first.start(node)
    founded = Api(first.plan.nodes[1].url)
    eventually(lambda: founded.get("/readyz", None).status == 200, "two that were forgotten found a cluster")
    first.start("n1")
    eventually(lambda: bool(stopped_voters(first)), "somebody says so")
    assert list((data_of(first, "n1") / "shard-0" / "tables").glob("*.tbl")), "what was restored stays"
    first.down()

    second = clusters("second", shards=2)
    lsmq("", *restoring(second, "n1", backups))
    file = second.configuration("n2")
    other = file.read_text().replace(f'url = "{second.plan.nodes[2].url}"', 'url = "http://127.0.0.1:1"')
    assert other != file.read_text()
    file.write_text(other)
    said = {node: lsmq("", *restoring(second, node, backups)) for node in ("n2", "n3")}
    marks = {line.partition("mark ")[2].partition(")")[0] for line in said.values()}
    assert len(marks) == 2
    for node in ("n1", "n2", "n3"):
        second.start(node)
    eventually(lambda: bool(stopped_voters(second)), "somebody says so")


def test_what_cannot_be_restored_is_refused_before_anything_is_there(
    small: Filled, clusters: Callable[..., LocalCluster], tmp_path: Path
) -> None:
    backups, cluster = tmp_path / "backups", clusters("new", shards=2)
    data, words = data_of(cluster, "n1"), restoring(cluster, "n1", backups)

    def refused(*arguments: str | Path, code: int = 1) -> str:
        said = lsmq("", *arguments, code=code)
        assert not data.exists()
        return str(said)

    three = clusters("three", shards=3)
    assert "Set cluster.shards to 2" in refused(*restoring(three, "n1", backups))
    assert "does not hold" in refused(*words, "--id", "20200101T000000.000Z")
    assert "it has no table [cluster]" in refused("backup", "restore", backups, "--cluster", "--data", data)
    assert "--data NEWDIR, or --cluster" in refused("backup", "restore", backups, code=2)
    joining = cluster.add_node()
    assert "joins with an empty directory" in refused(*restoring(cluster, joining.id, backups))
    data.mkdir()
    (data / "file").touch()
    assert "is not empty" in lsmq("", *words, code=1)
    shutil.rmtree(data)

    # Damage is named. What is cut short is seen by its size, wherever it is needed; other damage as it is copied.
    table = max((backups / "files").iterdir(), key=lambda path: path.stat().st_size)
    content = table.read_bytes()
    table.write_bytes(content[:-1])
    assert table.name in lsmq("", "verify", backups, code=1)
    assert f"{table}: has {len(content) - 1} of {len(content)} bytes" in refused(*words)
    table.write_bytes(bytes((content[0] ^ 1, *content[1:])))
    assert table.name in lsmq("", "verify", backups, code=1)
    assert str(table) in refused(*words)
    table.unlink()
    assert "missing" in refused(*words)
    table.write_bytes(content)

    # A full disk is seen before, or leaves nothing.
    with tmpfs(tmp_path / "disk", "size=8m"):
        assert "MiB are free" in lsmq("", *words, "--data", tmp_path / "disk" / "data", code=1)
    with tmpfs(tmp_path / "disk", "size=512m,nr_inodes=12"):
        assert "no space is left" in lsmq("", *words, "--data", tmp_path / "disk" / "data", code=1)
        assert not list((tmp_path / "disk").iterdir())

    # Of two at a time one is refused.
    data.mkdir()
    handle = os.open(data, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    assert "another process restores" in lsmq("", *words, code=1)
    os.close(handle)
    lsmq("", *words)
    assert "is not empty" in lsmq("", *words, code=1)


def test_a_client_that_lived_on_hears_who_leads_what_is_restored(
    small: Filled, clusters: Callable[..., LocalCluster], tmp_path: Path
) -> None:
    cluster = clusters("new", shards=2)
    config = NodeConfig.load(cluster.configuration("n1"), {})
    made = restore_member(Repository.at(str(tmp_path / "backups")), config)
    known = RouteTable()
    for shard in made.backup.shards:
        epoch = max((start.epoch for start in shard.decoded("it").epochs), default=0)
        # The cluster has gone on for long after the backup was made.
        known.learn_leader(shard.shard, "http://before:1", epoch + 10_000)
        known.learn_leader(shard.shard, "http://after:1", made.state.shards[shard.shard].epoch)
        assert known.leadership(shard.shard).url == "http://after:1"


def test_a_restore_that_is_killed_leaves_nothing_and_is_begun_again(
    small: Filled, clusters: Callable[..., LocalCluster], tmp_path: Path
) -> None:
    backups, cluster = tmp_path / "backups", clusters("new", shards=2)
    data = data_of(cluster, "n1")
    arguments, environment = command("", *restoring(cluster, "n1", backups))
    while True:
        process = subprocess.Popen(arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        eventually(lambda: bool(list(data.glob(".restoring/*"))) or (data / "node.json").exists(), "it is under way")
        process.kill()
        process.wait()
        if list(data.glob(".restoring/*")):
            break
        shutil.rmtree(data)  # It was quicker.
    with pytest.raises(NodeEnded):
        cluster.start("n1")
    assert "or do it again (lsmq backup restore)" in cluster.process("n1").log_tail()
    restore(cluster, backups)
    assert not (data / ".restoring").exists()
    cluster.up()
    assert held(api_of(cluster), "orders") == small.orders
