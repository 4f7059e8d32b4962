"""The settings of backups of a node: how fast it is read for any, and where those go that it makes itself."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lsmq_node.client_port_config import ClientPortConfig
from lsmq_node.data_config import nested
from lsmq_node.settings import KIB, MIB, InvalidConfig, setting

_SCHEME = "s3://"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupConfig(ClientPortConfig):
    """A part of :class:`lsmq_node.config.NodeConfig`."""

    backup_bytes_per_s: int = setting(
        128 * MIB,
        "Most bytes a second that are read for backups, all of them together.",
        range=(64 * KIB, 1024 * 1024 * MIB),
        hazard="Too many, and clients wait for the disk meanwhile; too few, and what merging drops takes space longer.",
    )
    backup_to: str | None = setting(
        None,
        "Where backups go that are [started at this node](backup.md#by-a-node): a directory by its whole path, or "
        "`s3://BUCKET/PREFIX`, whose credentials are in the node's environment. Left out: none are.",
        hazard="On the node's own disk it is lost with it, and takes its space.",
    )
    backup_keep: int = setting(
        7,
        "After a backup of its own the node removes all but the newest so many of `backup_to`. 0: it removes none.",
        range=(0, 100_000),
        hazard="0: they take space until somebody removes them.",
    )

    def check_backups(self) -> None:
        """Raises :class:`InvalidConfig`."""
        place = self.backup_to
        if place is None or place.startswith(_SCHEME):
            return
        if "://" in place or not Path(place).is_absolute():
            raise InvalidConfig(
                f"backup_to is {place!r}; it must be a directory by its whole path, which begins with '/', or "
                "s3://BUCKET/PREFIX",
                setting="backup_to",
            )
        for data in self.disks:
            if nested(Path(place), data):
                raise InvalidConfig(
                    f"backup_to is {place}, and the node's data are in {data}: one must not lie in the other; choose "
                    "a directory beside it, best on another disk",
                    setting="backup_to",
                )
