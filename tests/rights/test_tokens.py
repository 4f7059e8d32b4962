"""Who is asked about a token."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lsmq import runtime
from lsmq.errors import Unauthenticated, UnknownPrincipal
from lsmq_coordinator.state import MAX_RIGHTS_BYTES
from lsmq_node.api.access import Access
from lsmq_node.api.asker import Asker
from lsmq_node.broker import Allowances, Broker
from lsmq_node.cluster.rights import LocalRights
from lsmq_node.config import Auth, NodeConfig
from lsmq_node.rights import Binding, RightsBook, ShownCredentials
from lsmq_node.rights.book import MAX_OVER_BYTES, Token, digest_of, surplus
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


@pytest.fixture
def local_rights(tmp_path: Path) -> Iterator[RightsService]:
    config = NodeConfig(data=Path("unused"), auth=Auth.TOKEN)
    with ShardStore.open(tmp_path / "shard", StoreOptions()) as store:
        broker: Any = SimpleNamespace(
            topology=SimpleNamespace(rights=LocalRights(store)), config=config, allowances=Allowances(config)
        )
        yield RightsService(cast("Broker", broker))


@contextmanager
def ahead_by(monkeypatch: pytest.MonkeyPatch, ahead_ms: int) -> Iterator[None]:
    with monkeypatch.context() as ahead:
        ahead.setattr(runtime, "wall_ms", lambda: time.time_ns() // 1_000_000 + ahead_ms)
        yield


async def test_of_two_tokens_the_one_that_was_made_last_goes_on_though_clocks_differ(
    local_rights: RightsService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node that made the one before had a clock that was ahead."""
    rights = local_rights
    with ahead_by(monkeypatch, _HOUR_MS):
        await rights.create_token("shop", None, (Binding("admin"),), "admin")
    _, second = await rights.rotate_token("shop", None, _HOUR_MS, "admin")
    _, third = await rights.rotate_token("shop", None, _HOUR_MS, "admin")
    for secret in (second, third):
        assert (await rights.authenticated(ShownCredentials(f"Bearer {secret}"))).principal == "shop"


async def test_what_a_clock_that_was_ahead_took_for_over_is_good_again_once_it_is_set_right(
    local_rights: RightsService, monkeypatch: pytest.MonkeyPatch
) -> None:
    rights = local_rights
    _, secret = await rights.create_token("shop", 90 * 24 * _HOUR_MS, (Binding("producer"),), "admin")
    shown = ShownCredentials(f"Bearer {secret}")
    session, cookie = await rights.sessions.sign_in(await rights.authenticated(shown))
    with ahead_by(monkeypatch, 365 * 24 * _HOUR_MS):
        _, admin = await rights.create_token("admin", None, (Binding("admin"),), "admin")
        await rights.sessions.sign_in(await rights.authenticated(ShownCredentials(f"Bearer {admin}")))
        await rights.put_role("reader", ())
        with pytest.raises(Unauthenticated):
            await rights.authenticated(shown)
        with pytest.raises(Unauthenticated):
            await rights.authenticated(ShownCredentials(f"Bearer {cookie}"))
        [listed] = rights.book.tokens_of("shop")
        assert not listed.is_good(runtime.wall_ms())
    assert (await rights.authenticated(shown)).principal == "shop"
    assert (await rights.authenticated(ShownCredentials(f"Bearer {cookie}"))).session == session.digest


async def test_a_principal_has_two_tokens_at_most_with_those_that_are_over_and_one_once_it_is_rotated(
    local_rights: RightsService, monkeypatch: pytest.MonkeyPatch
) -> None:
    rights = local_rights
    for hours in range(4):
        with ahead_by(monkeypatch, hours * _HOUR_MS):
            _, secret = await rights.create_token("shop", _HOUR_MS // 2, (), "admin")
            assert len(rights.book.tokens_of("shop")) == min(hours + 1, 2)
    with ahead_by(monkeypatch, 3 * _HOUR_MS):
        await rights.rotate_token("shop", None, 0, "admin")
        with pytest.raises(Unauthenticated):
            await rights.authenticated(ShownCredentials(f"Bearer {secret}"))
    assert len(rights.book.tokens_of("shop")) == 1


async def test_a_token_that_is_exchanged_is_good_no_longer_than_it_was_and_ends_for_who_is_known_by_it(
    local_rights: RightsService, monkeypatch: pytest.MonkeyPatch
) -> None:
    rights = local_rights
    _, first = await rights.create_token("shop", _HOUR_MS, (), "admin")
    [before] = rights.book.tokens_of("shop")
    proven = await rights.authenticated(ShownCredentials(f"Bearer {first}"))
    await rights.rotate_token("shop", _HOUR_MS, 10 * _HOUR_MS, "admin")
    assert rights.book.tokens_of("shop")[0].expires_ms == before.expires_ms
    await rights.create_token("other", None, (), "admin")
    [lasting] = rights.book.tokens_of("other")
    held = replace(proven, principal="other", expires_ms=None, digest=lasting.digest)
    await rights.rotate_token("other", None, _HOUR_MS, "admin")
    assert rights.holder(held).name == "other"
    with ahead_by(monkeypatch, 2 * _HOUR_MS):
        for known in (proven, held):
            with pytest.raises(Unauthenticated):
                rights.holder(known)
        with pytest.raises(UnknownPrincipal, match="has no token"):
            await rights.rotate_token("shop", None, 0, "admin")


def test_those_over_longest_go_once_others_need_the_room() -> None:
    tokens = [
        Token(f"p{number}", "0" * 8, digest_of(str(number)), 0, 1_000 + number, "b" * 1_000) for number in range(900)
    ]
    documents = {each.key: each.pack() for each in tokens}
    book = RightsBook(documents)
    new = {"role/new": b"r" * 1_000}
    assert not surplus(book, documents, new, 999), "all are good"

    def kept(changes: Mapping[str, bytes | None], now_ms: int = 10_000) -> list[int]:
        gone = surplus(book, documents, changes, now_ms)
        assert not gone.keys() & changes.keys()
        return [number for number, each in enumerate(tokens) if each.key not in gone]

    few = kept(new)
    size = sum(len(tokens[number].key) + len(documents[tokens[number].key]) for number in few)
    assert MAX_OVER_BYTES - 2_000 < size <= MAX_OVER_BYTES and few == list(range(900 - len(few), 900))
    assert kept(new, 1_200) == list(range(900)), "these have their room beside good ones"
    fewer = kept({"role/large": b"r" * (MAX_RIGHTS_BYTES - 100_000)})
    assert 0 < len(fewer) < 100 and fewer == few[-len(fewer) :]
    assert not kept({"role/too-large": b"r" * MAX_RIGHTS_BYTES})


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
