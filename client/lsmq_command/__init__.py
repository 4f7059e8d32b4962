"""Where the command ``lsmq`` begins: an interrupt counts as one from the first import on, and not as a defect.

A package of its own, since importing anything of ``lsmq`` imports the client.
"""

from __future__ import annotations

import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command and exit."""
    try:
        from lsmq.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(1)
