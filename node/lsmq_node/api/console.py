"""The console: pages for people, and what they draw. Files of the package, and no request to anywhere else."""

from __future__ import annotations

from importlib import resources
from types import MappingProxyType
from typing import Final

from aiohttp import web

from lsmq.errors import UnknownPath
from lsmq_node.history import COLUMNS, EVERY_S, SAMPLES

from .codec import answer
from .routing import Call, Content, Parameter, Routes
from .schema import integer, list_of, object_of, text

#: Files that are served, and as what: no other name leads anywhere.
_TYPES: Final = MappingProxyType(
    {
        "index.html": "text/html",
        "console.css": "text/css",
        "console.js": "text/javascript",
        "pages.js": "text/javascript",
        "topics.js": "text/javascript",
        "messages.js": "text/javascript",
        "backups.js": "text/javascript",
        "bodies.js": "text/javascript",
        "cluster.js": "text/javascript",
        "groups.js": "text/javascript",
        "keeping.js": "text/javascript",
        "later.js": "text/javascript",
        "producers.js": "text/javascript",
        "rights.js": "text/javascript",
        "drawing.js": "text/javascript",
        "session.js": "text/javascript",
    }
)
_HEADERS: Final = MappingProxyType(
    {
        "Content-Security-Policy": (
            "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cache-Control": "no-cache",
    }
)
_FILE = Parameter("asset", text(), "Name of the file.")
_LAST = Parameter("last", integer(1, SAMPLES, default=SAMPLES), "The newest so many alone.")
_NUMBERS = list_of({"type": "number"})
_HISTORY = object_of({"every_ms": {"type": "integer"}, **dict.fromkeys(COLUMNS, _NUMBERS)})

ROUTES = Routes("system")


def _file(name: str) -> web.Response:
    body = resources.files("lsmq_node.console").joinpath(name).read_bytes()
    return web.Response(body=body, content_type=_TYPES[name], charset="utf-8", headers=_HEADERS)


@ROUTES.get("/console", Content("A page.", text(), ("text/html",)))
async def get_console(call: Call) -> web.StreamResponse:
    """The console, for people."""
    return _file("index.html")


@ROUTES.get(
    "/console/{asset}",
    Content("The file.", text(), ("text/javascript", "text/css")),
    parameters=(_FILE,),
    errors=(UnknownPath,),
)
async def get_console_file(call: Call) -> web.StreamResponse:
    """What the console is made of."""
    name = call.path("asset")
    if name not in _TYPES:
        raise UnknownPath(f"the console has no file {name[:80]!r}; it begins at /console")
    return _file(name)


@ROUTES.get("/v1/history", Content("A sample every `every_ms`, the oldest first.", _HISTORY), parameters=(_LAST,))
async def get_history(call: Call) -> web.StreamResponse:
    """The last hour of this node: rates, times, disk, memory.

    Of this node alone, and gone when it stops. Monitoring reads /metrics.
    """
    return answer(call.request, {"every_ms": round(EVERY_S * 1_000), **call.node.history.columns(call.query["last"])})
