"""Where a node keeps its files."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from lsmq_node.settings import InvalidConfig, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """The first part of :class:`lsmq_node.config.NodeConfig`, which checks what must hold between settings."""

    data: Path = setting(
        ...,
        "Directory of the node's files. Created when missing. Several, with commas between or in a list, each on "
        "[a disk of its own](operations.md#several-disks): shards are spread over them, and the first has what is the "
        "node's.",
        hazard="Local disks: on a network file system fsync may not mean what it says.",
    )
    #: The other directories of ``data``.
    further_data: tuple[Path, ...] = ()

    @property
    def disks(self) -> tuple[Path, ...]:
        """All directories of ``data``."""
        return (self.data, *self.further_data)

    @property
    def data_text(self) -> str:
        """``data`` as it is written."""
        return ",".join(map(str, self.disks))

    def check_disks(self) -> None:
        """Raises :class:`InvalidConfig` for directories of which one lies in another."""
        for one, other in combinations(self.disks, 2):
            if nested(one, other):
                raise InvalidConfig(
                    f"data names {one} and {other}, which are one directory, or one lies in the other; name a "
                    "directory for each disk",
                    setting="data",
                )


def nested(one: Path, other: Path) -> bool:
    """Whether two directories are the same, or one lies in the other, also under another name (a link, a mount)."""
    one, other = one.resolve(), other.resolve()
    if one == other or one in other.parents or other in one.parents:
        return True
    return any(
        (inner := _identity(path)) is not None and inner == _identity(outer)
        for outer, lower in ((one, other), (other, one))
        for path in (lower, *lower.parents)
    )


def _identity(path: Path) -> tuple[int, int] | None:
    """What a directory is whatever its name; None for one that is not there."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def data_directories(value: Any, what: str) -> tuple[Path, ...]:
    """The directories that ``data`` names, at least one. Raises :class:`InvalidConfig`."""
    items = value if isinstance(value, list | tuple) else str(value).split(",")
    found = tuple(Path(str(item).strip()) for item in items if str(item).strip())
    if isinstance(value, bool | int) or not found or not all(isinstance(item, str | Path) for item in items):
        raise InvalidConfig(f"{what} is {value!r}; it must be a path, or a list of them", setting="data")
    if len(found) > 1 and isinstance(value, str | Path) and Path(value).exists():
        raise InvalidConfig(
            f"{what} is {str(value)!r}, which is a directory with a comma in its name, and commas stand between "
            "directories: rename it",
            setting="data",
        )
    return found
