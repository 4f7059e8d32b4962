"""Whose certificates clients of local nodes believe. Light to import: processes that only send and read do so too."""

from __future__ import annotations

import http.client
import os
import ssl
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

#: How an opener fails where no node answers: a port that nobody listens on may give back what it is sent.
NO_ANSWER = (OSError, http.client.HTTPException)


def opener(ca: Path | None = None) -> urllib.request.OpenerDirector:
    """Whose certificates it believes are those of ``ca``, or of ``LSMQ_CA``, as clients do."""
    given = os.environ.get("LSMQ_CA") if ca is None else str(ca)
    return _opener_of(given or None)


@contextmanager
def believing(ca: Path | None, shown: tuple[Path, Path] | None = None) -> Iterator[None]:
    """In this block clients of this process, and of those that it starts, believe nodes with certificates of ``ca``,
    and show a certificate of their own, given with its key."""
    files = {"LSMQ_CA": ca, **dict(zip(("LSMQ_CERT", "LSMQ_CERT_KEY"), shown or (), strict=False))}
    given = {name: str(file) for name, file in files.items() if file is not None}
    before = {name: os.environ[name] for name in files if name in os.environ}
    os.environ.update(given)
    try:
        yield
    finally:
        for name in given:
            os.environ.pop(name, None)
        os.environ.update(before)


@cache
def _opener_of(ca: str | None) -> urllib.request.OpenerDirector:
    """A cluster on this machine is never reached through a proxy that the environment names."""
    direct = urllib.request.ProxyHandler({})
    if ca is None:
        return urllib.request.build_opener(direct)
    context = ssl.create_default_context(cafile=ca)
    return urllib.request.build_opener(direct, urllib.request.HTTPSHandler(context=context))
