"""How many sessions of browsers there may be, and what their cookies are worth."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lsmq import runtime
from lsmq.errors import InvalidRequest, TooManyRequests, TooManyRights
from lsmq_node.broker.topology import RightsDocuments
from lsmq_node.cluster.rights import LocalRights
from lsmq_node.config import NodeConfig
from lsmq_node.rights import Binding, By, Proven, RightsBook, SessionCookie
from lsmq_node.rights.book import Changes, Token, digest_of, session_document
from lsmq_node.rights.browser_sessions import BrowserSession
from lsmq_node.rights.sessions import MAX_SESSIONS_BYTES, SIGN_INS_A_MINUTE, Sessions
from lsmq_node.storage import ShardStore, StoreOptions

SECRET = "lsmq_session~" + "a" * 64


def session(**fields: object) -> BrowserSession:
    given: dict[str, object] = {"roles": (), "created_ms": 0, "expires_ms": 10_000, "token": None, **fields}
    return BrowserSession("carol", "0" * 8, digest_of(SECRET), b"k" * 32, **given)  # type: ignore[arg-type]


def test_a_cookie_is_good_for_its_session_and_its_time_alone() -> None:
    own = session()
    cookie = own.cookie(SECRET, 5_000)
    assert SessionCookie.parsed(str(cookie)) == cookie and own.made(cookie)
    assert not own.made(SessionCookie(SECRET, 5_001, cookie.mac))
    assert not own.made(SessionCookie(SECRET.replace("a", "b"), 5_000, cookie.mac))
    other = BrowserSession("carol", "1" * 8, own.digest, b"j" * 32, None, (), 0, 10_000)
    assert not other.made(cookie) and other.anti_forgery(SECRET) != own.anti_forgery(SECRET)
    assert own.anti_forgery(SECRET) not in str(cookie), "it cannot be had from the cookie"
    for text in ("", SECRET, f"{cookie}0", f"x{cookie}", str(cookie).replace("5000", "-1"), str(cookie).upper()):
        assert SessionCookie.parsed(text) is None
    assert SECRET not in repr(cookie) + repr(own)


def test_a_session_is_kept_as_it_is() -> None:
    own = session(roles=(Binding("tenant", "carol."),), token=b"t" * 32)
    book = RightsBook({f"session/carol/{own.id}": session_document(own)})
    assert book.sessions == {own.digest: own} and not book.unread
    assert not book.is_live(own, 0), "its token is not known"
    assert session().expires_ms == 10_000 and book.is_live(session(), 9_999) and not book.is_live(session(), 10_000)


@pytest.mark.parametrize(("until_ms", "end_ms"), [(None, 10_000), (4_000, 4_000), (20_000, 10_000)])
def test_a_session_ends_with_its_token_also_where_that_is_to_end_earlier_by_now(
    until_ms: int | None, end_ms: int
) -> None:
    token = Token("carol", "0" * 8, b"t" * 32, 0, until_ms, "admin")
    own, book = session(token=token.digest), RightsBook({token.key: token.pack()})
    assert book.end_ms(own) == end_ms
    assert book.is_live(own, end_ms - 1) and not book.is_live(own, end_ms)


@pytest.fixture
def documents(tmp_path: Path) -> Iterator[RightsDocuments]:
    with ShardStore.open(tmp_path / "shard", StoreOptions()) as store:
        yield LocalRights(store)


def sessions_in(documents: RightsDocuments) -> Sessions:
    async def change(changes: Callable[[RightsBook], Changes]) -> None:
        version, known = documents.known()
        assert await documents.change(changes(RightsBook(known)), version)

    return Sessions(NodeConfig(data=Path("unused")), documents, change)


async def test_sessions_leave_room_for_tokens(documents: RightsDocuments) -> None:
    sessions = sessions_in(documents)
    many = tuple(Binding("tenant", f"{number}-" + "x" * 60) for number in range(40))
    large = tuple(Binding("tenant", f"{number}-" + "x" * 60) for number in range(80))
    with pytest.raises(TooManyRights, match="has no room"):
        await sessions.sign_in(Proven("large", None, By.OIDC, roles=large))
    with pytest.raises(TooManyRights, match="sign out elsewhere"):
        for number in range(MAX_SESSIONS_BYTES // 2_000):
            await sessions.sign_in(Proven(f"p{number}", None, By.OIDC, roles=many))
    _, known = documents.known()
    size = sum(len(body) for body in known.values())
    assert MAX_SESSIONS_BYTES - 4_096 < size <= MAX_SESSIONS_BYTES
    first = next(iter(RightsBook(known).sessions.values()))
    await sessions.sign_out(first)
    await sessions.sign_in(Proven("another", None, By.OIDC, roles=many))


async def test_sessions_that_are_over_take_no_room(documents: RightsDocuments, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions, now_ms = sessions_in(documents), runtime.wall_ms()
    many = tuple(Binding("tenant", f"{number}-" + "x" * 60) for number in range(40))
    with pytest.raises(TooManyRights):
        for number in range(MAX_SESSIONS_BYTES // 2_000):
            await sessions.sign_in(Proven(f"p{number}", None, By.OIDC, roles=many))
    monkeypatch.setattr(runtime, "wall_ms", lambda: now_ms + 365 * 86_400_000)
    await sessions.sign_in(Proven("another", None, By.OIDC, roles=many))


@pytest.mark.virtual_time
async def test_who_signed_in_too_often_may_do_so_after_a_minute(documents: RightsDocuments) -> None:
    sessions, proven = sessions_in(documents), Proven("carol", None, By.OIDC)
    for _ in range(SIGN_INS_A_MINUTE):
        await sessions.sign_in(proven)
    with pytest.raises(TooManyRequests):
        await sessions.sign_in(proven)
    await sessions.sign_in(Proven("dave", None, By.OIDC))
    await asyncio.sleep(61)
    await sessions.sign_in(proven)


@pytest.mark.parametrize("by", [By.CERTIFICATE, By.SESSION])
async def test_only_a_token_begins_one(documents: RightsDocuments, by: By) -> None:
    with pytest.raises(InvalidRequest, match="stands for a token"):
        await sessions_in(documents).sign_in(Proven("carol", None, by))
