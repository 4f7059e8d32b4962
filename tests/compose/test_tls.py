"""The cluster of containers in TLS: its settings are taken, its certificates are good, and it serves."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from lsmq_coordinator.tls import Certificates
from lsmq_node.cluster_config import ENVIRONMENT_PREFIX
from lsmq_node.config import NodeConfig
from lsmq_node.tls_settings import client_files

from .stack import COMPOSE_DIRECTORY, NODES, Stack, until
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
    directory = tmp_path_factory.mktemp("certificates")
    assert services("docker-compose.tls.yml")["certificates"]["entrypoint"][2:] == ["lsmq-certificates"]
    authority, tls, *words = services("docker-compose.tls.yml")["certificates"]["command"]
    for reader in (*ALL_NODES, "clients"):
        (directory / tls.strip("/") / reader).mkdir(parents=True)
    (directory / authority.strip("/")).mkdir()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for _ in range(2):  # Again, with the same authority.
        subprocess.run(
            [
                COMPOSE_DIRECTORY / "image" / "certificates.sh",
                *(f"{directory}{each}" for each in (authority, tls)),
                *words,
            ],
            env={**os.environ, "PATH": path},
            check=True,
            capture_output=True,
        )
    return directory


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
    mounts = services("docker-compose.tls.yml")[node]["volumes"]
    assert mounts == [f"{node}-tls:{TLS}:ro"], "no node sees another one's key"


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
    certificates = services("docker-compose.tls.yml")["certificates"]
    assert certificates["read_only"] is True and certificates["cap_drop"] == ["ALL"]
    assert certificates["network_mode"] == "none"


@pytest.mark.slow
@pytest.mark.xdist_group("containers")
@pytest.mark.timeout(900)
def test_containers_serve_in_tls_and_in_nothing_else(stack: Stack) -> None:
    tls = stack.in_tls()
    with tls.up():
        until(lambda: {tls.health(node) for node in NODES} == {"healthy"}, "all nodes are healthy", 180)
        assert not tls.ready("n1"), "it does not speak without TLS"
        tls.compose("run", "--rm", "-T", "cli", "topic", "create", "orders", "--queues", "6")
        tls.compose("run", "--rm", "-T", "cli", "produce", "orders", stdin="in TLS\n")
        assert "in TLS" in tls.compose("run", "--rm", "-T", "cli", "consume", "orders", "--format", "%b")
    assert tls.leftovers() == ""
