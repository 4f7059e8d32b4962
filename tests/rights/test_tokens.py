"""Who is asked about a token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lsmq import runtime
from lsmq.errors import Unauthenticated
from lsmq_node.api.access import Access
from lsmq_node.api.asker import Asker
from lsmq_node.broker import Allowances, Broker
from lsmq_node.cluster.rights import LocalRights
from lsmq_node.config import Auth, NodeConfig
from lsmq_node.rights import Binding, ShownCredentials
from lsmq_node.rights.book import Token, digest_of
from lsmq_node.rights.service import RightsService
from lsmq_node.storage import ShardStore, StoreOptions

_HOUR_MS = 3_600_000


class Documents:
    """Those of a cluster that has none; counts who asks for newer ones."""

    def __init__(self) -> None:
        self.asked = 0
        self.voucher_keys: tuple[bytes, ...] = ()

    def known(self) -> tuple[int, Mapping[str, bytes]]:
        return 1, {}

    def on_change(self, callback: Callable[[], None]) -> None: ...

    async def newest(self) -> None:
        self.asked += 1


async def test_others_are_asked_about_what_may_be_a_token_and_nothing_else() -> None:
    documents = Documents()
    config = NodeConfig(data=Path("unused"), auth=Auth.TOKEN)
    broker: Any = SimpleNamespace(
        topology=SimpleNamespace(rights=documents), config=config, allowances=Allowances(config)
    )
    rights = RightsService(cast("Broker", broker))
    for secret in ("", "guess", "lsmq_" + "0" * 63, "lsmq_" + "g" * 64, "0" * 64):
        with pytest.raises(Unauthenticated):
            await rights.authenticated(ShownCredentials(f"Bearer {secret}"))
    assert documents.asked == 0
    with pytest.raises(Unauthenticated):
        await rights.authenticated(ShownCredentials("Bearer lsmq_" + "0" * 64))
    assert documents.asked == 1


async def test_of_two_tokens_the_one_that_was_made_last_goes_on_though_clocks_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node that made the one before had a clock that was ahead."""
    config = NodeConfig(data=Path("unused"), auth=Auth.TOKEN)
    with ShardStore.open(tmp_path / "shard", StoreOptions()) as store:
        broker: Any = SimpleNamespace(
            topology=SimpleNamespace(rights=LocalRights(store)), config=config, allowances=Allowances(config)
        )
        rights = RightsService(cast("Broker", broker))
        with monkeypatch.context() as ahead:
            ahead.setattr(runtime, "wall_ms", lambda: time.time_ns() // 1_000_000 + _HOUR_MS)
            await rights.create_token("shop", None, (Binding("admin"),), "admin")
        _, second = await rights.rotate_token("shop", None, _HOUR_MS, "admin")
        _, third = await rights.rotate_token("shop", None, _HOUR_MS, "admin")
        for secret in (second, third):
            assert (await rights.authenticated(ShownCredentials(f"Bearer {secret}"))).principal == "shop"


@pytest.mark.virtual_time
async def test_who_is_held_is_barred_soon_after_a_clock_that_was_behind_is_set_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or after the machine slept: what is left of a token's time is not known beforehand."""
    documents, config = Documents(), NodeConfig(data=Path("unused"), auth=Auth.TOKEN)
    secret, now_ms = "lsmq_" + "1" * 64, runtime.wall_ms()
    token = Token("shop", "0" * 8, digest_of(secret), now_ms, now_ms + 24 * _HOUR_MS, "admin")
    monkeypatch.setattr(documents, "known", lambda: (1, {token.key: token.pack()}))
    broker: Any = SimpleNamespace(
        topology=SimpleNamespace(rights=documents), config=config, allowances=Allowances(config)
    )
    rights = RightsService(cast("Broker", broker))
    await rights.newest()
    asker = Asker(rights, Access(), ShownCredentials(f"Bearer {secret}"))
    await asker.identify()
    held = asyncio.create_task(asker.barred())
    await asyncio.sleep(10)
    assert not held.done()
    with monkeypatch.context() as later, pytest.raises(Unauthenticated):  # Undone before the virtual time ends.
        later.setattr(runtime, "wall_ms", lambda: now_ms + 25 * _HOUR_MS)
        await asyncio.wait_for(held, 600)
