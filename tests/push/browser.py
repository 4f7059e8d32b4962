"""A real browser without a window, driven over its DevTools protocol."""

from __future__ import annotations

import atexit
import base64
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from support.waiting import comes_true

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
START_S = 90.0
ANSWER_S = 60.0


def find_browser() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Page:
    """One page of the browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, session: str) -> None:
        self._socket = socket
        self._session = session

    async def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression."""
        answer = await ask(self._socket, "Runtime.evaluate", self._session, expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def prefer(self, scheme: str) -> None:
        """Have pages look as to somebody who prefers ``light`` or ``dark`` ones."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await ask(self._socket, "Emulation.setEmulatedMedia", self._session, features=features)

    async def sized(self, width: int, height: int) -> None:
        """Have the page so many CSS pixels; a narrow one is a telephone's."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        await ask(self._socket, "Emulation.setDeviceMetricsOverride", self._session, **size)

    async def picture(self) -> bytes:
        """PNG of what is seen."""
        taken = await ask(self._socket, "Page.captureScreenshot", self._session, format="png")
        return base64.b64decode(taken["data"])

    async def close(self) -> None:
        await ask(self._socket, "Page.close", self._session)


class Browser:
    """Its pages know each other, and nothing of those of other blocks: they share cookies and what they keep."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, context: str) -> None:
        self._socket = socket
        self._context = context

    async def open(self, url: str) -> Page:
        target = await ask(self._socket, "Target.createTarget", url=url, browserContextId=self._context)
        attached = await ask(self._socket, "Target.attachToTarget", targetId=target["targetId"], flatten=True)
        return Page(self._socket, attached["sessionId"])


async def ask(
    socket: aiohttp.ClientWebSocketResponse, method: str, session: str | None = None, **params: Any
) -> dict[str, Any]:
    """One command, and its answer; events in between are passed over. One command at a time."""
    command: dict[str, Any] = {"id": 1, "method": method, "params": params}
    if session is not None:
        command["sessionId"] = session
    await socket.send_json(command)
    while True:
        found: dict[str, Any] = await socket.receive_json(timeout=ANSWER_S)
        if found.get("id") == 1:
            assert "error" not in found, found
            result: dict[str, Any] = found["result"]
            return result


def _key(cert: Path) -> str:
    """The hash of a certificate's public key, as Chromium is told whom it is to believe."""
    key = x509.load_pem_x509_certificate(cert.read_bytes()).public_key()
    found = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(hashlib.sha256(found).digest()).decode()


class _Running:
    """A browser's process, which ends with this one."""

    def __init__(self, executable: str, keys: str) -> None:
        self._profile = Path(tempfile.mkdtemp(prefix="lsmq-browser-"))
        options = (
            *([f"--ignore-certificate-errors-spki-list={keys}"] if keys else []),
            "--headless=new",
            "--no-sandbox",  # Tests may run as root, and open no page but their own.
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-extensions",
            "--disable-sync",
            "--no-first-run",
            "--remote-debugging-port=0",
            f"--user-data-dir={self._profile}",
        )
        self._process = subprocess.Popen(
            [executable, *options, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        atexit.register(self.end)

    @property
    def is_there(self) -> bool:
        return self._process.poll() is None

    async def address(self) -> str:
        file = self._profile / "DevToolsActivePort"
        await comes_true(lambda: file.exists() and "\n" in file.read_text(), "the browser listens", START_S)
        port, path = file.read_text().split()[:2]
        return f"http://127.0.0.1:{port}{path}"

    def end(self) -> None:
        atexit.unregister(self.end)
        self._process.kill()
        self._process.wait()
        shutil.rmtree(self._profile, ignore_errors=True)


_shared: list[_Running] = []


@asynccontextmanager
async def browser(executable: str, *, believes: Iterable[Path] = ()) -> AsyncIterator[Browser]:
    """A browser as it is when it is new: the one of this process, or one of the block's own that believes who has the
    key of one of these certificates, too."""
    keys = ",".join(map(_key, believes))
    if keys:
        running = _Running(executable, keys)
    else:
        if not (_shared and _shared[-1].is_there):
            _shared.append(_Running(executable, ""))
        running = _shared[-1]
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(await running.address(), max_msg_size=0) as socket,
        ):
            context = (await ask(socket, "Target.createBrowserContext", disposeOnDetach=True))["browserContextId"]
            yield Browser(socket, context)
            await ask(socket, "Target.disposeBrowserContext", browserContextId=context)
    finally:
        if keys:
            running.end()
