"""Files that hold secrets: who else may read them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from lsmq.plain_files import plain_stat


def too_open(path: Path) -> str | None:
    """The mode of a file that others than its owner may read or write, None where they may not.

    Raises ``OSError``, also where it is no regular file: whoever opens a pipe that nobody writes to waits for ever.

    Where it is root's, and this process is somebody else's, a group may read it: so it is mounted into containers.
    """
    found = plain_stat(path)
    mode = stat.S_IMODE(found.st_mode)
    forbidden = 0o037 if found.st_uid == 0 and os.geteuid() != 0 else 0o077
    return f"{mode:03o}" if mode & forbidden else None
