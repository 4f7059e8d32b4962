"""What a client has only where an extra of the package is installed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lsmq._route_documents import DiskCopy, default_cache_directory
from lsmq._route_table import RouteSource
from lsmq._tls import ClientTls
from lsmq.errors import ZooKeeperNotInstalled

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from lsmq.tracing import Tracing


def tracing_of(given: bool | TracerProvider) -> Tracing | None:
    """Raises ``TracingNotInstalled``."""
    if given is False:
        return None
    from lsmq.tracing import Tracing  # with OpenTelemetry, which nobody else needs

    return Tracing(None if given is True else given)


def zookeeper_source(
    hosts: str, cluster: str, refresh_s: float, cache_dir: str | Path | None, tls: ClientTls
) -> RouteSource:
    try:
        from lsmq._zookeeper import ZooKeeperRoutes
    except ModuleNotFoundError as error:
        raise ZooKeeperNotInstalled(
            f'routes from ZooKeeper need {error.name}, which is not installed; run: pip install "lsmq[zookeeper]"',
            missing=error.name,
        ) from error
    directory = default_cache_directory() if cache_dir is None else Path(cache_dir) if cache_dir else None
    copy = None if directory is None else DiskCopy(directory, hosts, cluster)
    return ZooKeeperRoutes(hosts, cluster, refresh_s=refresh_s, copy=copy, tls=tls.context)
