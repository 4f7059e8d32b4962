"""Whose data a directory holds that several processes share, and how many it was made for.

::

    DIR/node.json      {"format": 2, "shards": 2, "processes": 2}: of a node of its own, as it was founded
    DIR/secret         what its processes know each other by
    DIR/p0/, DIR/p1/   the data directory of each
    DIR/control/       with two: the control plane's third journal

The directory of a cluster's member is that of its first process; the others' lie in it, by their names.
"""

from __future__ import annotations

from pathlib import Path

import structlog

from lsmq.errors import DataDirectoryUnusable
from lsmq_coordinator.auth import ClusterSecret
from lsmq_node.config import InvalidConfig, NodeConfig
from lsmq_node.disks import NODE_FILE, NodeFile
from lsmq_node.disks.mark import MARK_FILE

from .plan import CONTROL, MAX_PROCESSES, SECRET_FILE, Founded, data_of, names

_log = structlog.get_logger("lsmq.processes")


def fitting(config: NodeConfig, cores: int) -> int:
    """``auto``: a process a core, and as many as there are with shards; one for data that one process made."""
    found = NodeFile.load(config.data)
    if config.cluster is None and found is not None and found.processes is None:
        _log.warning("one_process", data=str(config.data), why="its data was made by one process, which serves it")
        return 1
    fewest = 1
    if config.cluster is None:
        founded = Founded(MAX_PROCESSES, 1) if found is None else Founded(found.processes or 1, found.shards)
        fewest = 1 if found is None else sum(name != CONTROL for name in founded.voters)
    else:
        founded = None
    return max(cores, fewest, *(place for place, _ in _beyond(config, 0, founded)))


def held(config: NodeConfig, count: int) -> Founded | None:
    """Make the directory one of ``count`` processes, or see that it may have so many; None for a cluster's member.

    Raises ``InvalidConfig`` with what to do where it may not.
    """
    if config.cluster is not None:
        _check_rest(config, count, None)
        return None
    found = NodeFile.load(config.data)
    if found is None:
        return _found(config, count)
    if found.cluster is not None:
        raise InvalidConfig(
            f"{config.data} belongs to {found}; start it with its own configuration file", setting="data"
        )
    if found.processes is None:
        raise InvalidConfig(
            f"{config.data} belongs to {found}, which one process serves: start it with processes = 1, or start with "
            "an empty directory and bring messages there with 'lsmq backup create' and 'lsmq backup extract'",
            setting="processes",
        )
    founded = Founded(found.processes, found.shards)
    if config.shards not in (1, founded.shards):
        raise InvalidConfig(
            f"shards is {config.shards}, and {config.data} was made with {founded.shards}, for good; leave it out",
            setting="shards",
        )
    fewest = sum(name != CONTROL for name in founded.voters)
    if count < fewest:
        raise InvalidConfig(
            f"processes is {count}, and of {config.data} {fewest} vote, which have to run; start with {fewest} or more",
            setting="processes",
        )
    _check_rest(config, count, founded)
    return founded


def _found(config: NodeConfig, count: int) -> Founded:
    shards = config.shards if config.shards > 1 else count
    if shards < count:
        raise InvalidConfig(
            f"shards is {shards}, and there are {count} processes, some of which would have nothing to do; set shards "
            f"to {count} or more, or leave it out",
            setting="shards",
        )
    for path in (path for disk in config.disks for path in (disk, *sorted(disk.glob("p[0-9]*")))):
        if (path / MARK_FILE).exists() or _holds_shards(path):
            raise InvalidConfig(
                f"{path} is of a node (it has {MARK_FILE}, or shards), and {config.data}, the first directory of data, "
                f"has no {NODE_FILE}: bring the node's own first directory back where it was emptied or exchanged, or "
                "is not mounted; or empty the others to begin anew",
                setting="data",
            )
    try:
        config.data.mkdir(parents=True, exist_ok=True)
        secret = config.data / SECRET_FILE
        if not secret.exists():
            ClusterSecret.create(secret)
    except OSError as error:
        raise DataDirectoryUnusable(f"{config.data} cannot be written: {error.strerror}") from error
    NodeFile(shards, processes=count).store(config.data)
    return Founded(count, shards)


def _check_rest(config: NodeConfig, count: int, founded: Founded | None) -> None:
    """Who is not started must hold nothing: its shards would be gone."""
    for place, name in _beyond(config, count, founded):
        raise InvalidConfig(
            f"processes is {count}, and {name} holds shards: start with {place}, give them away with 'lsmq node drain "
            f"{name}', and then start with fewer",
            setting="processes",
        )


def _beyond(config: NodeConfig, count: int, founded: Founded | None) -> list[tuple[int, str]]:
    """Processes from a number of them on that hold shards, with how many it takes to have each; the last one first."""
    found = []
    holding = [name for name in names(config, MAX_PROCESSES, founded) if name != CONTROL]
    for place in range(MAX_PROCESSES, max(count, 1), -1):
        if any(map(_holds_shards, data_of(config, holding[place - 1]))):
            found.append((place, holding[place - 1]))
    return found


def _holds_shards(directory: Path) -> bool:
    return any(entry.name.removeprefix("shard-").isdecimal() for entry in directory.glob("shard-*"))
