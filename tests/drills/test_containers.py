"""Containers as drills see them; the drills on real containers are with the tests of the Compose file."""

from __future__ import annotations

from typing import Any

from lsmq_lab.drills.compose import Container, container_from

INSPECTED: dict[str, Any] = {
    "Id": "0123456789abcdef",
    "Name": "/lsmq-n1",
    "Config": {
        "Env": ["PATH=/usr/bin", "LSMQ_CLUSTER_NODE=n1", "EMPTY="],
        "Labels": {"com.docker.compose.service": "n1"},
    },
    "NetworkSettings": {
        "Ports": {"7600/tcp": [{"HostIp": "127.0.0.1", "HostPort": "7701"}], "7601/tcp": None},
        "Networks": {
            "lsmq_inside": {"Aliases": ["n1", "n1.inside", "0123456789ab"]},
            "lsmq_clients": {"Aliases": ["n1"]},
        },
    },
}


def test_a_node_is_found_by_its_environment_and_its_published_port() -> None:
    assert container_from(INSPECTED, "lsmq_inside") == Container(
        id="0123456789abcdef", service="n1", node="n1", port=7701, aliases=("n1", "n1.inside")
    )


def test_a_container_that_is_cut_off_or_no_node_is_seen_as_such() -> None:
    settings = {"Ports": {}, "Networks": {"lsmq_clients": {"Aliases": None}}}
    config = {"Env": ["ZOO_MY_ID=1"], "Labels": {}}
    found = container_from({**INSPECTED, "Config": config, "NetworkSettings": settings}, "lsmq_inside")
    assert (found.node, found.port, found.aliases, found.service) == (None, None, (), "")
