"""Clients that are known by their certificates: on one node, and in a cluster, where nodes vouch for them."""

from __future__ import annotations

import asyncio
import json
import os
import ssl
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from lsmq import Forbidden, Producer, Unauthenticated
from lsmq.client import Client
from lsmq.rights import GrantedRole, Rights
from lsmq_coordinator.authority import Authority
from lsmq_lab.local_cluster import LocalCluster, found_plan
from lsmq_node.choices import Auth, CertificateName
from lsmq_node.config import NodeConfig
from lsmq_node.settings import InvalidConfig
from support.node_process import NodeProcess
from support.waiting import comes_true, eventually

HOSTS = ("127.0.0.1", "localhost")
QUEUES, MESSAGES = 6, 60


async def started(make_node: Callable[..., NodeProcess], tmp_path: Path) -> tuple[Authority, NodeProcess, Path]:
    """An authority, a node that knows whom its certificates name, and the file of the first token."""
    authority = Authority.create(tmp_path / "authority")
    cert, key = authority.issue("node", HOSTS)
    node = make_node(
        auth="token",
        tls_cert=cert,
        tls_key=key,
        tls_client_ca=authority.cert,
        tls_client_auth="optional",
        tls_principal="common-name",
    ).start()
    file = node.data / "admin.token"
    await comes_true(file.exists, "the first token is written")
    return authority, node, file


async def test_over_tls_a_sessions_cookie_is_secure_and_counts_before_a_certificate(
    make_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    authority, node, file = await started(make_node, tmp_path)
    context = ssl.create_default_context(cafile=authority.cert)
    context.load_cert_chain(*authority.issue("alice"))
    url, token = f"{node.url}/v1/session", {"Authorization": f"Bearer {file.read_text().strip()}"}
    connector = aiohttp.TCPConnector(ssl=context)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as browser:
        async with browser.post(url, headers=token) as signed_in:
            assert signed_in.status == 201
            cookie = signed_in.cookies["__Host-lsmq-session"]
            assert cookie["secure"] and cookie["httponly"] and cookie["samesite"] == "Strict"
        async with browser.post(url) as refused:
            assert refused.status == 400, "a certificate shows itself, and needs no session"
        for name, principal in (("__Host-lsmq-session", "admin@local"), ("lsmq-session", "alice")):
            async with browser.get(f"{node.url}/v1/whoami", headers={"Cookie": f"{name}={cookie.value}"}) as found:
                assert (await found.json())["name"] == principal


async def test_who_shows_a_certificate_is_whom_it_names(make_node: Callable[..., NodeProcess], tmp_path: Path) -> None:
    authority, node, file = await started(make_node, tmp_path)
    shown = {"ca": authority.cert, **dict(zip(("cert", "cert_key"), authority.issue("alice"), strict=True))}
    async with (
        Client(node.url, ca=authority.cert, token_file=file) as admin,
        Client(node.url, **shown) as alice,
        Client(node.url, ca=authority.cert) as nobody,
        Client(node.url, token_file=file, **shown) as both,
    ):
        found = await Rights(alice).whoami()
        assert (found.name, found.by, found.roles) == ("alice", "certificate", ())
        assert found.expires_ms is not None
        with pytest.raises(Unauthenticated):
            await Rights(nobody).whoami()
        assert (await Rights(both).whoami()).name == "admin@local", "a token counts before a certificate"
        with pytest.raises(Forbidden, match="alice may not create topic shop"):
            await alice.create_topic("shop.orders")
        await Rights(admin).grant("alice", roles=[GrantedRole("tenant", "shop.")])
        await alice.create_topic("shop.orders")
        async with Producer(alice, "shop.orders") as producer:
            await producer.send("x", queue=0)
        # A wrong token is not made good by a certificate.
        async with Client(node.url, token="lsmq_" + "0" * 64, **shown) as wrong:
            with pytest.raises(Unauthenticated):
                await wrong.topics()
    command = [sys.executable, "-m", "lsmq", "whoami", "--json", "--url", node.url, "--ca", str(authority.cert)]
    files = ["--cert", str(shown["cert"]), "--cert-key", str(shown["cert_key"])]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LSMQ_")}
    run = await asyncio.to_thread(
        subprocess.run, [*command, *files], capture_output=True, text=True, timeout=60, env=environment
    )
    assert run.returncode == 0, run.stderr
    assert (json.loads(run.stdout)["name"], json.loads(run.stdout)["by"]) == ("alice", "certificate")
    audited = node.data / "audit.jsonl"
    eventually(
        lambda: (
            audited.exists()
            and any(
                (line["principal"], line["by"], line["operation"]) == ("alice", "certificate", "createTopic")
                for line in map(json.loads, audited.read_text().splitlines())
            )
        ),
        "the audit log names her",
    )


@pytest.mark.slow
async def test_nodes_of_a_cluster_vouch_for_who_showed_one_of_them_a_certificate(tmp_path: Path) -> None:
    """Requests that are passed on, and streams that are relayed, are those of who sent them."""
    clients = Authority.create(tmp_path / "clients")
    both = tmp_path / "both.crt"
    settings = {
        "segment_bytes": 1 << 20,
        "memtable_bytes": 4 << 20,
        "auth": "token",
        "tls_client_ca": str(both),
        "tls_client_auth": "optional",
        "tls_principal": "common-name",
    }
    cluster = LocalCluster.found(tmp_path / "c", found_plan(zookeeper="none", tls=True, settings=settings))
    own = cluster.directory / "tls" / "ca.crt"
    both.write_bytes(own.read_bytes() + clients.cert.read_bytes())
    cluster.up()
    try:
        await comes_true(lambda: cluster.token is not None, "an administrator's token is written")
        cert, key = clients.issue("alice")
        urls = [node.url for node in cluster.plan.nodes]
        async with (
            Client(urls, ca=own, token=cluster.token) as admin,
            Client(urls, ca=own, cert=cert, cert_key=key) as alice,
        ):
            await Rights(admin).grant("alice", roles=[GrantedRole("tenant", "shop.")])
            await admin.create_topic("shop.orders", queues=QUEUES)
            await admin.create_topic("other", queues=QUEUES)
            for node in cluster.plan.nodes:
                curl = ["curl", "-sS", "--cacert", str(own), "--cert", str(cert), "--key", str(key)]
                for topic, expected in (("shop.orders", "200"), ("other", "403")):
                    for queue in range(QUEUES):  # Any node is asked, whoever leads.
                        document = json.dumps({"messages": [{"queue": queue, "body": "x"}]})
                        url = f"{node.url}/v1/topics/{topic}/messages"
                        asked = await asyncio.to_thread(
                            subprocess.run,
                            [
                                *curl,
                                "-o",
                                "/dev/null",
                                "-w",
                                "%{http_code}",
                                "-H",
                                "Content-Type: application/json",
                                "-d",
                                document,
                                url,
                            ],
                            capture_output=True,
                            text=True,
                            timeout=60,
                        )
                        assert asked.stdout == expected, (asked.stdout, asked.stderr)
            async with Producer(alice, "shop.orders") as producer:
                for number in range(MESSAGES):
                    await producer.send(f"{number}", queue=number % QUEUES)
            # A stream of all queues at one node, which relays what the others lead.
            context = ssl.create_default_context(cafile=own)
            context.load_cert_chain(cert, key)
            path = "/v1/groups/shop.pushed/push?topic=shop.orders&credit=1000"
            found: set[tuple[int, int]] = set()
            async with (
                aiohttp.ClientSession() as session,
                session.ws_connect(urls[0] + path, ssl=context, protocols=("lsmq.json",)) as socket,
            ):
                while len(found) < MESSAGES + 3 * QUEUES:
                    frame = await socket.receive_json(timeout=60)
                    assert "end" not in frame, frame
                    found.update((each["queue"], each["offset"]) for each in frame.get("messages", ()))
    finally:
        cluster.down(delete=True)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"auth": Auth.NONE}, "auth is 'none'"),
        ({"tls_client_ca": None}, "set tls_client_ca"),
        ({"tls_principal_pattern": "("}, "no regular expression"),
        ({"tls_principal_pattern": "alice"}, "has 0 groups"),
        ({"tls_principal": CertificateName.NONE, "tls_principal_pattern": "(.*)"}, "tls_principal does not say"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], words: str, tmp_path: Path) -> None:
    given = {"auth": Auth.TOKEN, "tls_principal": CertificateName.URI, "tls_client_ca": tmp_path, **settings}
    files = {"tls_cert": tmp_path, "tls_key": tmp_path}
    with pytest.raises(InvalidConfig, match=words):
        NodeConfig(data=tmp_path, **files, **given).validate()
