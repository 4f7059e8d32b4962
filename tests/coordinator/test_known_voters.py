"""What a node knows of who votes after a start: by its file, by its journal, or by asking first."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from lsmq.errors import CorruptFile
from lsmq_coordinator.auth import ClusterSecret, Verifier, auth_middleware
from lsmq_coordinator.commands import apply
from lsmq_coordinator.control_routes import control_routes
from lsmq_coordinator.first_look import look_first
from lsmq_coordinator.known_voters import FILE, KnownVoters
from lsmq_coordinator.overseer import Overseer
from lsmq_coordinator.raft_control import RaftConfig, RaftControl
from lsmq_coordinator.raft_membership import Electorate
from support.ports import free_ports

from .test_state import founded

SECRET = ClusterSecret(b"a secret of sufficient length")
CONFIGURED = {"n1": "127.0.0.1:1", "n2": "127.0.0.1:2", "n3": "127.0.0.1:3"}
CHANGED = Electorate(3, {"n2": "127.0.0.1:2", "n3": "127.0.0.1:3", "n4": "127.0.0.1:4"})
URLS = {"n2": "http://n2:7601", "n4": "http://n4:7601"}


def control(directory: Path, node: str, voters: Mapping[str, str] = CONFIGURED) -> RaftControl:
    return RaftControl(RaftConfig(node, voters, directory, SECRET, address="127.0.0.1:9"))


def test_what_was_noted_is_there_again_and_damage_is_told_by_name(tmp_path: Path) -> None:
    assert KnownVoters.load(tmp_path) is None
    known = KnownVoters(CHANGED, URLS)
    known.store(tmp_path)
    assert KnownVoters.load(tmp_path) == known
    assert (tmp_path / FILE).stat().st_mode & 0o077 == 0
    for content in ("{", json.dumps({"format": 2}), json.dumps({"format": 1, "membership": {}})):
        (tmp_path / FILE).write_text(content)
        with pytest.raises(CorruptFile, match=FILE):
            KnownVoters.load(tmp_path)


def test_a_node_votes_by_what_it_noted_and_not_by_its_configuration(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        for node in ("n1", "n4"):
            directory = tmp_path / node
            directory.mkdir()
            KnownVoters(CHANGED, URLS).store(directory)
            raft = control(directory, node)
            assert raft.votes == (node == "n1"), "by the configuration"
            if node == "n1":
                await raft.start()
                assert not raft.seated and not (directory / "raft").exists()
                await raft.stop()
                continue
            (port,) = free_ports(1)
            moved = Electorate(4, {**CHANGED.voters, "n4": f"127.0.0.1:{port}"})
            KnownVoters(moved, URLS).store(directory)
            await raft.start()
            assert raft.votes and raft.address == f"127.0.0.1:{port}"
            assert (directory / "raft" / "JOURNAL").exists()
            await raft.stop()

    asyncio.run(run())
    assert "counts no more" in caplog.text


def test_only_newer_news_count_and_are_noted(tmp_path: Path) -> None:
    raft = control(tmp_path, "n1")
    raft.learned(CHANGED, URLS)
    assert not raft.votes and raft.membership == CHANGED
    raft.learned(Electorate(2, dict(CONFIGURED)), {})
    assert raft.membership == CHANGED
    noted = KnownVoters.load(tmp_path)
    assert noted is not None and noted.membership == CHANGED and noted.urls == URLS


@pytest.mark.parametrize("changed", [False, True])
def test_a_voter_with_an_empty_directory_asks_first_whether_it_still_is_one(tmp_path: Path, changed: bool) -> None:
    """Two of them, replaced long ago, could found a cluster of their own by their configuration."""

    async def run() -> None:
        other = control(tmp_path / "n2", "n2")
        other.state = founded(nodes=["n1", "n2", "n3", "n4"])
        if changed:
            said: dict[str, Any] = {"op": "set_voters", "request_id": "1", "membership": CHANGED.to_dict()}
            other.state, _ = apply(other.state, said)
        application = web.Application(middlewares=[auth_middleware(Verifier(SECRET))])
        application.add_routes(control_routes(other, Overseer(other), SECRET))
        runner = web.AppRunner(application, access_log=None)
        await runner.setup()
        (port, nobody) = free_ports(2)
        await web.TCPSite(runner, "127.0.0.1", port).start()
        raft = control(tmp_path / "n1", "n1")
        (tmp_path / "n1").mkdir()
        urls = {"n2": f"http://127.0.0.1:{port}", "n3": f"http://127.0.0.1:{nobody}"}
        await look_first(raft, urls, SECRET, None)
        await runner.cleanup()
        assert raft.votes != changed
        assert raft.membership.number == (3 if changed else 0)

    asyncio.run(run())
