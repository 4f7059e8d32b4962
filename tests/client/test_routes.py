"""What a client believes of routes: the highest epoch, whatever comes in whatever order."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lsmq._route_documents import ClusterDocument, DiskCopy, RouteDocuments, TopicDocument, default_cache_directory
from lsmq._route_table import FORMER_NODES, UNFOLLOWED_TOPICS, RouteTable
from lsmq.topics import Topic

URLS = {"n1": "http://n1:1", "n2": "http://n2:1", "n3": "http://n3:1"}


def topic(
    *leaders: tuple[str | None, int], id: int = 1, created_ms: int = 1, name: str = "t", queues: int = 30
) -> Topic:
    size = queues // len(leaders)
    routes = [
        {"first": shard * size, "end": (shard + 1) * size, "shard": shard, "leader": url, "epoch": epoch}
        for shard, (url, epoch) in enumerate(leaders)
    ]
    return Topic.from_dict(
        {"name": name, "id": id, "queues": queues, "options": {}, "created_ms": created_ms, "routes": routes}
    )


def cluster(version: int, **shards: tuple[str | None, int]) -> dict[str, Any]:
    return {
        "cluster": "c",
        "nodes": {id: {"url": url, "state": "active"} for id, url in URLS.items()},
        "shards": {
            shard.removeprefix("s"): {"leader": leader, "epoch": epoch, "in_sync": []}
            for shard, (leader, epoch) in shards.items()
        },
        "version": version,
    }


def topic_document(id: int = 1, created_ms: int = 1, queues: int = 30) -> dict[str, Any]:
    ranges = [[0, queues // 2, 0], [queues // 2, queues, 1]]
    return {
        "name": "t",
        "id": id,
        "queues": queues,
        "options": {},
        "created_ms": created_ms,
        "ranges": ranges,
        "version": 1,
    }


def documents(fields: dict[str, Any], *topics: dict[str, Any], hint: bool = False) -> RouteDocuments:
    return RouteDocuments(ClusterDocument.from_dict(fields), tuple(map(TopicDocument.from_dict, topics)), hint)


def leaders(table: RouteTable) -> list[tuple[str | None, int]]:
    known = table.topic("t")
    assert known is not None
    return [(route.leader, route.epoch) for route in known.routes]


news = st.tuples(st.sampled_from([None, "http://a:1", "http://b:1"]), st.integers(1, 6))


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["topic", "refusal", "documents"]), news)))
def test_epochs_never_go_back_and_the_highest_is_what_counts(told: list[tuple[int, str, Any]]) -> None:
    table = RouteTable()
    highest = [0, 0, 0]
    for version, (shard, how, (url, epoch)) in enumerate(told):
        match how:
            case "topic":
                described = [(url, epoch) if each == shard else (None, 0) for each in range(3)]
                table.learn_topic(topic(*described))
            case "refusal":
                table.learn_leader(shard, url, epoch)
            case _:
                fields = cluster(version, **{f"s{shard}": ("n1" if url else None, epoch)})
                table.learn_documents(documents(fields))
        highest[shard] = max(highest[shard], epoch)
        for each in range(3):
            assert max(table.leadership(each).epoch, 0) == highest[each]
        known = table.topic("t")
        if known is not None:
            for route in known.routes:
                assert (route.leader, max(route.epoch, 0)) == (
                    table.leadership(route.shard).url,
                    highest[route.shard],
                )


def test_of_equal_epochs_the_latest_address_counts_but_not_its_absence() -> None:
    table = RouteTable()
    table.learn_leader(0, "http://a:1", 3)
    table.learn_leader(0, None, 3)
    assert table.leadership(0).url == "http://a:1"
    table.learn_leader(0, "http://moved:1", 3)
    assert table.leadership(0).url == "http://moved:1"
    table.learn_leader(0, None, 4)
    assert table.leadership(0).url is None
    assert table.urls == ["http://a:1", "http://moved:1"]


def test_a_topic_made_anew_replaces_the_old_one_and_never_the_other_way_round() -> None:
    table = RouteTable()
    old, new = topic(("http://a:1", 5)), topic(("http://a:1", 5), id=7, created_ms=9, queues=10)
    assert table.learn_topic(old) == old
    assert table.learn_topic(new) == new
    assert table.learn_topic(old) == new
    assert not old.is_same(new)
    assert table.topic_by_id(7) == new and table.topic_by_id(1) is None


def test_a_cluster_founded_anew_begins_with_its_own_epochs() -> None:
    """Ids begin again there, so a topic with a lower id that was created later proves it."""
    table = RouteTable()
    table.learn_topic(topic(("http://a:1", 50), id=7, created_ms=100))
    table.learn_documents(documents(cluster(900, s0=("n1", 50))))
    table.learn_topic(topic(("http://b:1", 1), id=1, created_ms=200))
    assert leaders(table) == [("http://b:1", 1)]
    table.learn_documents(documents(cluster(3, s0=("n2", 2))))
    assert leaders(table) == [(URLS["n2"], 2)]


def test_a_topic_that_grew_does_not_shrink_by_late_news() -> None:
    table = RouteTable()
    table.learn_topic(topic(("http://a:1", 1), ("http://b:1", 1), queues=60))
    assert table.learn_topic(topic(("http://a:1", 2), ("http://b:1", 1), queues=30)).queues == 60
    assert leaders(table)[0] == ("http://a:1", 2)


def test_of_addresses_that_nobody_names_any_more_the_last_few_are_kept() -> None:
    """A client that lives for years beside nodes that come back elsewhere each day."""
    table = RouteTable()
    table.learn_topic(topic(("http://a:1", 1), ("http://b:1", 1), ("http://c:1", 1)))
    for day in range(3000):
        table.learn_leader(day % 3, f"http://day-{day}:1", day + 2)
        assert {table.leadership(shard).url for shard in range(3)} <= set(table.urls)
        assert len(table.urls) <= 3 + 3 * FORMER_NODES
    assert [leader for leader, _ in leaders(table)] == [f"http://day-{day}:1" for day in (2997, 2998, 2999)]
    table.learn_documents(documents(cluster(1, s0=("n1", 9000), s1=("n2", 9000), s2=("n3", 9000))))
    for day in range(3000):
        table.learn_leader(0, f"http://later-{day}:1", 9001 + day)
    assert set(URLS.values()) <= set(table.urls) and len(table.urls) <= 4 + 2 * FORMER_NODES


def test_of_a_large_cluster_all_nodes_are_kept_that_a_copy_names() -> None:
    table = RouteTable()
    fields = cluster(5, s0=("n1", 2))
    fields["nodes"] = {f"n{number}": {"url": f"http://n{number}:1", "state": "active"} for number in range(50)}
    table.learn_documents(documents(fields, hint=True))
    table.learn_leader(0, "http://elsewhere:1", 3)
    assert {node["url"] for node in fields["nodes"].values()} <= set(table.urls)
    table.learn_documents(documents(cluster(6, s0=("n1", 4))))
    table.learn_documents(documents(fields, hint=True))
    for day in range(300):
        table.learn_leader(0, f"http://day-{day}:1", 5 + day)
    assert set(URLS.values()) <= set(table.urls) and len(table.urls) < 20, "a copy is older than what was heard"


def test_of_topics_that_nobody_follows_the_last_ones_are_kept() -> None:
    followed = {f"t{id}" for id in range(0, 20_000, 100)}
    table = RouteTable(followed)
    for id in range(20_000):
        assert table.learn_topic(topic(("http://a:1", 1), id=id, name=f"t{id}")).id == id
    assert all(table.topic(name) is not None for name in followed)
    assert all(table.topic(f"t{id}") is not None for id in range(20_000 - UNFOLLOWED_TOPICS, 20_000))
    known = [id for id in range(20_000) if table.topic(f"t{id}") is not None]
    assert len(known) <= len(followed) + 2 * UNFOLLOWED_TOPICS
    assert known == [id for id in range(20_000) if table.topic_by_id(id) is not None]


def test_whoever_listens_to_a_topic_hears_of_its_own_changes_alone() -> None:
    table = RouteTable()
    heard: list[str] = []
    listeners = {name: partial(heard.append, name) for name in ("t", "u")}
    for name, listener in listeners.items():
        table.learn_topic(topic(("http://a:1", 1), name=name, id=ord(name)))
        table.listen_to_topic(name, listener)
    table.learn_leader(0, "http://b:1", 2)
    table.learn_topic(topic(("http://b:1", 2), name="u", id=ord("u")))
    assert heard == []
    table.learn_topic(topic(("http://c:1", 3), name="u", id=ord("u"), queues=60))
    assert heard == ["u"]
    table.unlisten_to_topic("u", listeners["u"])
    table.learn_topic(topic(("http://c:1", 3), name="u", id=ord("u"), queues=90))
    table.learn_topic(topic(("http://c:1", 3), id=ord("t") + 1, created_ms=2))
    assert heard == ["u", "t"]


def test_a_topic_is_the_same_object_until_something_of_it_changes() -> None:
    table = RouteTable()
    first = table.learn_topic(topic(("http://a:1", 1)))
    table.learn_topic(topic(("http://a:1", 1), name="other", id=2))
    table.learn_leader(7, "http://b:1", 5)
    assert table.topic("t") is first
    table.learn_leader(0, "http://b:1", 2)
    moved = table.topic("t")
    assert moved is not first and leaders(table) == [("http://b:1", 2)]
    assert table.topic("t") is moved


def test_a_list_of_topics_tells_news_of_those_that_are_in_use_and_of_no_others() -> None:
    table = RouteTable()
    table.learn_leaders(topic((URLS["n1"], 1)))
    assert table.topic("t") is None, "nobody uses it"
    table.learn_topic(topic((URLS["n1"], 1)))
    table.learn_leaders(topic((URLS["n1"], 1), queues=60))
    table.learn_leaders(topic((URLS["n1"], 1)))
    assert (found := table.topic("t")) is not None and found.queues == 60
    table.learn_leaders(topic((URLS["n1"], 1), id=2, created_ms=2))
    table.learn_leaders(topic((URLS["n1"], 1)))
    assert (found := table.topic("t")) is not None and found.id == 2


def test_documents_join_topics_with_leaders_and_older_ones_are_passed_over() -> None:
    table = RouteTable()
    calls: list[int] = []
    table.listen(lambda: calls.append(table.generation))
    table.learn_documents(documents(cluster(5, s0=("n1", 2), s1=("n2", 3)), topic_document()))
    assert leaders(table) == [(URLS["n1"], 2), (URLS["n2"], 3)]
    assert table.urls == list(URLS.values())
    table.learn_documents(documents(cluster(4, s0=("n3", 9), s1=("n2", 3)), topic_document()))
    assert leaders(table) == [(URLS["n1"], 2), (URLS["n2"], 3)]
    assert len(calls) == 1
    table.learn_documents(documents(cluster(6, s0=(None, 2), s1=("n1", 4)), topic_document()))
    assert leaders(table) == [(URLS["n1"], 2), (URLS["n1"], 4)]
    assert len(calls) == 2


def test_the_nodes_limits_are_kept_where_documents_do_not_say_it() -> None:
    table = RouteTable()
    limits = {"max_message_bytes": 5_000_000, "max_batch_bytes": 7_000_000}
    described = Topic.from_dict({**topic(("http://a:1", 1)).to_dict(), **limits})
    table.learn_topic(described)
    table.learn_documents(documents(cluster(1, s0=("n1", 2), s1=("n1", 2)), topic_document()))
    known = table.topic("t")
    assert known is not None and known.max_message_bytes == 5_000_000 and known.max_batch_bytes == 7_000_000


def test_a_hint_gives_way_to_anything_that_was_heard() -> None:
    kept = documents(cluster(1000, s0=("n3", 99), s1=("n3", 99)), topic_document(), hint=True)
    table = RouteTable()
    table.learn_documents(kept)
    assert leaders(table) == [(URLS["n3"], 0), (URLS["n3"], 0)]
    table.learn_documents(documents(cluster(2, s0=("n1", 1), s1=("n2", 1)), topic_document()))
    table.learn_documents(kept)
    assert leaders(table) == [(URLS["n1"], 1), (URLS["n2"], 1)]


@pytest.mark.parametrize(
    "fields",
    [
        None,
        [],
        {},
        {"version": 1},
        cluster(1) | {"shards": []},
        cluster(1) | {"nodes": {"n1": {}}},
        {"version": "x"},
        cluster(1) | {"version": float("inf")},
        cluster(1) | {"version": float("nan")},
    ],
)
def test_what_is_no_cluster_document_is_refused(fields: Any) -> None:
    with pytest.raises(ValueError):
        ClusterDocument.from_dict(fields)


@pytest.mark.parametrize(
    "change", [{"ranges": [[0, 1]]}, {"ranges": None}, {"id": None}, {"options": 3}, {"id": float("inf")}]
)
def test_what_is_no_topic_document_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        TopicDocument.from_dict(topic_document() | change)


def test_a_copy_is_read_as_it_was_kept_and_written_only_when_it_changed(tmp_path: Path) -> None:
    copy = DiskCopy(tmp_path / "new" / "directory", "zk:1,zk:2/chroot", "a cluster/..")
    assert copy.load() is None
    fields, described = cluster(3, s0=("n1", 2), s1=("n2", 1)), topic_document()
    copy.save(fields, {"t": described})
    assert copy.path.parent == tmp_path / "new" / "directory"
    assert copy.load() == documents(fields, described, hint=True)
    copy.path.unlink()
    copy.save(fields, {"t": described})
    assert not copy.path.exists()
    copy.save(fields, {})
    assert copy.load() == documents(fields, hint=True)
    assert list(copy.path.parent.iterdir()) == [copy.path]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 2}', '{"format": 1}', '{"format": 1, "topics": 3}'])
def test_a_copy_that_cannot_be_read_counts_as_none(tmp_path: Path, content: str) -> None:
    copy = DiskCopy(tmp_path, "zk:1", "c")
    copy.path.write_text(content)
    assert copy.load() is None


def test_copies_of_different_clusters_are_different_files(tmp_path: Path) -> None:
    paths = {DiskCopy(tmp_path, hosts, name).path for hosts in ("zk:1", "zk:2") for name in ("a/b", "a_b")}
    assert len(paths) == 4


def test_copies_are_kept_where_caches_belong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_directory() == tmp_path / "lsmq"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache_directory() == Path.home() / ".cache" / "lsmq"
