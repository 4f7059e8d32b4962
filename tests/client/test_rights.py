"""Tokens, roles and grants from Python and from the command line, against a node that asks who its clients are."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lsmq import (
    Client,
    Consumer,
    GrantedRole,
    InvalidRequest,
    Producer,
    PushConsumer,
    Right,
    Rights,
    Unauthenticated,
    UnknownPrincipal,
    UnknownRole,
    sync,
)
from lsmq._credentials import CredentialOptions
from support.fault_proxy import FaultProxy
from support.node_process import NodeProcess
from support.python_process import run_python
from support.waiting import comes_true, eventually

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    node = NodeProcess(tmp_path_factory.mktemp("rights") / "data", auth="token").start()
    eventually((node.data / "admin.token").exists, "the first token is written")
    yield node
    node.stop()


@pytest.fixture
def run_lsmq(node: NodeProcess) -> Run:
    def run(*arguments: str, token_file: Path = node.data / "admin.token") -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "LSMQ_URL": node.url, "LSMQ_TOKEN_FILE": str(token_file), "COLUMNS": "200"}
        return run_python("-m", "lsmq", *arguments, env=environment, text=True)

    return run


@pytest.mark.part(3)
def test_the_command_line_makes_exchanges_and_revokes_tokens(run_lsmq: Run, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    made = run_lsmq(
        "token", "create", "cli", "--expires", "90d", "--role", "producer", "--prefix", "c.", "--out", str(first)
    )
    assert (made.returncode, made.stdout) == (0, ""), made.stderr
    assert stat.S_IMODE(first.stat().st_mode) == 0o600
    who = json.loads(run_lsmq("whoami", "--json", token_file=first).stdout)
    assert who["name"] == "cli" and who["roles"] == [{"role": "producer", "prefix": "c."}]
    assert run_lsmq("token", "rotate", "cli", "--out", str(first)).returncode == 2  # It is there already.
    assert run_lsmq("token", "rotate", "cli", "--now", "--out", str(second)).returncode == 0
    refused = run_lsmq("whoami", token_file=first)
    assert refused.returncode == 1 and refused.stderr.startswith("error: unauthenticated: ")
    listed = [json.loads(line) for line in run_lsmq("token", "list", "--json").stdout.splitlines()]
    assert [each["by"] for each in listed if each["name"] == "cli"] == ["admin@local"]
    assert first.read_text().strip() not in run_lsmq("token", "list").stdout
    assert run_lsmq("token", "revoke", "cli", "--yes").returncode == 0
    assert run_lsmq("whoami", token_file=second).returncode == 1
    second.chmod(0o644)
    exposed = run_lsmq("whoami", token_file=second)
    assert exposed.returncode == 2 and "chmod 600" in exposed.stderr


def test_schedules_are_listed_of_all_topics_that_somebody_may_read(
    node: NodeProcess, run_lsmq: Run, tmp_path: Path
) -> None:
    token = tmp_path / "token"
    assert run_lsmq("token", "create", "planner", "--out", str(token)).returncode == 0
    for topic, right in (("plans.read", "read"), ("plans.write", "write")):
        assert run_lsmq("topic", "create", topic).returncode == 0
        put = ("schedule", "put", "s", "--topic", topic, "--cron", "@yearly", "--body", "x")
        assert run_lsmq(*put).returncode == 0
        assert run_lsmq("acl", "grant", "planner", "--allow", right, "topic", topic).returncode == 0
    listed = run_lsmq("schedule", "list", "--json", token_file=token)
    assert listed.returncode == 0, listed.stderr
    assert [json.loads(line)["topic"] for line in listed.stdout.splitlines()] == ["plans.read"]
    assert "1 topic left out, which you may not read" in listed.stderr
    refused = run_lsmq("schedule", "list", "--topic", "plans.write", token_file=token)
    assert refused.returncode == 1 and "forbidden" in refused.stderr


@pytest.mark.part(3)
def test_the_command_line_grants_and_takes_back(run_lsmq: Run) -> None:
    assert run_lsmq("role", "put", "clerk", "--allow", "write", "topic", "bills.*").returncode == 0
    assert run_lsmq("acl", "grant", "bob", "--role", "clerk").returncode == 0
    assert run_lsmq("acl", "grant", "bob", "--allow", "read", "topic", "prices").returncode == 0
    asked = ("acl", "test", "bob", "write", "topic")
    allowed, not_allowed = run_lsmq(*asked, "bills.eu"), run_lsmq(*asked, "prices")
    assert (allowed.returncode, allowed.stdout) == (0, "yes: role clerk\n")
    assert (not_allowed.returncode, not_allowed.stdout, not_allowed.stderr) == (3, "no\n", "")
    assert run_lsmq("acl", "test", "bob", "writes", "topic", "prices").returncode == 1, "an error is not a no"
    assert run_lsmq("acl", "test", "bob").returncode == 2
    assert "read topic prices" in run_lsmq("acl", "list").stdout
    assert "write topic bills.*" in run_lsmq("role", "list").stdout
    assert run_lsmq("acl", "revoke", "bob", "--allow", "read", "topic", "prices").returncode == 0
    assert run_lsmq("acl", "revoke", "bob", "--role", "clerk").returncode == 0
    assert run_lsmq("role", "delete", "clerk", "--yes").returncode == 0
    assert "bob" not in run_lsmq("acl", "list").stdout
    assert run_lsmq("acl", "grant", "bob").returncode == 2
    assert run_lsmq("acl", "grant", "bob", "--allow", "reads", "topic", "x").returncode == 1


@pytest.mark.part(3)
def test_the_command_line_and_python_set_limits_list_them_and_take_them_away(node: NodeProcess, run_lsmq: Run) -> None:
    assert run_lsmq("limit", "set", "eve", "--requests-per-s", "200", "--bytes-per-s", "10M").returncode == 0
    assert run_lsmq("limit", "set", "eve", "--connections", "0", "--requests-per-s", "default").returncode == 0
    with sync.Client(node.url, token_file=node.data / "admin.token") as client:
        rights = sync.Rights(client)
        assert rights.limits().own["eve"] == {"bytes_per_s": 10 << 20, "connections": 0}
        rights.alter_limits("mallory", {"open_requests": 7})
        everybody, eve, mallory = (json.loads(line) for line in run_lsmq("limit", "list", "--json").stdout.splitlines())
        assert set(everybody["defaults"].values()) == {0}
        assert (eve["name"], mallory) == ("eve", {"name": "mallory", "limits": {"open_requests": 7}})
        shown = run_lsmq("limit", "list").stdout
        assert "no limit" in shown and str(10 << 20) in shown and "(everybody)" in shown
        rights.remove_limits("mallory")
        with pytest.raises(UnknownPrincipal, match="lsmq limit list"):
            rights.remove_limits("mallory")
    assert run_lsmq("limit", "remove", "eve").returncode == 0
    assert " eve " not in run_lsmq("limit", "list").stdout
    assert run_lsmq("limit", "set", "eve").returncode == 2
    assert run_lsmq("limit", "set", "eve", "--connections", "-1").returncode == 2


@pytest.mark.part(3)
def test_a_grant_to_a_name_that_is_seen_for_the_first_time_is_made_and_says_how_principals_are_called(
    run_lsmq: Run,
) -> None:
    right = ("--allow", "read", "topic", "prices")
    unseen = run_lsmq("acl", "grant", "CN=carol", *right)
    assert unseen.returncode == 1, "this can be nobody's name"
    unseen = run_lsmq("acl", "grant", "carol", *right)
    assert (unseen.returncode, unseen.stdout) == (0, "")
    assert unseen.stderr.startswith("warning: 'carol' ") and unseen.stderr.count("\n") == 1
    for told in ("no token", "tls_principal", "oidc_principal_claim", "lsmq whoami"):
        assert told in unseen.stderr
    assert "carol" in run_lsmq("acl", "list").stdout
    assert run_lsmq("acl", "grant", "carol", "--role", "monitor").stderr == "", "it was said"
    assert run_lsmq("token", "create", "dave").returncode == 0
    assert run_lsmq("acl", "grant", "dave", *right).stderr == ""
    assert run_lsmq("acl", "revoke", "dave", *right).returncode == 0
    assert run_lsmq("acl", "grant", "dave", *right).stderr == "", "it has a token"


def test_a_token_that_was_exchanged_in_its_file_is_found(node: NodeProcess, tmp_path: Path) -> None:
    file = tmp_path / "token"
    with sync.Client(node.url, token_file=node.data / "admin.token") as client:
        rights = sync.Rights(client)
        roles = [GrantedRole("tenant", "own.")]
        _write(file, rights.create_token("own", roles=roles).token)
        with sync.Client(node.url, token_file=file) as own, sync.Client(node.url, token="lsmq_no") as stranger:
            own.create_topic("own.topic", queues=1)
            _write(file, rights.rotate_token("own", overlap_ms=0).token)
            with sync.Producer(own, "own.topic") as producer:
                producer.send_and_wait("x")
            assert [topic.name for topic in own.topics()] == ["own.topic"]
            with pytest.raises(Unauthenticated):
                stranger.topics()
            assert sync.Rights(own).whoami().roles == (GrantedRole("tenant", "own."),)
        rights.grant("own", rights=[Right("topic", "shared", "read")])
        assert rights.test("own", "topic", "shared", "read") == "read topic shared"
        assert rights.test("own", "topic", "shared", "write") is None
        rights.revoke_tokens("own")
        with pytest.raises(UnknownPrincipal):
            rights.revoke_tokens("own")
        secret = rights.create_token("own", ttl_ms=60_000)
        assert secret.token not in repr(secret)


async def test_all_who_showed_a_token_that_was_exchanged_in_its_file_show_the_new_one(
    node: NodeProcess, tmp_path: Path
) -> None:
    """Of several requests that are under way the first one reads the file; the others were refused no less."""
    file = tmp_path / "token"
    async with Client(node.url, token_file=node.data / "admin.token") as client:
        rights = Rights(client)
        _write(file, (await rights.create_token("many", roles=[GrantedRole("tenant", "many.")])).token)
        async with Client(node.url, token_file=file) as many:
            await many.create_topic("many.topic", queues=1)
            for _ in range(2):
                _write(file, (await rights.rotate_token("many", overlap_ms=0)).token)
                found = await asyncio.gather(*(many.topic("many.topic") for _ in range(8)))
                assert {topic.name for topic in found} == {"many.topic"}


@pytest.mark.parametrize("kept", ["file", "function"])
async def test_what_is_held_goes_on_with_a_newer_token_when_its_own_ends(
    node: NodeProcess, tmp_path: Path, kept: str
) -> None:
    topic, file = f"held-by-{kept}", tmp_path / "token"
    async with Client(node.url, token_file=node.data / "admin.token") as admin:
        await admin.create_topic(topic)
        rights, role = Rights(admin), GrantedRole("consumer", "")
        first, second = [(await rights.create_token(f"{kept}-{n}", roles=[role])).token for n in range(2)]
        file.touch(0o600)
        file.write_text(first)
        shown: CredentialOptions = {"token_file": file} if kept == "file" else {"token": file.read_text}
        async with (
            Producer(admin, topic) as producer,
            Client(node.url, **shown) as own,
            Consumer(own, topic, start="earliest") as consumer,
            PushConsumer(own, topic, group=topic) as pushed,
        ):
            await producer.send_and_wait("before")
            for each in (consumer, pushed):
                assert [message.text() for message in await each.poll()] == ["before"]

            async def holds() -> bool:
                return bool((await admin.ask("GET", "/v1/status"))["waiters"])

            await comes_true(holds, "a read is held")
            file.write_text(second)
            await rights.revoke_tokens(f"{kept}-0")
            await producer.send_and_wait("after")
            for each in (consumer, pushed):
                assert [message.text() for message in await each.poll()][-1] == "after"


async def test_what_was_taken_away_when_the_answer_was_lost_is_taken_away(node: NodeProcess) -> None:
    right = Right("topic", "shared", "read")
    token_file = node.data / "admin.token"
    async with FaultProxy(node.url) as proxy, Client(proxy.url, token_file=token_file) as client:
        rights = Rights(client)
        await rights.put_role("lost-role", [right])
        await rights.create_token("lost")
        await rights.grant("lost", rights=[right])
        await rights.alter_limits("lost", {"requests_per_s": 100})
        proxy.lose_answers("revoke")
        await rights.revoke("lost", rights=[right])
        proxy.lose_answers("lost")
        await rights.revoke_tokens("lost")
        proxy.lose_answers("lost")
        await rights.remove_limits("lost")
        proxy.lose_answers("lost-role")
        await rights.delete_role("lost-role")
        with pytest.raises(UnknownRole):
            await rights.delete_role("lost-role")


def test_a_file_that_is_no_token_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    file = tmp_path / "token"
    for text, said in (("", "no token"), ("two words", "no token"), ("\xe4", "no token")):
        _write(file, text)
        with pytest.raises(InvalidRequest, match=said):
            sync.Client("http://127.0.0.1:1", token_file=file)
    with pytest.raises(InvalidRequest, match="cannot be read"):
        sync.Client("http://127.0.0.1:1", token_file=tmp_path / "nothing")
    os.mkfifo(pipe := tmp_path / "pipe", 0o600)  # Nobody writes to it: whoever waits for that waits for ever.
    for none in (pipe, Path("/dev/null")):
        with pytest.raises(InvalidRequest, match=r"regular file.*LSMQ_TOKEN takes"):
            sync.Client("http://127.0.0.1:1", token_file=none)
    with pytest.raises(InvalidRequest, match="not both"):
        sync.Client("http://127.0.0.1:1", token="x", token_file=file)


def _write(file: Path, text: str) -> None:
    file.touch(0o600)
    file.chmod(0o600)
    file.write_text(text)
