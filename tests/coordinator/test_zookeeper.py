"""The registry against a real ZooKeeper: expiry, restarts, outages, rivals."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.security import READ_ACL_UNSAFE, make_digest_acl

from lsmq.kazoo_handler import KazooHandler
from lsmq_coordinator.commands import apply
from lsmq_coordinator.parts import UNSEEN, Part, Parts
from lsmq_coordinator.routes import cluster_document, resolve, routes, unpack
from lsmq_coordinator.state import ClusterState
from lsmq_coordinator.zookeeper import MAX_REPLACED, ZooKeeperConfig, ZooKeeperRegistry
from support.ports import free_ports
from support.waiting import PATIENCE_S, eventually
from support.zookeeper_server import ZooKeeperEnsemble

from .test_routes import elected, with_topic
from .test_state import founded

ROOT = "/lsmq/test"


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    ensemble = ZooKeeperEnsemble(tmp_path_factory.mktemp("zookeeper")).start()
    yield ensemble
    ensemble.stop()


@pytest.fixture
def client(zookeeper: ZooKeeperEnsemble) -> Iterator[Any]:
    connected = zookeeper.client()
    if connected.exists(ROOT):
        connected.delete(ROOT, recursive=True)
    yield connected
    connected.stop()
    connected.close()


@pytest.fixture
def make(zookeeper: ZooKeeperEnsemble, client: Any) -> Iterator[Callable[..., ZooKeeperRegistry]]:
    made: list[ZooKeeperRegistry] = []

    def registry(
        node: str = "n1",
        *,
        eager: bool = True,
        hosts: str | None = None,
        newest: Callable[[], int | None] = lambda: None,
        cluster: str = "test",
        passwords: tuple[str, ...] = (),
        part: Part = UNSEEN,
        **times: float,
    ) -> ZooKeeperRegistry:
        settings = {"session_timeout_s": 1.0, "refresh_s": 0.5, "retry_s": 0.1, "call_timeout_s": 1.0, **times}
        config = ZooKeeperConfig(hosts or zookeeper.hosts, cluster, node, f"http://{node}", passwords, **settings)
        made.append(ZooKeeperRegistry(config, eager=lambda: eager, newest=newest, part=part))
        made[-1].start()
        return made[-1]

    yield registry
    for one in made:
        one.stop()


def until(condition: Callable[[], Any]) -> Any:
    return eventually(condition, "it is as the test wants it")


def read(client: Any, path: str) -> dict[str, Any] | None:
    try:
        content = client.get(f"{ROOT}/{path}")[0]
    except NoNodeError:
        return None
    return unpack(content)


def version(client: Any) -> int:
    document = read(client, "cluster")
    return -1 if document is None else document["version"]


def without_topic(state: ClusterState) -> ClusterState:
    return apply(state, {"op": "delete_topic", "request_id": f"d{state.version}", "name": "t"})[0]


def test_a_node_registers_and_publishes_what_resolves_to_its_routes(client: Any, make: Any) -> None:
    registry = make()
    state = with_topic(founded())
    registry.publish(state)
    until(lambda: registry.status.published_version == state.version)
    entry, stat = client.get(f"{ROOT}/nodes/n1")
    assert json.loads(entry)["url"] == "http://n1" and json.loads(entry)["started_ms"] > 0
    assert stat.ephemeralOwner != 0
    topic, cluster = read(client, "topics/t"), read(client, "cluster")
    assert topic is not None and cluster is not None
    assert resolve(topic, cluster) == routes(state, state.topics["t"])
    assert registry.status.connected and registry.status.registered
    registry.stop()
    assert client.exists(f"{ROOT}/nodes/n1") is None


def test_an_election_writes_one_document(client: Any, make: Any) -> None:
    registry = make(refresh_s=60.0)
    state = with_topic(founded())
    registry.publish(state)
    until(lambda: registry.status.published_version == state.version)
    written, topic = registry.status.documents_written, client.get(f"{ROOT}/topics/t")[1].mzxid
    registry.publish(elected(state))
    until(lambda: registry.status.published_version == state.version + 1)
    assert registry.status.documents_written == written + 1
    assert client.get(f"{ROOT}/topics/t")[1].mzxid == topic


def test_topics_are_deleted_and_foreign_changes_are_put_right(client: Any, make: Any) -> None:
    registry = make()
    state = with_topic(founded())
    registry.publish(state)
    until(lambda: read(client, "topics/t"))
    client.set(f"{ROOT}/topics/t", b"scribble")
    client.create(f"{ROOT}/topics/nobodys", b"{}")
    until(lambda: read(client, "topics/t") and not client.exists(f"{ROOT}/topics/nobodys"))
    registry.publish(without_topic(state))
    until(lambda: not client.exists(f"{ROOT}/topics/t"))


def test_a_refresh_looks_at_some_of_very_many_topics_and_in_turn_at_all(client: Any, make: Any) -> None:
    state, topics = founded(), 3000
    for number in range(topics):
        asked = {"op": "create_topic", "request_id": f"t{number}", "queues": 1, "created_ms": 1}
        state = apply(state, {**asked, "name": f"t{number:04}"})[0]
    registry = make(call_timeout_s=PATIENCE_S)
    registry.publish(state)
    until(lambda: registry.status.published_version == state.version)
    assert len(client.get_children(f"{ROOT}/topics")) == topics

    def received() -> int:
        return int(re.findall(r"Received: (\d+)", client.command(b"srvr"))[0])

    before, looks = received(), {registry.status.last_success}
    until(lambda: looks.add(registry.status.last_success) or len(looks) > 5)
    assert received() - before < topics * len(looks) / 2
    client.set(f"{ROOT}/topics/t{topics - 1:04}", b"scribble")
    client.delete(f"{ROOT}/topics/t0000")
    until(lambda: read(client, f"topics/t{topics - 1:04}") and read(client, "topics/t0000"))


FORGED_URL = "http://evil.example"


def forged(state: ClusterState, version: int, epoch: int) -> bytes:
    document = cluster_document(state)
    for node in document["nodes"].values():
        node["url"] = FORGED_URL
    for shard in document["shards"].values():
        shard["epoch"] = epoch
    return json.dumps({**document, "version": version}).encode()


@pytest.mark.parametrize("ahead", [1_000, 0, -1])
def test_routes_that_the_cluster_never_wrote_are_replaced_at_once(client: Any, make: Any, ahead: int) -> None:
    """Of a higher version, of the same, or of a lower one with higher epochs."""
    state = elected(with_topic(founded()))
    registry = make("n1", newest=lambda: state.version, refresh_s=600.0)
    registry.publish(state)
    until(lambda: version(client) == state.version)
    client.set(f"{ROOT}/cluster", forged(state, state.version + ahead, 1_000))
    until(lambda: read(client, "cluster") == cluster_document(state))
    assert registry.status.forgeries_replaced == 1


def test_two_clusters_under_one_name_do_not_overwrite_each_other_without_end_and_say_so(make: Any) -> None:
    """Which have the same secret: each finds what the other writes forged, and hears of it at once."""
    parts = Parts()
    states = [elected(with_topic(founded())), with_topic(founded())]
    both = [
        make(node, newest=lambda state=state: state.version, refresh_s=600.0, part=parts.part(node, essential=False))
        for node, state in zip(("n1", "n2"), states, strict=True)
    ]
    for registry, state in zip(both, states, strict=True):
        registry.publish(state)

    def told() -> bool:
        return any("another cluster" in problem for problem in parts.problems(essential=False))

    until(told)
    assert max(registry.status.forgeries_replaced for registry in both) == MAX_REPLACED


@pytest.mark.parametrize("shards", [{"0": {}}, {"0": 5}, {"0": {"epoch": "x"}}, [0]])
def test_what_is_no_document_of_a_cluster_is_replaced(client: Any, make: Any, shards: Any) -> None:
    state = elected(with_topic(founded()))
    registry = make("n1", refresh_s=600.0)
    registry.publish(state)
    until(lambda: version(client) == state.version)
    client.set(f"{ROOT}/cluster", json.dumps({"version": 0, "shards": shards}).encode())
    until(lambda: read(client, "cluster") == cluster_document(state))
    until(lambda: registry.status.last_error is None)


@pytest.mark.parametrize("newest", [None, 1_000])
def test_who_cannot_tell_that_routes_are_forged_leaves_them(client: Any, make: Any, newest: int | None) -> None:
    """It may have fallen behind itself: what is newer in ZooKeeper is then the truth."""
    state = with_topic(founded())
    registry = make("n1", newest=lambda: newest)
    registry.publish(state)
    until(lambda: version(client) == state.version)
    client.set(f"{ROOT}/cluster", forged(state, 1_000, 1_000))
    until(lambda: registry.status.refused_as_stale > 0)
    assert version(client) == 1_000 and registry.status.forgeries_replaced == 0


def test_with_a_password_everybody_reads_and_only_those_who_have_it_write(zookeeper: Any, make: Any) -> None:
    state = with_topic(founded())
    stranger, owner = zookeeper.client(), zookeeper.client()
    owner.add_auth("digest", "secured:pw")
    root = "/lsmq/secured"
    # Somebody has been there before, and has left it open.
    stranger.create(f"{root}/topics/nobodys", b"{}", makepath=True)
    registry = make("n1", cluster="secured", passwords=("pw",))
    registry.publish(state)
    until(lambda: registry.status.published_version == state.version and registry.status.registered)
    until(lambda: not stranger.exists(f"{root}/topics/nobodys"))
    assert unpack(stranger.get(f"{root}/cluster")[0]) == cluster_document(state)
    assert stranger.get_children(f"{root}/topics") == ["t"]
    for path in ("cluster", "topics/t", "nodes/n1"):
        with pytest.raises(NoAuthError):
            stranger.set(f"{root}/{path}", b"forged")
    for path in ("topics/forged", "nodes/forged"):
        with pytest.raises(NoAuthError):
            stranger.create(f"{root}/{path}", b"forged")
    with pytest.raises(NoAuthError):
        stranger.delete(f"{root}/topics/t")
    owner.set(f"{root}/topics/t", b"scribble")
    until(lambda: unpack(stranger.get(f"{root}/topics/t")[0]) is not None)
    stranger.create("/lsmq/beside", b"")
    for each in (stranger, owner):
        each.stop()
        each.close()


@pytest.mark.parametrize("passwords", [(), ("secret",)])
def test_a_path_in_zookeeper_that_is_not_there_is_made_for_any_cluster(
    zookeeper: Any, make: Any, passwords: tuple[str, ...]
) -> None:
    path = f"/deep/in{len(passwords)}"
    registry = make(hosts=zookeeper.hosts + path, passwords=passwords)
    state = with_topic(founded())
    registry.publish(state)
    until(lambda: registry.status.published_version == state.version)
    other = make(hosts=zookeeper.hosts + path, cluster="other", passwords=("another",))
    other.publish(state)
    until(lambda: other.status.published_version == state.version)


def test_what_belongs_to_somebody_else_is_left_and_told_of(zookeeper: Any, make: Any) -> None:
    first = make("n1", cluster="taken", passwords=("one",))
    first.publish(founded())
    until(lambda: first.status.published_version and first.status.registered)
    parts = Parts()
    rival = make("n2", cluster="taken", passwords=("another",), part=parts.part("zookeeper", essential=False))
    rival.publish(elected(founded()))
    until(lambda: "another secret" in (rival.status.last_error or ""))
    until(lambda: any("another secret" in problem for problem in parts.problems(essential=False)))
    assert rival.status.published_version == 0 and not rival.status.registered


def owners(client: Any, *paths: str) -> set[str]:
    """The digests of who may write here. They are shown only to those who may."""
    return {acl.id.id for path in paths for acl in client.get_acls(path)[0] if acl.id.scheme == "digest"}


@pytest.fixture
def fresh_zookeeper(tmp_path: Path) -> Iterator[ZooKeeperEnsemble]:
    """In which no other cluster was."""
    ensemble = ZooKeeperEnsemble(tmp_path).start()
    yield ensemble
    ensemble.stop()


def test_with_two_passwords_the_leader_brings_all_under_the_first_and_the_others_leave_it(
    fresh_zookeeper: ZooKeeperEnsemble, make: Any
) -> None:
    old, new = (make_digest_acl("test", password, all=True).id.id for password in ("old", "new"))
    client, robbed, state = fresh_zookeeper.client(), fresh_zookeeper.client(), with_topic(founded())
    for password in ("old", "new"):
        client.add_auth("digest", f"test:{password}")
    robbed.add_auth("digest", "test:old")
    paths = ("/lsmq", ROOT, f"{ROOT}/cluster", f"{ROOT}/topics", f"{ROOT}/topics/t", f"{ROOT}/nodes")

    running: dict[str, ZooKeeperRegistry] = {}

    def restarted(node: str, *passwords: str, eager: bool = False) -> None:
        if node in running:
            running[node].stop()
        registry = running[node] = make(node, hosts=fresh_zookeeper.hosts, passwords=passwords, eager=eager)
        registry.publish(state)
        until(lambda: registry.status.published_version == state.version and registry.status.registered)

    restarted("n1", "old", eager=True)
    assert owners(client, *paths) == {old}
    state = elected(state)
    restarted("n2", "new", "old")
    assert owners(client, *paths) == {old}, "nodes of before still need it"
    state = elected(state)
    restarted("n1", "new", "old", eager=True)
    assert owners(client, *paths) == {new}
    state = elected(state)
    restarted("n3", "old", "new")
    assert owners(client, *paths) == {new}

    for node in ("n1", "n2"):
        state = elected(state)
        restarted(node, "new", eager=node == "n1")
    state = without_topic(state)
    restarted("n1", "new", eager=True)
    assert not client.exists(f"{ROOT}/topics/t")
    for path in ("/lsmq", f"{ROOT}/cluster", f"{ROOT}/nodes/n1"):
        with pytest.raises(NoAuthError):
            robbed.set(path, b"forged")
    for each in (client, robbed):
        each.stop()
        each.close()


def test_a_topic_that_was_made_under_the_second_password_is_brought_under_the_first(client: Any, make: Any) -> None:
    """By a node that was not restarted yet, after the leader had taken the rest over."""
    new = make_digest_acl("late", "new", all=True).id.id
    state = founded()
    leading = make("n1", cluster="late", passwords=("new", "old"))
    leading.publish(state)
    until(lambda: leading.status.published_version == state.version)
    client.add_auth("digest", "late:new")
    state = with_topic(state)
    client.create("/lsmq/late/topics/t", b"{}", acl=[make_digest_acl("late", "old", all=True), *READ_ACL_UNSAFE])
    leading.publish(state)
    until(lambda: owners(client, "/lsmq/late/topics/t") == {new})
    until(lambda: leading.status.published_version == state.version)


def test_a_node_that_fell_behind_publishes_nothing(client: Any, make: Any) -> None:
    old = with_topic(founded())
    new = elected(without_topic(old))
    ahead = make("n1")
    ahead.publish(new)
    until(lambda: version(client) == new.version)
    behind = make("n2")
    behind.publish(old)
    until(lambda: behind.status.refused_as_stale > 0 and behind.status.registered)
    assert read(client, "cluster") == cluster_document(new)
    assert not client.exists(f"{ROOT}/topics/t"), "a deleted topic came back"
    assert behind.status.published_version == 0


def test_a_lower_epoch_is_refused_whatever_its_version(client: Any, make: Any) -> None:
    state = founded()
    registry = make("n1")
    registry.publish(elected(elected(state)))
    until(lambda: version(client) == 3)
    registry.stop()
    forged = state
    for number in range(5):
        forged = apply(forged, {"op": "drain_node", "request_id": f"x{number}", "node": f"n{number}"})[0]
    assert forged.version > 3 and forged.shards[0].epoch == 1
    rival = make("n2")
    rival.publish(forged)
    until(lambda: rival.status.refused_as_stale > 0)
    assert version(client) == 3


def test_two_publishers_at_once_end_with_the_latest(client: Any, make: Any) -> None:
    states = [with_topic(founded())]
    for _ in range(40):
        states.append(elected(states[-1]))
    registries = [make("n1"), make("n2")]
    for number, state in enumerate(states):
        registries[number % 2].publish(state)
    until(lambda: version(client) == states[-1].version)
    assert read(client, "cluster") == cluster_document(states[-1])
    until(lambda: read(client, "topics/t") is not None)


def test_who_is_not_eager_publishes_at_the_refresh_only(client: Any, make: Any) -> None:
    registry = make(eager=False, refresh_s=1.0)
    until(lambda: registry.status.registered)
    state = founded()
    registry.publish(state)
    until(lambda: version(client) == state.version)


def test_an_expired_session_registers_again(client: Any, make: Any) -> None:
    registry = make(refresh_s=60.0)
    until(lambda: registry.status.registered)
    first = client.get(f"{ROOT}/nodes/n1")[1].ephemeralOwner
    expire(registry)
    stat = until(lambda: fresh(client, first))
    assert stat.ephemeralOwner not in (0, first)
    until(lambda: registry.status.registrations >= 2)


def fresh(client: Any, first: int) -> Any:
    try:
        stat = client.get(f"{ROOT}/nodes/n1")[1]
    except NoNodeError:
        return None
    return stat if stat.ephemeralOwner != first else None


def expire(registry: ZooKeeperRegistry) -> None:
    """Have the server end the session, as it does when it has not heard of it for too long."""
    from kazoo.client import KazooClient

    thief = KazooClient(registry.config.hosts, client_id=registry._client.client_id)
    thief.start(timeout=10)
    thief.stop()
    thief.close()


def test_a_registration_of_an_earlier_life_is_replaced(client: Any, make: Any) -> None:
    client.create(f"{ROOT}/nodes/n1", b'{"id":"n1"}', ephemeral=True, makepath=True)
    registry = make()
    until(lambda: registry.status.registered)
    entry, stat = client.get(f"{ROOT}/nodes/n1")
    assert json.loads(entry)["url"] == "http://n1"
    assert stat.ephemeralOwner != client.client_id[0]


@pytest.mark.part(2)
def test_without_zookeeper_nothing_blocks_and_everything_catches_up(tmp_path: Path) -> None:
    ensemble = ZooKeeperEnsemble(tmp_path)
    config = ZooKeeperConfig(
        ensemble.hosts, "test", "n1", "http://n1", session_timeout_s=1.0, refresh_s=0.5, retry_s=0.1, call_timeout_s=1.0
    )
    registry = ZooKeeperRegistry(config)
    state = with_topic(founded())
    began = time.monotonic()
    registry.start()
    registry.publish(state)
    assert time.monotonic() - began < config.call_timeout_s, "no call to ZooKeeper was waited for"
    try:
        ensemble.start()
        client = ensemble.client()
        until(lambda: version(client) == state.version and registry.status.registered)
        for turn, number in enumerate((signal.SIGTERM, signal.SIGKILL)):
            # The whole server restarts while the state goes on.
            ensemble.servers[0].stop(number)
            until(lambda: not registry.status.connected)
            assert not registry.status.registered
            state = elected(state)
            registry.publish(state)
            ensemble.start()
            until(lambda now=state: version_of(client) == now.version and registry.status.registered)
            assert client.exists(f"{ROOT}/nodes/n1"), turn
        client.stop()
        client.close()
    finally:
        registry.stop()
        ensemble.stop()


def version_of(client: Any) -> int:
    """As :func:`version`, while the connection may be down."""
    try:
        return version(client)
    except Exception:
        return -2


@pytest.mark.part(2)
def test_a_partition_longer_than_the_session_heals(tmp_path: Path) -> None:
    ensemble = ZooKeeperEnsemble(tmp_path).start()
    config = ZooKeeperConfig(
        ensemble.hosts, "test", "n1", "http://n1", session_timeout_s=1.0, refresh_s=0.5, retry_s=0.1, call_timeout_s=1.0
    )
    registry = ZooKeeperRegistry(config)
    registry.start()
    state = with_topic(founded())
    registry.publish(state)
    try:
        until(lambda: registry.status.published_version == state.version)
        ensemble.pause()
        until(lambda: not registry.status.connected)
        registrations = registry.status.registrations
        state = elected(without_topic(state))
        began = time.monotonic()
        registry.publish(state)
        assert time.monotonic() - began < config.call_timeout_s, "no call to ZooKeeper was waited for"
        # Longer than the session lives: nobody has to tell; the server finds out when it goes on.
        threading.Event().wait(1.5)
        ensemble.resume()
        until(lambda: registry.status.published_version == state.version and registry.status.registered)
        client = ensemble.client()
        assert read(client, "cluster") == cluster_document(state)
        assert client.exists(f"{ROOT}/nodes/n1") and not client.exists(f"{ROOT}/topics/t")
        assert registry.status.registrations >= registrations
        client.stop()
        client.close()
    finally:
        ensemble.resume()
        registry.stop()
        ensemble.stop()


@pytest.mark.part(2)
def test_an_ensemble_survives_the_loss_of_its_leader(tmp_path: Path) -> None:
    ensemble = ZooKeeperEnsemble(tmp_path, 3).start()
    config = ZooKeeperConfig(
        ensemble.hosts, "test", "n1", "http://n1", session_timeout_s=2.0, refresh_s=0.5, retry_s=0.1, call_timeout_s=1.0
    )
    registry = ZooKeeperRegistry(config)
    registry.start()
    state = with_topic(founded())
    registry.publish(state)
    try:
        until(lambda: registry.status.published_version == state.version)
        leader = next(server for server in ensemble.servers if server.mode() == "leader")
        leader.stop(signal.SIGKILL)
        state = elected(state)
        registry.publish(state)
        until(lambda: registry.status.published_version == state.version and registry.status.registered)
    finally:
        registry.stop()
        ensemble.stop()


def test_a_connection_that_cannot_begin_is_told_once_and_leaves_no_threads(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """There is no descriptor for it."""
    left, made = [5], KazooHandler.create_socket_pair

    def wanting(handler: KazooHandler) -> Any:
        if left[0]:
            left[0] -= 1
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return made(handler)

    monkeypatch.setattr(KazooHandler, "create_socket_pair", wanting)
    before = threading.active_count()
    (port,) = free_ports(1)
    config = ZooKeeperConfig(f"127.0.0.1:{port}", "test", "n1", "http://n1", retry_s=0.02, session_timeout_s=0.1)
    parts = Parts()
    registry = ZooKeeperRegistry(config, part=parts.part("zookeeper"))
    registry.start()
    try:
        eventually(lambda: not left[0] and "no connection" in str(parts.problems(essential=True)), "it is tried again")
        assert registry.status.failures == 5
        assert len([each for each in caplog.records if "publishing to ZooKeeper failed" in each.message]) == 1
        assert threading.active_count() <= before + 4, "its own, and three of the connection"
    finally:
        registry.stop()
