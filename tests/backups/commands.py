"""What tests of backups share: the command in this process, and messages that carry all there is."""

from __future__ import annotations

import io
import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from api.calls import Api
from lsmq.cli import main

QUEUES = 6


def command(url: str, *arguments: str | Path) -> tuple[list[str], dict[str, str]]:
    words = [sys.executable, "-m", "lsmq", *map(str, arguments)]
    return words, {**os.environ, "LSMQ_URL": url, "NO_COLOR": "1", "COLUMNS": "200"}


def lsmq(url: str, *arguments: str | Path, code: int = 0) -> Any:
    """What the command prints, in this process: with ``--json`` the value."""
    _, environment = command(url)
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.setenv("LSMQ_URL", environment["LSMQ_URL"])
        patch.setenv("COLUMNS", environment["COLUMNS"])
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
    printed = out.getvalue()
    assert ended.value.code == code, (ended.value.code, printed, err.getvalue())
    return json.loads(printed) if "--json" in arguments and code == 0 else printed + err.getvalue()


def send(api: Api, topic: str, numbers: range, size: int = 200) -> None:
    for queue in range(QUEUES):
        messages = [
            {
                "queue": queue,
                "body": f"{queue}/{number:06}".ljust(size),
                "key": f"k{number}",
                "properties": {"n": str(number)},
            }
            for number in numbers
        ]
        assert api.send(topic, *messages).status == 200


def held(api: Api, topic: str) -> dict[int, list[tuple[Any, ...]]]:
    """All messages of a topic, with all that they carry."""
    fields = ("offset", "id", "key", "properties", "stored_ms", "body")
    return {
        queue: [tuple(message.get(name) for name in fields) for message in api.all_messages(topic, queue)]
        for queue in range(QUEUES)
    }


@contextmanager
def load(api: Api) -> Iterator[Callable[[], int]]:
    """Messages are sent meanwhile; how many rounds were acknowledged."""
    stop = threading.Event()
    rounds = 0

    def run() -> None:
        nonlocal rounds
        while not stop.is_set():
            send(api, "orders", range(1000 + 10 * rounds, 1010 + 10 * rounds))
            rounds += 1

    writer = threading.Thread(target=run)
    writer.start()
    try:
        yield lambda: rounds
    finally:
        stop.set()
        writer.join()
