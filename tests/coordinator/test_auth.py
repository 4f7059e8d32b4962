"""Proof of the cluster secret over HTTP."""

from __future__ import annotations

import asyncio
import os
import stat
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import msgpack
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from lsmq import runtime
from lsmq.errors import LsmqError
from lsmq_coordinator.auth import (
    ANSWER_HEADER,
    REQUEST_HEADER,
    WINDOW_MS,
    ClusterSecret,
    Signer,
    Verified,
    Verifier,
    auth_middleware,
)
from lsmq_coordinator.control_http import ControlHttp, Unreachable
from lsmq_coordinator.errors import NotAuthenticated, NotControlLeader, SecretUnusable
from lsmq_coordinator.http_status import status_of

SECRET = ClusterSecret(b"a secret of sufficient length")
OTHER = ClusterSecret(b"another one, as long as that")
#: What two nodes have that are in adjacent steps of a change of the cluster's secret, or in the same.
STEPS = [SECRET, ClusterSecret(SECRET.value, OTHER.value), ClusterSecret(OTHER.value, SECRET.value), OTHER]
ADJACENT = [(a, b) for at, a in enumerate(STEPS) for b in STEPS[max(0, at - 1) : at + 2]]
REQUEST = ("POST", "/internal/x?a=1", "127.0.0.1:80", b"body")


def verify(verifier: Verifier, header: str | None, request: tuple[str, str, str, bytes] = REQUEST) -> str:
    *head, body = request
    verified = verifier.verify(header, *head)
    verified.check_body(body)
    return verified.mac


def signed(verifier: Verifier, secret: ClusterSecret = SECRET) -> str:
    """The header of a request by somebody who knows the start of the server."""
    signer = Signer(secret)
    assert signer.learn(signer.sign(*REQUEST), verifier.challenge)
    return signer.sign(*REQUEST).headers[REQUEST_HEADER]


def test_a_signed_request_passes_once() -> None:
    verifier = Verifier(SECRET)
    header = signed(verifier)
    verify(verifier, header)
    with pytest.raises(NotAuthenticated, match="twice"):
        verify(verifier, header)
    verify(verifier, signed(verifier))


def test_a_request_that_was_recorded_before_a_restart_is_refused_after_it() -> None:
    before, after = Verifier(SECRET), Verifier(SECRET)
    header = signed(before)
    verify(before, header)
    with pytest.raises(NotAuthenticated, match="another start") as refused:
        verify(after, header)
    assert refused.value.details["start"] == after.start
    verify(after, signed(after))


def test_a_client_asks_once_more_when_it_learns_of_a_start_and_only_then() -> None:
    signer = Signer(SECRET)
    first, second = signer.sign(*REQUEST), signer.sign(*REQUEST)
    now_ms = time.monotonic_ns() // 1_000_000
    here = f"here {now_ms + 5_000_000}"
    assert signer.learn(first, here) and signer.learn(second, here), "both were for no start at all"
    third = signer.sign(*REQUEST)
    assert not signer.learn(third, here) and not signer.learn(third, None)
    for nonsense in ("there", "there x", "there -5", "there \u0663", f"there {'9' * 40}", ""):
        assert not signer.learn(third, nonsense)
    assert signer.learn(third, f"here {now_ms}"), "one of the two slept"
    assert signer.learn(third, f"there {now_ms}")


@pytest.mark.parametrize(
    "header", [None, "", "v2", "v1 1 2 3", "v2 1 2 3 4", "v2 1 2 3 4 5", "v2 1 2 3 4 \u00e9", "v2 1 2 3 \udcff 5"]
)
def test_a_header_that_proves_nothing_is_refused(header: str | None) -> None:
    with pytest.raises(NotAuthenticated):
        verify(Verifier(SECRET), header)


def test_another_secret_is_refused() -> None:
    verifier = Verifier(SECRET)
    with pytest.raises(NotAuthenticated, match="same"):
        verify(verifier, signed(verifier, OTHER))


@given(st.sampled_from(range(4)), st.text(max_size=5))
def test_nothing_of_a_request_can_be_changed(which: int, suffix: str) -> None:
    verifier = Verifier(SECRET)
    header = signed(verifier)
    parts: list[Any] = list(REQUEST)
    changed = parts[which] + (suffix.encode() if which == 3 else suffix)
    if changed != parts[which]:
        parts[which] = changed
        with pytest.raises(NotAuthenticated):
            verify(verifier, header, tuple(parts))  # type: ignore[arg-type]
        header = signed(verifier)  # A changed body uses the header up.
    verify(verifier, header)


def test_a_request_is_taken_only_near_its_time_and_never_again_within_it(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0]
    verifier = Verifier(SECRET, now_ms=lambda: now[0])
    header = signed(verifier)
    sent_ms = int(header.split(" ")[2])
    now[0] = sent_ms + WINDOW_MS + 1
    with pytest.raises(NotAuthenticated, match=f"{-WINDOW_MS - 1} ms from now"):
        verify(verifier, header)
    now[0] = sent_ms - WINDOW_MS
    verify(verifier, header)
    for moment in (sent_ms, sent_ms + WINDOW_MS):
        now[0] = moment
        with pytest.raises(NotAuthenticated, match="twice"):
            verify(verifier, header)


def test_wall_clocks_are_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    def asked() -> int:
        raise AssertionError("the wall clock was asked")

    monkeypatch.setattr(runtime, "wall_ms", asked)
    monkeypatch.setattr(runtime, "wall_time", asked)
    verifier = Verifier(SECRET)
    verify(verifier, signed(verifier))


def test_the_memory_of_nonces_is_bounded_and_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lsmq_coordinator.auth.MAX_NONCES", 3)
    now = [time.time_ns() // 1_000_000]
    verifier = Verifier(SECRET, now_ms=lambda: now[0])
    for _ in range(3):
        verify(verifier, signed(verifier))
    with pytest.raises(NotAuthenticated, match="more than"):
        verify(verifier, signed(verifier))
    now[0] += 2 * WINDOW_MS + 1
    verifier._take("later", now[0])
    assert verifier._nonces == {"later"}


def test_secrets_come_from_files_that_nobody_else_reads_or_writes(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    made = ClusterSecret.create(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert ClusterSecret.load(path) == made and len(made.value) == 64
    assert made.value.decode() not in repr(made)
    with pytest.raises(FileExistsError):
        ClusterSecret.create(path)
    for mode in (0o644, 0o640, 0o604, 0o622, 0o666):
        path.chmod(mode)
        with pytest.raises(SecretUnusable, match="chmod 600"):
            ClusterSecret.load(path)
    path.chmod(0o600)
    path.write_text("short\n")
    with pytest.raises(SecretUnusable, match="at least"):
        ClusterSecret.load(path)
    with pytest.raises(SecretUnusable, match="cannot be read"):
        ClusterSecret.load(tmp_path / "none")
    os.mkfifo(pipe := tmp_path / "pipe", 0o600)
    with pytest.raises(SecretUnusable, match=r"pipe: .*not a regular file"):
        ClusterSecret.load(pipe)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    return path


def test_of_two_lines_the_first_signs_and_both_are_accepted(file: Path) -> None:
    file.write_bytes(b" the first of two secrets \r\nand the second of them\n\n")
    loaded = ClusterSecret.load(file)
    first, second = ClusterSecret(b"the first of two secrets"), ClusterSecret(b"and the second of them")
    assert loaded == ClusterSecret(first.value, second.value)
    assert loaded.key("raft") == first.key("raft")
    assert loaded.keys("raft") == (first.key("raft"), second.key("raft"))
    assert "secrets" not in repr(loaded) and "second of" not in repr(loaded)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"one secret, long enough\nanother one, long enough\nand a third, long enough\n", "has 3 lines"),
        (b"one secret, long enough\n\nanother one, long enough", "has 3 lines"),
        (b"one secret, long enough\nshort", "line 2 of the cluster secret has 5 bytes.*at least 16"),
        (b"short\none secret, long enough", "line 1 of the cluster secret has 5 bytes.*at least 16"),
        (b"one secret, long enough\n one secret, long enough\n", "both lines .* are the same"),
        (b"", "the cluster secret has 0 bytes"),
    ],
)
def test_a_file_of_lines_that_are_no_secrets_is_refused_by_name(file: Path, content: bytes, why: str) -> None:
    file.write_bytes(content)
    with pytest.raises(SecretUnusable, match=why) as refused:
        ClusterSecret.load(file)
    assert refused.value.message.startswith(f"{file}: ")


@pytest.mark.parametrize(
    "content", [bytes(range(256)), b"\x80" * 20 + b"\n" + b"\x81" * 20, b"sixteen bytes..\x00\n1" * 2]
)
def test_what_is_no_text_is_one_secret_line_breaks_and_all(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    assert ClusterSecret.load(file) == ClusterSecret(content.strip())


def test_keys_for_different_purposes_differ() -> None:
    assert len({SECRET.key("raft"), SECRET.key("http"), OTHER.key("raft"), SECRET.value}) == 4


@pytest.mark.parametrize(("asking", "asked"), ADJACENT)
def test_while_the_secret_changes_requests_are_taken_and_answers_believed(
    asking: ClusterSecret, asked: ClusterSecret
) -> None:
    async def run(url: str) -> None:
        assert await call(url, {"a": 1}, asking) == {"echo": {"a": 1}}
        with pytest.raises(NotControlLeader):
            await call(url, "fail", asking)

    serving(run, asked)


@pytest.mark.parametrize(("asking", "asked"), [(SECRET, OTHER), (OTHER, SECRET), (STEPS[1], OTHER), (STEPS[2], SECRET)])
def test_a_secret_that_was_removed_opens_nothing(asking: ClusterSecret, asked: ClusterSecret) -> None:
    async def run(url: str) -> None:
        with pytest.raises(NotAuthenticated, match="same"):
            await call(url, {"a": 1}, asking)

    serving(run, asked)


def test_an_answer_is_believed_only_under_the_secret_of_its_request() -> None:
    signer, verifier = Signer(STEPS[1]), Verifier(OTHER)
    request = signer.sign(*REQUEST)
    assert signer.learn(request, verifier.challenge)
    with pytest.raises(NotAuthenticated):
        verify(verifier, signer.sign(*REQUEST).headers[REQUEST_HEADER])
    forged = Verified(request.mac, "", 0, OTHER.key("http")).answer_header(200, b"")
    with pytest.raises(NotAuthenticated, match="another server"):
        signer.check_answer(request, 200, forged, b"")


def serving(run: Callable[[str], Awaitable[None]], secret: ClusterSecret = SECRET, *, sign: bool = True) -> None:
    """Run with the URL of a server whose only handler echoes what it gets."""

    async def echo(request: web.Request) -> web.Response:
        body = msgpack.unpackb(await request.read() or b"\xc0")
        if body == "break":
            raise ZeroDivisionError
        if body == "fail":
            error = NotControlLeader("elsewhere", leader="n2")
            return web.Response(status=status_of(error), body=msgpack.packb({"error": error.to_dict()}))
        return web.Response(body=msgpack.packb({"echo": body}))

    async def main() -> None:
        application = web.Application(middlewares=[auth_middleware(Verifier(secret))] if sign else [])
        application.router.add_route("*", "/{path:.*}", echo)
        # What a client announced and never sends is not waited for in the end.
        runner = web.AppRunner(application, lingering_time=0)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        try:
            await run(f"http://{host}:{port}")
        finally:
            await runner.cleanup()

    asyncio.run(main())


async def call(url: str, body: Any = None, secret: ClusterSecret = SECRET, path: str = "/internal/a?b=%20c") -> Any:
    http = ControlHttp(secret)
    await http.start()
    try:
        return await http.call(url, "POST", path, body, 5.0)
    finally:
        await http.close()


def test_requests_and_errors_travel_between_nodes_of_a_cluster() -> None:
    async def run(url: str) -> None:
        assert await call(url, {"a": 1}) == {"echo": {"a": 1}}
        with pytest.raises(NotControlLeader) as error:
            await call(url, "fail")
        assert error.value.details == {"leader": "n2"}
        with pytest.raises(LsmqError, match="500") as broken:
            await call(url, "break")
        assert not isinstance(broken.value, NotAuthenticated)

    serving(run)


def test_a_server_refuses_strangers_before_any_handler_and_leaves_other_paths_alone() -> None:
    async def run(url: str) -> None:
        with pytest.raises(NotAuthenticated):
            await call(url, {}, secret=OTHER)
        async with aiohttp.ClientSession() as session:
            async with session.post(f"{url}/internal/x", data=b"") as answer:
                assert answer.status == 401
                assert (await answer.json())["error"]["code"] == "not_authenticated"
            async with session.get(f"{url}/public") as answer:
                assert answer.status == 200 and ANSWER_HEADER not in answer.headers
            for path in ("//internal/x", "/./internal/x", "/%69nternal/x"):
                async with session.post(aiohttp.client.URL(url + path, encoded=True), data=b"") as answer:
                    assert answer.status == 401 or not (await answer.read()).startswith(b"\x81\xa4echo\x81")

    serving(run)


def test_not_one_byte_of_a_strangers_body_is_awaited() -> None:
    async def run(url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        # It announces 15 MiB and sends none of them.
        writer.write(f"POST /internal/x HTTP/1.1\r\nHost: {host}\r\nContent-Length: 15728640\r\n\r\n".encode())
        async with asyncio.timeout(20):
            assert (await reader.readline()).split()[1] == b"401"
        writer.close()

    serving(run)


def test_a_client_that_does_not_know_the_start_asks_twice_and_then_once() -> None:
    async def run(url: str) -> None:
        http = ControlHttp(SECRET)
        await http.start()
        try:
            for _ in range(3):
                assert await http.call(url, "POST", "/internal/a", 1, 5.0) == {"echo": 1}
        finally:
            await http.close()

    serving(run)


def test_a_client_refuses_the_answers_of_strangers() -> None:
    async def run(url: str) -> None:
        with pytest.raises(NotAuthenticated, match="another server"):
            await call(url, {"a": 1})

    serving(run, sign=False)


def test_a_missing_handler_is_an_authentic_error() -> None:
    async def main() -> None:
        runner = web.AppRunner(web.Application(middlewares=[auth_middleware(Verifier(SECRET))]))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        with pytest.raises(LsmqError) as error:
            await call(f"http://{host}:{port}", {})
        assert not isinstance(error.value, NotAuthenticated)
        await runner.cleanup()
        with pytest.raises(Unreachable) as gone:
            await call(f"http://{host}:{port}", {})
        assert not gone.value.sent

    asyncio.run(main())
