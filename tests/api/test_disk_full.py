"""A full disk: writes are refused by a code of their own, reads go on, and it recovers without a restart."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from support.mounts import tmpfs
from support.node_process import NodeProcess
from support.waiting import eventually

from .calls import Api

MIB = 1024 * 1024


@pytest.mark.slow
def test_a_full_disk_refuses_writes_serves_reads_and_recovers(
    tmp_path: Path, make_node: Callable[..., NodeProcess]
) -> None:
    directory = tmp_path / "small"
    with tmpfs(directory, "size=64m"):
        node = make_node(directory / "data", segment_bytes=MIB, memtable_bytes=4 * MIB, min_free_bytes=8 * MIB).start()
        try:
            api = Api(node.url)
            api.create("t", 2)
            acknowledged: list[str] = []

            def send() -> str | None:
                body = f"{len(acknowledged):08d}" * 1000
                answer = api.send("t", {"queue": 1, "body": body}, status=None)
                if answer.status == 200:
                    acknowledged.append(body[:8])
                    return None
                assert (answer.status, answer.code) == (507, "disk_full"), answer.body
                assert answer.error["retriable"] and answer.headers["Retry-After"]
                return answer.code

            send()
            filler = directory / "filler"
            with filler.open("wb") as file:
                file.write(bytes(shutil.disk_usage(directory).free - 9 * MIB))
            eventually(lambda: send() == "disk_full", "a write is refused")
            assert send() == "disk_full"
            assert [body[:8] for body in api.all_bodies("t", 1)] == acknowledged
            assert api.get("/healthz").status == 200
            assert api.metric("lsmq_store_disk_full") == 1

            filler.unlink()
            eventually(lambda: send() is None, "writes are taken again")
            assert [body[:8] for body in api.all_bodies("t", 1)] == acknowledged

            node.kill9()
            node.start()
            assert [body[:8] for body in api.all_bodies("t", 1)] == acknowledged
        finally:
            if node.alive:
                node.kill9()
