"""Who may make a backup, and who may read it: of a node that asks, by TLS."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from api.calls import Api
from lsmq import GrantedRole, Right, sync
from lsmq_coordinator.authority import Authority
from support.node_process import NodeProcess
from support.waiting import eventually

from .commands import lsmq


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "tls")


@pytest.fixture
def node(make_node: Callable[..., NodeProcess], authority: Authority) -> Iterator[NodeProcess]:
    cert, key = authority.issue("node", ("127.0.0.1", "localhost"))
    node = make_node(auth="token", tls_cert=cert, tls_key=key).start()
    eventually((node.data / "admin.token").exists, "the first token is written")
    yield node


def files_that_others_may_open(*directories: Path) -> list[Path]:
    found = [path for directory in directories for path in (directory, *directory.rglob("*"))]
    assert any(path.is_file() for path in found)
    return [path for path in found if stat.S_IMODE(path.stat().st_mode) & 0o077]


def test_a_backup_is_made_by_who_may_read_all_and_is_private(
    node: NodeProcess, make_node: Callable[..., NodeProcess], authority: Authority, tmp_path: Path
) -> None:
    backups, data = tmp_path / "backups", tmp_path / "new"
    admin = node.data / "admin.token"

    def backup(*words: str | Path, token: Path, code: int = 0) -> str:
        return str(lsmq(node.url, *words, "--ca", authority.cert, "--token-file", token, code=code))

    with sync.Client(node.url, ca=authority.cert, token_file=admin) as client:
        client.create_topic("mine", queues=2)
        with sync.Producer(client, "mine") as producer:
            producer.send("secret")
        rights = sync.Rights(client)
        tokens = {}
        for name, roles in {
            "operator": [],
            "tenant": [GrantedRole("backup", "mine")],
            "reader": [GrantedRole("consumer"), GrantedRole("monitor")],
            "nightly": [GrantedRole("backup")],
        }.items():
            tokens[name] = tmp_path / f"{name}.token"
            tokens[name].touch(mode=0o600)
            tokens[name].write_text(rights.create_token(name, roles=roles).token)
        rights.grant("operator", rights=[Right("cluster", "*", "all"), Right("topic", "*", "describe")])
        # Who runs the cluster, or has only some names, neither reads all messages nor leaves any out without a word.
        for name in ("operator", "tenant", "reader"):
            for words in (("backup", "create", "--to", backups), ("verify",)):
                assert "forbidden" in backup(*words, token=tokens[name], code=1)
        assert not list(backups.glob("backups/*"))
        assert "1 topic," in backup("backup", "create", "--to", backups, token=tokens["nightly"])
        assert "nothing is damaged" in backup("verify", token=tokens["nightly"])
        assert "forbidden" in backup("shard", "transfer", "0", "local", token=tokens["nightly"], code=1)
    lsmq(node.url, "verify", backups)
    lsmq(node.url, "backup", "restore", backups, "--data", data)
    assert files_that_others_may_open(backups, data) == []
    api = Api(make_node(data).start().url)
    assert [message["body"] for queue in range(2) for message in api.all_messages("mine", queue)] == ["secret"]


def test_an_unset_variable_is_no_prefix_and_a_token_is_made_only_where_it_can_be_kept(
    node: NodeProcess, authority: Authority, tmp_path: Path
) -> None:
    def run(*words: str | Path, token: Path = node.data / "admin.token", code: int = 0) -> str:
        return str(lsmq(node.url, *words, "--ca", authority.cert, "--token-file", token, code=code))

    kept = tmp_path / "kept.token"
    for prefix in ("", "*", "shop.*"):
        for words in (("token", "create", "p", "--out", kept), ("acl", "grant", "p")):
            assert "begins no name" in run(*words, "--role", "producer", "--prefix", prefix, code=2)
    nowhere = tmp_path / "none" / "p.token"
    assert "cannot be written" in run("token", "create", "p", "--out", nowhere, code=2)
    run("token", "create", "p", "--out", kept)  # Nobody has made one for p before.
    assert "cannot be written" in run("token", "rotate", "p", "--now", "--out", nowhere, code=2)
    assert "name" in run("whoami", token=kept)
    assert "no role" in run("token", "create", "q", "--role", "none", "--out", tmp_path / "q.token", code=1)
    assert not (tmp_path / "q.token").exists()
