"""What the settings of TLS say together: which files a port shows, and what contradicts itself."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from lsmq_coordinator.tls import ClientAuth, TlsFiles
from lsmq_node.cluster_config import ClusterConfig
from lsmq_node.settings import InvalidConfig


class TlsSettings(Protocol):
    """Of a node's configuration, what is looked at here."""

    @property
    def tls_cert(self) -> Path | None: ...
    @property
    def tls_key(self) -> Path | None: ...
    @property
    def tls_client_ca(self) -> Path | None: ...
    @property
    def tls_client_auth(self) -> ClientAuth | None: ...
    @property
    def public_url(self) -> str: ...
    @property
    def cluster(self) -> ClusterConfig | None: ...


def check_tls(config: TlsSettings) -> None:
    """Raises ``InvalidConfig`` for settings of the port for clients that do not go together."""
    client_auth = config.tls_client_auth or ClientAuth.NONE
    if (config.tls_cert is None) != (config.tls_key is None):
        given, missing = ("tls_cert", "tls_key") if config.tls_key is None else ("tls_key", "tls_cert")
        raise InvalidConfig(f"{given} is set and {missing} is not; TLS needs both", setting=missing)
    if config.tls_cert is None:
        for name in ("tls_client_ca", "tls_client_auth", "tls_ca"):
            if getattr(config, name) is not None:
                raise InvalidConfig(f"{name} is set, and the port speaks no TLS: set tls_cert", setting=name)
    elif client_auth is not ClientAuth.NONE and config.tls_client_ca is None:
        raise InvalidConfig(
            f"tls_client_auth is {client_auth.value!r}, and nothing says by whom: set tls_client_ca",
            setting="tls_client_ca",
        )
    elif not config.public_url.startswith("https://"):
        raise InvalidConfig(
            f"the port speaks TLS (tls_cert), and clients are sent to {config.public_url}; let advertised_url, or the "
            "url of this node among the voters, begin with https://",
            setting="advertised_url",
        )


def client_files(config: TlsSettings) -> TlsFiles | None:
    """What the port for clients shows; None where it speaks no TLS."""
    if config.tls_cert is None or config.tls_key is None:
        return None
    standard = ClientAuth.NONE if config.tls_client_ca is None else ClientAuth.REQUIRED
    return TlsFiles(config.tls_cert, config.tls_key, config.tls_client_ca, config.tls_client_auth or standard)


def peer_files(config: TlsSettings) -> TlsFiles | None:
    """What other nodes of the cluster are shown; None where nodes speak no TLS with each other.

    Raises ``InvalidConfig`` where there is nothing to show."""
    cluster = config.cluster
    if cluster is None or cluster.tls_ca is None:
        return None
    cert, key = cluster.tls_cert or config.tls_cert, cluster.tls_key or config.tls_key
    if cert is None or key is None:
        raise InvalidConfig(
            "cluster.tls_ca is set, and this node has nothing to show: set cluster.tls_cert and cluster.tls_key",
            setting="cluster.tls_cert",
        )
    return TlsFiles(cert, key, cluster.tls_ca, ClientAuth.REQUIRED)
