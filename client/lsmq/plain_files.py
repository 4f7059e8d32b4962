"""Files that are read again while a program runs, as tokens, keys and certificates are: none that is waited for."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def plain_stat(path: Path) -> os.stat_result:
    """What there is to know of a regular file. Raises ``OSError``, for a pipe or a device too: who opens one may wait
    for ever, and what it gave once it does not give again."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return found
