"""TLS of a client: by which authorities it believes a node, and what it shows for itself."""

from __future__ import annotations

import logging
import os
import ssl
from pathlib import Path

import aiohttp

from lsmq import runtime
from lsmq.errors import InvalidRequest
from lsmq.plain_files import plain_stat

#: Files are looked at again after so long, when a request is made: certificates change, and clients run for months.
_LOOK_EVERY_S = 10.0
_log = logging.getLogger("lsmq")
_REFUSALS = {
    "WRONG_VERSION_NUMBER": "it does not speak TLS there; does its URL begin with http://?",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it wants to see a certificate: give cert and cert_key (--cert, --cert-key)",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not know the authority of this client's certificate",
    "TLSV1_ALERT_PROTOCOL_VERSION": "it does not speak TLS 1.3",
}


class ClientTls:
    """Makes a context when one is needed, and another one when the files have changed. Nothing is read for ``http``."""

    def __init__(self, ca: str | Path | None, cert: str | Path | None, key: str | Path | None) -> None:
        """PEM files; without ``ca`` the system's authorities count. What is None is taken from ``LSMQ_CA``,
        ``LSMQ_CERT``, ``LSMQ_CERT_KEY``. Raises ``InvalidRequest`` for files that cannot be used."""
        self._ca = _path(ca, "LSMQ_CA")
        self._cert, self._key = _path(cert, "LSMQ_CERT"), _path(key, "LSMQ_CERT_KEY")
        if self._cert is None and self._key is not None:
            raise InvalidRequest(f"there is a key ({self._key}), and no certificate: give cert as well (--cert)")
        self._files = [path for path in (self._ca, self._cert, self._key) if path is not None]
        self._context: ssl.SSLContext | None = None
        self._state: list[tuple[int, int]] = []
        self._looked_s = 0.0
        if self._files:
            self._load()

    def context(self) -> ssl.SSLContext:
        """For the next request. Files that cannot be used now are told of; what was read before then goes on."""
        now_s = runtime.monotonic()
        if self._context is None:
            return self._load()
        if self._files and now_s - self._looked_s >= _LOOK_EVERY_S:
            self._looked_s = now_s
            try:
                if self._found() != self._state:
                    return self._load()
            except InvalidRequest as error:
                _log.warning("certificates are not read again: %s", error.message)
        return self._context

    def _load(self) -> ssl.SSLContext:
        state = self._found()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        at = self._ca
        try:
            if at is None:
                context.load_default_certs(ssl.Purpose.SERVER_AUTH)
            else:
                context.load_verify_locations(at)
            if self._cert is not None:
                at = self._cert
                context.load_cert_chain(self._cert, self._key, password=self._no_password)
        except OSError as error:  # of which those of TLS are some
            reason = error.reason if isinstance(error, ssl.SSLError) and error.reason else error.strerror
            beside = f" (with the key {self._key})" if at == self._cert and self._key is not None else ""
            raise InvalidRequest(f"{at}{beside} is not what TLS needs, in PEM: {reason}", file=str(at)) from error
        self._context, self._state, self._looked_s = context, state, runtime.monotonic()
        return context

    def _found(self) -> list[tuple[int, int]]:
        try:
            return [(found.st_ino, found.st_mtime_ns) for found in map(plain_stat, self._files)]
        except OSError as error:
            raise InvalidRequest(f"{error.filename}: cannot be read: {error.strerror}") from error

    def _no_password(self) -> str:
        raise InvalidRequest(f"the key {self._key or self._cert} is encrypted; decrypt it: openssl pkey -in FILE")


def refusal(error: BaseException) -> str | None:
    """What TLS has against a connection, for people; None where it was something else. Nothing was asked then."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        found: BaseException | None = error.certificate_error
    elif isinstance(error, aiohttp.ClientConnectorError):
        found = error.os_error
    else:
        found = error if isinstance(error, ssl.SSLError) else error.__cause__ or error.__context__
    if isinstance(found, ssl.SSLCertVerificationError):
        return f"its certificate is not believed: {found.verify_message}; ca (--ca, LSMQ_CA) names whose are"
    if isinstance(found, ssl.SSLError) and found.reason in _REFUSALS:
        return _REFUSALS[found.reason]
    if isinstance(found, ssl.SSLError) and found.reason and "ALERT" in found.reason:
        return f"it refuses this client: {found.reason.lower().replace('_', ' ')}"
    return None


def _path(given: str | Path | None, variable: str) -> Path | None:
    text = given or os.environ.get(variable) or None
    return None if text is None else Path(text)
