"""Builds a node's data directory, and a backup of it, as this release writes them, for releases to come.

``python -m backups.fixture 2`` (from ``tests``) writes ``fixtures/data-2.tar.xz`` and what is in it as JSON beside.
Only do that for a release that writes something new, under a new number: directories like these are on users' disks.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from api.calls import Api
from support.node_process import NodeProcess

from .commands import QUEUES, held, lsmq, send

FIXTURES = Path(__file__).parents[1] / "fixtures"
SETTINGS: dict[str, Any] = {
    "shards": 2,
    "segment_bytes": 64 << 10,
    "max_message_bytes": 16 << 10,
    # A fixture is older with every day: nothing of it may be forgotten for that.
    "producer_expiry_ms": 10 * 365 * 24 * 3_600_000,
    "group_retention_hours": 0,
}
#: Ten years from 2026, the longest that a message can be put off.
FAR_MS = 2_090_000_000_000


def fill(api: Api) -> None:
    """Something of every kind: some of it flushed, the rest in the log."""
    api.create("plain", QUEUES)
    api.create("names", "named")
    api.create("ids", 2, dedupe_window_ms="forever")
    api.create("latest", 2, cleanup="compact")
    api.create("gone", QUEUES)
    for part in range(2):
        send(api, "plain", range(100 * part, 100 * part + 30), 60)
        headers = [{"name": "h", "value": "1"}, {"name": "h", "value_b64": "/wA="}]
        full = {"queue": 1, "key_b64": "/w==", "body_b64": "/wA=", "tag": "red", "type": "order", "priority": 9}
        api.send("plain", {**full, "headers": headers, "properties": {"part": str(part)}})
        api.send("names", *({"queue": f"user/{number}", "body": f"{part}/{number}"} for number in range(20)))
        api.send("ids", {"queue": 0, "body": f"{part}", "dedupe_id": f"id-{part}"})
        api.send("latest", *({"queue": 0, "key": f"k{number % 3}", "body": f"{part}/{number}"} for number in range(9)))
        api.send("plain", {"queue": 2, "body": f"later {part}", "deliver_at_ms": FAR_MS + part})
        api.call("POST", "/v1/topics/plain/delete", {"queues": [0, 0], "offsets": [3 + part, 9]})
        offsets = {"topic": "plain", "queues": [1, 4], "offsets": [7 + part, 8]}
        api.call("POST", "/v1/groups/readers/offsets", offsets, status=200)
        api.send("plain", {"queue": 5, "body": f"p{part}"}, producer={"id": 77, "sequence": part})
        if part == 0:
            send(api, "gone", range(5))
            flush(api)
    api.call("DELETE", "/v1/topics/gone", status=204)
    api.call("PUT", "/v1/topics/plain/queues", {"queues": 2 * QUEUES}, status=200)
    api.send("plain", {"queue": 2 * QUEUES - 1, "body": "grown"})


def flush(api: Api) -> None:
    """Whoever holds a snapshot has what is in memory written to tables."""
    for shard in range(SETTINGS["shards"]):
        begun = api.call("POST", f"/v1/shards/{shard}/snapshots", {"holder": "flush"}, status=201).json()
        api.call("DELETE", f"/v1/shards/{shard}/snapshots/{begun['id']}", status=204)


def shown(api: Api) -> Any:
    """All that clients can see of it, as JSON has it."""
    names = [queue["name"] for queue in api.get("/v1/topics/names/queues?limit=1000").json()["queues"]]
    found = {
        "topics": {topic["name"]: topic["options"] for topic in api.get("/v1/topics").json()["topics"]},
        "plain": {**held(api, "plain"), "grown": api.all_bodies("plain", 2 * QUEUES - 1)},
        "names": {
            name: [
                one["body"]
                for one in api.get(f"/v1/topics/names/queues/{name.replace('/', '%2F')}/messages").json()["messages"]
            ]
            for name in sorted(names)
        },
        "ids": api.all_bodies("ids", 0),
        "latest": api.all_bodies("latest", 0)[-3:],
        "offsets": api.get("/v1/groups/readers/offsets?topic=plain").json(),
        "delayed": sorted(one["body"] for one in api.get("/v1/topics/plain/delayed").json()["messages"]),
    }
    return json.loads(json.dumps(found))


def make(number: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        node = NodeProcess(directory / "data", **SETTINGS).start()
        try:
            fill(Api(node.url))
            found = shown(Api(node.url))
            lsmq(node.url, "backup", "create", "--to", directory / "backups")
            Api(node.url).send("ids", {"queue": 1, "body": "in the log alone"})
        finally:
            node.kill9()
        with tarfile.open(FIXTURES / f"data-{number}.tar.xz", "w:xz") as archive:
            for part in ("data", "backups"):
                archive.add(directory / part, part)
        (FIXTURES / f"data-{number}.json").write_text(json.dumps(found, sort_keys=True) + "\n")


if __name__ == "__main__":
    make(int(sys.argv[1]))
