"""A node in several processes of one machine, so that it uses all cores: who they are, and what keeps them running.

::

    supervisor          one configuration, one log, one place for signals; serves nothing itself
        p0, p1, ...     each a member of a cluster with shards, a listener and a data directory of its own
        control         with two of them: votes, so that one that dies leaves a majority, and holds no shard

A node of its own becomes a cluster on this machine, founded at the first start, each of whose shards has one replica. A
member of a cluster becomes several members with one label ``host``. :mod:`~.plan` decides who they are, as pure code;
:mod:`~.directory` knows who they were; :mod:`~.supervisor` starts them, and starts again what ends.
"""

from __future__ import annotations

import dataclasses
import sys

import structlog

from lsmq.errors import LsmqError
from lsmq_node.api import logs, serve
from lsmq_node.config import NodeConfig

from . import directory
from .plan import cores, planned
from .supervisor import Supervisor

__all__ = ["run"]

_log = structlog.get_logger("lsmq.processes")


def run(config: NodeConfig) -> int:
    """Serve in as many processes as the configuration says until told to stop; the exit code.

    As :func:`lsmq_node.api.serve.run`, which it is for one process: the ready line comes when all serve.
    """
    if config.processes == 1:
        return serve.run(config)
    logs.configure(config.log_format, "supervisor")
    try:
        config.check_exposure()
        count = config.processes or directory.fitting(config, cores())
        if count == 1:
            return serve.run(dataclasses.replace(config, processes=1))
        processes = planned(config, count, directory.held(config, count))
    except LsmqError as error:
        print(f"error: {error.code}: {error.message}", file=sys.stderr, flush=True)
        return 1
    return Supervisor(config, processes).run()
