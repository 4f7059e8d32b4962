"""The systemd unit and the manifests for Kubernetes: valid, and settings that a node takes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from lsmq.cli.serve import serve
from lsmq_node.config import NodeConfig

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "deploy" / "systemd" / "lsmq.service"
DOCUMENTS: list[dict[str, Any]] = list(yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "lsmq.yaml").read_text()))


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd to check it")
def test_systemd_takes_the_unit_and_finds_it_closed(tmp_path: Path) -> None:
    unit = tmp_path / "lsmq.service"
    # What it starts is not installed here, and whether it is there is checked.
    unit.write_text(UNIT.read_text().replace("/opt/lsmq/bin/lsmq", sys.executable))
    for arguments in (["verify", "--man=no"], ["security", "--offline=true", "--threshold=20"]):
        done = subprocess.run(["systemd-analyze", *arguments, unit], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_unit_starts_a_node_by_options_that_there_are() -> None:
    started = re.search(r"^ExecStart=\S+ (.*)$", UNIT.read_text(), re.MULTILINE)
    assert started is not None
    options = {word for word in started[1].split() if word.startswith("--")}
    known = {option for parameter in serve.params for option in parameter.opts}
    assert options and options <= known


def test_the_unit_starts_a_node_again_however_often_it_ends() -> None:
    """Left to itself systemd gives up after five starts in ten seconds: while a disk is not mounted yet, say."""
    unit = ConfigParser(interpolation=None, strict=False)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(UNIT)
    assert unit["Service"]["Restart"] == "always"
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document["kind"] + document["metadata"]["name"])
def test_kubernetes_takes_the_manifest(document: dict[str, Any]) -> None:
    kubernetes_validate.validate(document, "1.31", strict=True)


def test_a_node_takes_the_settings_of_its_pod() -> None:
    pods = next(document["spec"] for document in DOCUMENTS if document["kind"] == "StatefulSet")
    container = pods["template"]["spec"]["containers"][0]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    for number in range(pods["replicas"]):
        pod = f"{pods['serviceName']}-{number}"
        given = {setting["name"]: setting.get("value", pod) for setting in container["env"]}
        config = NodeConfig.load(environ={"LSMQ_DATA": "/var/lib/lsmq", "LSMQ_HOST": "0.0.0.0", **given})
        assert config.cluster is not None and config.cluster.is_voter
        assert (config.port, config.cluster.internal_port, config.cluster.raft_port) == tuple(ports.values())
        config.check_exposure()
        assert config.public_url == f"http://{pod}.{pods['serviceName']}:7600"
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(config.data) in mounted and str(config.cluster.secret_file.parent) in mounted
    assert pods["template"]["spec"]["terminationGracePeriodSeconds"] * 1000 > config.shutdown_grace_ms
