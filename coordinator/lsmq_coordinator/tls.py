"""TLS of a port and of who dials it: certificates from files, read again when the files change.

TLS 1.3 alone, on OpenSSL by way of the standard library. What is read is checked as a whole before it takes the place
of what was there: a certificate whose key has not been written yet changes nothing, and is looked at again. Connections
that are open go on with what they began with.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lsmq import runtime
from lsmq.plain_files import plain_stat

from .errors import TlsUnusable
from .parts import UNSEEN, Part
from .private_files import too_open

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

#: How often it is looked whether the files have changed.
LOOK_EVERY_S = 1.0
#: A handshake that takes longer is given up, and its connection closed.
HANDSHAKE_TIMEOUT_S = 10.0
#: How long a connection that is being closed waits for the other side to say that it closes, too.
SHUTDOWN_TIMEOUT_S = 2.0
_MAX_IGNORED_BYTES = 256 * 1024
_REASONS = {
    "HTTP_REQUEST": "it speaks plain HTTP; the URL of this port begins with https://",
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it showed no certificate, and must (tls_client_auth)",
    "UNSUPPORTED_PROTOCOL": "it does not speak TLS 1.3",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
}
#: People are warned so long before a certificate expires, or when a fifth of its life is left if that is less.
_WARN_S = 14 * 24 * 3600.0


class ClientAuth(Enum):
    """Whether those who connect show a certificate of their own."""

    NONE = "none"  # they are not asked
    OPTIONAL = "optional"  # they are asked, and what they show must be right
    REQUIRED = "required"  # who shows none is refused


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files: a certificate with what leads to its authority, its key, and the authorities that others are
    verified by (None: those of the system, for who dials)."""

    cert: Path
    key: Path
    ca: Path | None = None
    client_auth: ClientAuth = ClientAuth.NONE

    def state(self) -> tuple[tuple[int, int, int], ...]:
        """Another one when a file is another one. Raises ``OSError``, for what is no file too."""
        found = [plain_stat(path) for path in (self.cert, self.key, self.ca) if path is not None]
        return tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in found)


class _Handshake(ssl.SSLObject):
    """A server's handshake whose failure is told to the other side.

    asyncio closes the connection without sending the alert that OpenSSL has made. So it is not told of the failure
    before the other side has closed, or has sent so much more that it does not listen; its time-out counts.
    """

    incoming: ssl.MemoryBIO
    outgoing: ssl.MemoryBIO
    failure: ssl.SSLError | None = None
    ignored_bytes = 0

    def do_handshake(self) -> None:
        if self.failure is None:
            try:
                super().do_handshake()
                return
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError, ssl.SSLSyscallError):
                raise
            except ssl.SSLError as error:
                assert isinstance(self.context, _ServerContext)
                self.failure = self.context.refusal = error
                if not self.outgoing.pending:
                    raise
        self.ignored_bytes += len(self.incoming.read())
        if self.ignored_bytes > _MAX_IGNORED_BYTES:
            raise self.failure
        raise ssl.SSLWantReadError(ssl.SSL_ERROR_WANT_READ, "the alert is to be sent first") from self.failure


class _ServerContext(ssl.SSLContext):
    sslobject_class = _Handshake
    #: Of the last handshake that failed here.
    refusal: ssl.SSLError | None = None

    def wrap_bio(self, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO, *args: Any, **named: Any) -> ssl.SSLObject:
        made = super().wrap_bio(incoming, outgoing, *args, **named)
        assert isinstance(made, _Handshake)
        made.incoming, made.outgoing = incoming, outgoing
        return made


@dataclass(frozen=True, slots=True)
class _Validity:
    """From when until when something is good, in Unix time."""

    begins_s: float
    expires_s: float

    def is_good(self, now_s: float) -> bool:
        return self.begins_s <= now_s < self.expires_s

    def ends_soon(self, now_s: float) -> bool:
        return self.expires_s - now_s < min(_WARN_S, (self.expires_s - self.begins_s) / 5)


@dataclass(frozen=True, slots=True)
class _Loaded:
    server: _ServerContext
    client: ssl.SSLContext
    own: _Validity
    authority: _Validity | None


class Certificates:
    """What a node shows to others, and believes of them. Reading it is safe from any thread."""

    def __init__(self, files: TlsFiles) -> None:
        """Reads the files. Raises ``TlsUnusable``."""
        self.files = files
        self.reloads = 0
        self._state: tuple[tuple[int, int, int], ...] = _state(files)
        self._loaded = _load(files)
        self._failure: str | None = None

    @property
    def server(self) -> ssl.SSLContext:
        """For a connection that is accepted now."""
        return self._loaded.server

    @property
    def client(self) -> ssl.SSLContext:
        """For a connection that is dialled now. It checks the name of who answers."""
        return self._loaded.client

    def why_refused(self, error: OSError) -> str:
        """Why a handshake that was accepted failed with ``error``, for people."""
        if not isinstance(error, ssl.SSLError) and self._loaded.server.refusal is not None:
            # It was held back until the other side had heard of it.
            error, self._loaded.server.refusal = self._loaded.server.refusal, None
        return reason(error)

    @property
    def expires_s(self) -> float:
        """When the certificate in use expires, in Unix time."""
        return self._loaded.own.expires_s

    def look(self) -> bool:
        """Read the files again if they have changed; whether what is used has. Blocks for the disk."""
        try:
            found = _state(self.files)
            if found != self._state:  # Again each time: what made them of no use may be gone though they are the same.
                loaded, now_s = _load(self.files), runtime.wall_time()
                if self._loaded.own.is_good(now_s) and not loaded.own.is_good(now_s):
                    early = f"is not good before {_day(loaded.own.begins_s)} by this machine's clock"
                    why = "has expired already" if loaded.own.expires_s <= now_s else early
                    raise TlsUnusable(f"{self.files.cert} {why}", file=str(self.files.cert))
                self._loaded = loaded
        except TlsUnusable as error:
            self._failure = error.message
            return False
        self._failure = None
        if found == self._state:
            return False
        self._state = found
        self.reloads += 1
        return True

    def problem(self, now_s: float | None = None) -> str | None:
        """What people should see to, in words."""
        loaded, now_s = self._loaded, runtime.wall_time() if now_s is None else now_s
        if self._failure is not None:
            return f"the files have changed and cannot be used; the certificate before is: {self._failure}"
        own, authority, day = loaded.own, loaded.authority, _day(loaded.own.expires_s)
        if now_s >= own.expires_s:
            return f"{self.files.cert} has expired ({day}), and is refused; replace it, which needs no restart"
        if now_s < own.begins_s:
            return (
                f"{self.files.cert} is not good before {_day(own.begins_s)}, and is refused until then: see to this "
                "machine's clock, or to that of its authority"
            )
        if own.ends_soon(now_s):
            return f"{self.files.cert} expires soon ({day}); replace it, which needs no restart"
        if authority is not None and authority.ends_soon(now_s):
            when = "has expired" if now_s >= authority.expires_s else "expires soon"
            return (
                f"the authority in {self.files.ca} {when} ({_day(authority.expires_s)}), and nothing that it issued is "
                "believed from then on; make another one, and give both in this file while certificates are replaced"
            )
        return None

    async def watch(self, part: Part = UNSEEN, changed: Callable[[], None] = lambda: None) -> None:
        """Look again and again, and have the part say what is wrong. Until cancelled."""
        while True:
            problem = self.problem()
            if problem is None:
                part.running()
            else:
                part.retrying(problem)
            await asyncio.sleep(LOOK_EVERY_S)
            if await asyncio.to_thread(self.look):
                changed()


def dialling_context(ca: Path | None, cert: Path | None, key: Path | None) -> ssl.SSLContext:
    """For connections to others than nodes: by which authorities (None: the system's) they are believed, and what they
    are shown, if anything. Reads the files. Raises ``TlsUnusable``."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    if ca is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        _load_authorities(context, ca)
    if cert is not None and key is not None:
        _check_private(key)
        _load_chain(context, TlsFiles(cert, key))
    return context


def reason(error: BaseException) -> str:
    """Why a handshake failed, for people, without what OpenSSL says of its own sources."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not believed: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return _REASONS.get(error.reason, error.reason.lower().replace("_", " "))
    return str(error) or type(error).__name__


def _state(files: TlsFiles) -> tuple[tuple[int, int, int], ...]:
    try:
        return files.state()
    except OSError as error:
        raise TlsUnusable(f"{error.filename}: cannot be read: {error.strerror}", file=str(error.filename)) from error


def _load(files: TlsFiles) -> _Loaded:
    _check_private(files.key)
    own, chain = _validity(files.cert)
    server, client = _ServerContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in (server, client):
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        _load_chain(context, files)
        if files.ca is not None:
            _load_authorities(context, files.ca)
    if files.ca is None:
        client.load_default_certs(ssl.Purpose.SERVER_AUTH)
    server.verify_mode = {
        ClientAuth.NONE: ssl.CERT_NONE,
        ClientAuth.OPTIONAL: ssl.CERT_OPTIONAL,
        ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
    }[files.client_auth]
    return _Loaded(server, client, own, None if files.ca is None else _authority(files.ca, chain))


def _load_chain(context: ssl.SSLContext, files: TlsFiles) -> None:
    def no_password() -> str:
        raise TlsUnusable(
            f"{files.key}: the key is encrypted, and nobody is there to be asked for its password; decrypt it "
            f"(openssl pkey -in {files.key.name}), and have it readable by its owner alone",
            file=str(files.key),
        )

    try:
        plain_stat(files.cert)
        context.load_cert_chain(files.cert, files.key, password=no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            text = f"{files.key} is not the key of the certificate in {files.cert}; give the two that belong together"
        else:
            text = f"{files.cert} and {files.key} hold no certificate and key in PEM: {error.reason or error}"
        raise TlsUnusable(text, file=str(files.cert)) from error
    except OSError as error:
        raise TlsUnusable(f"{files.cert} or {files.key} cannot be read: {error.strerror}") from error


def _load_authorities(context: ssl.SSLContext, path: Path) -> None:
    try:
        plain_stat(path)
        context.load_verify_locations(path)
    except ssl.SSLError as error:
        raise TlsUnusable(
            f"{path}: holds no certificate of an authority in PEM: {error.reason or error}", file=str(path)
        ) from error
    except OSError as error:
        raise TlsUnusable(f"{path}: cannot be read: {error.strerror}", file=str(path)) from error


def _check_private(key: Path) -> None:
    try:
        mode = too_open(key)
    except OSError as error:
        raise TlsUnusable(f"{key}: the key cannot be read: {error.strerror}", file=str(key)) from error
    if mode is not None:
        raise TlsUnusable(
            f"{key}: others may read or write the private key (its mode is {mode}); chmod 600 it", file=str(key)
        )


def _day(moment_s: float) -> str:
    return datetime.fromtimestamp(moment_s, UTC).isoformat()


def _authority(path: Path, chain: Sequence[Certificate]) -> _Validity | None:
    """Of the authority in the file that issued the last of the chain; where none did, of the one that is good longest.
    None where what OpenSSL could read cannot be read here."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature

    def issued(authority: Certificate) -> bool:
        try:
            chain[-1].verify_directly_issued_by(authority)
        except (InvalidSignature, TypeError, ValueError):
            return False
        return True

    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())
        last = max(list(filter(issued, found)) or found, key=lambda each: each.not_valid_after_utc)
        return _Validity(last.not_valid_before_utc.timestamp(), last.not_valid_after_utc.timestamp())
    except (OSError, ValueError, x509.InvalidVersion):
        return None


def _validity(cert: Path) -> tuple[_Validity, Sequence[Certificate]]:
    """From when until when the first certificate in the file is good, and all that are there.

    Raises ``TlsUnusable``, also for one that is good for clients alone: nobody would believe whoever shows it.
    """
    from cryptography import x509  # Only where there is TLS: it takes memory, and a moment.
    from cryptography.x509.oid import ExtendedKeyUsageOID

    uses: set[x509.ObjectIdentifier] = set()
    try:
        chain = x509.load_pem_x509_certificates(cert.read_bytes())
        found = chain[0]
        own = _Validity(found.not_valid_before_utc.timestamp(), found.not_valid_after_utc.timestamp())
        with suppress(x509.ExtensionNotFound):
            uses = set(found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value)
    except OSError as error:
        raise TlsUnusable(f"{cert}: the certificate cannot be read: {error.strerror}", file=str(cert)) from error
    except (ValueError, x509.InvalidVersion, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise TlsUnusable(f"{cert}: holds no certificate in PEM, or a damaged one: {error}", file=str(cert)) from error
    if uses and not {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE} & uses:
        raise TlsUnusable(
            f"{cert} is good for clients alone; give a certificate for servers, with the names that the node is "
            "reached by (lsmq tls issue DIR NAME --host HOST)",
            file=str(cert),
        )
    return own, chain
