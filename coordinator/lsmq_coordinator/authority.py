"""A certificate authority in a directory, for clusters to try TLS with, and for those who have no other.

::

    ca.crt  ca.key          the authority; who has the key can be everybody
    NAME.crt  NAME.key      of each node or client that was given a certificate

Keys are of the curve P-256, and readable by their owner alone. A certificate is good for servers and for clients, as
nodes are both to each other. Files are replaced as a whole, the key first.

Not supported: revocation. Certificates live for a year; who must be shut out before needs another authority.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from lsmq.errors import InvalidRequest

from .errors import TlsUnusable

AUTHORITY_DAYS = 3_650
CERTIFICATE_DAYS = 365
#: Clocks of other machines may be behind so much.
_EARLIER = datetime.timedelta(hours=1)
_MAX_NAME = 64
_MAX_HOST = 253
_LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"(\*\.)?{_LABEL}(\.{_LABEL})*")
_SERVER_AND_CLIENT = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


class Authority:
    """The authority in a directory."""

    def __init__(self, directory: Path) -> None:
        """Raises ``TlsUnusable``, ``InvalidRequest`` where there is none."""
        self.directory = directory
        try:
            cert, key = self.cert.read_bytes(), (directory / "ca.key").read_bytes()
        except FileNotFoundError as error:
            raise InvalidRequest(f"no authority in {directory}; make one: lsmq tls init {directory}") from error
        except OSError as error:
            raise TlsUnusable(f"{error.filename}: cannot be read: {error.strerror}") from error
        try:
            self._cert = x509.load_pem_x509_certificate(cert)
            found = serialization.load_pem_private_key(key, password=None)
        except (ValueError, TypeError) as error:
            raise TlsUnusable(f"{directory}: ca.crt and ca.key are no certificate and key in PEM: {error}") from error
        if not isinstance(found, ec.EllipticCurvePrivateKey) or found.public_key() != self._cert.public_key():
            raise TlsUnusable(f"{directory}: ca.key is not the key of ca.crt")
        self._key = found

    @property
    def cert(self) -> Path:
        """What is to be trusted: give it to whoever connects."""
        return self.directory / "ca.crt"

    @classmethod
    def create(cls, directory: Path, name: str = "LSMQ local authority") -> Authority:
        """A new one. Raises ``InvalidRequest`` where there is one already."""
        if (directory / "ca.key").exists() or (directory / "ca.crt").exists():
            raise InvalidRequest(f"there is an authority in {directory} already; issue certificates with it")
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        key = ec.generate_private_key(ec.SECP256R1())
        subject = _name(name)
        builder = _builder(subject, subject, key, AUTHORITY_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(authority=True), critical=True)
        _write(directory / "ca.key", _pem(key), private=True)
        _write(directory / "ca.crt", builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        return cls(directory)

    def issue(self, name: str, hosts: Sequence[str] = (), *, days: int = CERTIFICATE_DAYS) -> tuple[Path, Path]:
        """A certificate and its key for ``name``, in place of those it had; the files.

        ``hosts``: names and addresses that the bearer is reached by; none: those of its former certificate. Where there
        are none either, it is good for a client alone. Raises ``InvalidRequest``, ``TlsUnusable``.
        """
        if not 0 < len(name) <= _MAX_NAME or name in ("ca", ".", "..") or "/" in name or not name.isprintable():
            raise InvalidRequest(
                f"{name!r} is no name for a certificate: use 1 to {_MAX_NAME} letters or digits, no '/', not 'ca'"
            )
        if not 0 < days <= AUTHORITY_DAYS:
            raise InvalidRequest(f"a certificate lives 1 to {AUTHORITY_DAYS} days, not {days}")
        cert_file, key_file = self.directory / f"{name}.crt", self.directory / f"{name}.key"
        names = [_host(host) for host in hosts] or _former_names(cert_file)
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(name), self._cert.subject, key, days)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(authority=False), critical=True)
        uses = _SERVER_AND_CLIENT if names else (ExtendedKeyUsageOID.CLIENT_AUTH,)
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(issuer, critical=False)
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        _write(key_file, _pem(key), private=True)
        signed = builder.sign(self._key, hashes.SHA256())
        _write(cert_file, signed.public_bytes(serialization.Encoding.PEM))
        return cert_file, key_file


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - _EARLIER).not_valid_after(now + datetime.timedelta(days=days))
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text.strip("[]")))
    except ValueError:
        pass
    if len(text) > _MAX_HOST or _HOST.fullmatch(text) is None:
        raise InvalidRequest(
            f"{text[:80]!r} is no name of a host: give one such as n1.example or *.example, in ASCII, without scheme "
            "and port, or an address such as 10.0.0.1"
        )
    return x509.DNSName(text)


def _former_names(cert: Path) -> list[x509.GeneralName]:
    """What its bearer was reached by until now; nothing where there is none."""
    try:
        found = x509.load_pem_x509_certificate(cert.read_bytes())
        return list(found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except (FileNotFoundError, x509.ExtensionNotFound):
        return []
    except OSError as error:
        raise TlsUnusable(f"{cert}: cannot be read: {error.strerror}", file=str(cert)) from error
    except ValueError as error:
        raise TlsUnusable(f"{cert}: holds no certificate in PEM; move it away", file=str(cert)) from error


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes, *, private: bool = False) -> None:
    temporary = path.with_name(f"{path.name}.new")
    temporary.unlink(missing_ok=True)
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600 if private else 0o644)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
