"""The cluster of containers in TLS: its settings are taken, its certificates are good, and it serves."""

from __future__ import annotations

import os
import re
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from lsmq_coordinator.tls import Certificates, dialling_context
from lsmq_node.cluster_config import ENVIRONMENT_PREFIX
from lsmq_node.config import NodeConfig
from lsmq_node.tls_settings import client_files
from support.made_once import made_once

from .stack import COMPOSE_DIRECTORY, NODES, ZOOKEEPERS, Stack, until
from .test_compose import env_file

ALL_NODES = (*NODES, "n4")
TLS = "/etc/lsmq-tls"


def services(name: str) -> dict[str, dict[str, Any]]:
    """Of a file, with the variables of .env in their places."""
    text = (COMPOSE_DIRECTORY / name).read_text()
    for variable, value in env_file().items():
        text = re.sub(rf"\$\{{{variable}:-[^}}]*\}}", value, text)
    assert "${" not in text
    found: dict[str, dict[str, Any]] = yaml.safe_load(text)["services"]
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the container `certificates` makes, by the command that it runs."""
    return made_once(tmp_path_factory, "certificates", make_certificates)


def make_certificates(directory: Path) -> None:
    assert services("docker-compose.tls.yml")["certificates"]["entrypoint"][2:] == ["lsmq-certificates"]
    authority, tls, *words = services("docker-compose.tls.yml")["certificates"]["command"]
    for reader in (*ALL_NODES, *ZOOKEEPERS, "clients"):
        (directory / tls.strip("/") / reader).mkdir(parents=True)
    (directory / authority.strip("/")).mkdir()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for given in (words[:2], words):  # For the first node, and for all with the same authority.
        subprocess.run(
            [
                COMPOSE_DIRECTORY / "image" / "certificates.sh",
                *(f"{directory}{each}" for each in (authority, tls)),
                *given,
            ],
            env={**os.environ, "PATH": path},
            check=True,
            capture_output=True,
        )


@pytest.mark.parametrize("node", ALL_NODES)
def test_a_node_takes_the_settings_of_both_files_and_its_own_certificate(made: Path, node: str) -> None:
    both = {**services("docker-compose.yml")[node]["environment"]}
    both |= services("docker-compose.tls.yml")[node]["environment"]
    own = made / "tls" / node
    environment = {name: value for name, value in env_file().items() if name.startswith("LSMQ_")}
    environment |= {name: str(value).replace(TLS, str(own)) for name, value in both.items()}
    config = NodeConfig.load(None, environment, data="/var/lib/lsmq", host="0.0.0.0")
    assert config.cluster is not None and config.cluster.tls_ca == own / "ca.crt"
    assert config.public_url.startswith("https://localhost:76")
    assert f"{ENVIRONMENT_PREFIX}VOTERS" in both
    for voter in config.cluster.voters.values():
        assert voter.url.startswith("https://") and voter.internal_url.startswith("https://")
    files = client_files(config)
    assert files is not None
    Certificates(files)  # They are good, and of each other.
    shown = config.cluster
    assert shown.zookeeper_by_tls
    dialling_context(shown.zookeeper_tls_ca, shown.zookeeper_tls_cert, shown.zookeeper_tls_key)
    mounts = services("docker-compose.tls.yml")[node]["volumes"]
    assert mounts == [f"{node}-tls:{TLS}:ro"], "no node sees another one's key"


def test_a_zookeeper_takes_who_has_a_certificate_and_shows_its_own_to_nodes_and_to_the_others(made: Path) -> None:
    for name in ZOOKEEPERS:
        own, service = made / "tls" / name, services("docker-compose.tls.yml")[name]
        assert service["volumes"] == [f"{name}-tls:{TLS}:ro"] and service["group_add"] == ["10001"]
        assert {file.name: file.stat().st_mode & 0o777 for file in own.iterdir()} == {
            "zookeeper.pem": 0o640,
            "ca.crt": 0o640,
        }
        told = dict(line.split("=", 1) for line in service["environment"]["ZOO_CFG_EXTRA"].split())
        for port in ("ssl", "ssl.quorum"):
            assert told[f"{port}.clientAuth"] == "need" and told[f"{port}.enabledProtocols"] == "TLSv1.3"
            shown = Path(told[f"{port}.keyStore.location"].replace(TLS, str(own)))
            ssl.create_default_context(cafile=own / "ca.crt").load_cert_chain(shown)
        assert told["sslQuorum"] == "true"
        for server in service["environment"]["ZOO_SERVERS"].split():
            assert server.endswith(";127.0.0.1:2181"), "nobody but itself reaches the port without TLS"


def test_the_key_of_the_authority_is_seen_by_nobody_else_and_readers_have_no_more_than_they_need(made: Path) -> None:
    mounted = {
        name: [mount for mount in service.get("volumes", ()) if mount.startswith("authority:")]
        for name, service in services("docker-compose.tls.yml").items()
    }
    assert {name for name, mounts in mounted.items() if mounts} == {"certificates"}
    assert {file.name for file in (made / "authority").iterdir()} == {"ca.crt", "ca.key"}
    assert {file.name for file in (made / "tls" / "clients").iterdir()} == {"ca.crt"}
    for node in ALL_NODES:
        assert {file.name for file in (made / "tls" / node).iterdir()} == {"ca.crt", "node.crt", "node.key"}
        assert (made / "tls" / node / "node.key").stat().st_mode & 0o077 == 0
    assert not list(made.rglob("*.new"))
    certificates = services("docker-compose.tls.yml")["certificates"]
    assert certificates["read_only"] is True and certificates["cap_drop"] == ["ALL"]
    assert certificates["network_mode"] == "none"


@pytest.mark.slow
@pytest.mark.xdist_group("containers")
@pytest.mark.timeout(900)
@pytest.mark.soak
def test_containers_serve_in_tls_and_in_nothing_else(stack: Stack) -> None:
    tls = stack.in_tls()
    with tls.up():
        both = (*NODES, *ZOOKEEPERS)
        until(lambda: {tls.health(service) for service in both} == {"healthy"}, "all are healthy", 180)
        assert not tls.ready("n1"), "it does not speak without TLS"
        tls.compose("run", "--rm", "-T", "cli", "topic", "create", "orders", "--queues", "6")
        tls.compose("run", "--rm", "-T", "cli", "produce", "orders", stdin="in TLS\n")
        assert "in TLS" in tls.compose("run", "--rm", "-T", "cli", "consume", "orders", "--format", "%b")
        until(lambda: tls.published_by_tls("n1", "zk2") == "orders", "routes are in ZooKeeper")
        assert tls.dial("n1", "zk2-inside", 2181) != "reached", "it does not speak without TLS"
        for port in (2281, 3888):  # for nodes, and for ZooKeepers
            assert tls.spoken("n1", "zk2-inside", port) == ["TLSv1.3", "TLSV13_ALERT_CERTIFICATE_REQUIRED"]
    assert tls.leftovers() == ""
