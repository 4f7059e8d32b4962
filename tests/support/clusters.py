"""Real clusters of processes for tests. Those of one half of the modules speak TLS, everywhere and nothing else.

Which half goes by the module's name, so that nobody has to choose, and none forgets. While a cluster runs, clients of
this process and of commands that it starts believe it (``LSMQ_CA``), and so do :class:`api.calls.Api`, ``opener()`` and
:func:`believed`.
"""

from __future__ import annotations

import os
import signal
import ssl
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lsmq_lab.local_cluster import LocalCluster, found_plan


def in_tls(module: str) -> bool:
    """Whether the clusters of this test module, by its ``__name__``, speak TLS."""
    return zlib.crc32(module.encode()) % 2 == 0


def believed() -> ssl.SSLContext:
    """For requests to a cluster that runs, whether or not it speaks TLS."""
    return ssl.create_default_context(cafile=os.environ.get("LSMQ_CA"))


@contextmanager
def running_cluster(module: str, directory: Path, *, up: bool = True, **plan: Any) -> Iterator[LocalCluster]:
    """A cluster in a new ``directory``, as :func:`found_plan` plans it: three nodes, three shards and no ZooKeeper,
    where nothing else is said. It is removed in the end."""
    cluster = LocalCluster.found(directory, found_plan(**{"tls": in_tls(module), **plan}))
    try:
        with cluster.trusted():
            if up:
                cluster.up()
            yield cluster
    finally:
        for node in cluster.plan.nodes:  # That they stop well has tests of its own, and takes seconds.
            cluster.process(node.id).send(signal.SIGKILL)
        cluster.stop_zookeeper(signal.SIGKILL)
        cluster.down(delete=True)
