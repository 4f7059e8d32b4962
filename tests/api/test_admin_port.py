"""A port of its own for administration: what is done there alone, who is asked, and that clients leave it free."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from lsmq import Client, Rights, WrongPort
from lsmq_node.api.access import ACCESS
from lsmq_node.api.routing import ApiOperation
from lsmq_node.config import NodeConfig
from lsmq_node.settings import InvalidConfig
from support.node_process import NodeProcess
from support.ports import free_ports
from support.waiting import eventually

from .test_rights import ROUTES, Asking, ask

ADMINISTRATION = {
    "drainNode", "undrainNode", "removeNode", "moveReplicas", "cancelMove", "pauseMoves", "resumeMoves", "unpinShard",
    "replaceVoter", "keepVoter", "growShards",
    "transferLeader", "reviveShard", "listTokens", "createToken", "rotateToken", "revokeTokens", "listRoles", "putRole",
    "deleteRole", "listGrants", "grantRights", "revokeRights", "testRights", "listLimits", "alterLimits",
    "removeLimits",
}  # fmt: skip


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    (port,) = free_ports(1)
    data = tmp_path_factory.mktemp("administered") / "data"
    node = NodeProcess(data, auth="token", admin_port=port, max_connections=8).start()
    try:
        eventually((data / "admin.token").exists, "the first token is written")
        yield node
    finally:
        node.stop()


@pytest.fixture(scope="module")
def token(node: NodeProcess) -> str:
    return (node.data / "admin.token").read_text().strip()


@pytest.fixture(scope="module")
def admin_url(node: NodeProcess) -> str:
    return f"http://127.0.0.1:{node.settings['admin_port']}"


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.operation)
def test_an_operation_is_administration_and_refused_to_clients_or_neither(
    node: NodeProcess, admin_url: str, token: str, route: ApiOperation
) -> None:
    assert ACCESS[route.operation].administers == (route.operation in ADMINISTRATION)
    if route.is_stream:
        return
    nobody = Asking(node.url, None)
    if ACCESS[route.operation].needs:
        assert ask(nobody, route).status == 401, "who asks is looked at first"
    for_clients = ask(Asking(node.url, token), route)
    assert (for_clients.status == 403 and for_clients.code == "wrong_port") == (route.operation in ADMINISTRATION)
    if route.operation not in ("rotateToken", "revokeTokens"):
        assert ask(Asking(admin_url, token), route).status not in (401, 403)


def test_a_refusal_for_the_port_is_in_the_audit_log(node: NodeProcess, token: str) -> None:
    log = node.data / "audit.jsonl"

    def noted() -> bool:
        Asking(node.url, token).call("GET", "/v1/tokens", status=403)  # One among a hundred a second may be left out.
        lines = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
        wanted = ("refused", "admin@local", "listTokens", "wrong_port")
        return wanted in [
            tuple(line.get(name) for name in ("event", "principal", "operation", "code")) for line in lines
        ]

    eventually(noted, "the audit log has the refusal")


def test_administrators_come_in_where_clients_have_taken_all_connections(
    node: NodeProcess, admin_url: str, token: str
) -> None:
    with ExitStack() as held:
        for _ in range(20):
            held.enter_context(socket.create_connection((node.url.split("//")[1].split(":")[0], node.port)))
        found = Asking(admin_url, token).call("GET", "/metrics", status=200)
        assert b"lsmq_connections_refused_total" in found.body
        assert Asking(admin_url, token).call("GET", "/v1/tokens", status=200).json()["tokens"]


def test_a_client_that_knows_both_ports_finds_the_right_one(node: NodeProcess, admin_url: str, token: str) -> None:
    async def listed(*urls: str) -> int:
        async with Client(list(urls), token=token) as client:
            return len(await Rights(client).tokens())

    assert asyncio.run(listed(admin_url)) == asyncio.run(listed(node.url, admin_url)) > 0
    with pytest.raises(WrongPort, match="listTokens is administration"):
        asyncio.run(listed(node.url))


def test_others_reach_neither_port_of_a_node_that_asks_nobody(tmp_path: Path) -> None:
    for host, admin_host, named in (("127.0.0.1", "0.0.0.0", "admin_host"), ("0.0.0.0", "127.0.0.1", "host")):
        config = NodeConfig(data=tmp_path, host=host, admin_host=admin_host, admin_port=7610)
        with pytest.raises(InvalidConfig, match=f"^{named} is 0.0.0.0") as refused:
            config.check_exposure()
        assert refused.value.details["setting"] == named
    NodeConfig(data=tmp_path, admin_host="0.0.0.0").check_exposure()  # There is no such port.
