"""Pictures of the console's pages, as the documentation has them; and that each page fits a telephone.

``CONSOLE_PICTURES=docs/images pytest tests/console/test_pictures.py`` takes those of the documentation anew, after some
minutes of work that the overview then shows.
"""

from __future__ import annotations

import asyncio
import math
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from api.calls import Api
from api.test_groups import commit
from lsmq import Client, Consumer, Producer
from push.browser import browser, find_browser
from support.node_process import NodeProcess

from .test_console import TEXT, shows
from .test_working_off import pressed

EXECUTABLE = find_browser()
DOCS = Path(__file__).parents[2] / "docs"
WIDTH, HEIGHT = 1_200, 720
PHONE = (390, 844)
BUSY_S = 150
#: By the name of its picture: the address of a page, and what is there once it is shown.
PAGES = {
    "overview": ("#/", "document.querySelectorAll('.tile svg').length === 9"),
    "topics": ("#/topics", f"{TEXT}.includes('inboxes')"),
    "topic": ("#/topics/inboxes?by=depth", f"{TEXT}.includes('queues have messages')"),
    "messages": ("#/topics/orders/0", f"{TEXT}.includes('two pizzas')"),
    "letters": ("#/topics/orders.dlq?tag=late", f"{TEXT}.includes('All that match')"),
    "later": ("#/later/orders", f"{TEXT}.includes('morning')"),
    "groups": ("#/groups", f"{TEXT}.includes('kitchen')"),
    "group": ("#/groups/kitchen?topic=orders&to=earliest", f"{TEXT}.includes('read again: ')"),
    "producers": ("#/producers/tellers", f"{TEXT}.includes('order 17')"),
    "cluster": ("#/cluster", f"{TEXT}.includes('Shards')"),
    "shard": ("#/cluster/0", "document.querySelector('[aria-label=Replicas]')"),
    "backups": ("#/backups", f"{TEXT}.includes('Made: ')"),
}


def test_the_page_on_the_console_shows_each_page() -> None:
    shown = set(re.findall(r"!\[[^\]]+\]\(images/console-(\w+)\.png\)", (DOCS / "console.md").read_text()))
    assert (
        shown == set(PAGES) == {path.stem.removeprefix("console-") for path in (DOCS / "images").glob("console-*.png")}
    )


def work_on(api: Api) -> None:
    """A day in a restaurant."""
    api.create("orders", 64)
    api.create("orders.dlq", 1)
    api.create("inboxes", queues="named")
    dishes = ("two pizzas", "soup of the day", "ice cream", "burnt toast")
    for round in range(8):
        api.send("orders", *({"queue": 0, "key": f"table {n}", "tag": "hot", "body": dishes[n]} for n in range(4)))
        inboxes = [{"queue": f"agents/{n:03}", "body": f"letter {round}"} for n in range(40) if (7 * n) % 9 >= round]
        api.send("inboxes", *inboxes)
    why = {
        "lsmq-dlq-topic": "orders",
        "lsmq-dlq-queue": "0",
        "lsmq-dlq-group": "kitchen",
        "lsmq-dlq-deliveries": "3",
        "lsmq-dlq-reason": "negative acknowledgement: the toaster is broken",
    }
    api.send("orders.dlq", *({"queue": 0, "tag": "late", "body": "burnt toast", "properties": why} for _ in range(3)))
    for body in ("bring the bill", "water the plants"):
        api.send("orders", {"queue": 0, "body": body, "delay_ms": 3_600_000})
    morning = {"cron": "0 7 * * *", "tz": "Europe/Berlin", "message": {"queue": 0, "body": "bake bread"}}
    api.call("PUT", "/v1/topics/orders/schedules/morning", morning, status=201)
    commit(api, "kitchen", "orders", {0: 12})
    commit(api, "billing", "orders", {0: 3})
    own = "/v1/producer-groups/tellers"
    api.call("POST", f"{own}/heartbeat", {"member": "m", "join": True}, status=200)
    for number, reference in ((1, "order 17"), (2, "order 18")):
        messages = [{"topic": "orders", "queue": 1, "body": reference}]
        begun = {"member": "m", "number": number, "reference": reference, "messages": messages}
        api.call("POST", f"{own}/transactions", begun)


@pytest.fixture
def node(make_node: Callable[..., NodeProcess], tmp_path: Path) -> Iterator[NodeProcess]:
    """With work on it, and a place for backups whose name looks well."""
    with tempfile.TemporaryDirectory(prefix="lsmq-") as directory:
        node = make_node(tmp_path / "data", shards=3, backup_to=Path(directory) / "backups").start()
        work_on(Api(node.url))
        if "CONSOLE_PICTURES" in os.environ:
            asyncio.run(busy(node.url))
        yield node


async def busy(url: str) -> None:
    """Messages in and out, now more and now fewer, for as long as pictures are to show something."""
    async with (
        Client(url) as client,
        Producer(client, "orders") as producer,
        Consumer(client, "orders", start="latest") as consumer,
    ):
        began = time.monotonic()
        while (second := time.monotonic() - began) < BUSY_S:
            for number in range(int(600 + 500 * math.sin(second / 25) + 150 * math.sin(second / 7))):
                await producer.send("another pizza", key=f"table {number % 50}", queue=1 + number % 63)
            await producer.flush()
            while time.monotonic() < began + second + 1:  # The pace of the work.
                await consumer.poll(2_000, timeout_ms=200)


@pytest.mark.part(2)
@pytest.mark.skipif(EXECUTABLE is None, reason="no Chromium or Chrome is installed on this machine")
async def test_each_page_is_taken_and_fits_a_telephone(node: NodeProcess, tmp_path: Path) -> None:
    assert EXECUTABLE is not None
    into = Path(os.environ.get("CONSOLE_PICTURES", tmp_path))
    async with browser(EXECUTABLE) as tabs:
        page = await tabs.open(f"{node.url}/console#/backups")
        await shows(page, f"{TEXT}.includes('Start a backup')", "one can be begun")
        await page.evaluate(pressed("Start a backup"))
        await shows(page, f"{TEXT}.includes('Made: ')", "one is made")
        for name, (address, there) in PAGES.items():
            await page.sized(WIDTH, HEIGHT)
            await page.evaluate(f"location.hash = {address!r}")
            await shows(page, there, f"{address} is shown")
            picture = await page.picture()
            assert picture.startswith(b"\x89PNG") and len(picture) > 5_000
            (into / f"console-{name}.png").write_bytes(picture)
            await page.sized(*PHONE)
            await shows(page, f"innerWidth === {PHONE[0]}", "it is narrow")
            assert await page.evaluate("document.documentElement.scrollWidth") <= PHONE[0], f"{address} fits"
